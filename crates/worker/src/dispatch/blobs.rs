//! Bytes that are sent ahead of the calls that use them: images and graphs.

use std::collections::HashMap;

use mica_gpu::{GpuError, Share};
use mica_vgpu::VgpuError;
use mica_wire::session::{Done, Violation, chunk_state};

use super::{Dispatcher, Failure, done, handlers, lock};

/// Most blobs that wait for their calls.
const BLOBS: usize = 4096;

/// Blobs that wait for their calls.
#[derive(Default)]
pub(super) struct Blobs {
    by_number: HashMap<u64, Arrived>,
}

/// A blob, or why it is not kept: its call is told.
type Arrived = Result<Blob, GpuError>;

/// Bytes that were sent, charged to the session.
pub(super) struct Blob {
    pub(super) bytes: Vec<u8>,
    share: Share,
}

impl Blob {
    /// Adds bytes, growing by a quarter where there is no room.
    fn add(&mut self, bytes: &[u8]) -> Result<(), GpuError> {
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            let room = needed + needed / 4;
            self.share.resize(room as u64, CHARGED_AS)?;
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

/// What blobs are called where they are refused.
const CHARGED_AS: &str = "bytes sent ahead of their calls";

handlers! { dispatcher, session, tail;
    BlobPart(call) => dispatcher.add_blob(call.blob, tail);
    BlobChunk(call) => {
        let bytes = dispatcher.port.area().chunk_read(call.chunk, call.bytes);
        let bytes = bytes.ok_or(Failure::Violation(Violation::Chunk {
            chunk: call.chunk,
            offset: 0,
            bytes: call.bytes.into(),
        }))?;
        dispatcher.port.chunk_done(call.chunk, chunk_state::FREE);
        dispatcher.add_blob(call.blob, &bytes)
    };
    BlobDrop(call) => {
        let _ = dispatcher.take_blob(call.blob);
        done(())
    };
}

impl Dispatcher {
    fn add_blob(&self, blob: u64, bytes: &[u8]) -> Result<Done, Failure> {
        let mut blobs = lock(&self.blobs);
        if blobs.by_number.len() >= BLOBS && !blobs.by_number.contains_key(&blob) {
            return Err(Failure::Violation(Violation::Excess {
                what: "blobs sent ahead of their calls",
                limit: BLOBS as u64,
            }));
        }
        let new = || {
            let share = self.session.budget().take(0, CHARGED_AS)?;
            let bytes = Vec::new();
            Ok(Blob { bytes, share })
        };
        let arrived = blobs.by_number.entry(blob).or_insert_with(new);
        if let Ok(kept) = arrived
            && let Err(refused) = kept.add(bytes)
        {
            *arrived = Err(refused);
        }
        done(())
    }

    /// How many bytes they have together.
    pub(crate) fn blob_bytes(&self) -> u64 {
        let blobs = lock(&self.blobs);
        let arrived = blobs.by_number.values().flatten();
        arrived.map(|blob| blob.bytes.len() as u64).sum()
    }

    /// The blobs that wait for their calls.
    pub(crate) fn blobs(&self) -> Vec<(u64, Vec<u8>)> {
        let blobs = lock(&self.blobs);
        let arrived = (blobs.by_number.iter())
            .filter_map(|(number, blob)| Some((*number, blob.as_ref().ok()?.bytes.clone())));
        arrived.collect()
    }

    /// Takes blobs in that waited when the session was saved; one that the session's budget has no room for is told to its
    /// call.
    pub(crate) fn restore_blobs(&self, blobs: &[(u64, Vec<u8>)]) {
        for (number, bytes) in blobs.iter().take(BLOBS) {
            let _ = self.add_blob(*number, bytes);
        }
    }

    pub(super) fn take_blob(&self, blob: u64) -> Result<Blob, Failure> {
        let arrived = lock(&self.blobs).by_number.remove(&blob);
        let arrived =
            arrived.ok_or_else(|| VgpuError::Argument(format!("blob {blob} was not sent")))?;
        Ok(arrived?)
    }
}
