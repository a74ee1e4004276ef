//! Images that come as hashes: from the cache, or asked for.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::{BlobCache, TunnelError, lock};

/// Images of one session.
pub(super) struct Images {
    cache: Option<BlobCache>,
    most_bytes: u64,
    /// What was asked for: bytes that have come, and how many there are.
    coming: Mutex<HashMap<u64, (Vec<u8>, u64)>>,
    came: Condvar,
}

impl Images {
    pub(super) fn new(cache: Option<BlobCache>, most_bytes: u64) -> Self {
        Self {
            cache,
            most_bytes,
            coming: Mutex::default(),
            came: Condvar::new(),
        }
    }

    /// The image with a hash; `ask` asks for what is not here.
    pub(super) fn get(
        &self,
        blob: u64,
        hash: &[u8; 32],
        bytes: u64,
        ask: impl FnOnce() -> Result<(), TunnelError>,
        is_over: impl Fn() -> bool,
    ) -> Result<Vec<u8>, TunnelError> {
        if bytes > self.most_bytes {
            let text = format!("a module of {bytes} bytes, more than {}", self.most_bytes);
            return Err(TunnelError::Protocol(text));
        }
        if let Some(found) = self.cache.as_ref().and_then(|cache| cache.get(hash, bytes)) {
            return Ok(found);
        }
        lock(&self.coming).insert(blob, (Vec::new(), bytes));
        ask()?;
        let mut coming = lock(&self.coming);
        loop {
            if coming
                .get(&blob)
                .is_some_and(|(have, all)| have.len() as u64 == *all)
            {
                break;
            }
            if is_over() {
                return Err(TunnelError::Closed);
            }
            coming = self
                .came
                .wait(coming)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let (image, _) = coming.remove(&blob).unwrap_or_default();
        drop(coming);
        if blake3::hash(&image).as_bytes() != hash {
            return Err(TunnelError::protocol(
                "a module that is not what its hash says",
            ));
        }
        if let Some(cache) = &self.cache {
            cache.put(hash, &image);
        }
        Ok(image)
    }

    /// Bytes of an image that was asked for.
    pub(super) fn arrived(&self, blob: u64, offset: u64, data: &[u8]) -> Result<(), TunnelError> {
        let mut coming = lock(&self.coming);
        match coming.get_mut(&blob) {
            Some((have, all))
                if have.len() as u64 == offset && offset + data.len() as u64 <= *all =>
            {
                have.extend_from_slice(data);
            }
            _ => {
                return Err(TunnelError::protocol(
                    "bytes of a module that was not asked for",
                ));
            }
        }
        drop(coming);
        self.came.notify_all();
        Ok(())
    }

    /// Wakes who waits for bytes.
    pub(super) fn wake(&self) {
        // Under the lock, so that a thread that has just looked does not sleep through it.
        drop(lock(&self.coming));
        self.came.notify_all();
    }
}
