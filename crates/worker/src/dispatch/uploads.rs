//! Staging chunks that copies to a real GPU read, given back in groups.
//!
//! A chunk is free again when its copy is done. To learn that costs an event of the driver's, about as much as the copy
//! of a small chunk, so one event stands for several copies in a row on one stream. The last group of a copy is closed
//! when the program has sent nothing else.
//!
//! The thread that reads the ring looks for the end of these copies while there is nothing to read, so that chunks are free
//! soon and a large copy goes through few of them.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mica_vgpu::{Session, VgpuError};

use super::memory::ChunkGuard;

/// Chunks of one group.
const GROUP: usize = 4;

/// The group that is being filled.
#[derive(Default)]
pub(super) struct Uploads {
    group: Mutex<(u64, Vec<ChunkGuard>)>,
    /// Whether the group has chunks, for a thread that only asks.
    has_chunks: AtomicBool,
    /// Groups that are closed and whose copies are not known to be done.
    under_way: Arc<AtomicUsize>,
}

/// Chunks of a closed group, until they are given back.
struct Closed {
    _chunks: Vec<ChunkGuard>,
    under_way: Arc<AtomicUsize>,
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, AcqRel);
    }
}

impl Uploads {
    fn group(&self) -> MutexGuard<'_, (u64, Vec<ChunkGuard>)> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a chunk whose copy was submitted to a stream.
    pub(super) fn add(
        &self,
        session: &Session,
        stream: u64,
        chunk: ChunkGuard,
    ) -> Result<(), VgpuError> {
        let mut group = self.group();
        let others = match group.0 == stream {
            true => Vec::new(),
            false => std::mem::take(&mut group.1),
        };
        let other_stream = std::mem::replace(&mut group.0, stream);
        group.1.push(chunk);
        let full = match group.1.len() >= GROUP {
            true => std::mem::take(&mut group.1),
            false => Vec::new(),
        };
        self.has_chunks.store(!group.1.is_empty(), Release);
        drop(group);
        // A stream that is gone has no copies any more; its chunks are free.
        let _ = self.close(session, other_stream, others);
        self.close(session, stream, full)
    }

    /// Closes the group: nothing is there to be added to it.
    #[inline]
    pub(crate) fn settle(&self, session: &Session) {
        if self.has_chunks.swap(false, AcqRel) {
            let (stream, chunks) = std::mem::take(&mut *self.group());
            // An error of the driver is the context's and comes with the next call; the chunks are free.
            let _ = self.close(session, stream, chunks);
        }
    }

    /// Whether chunks may be given back soon.
    #[inline]
    pub(super) fn are_under_way(&self) -> bool {
        self.under_way.load(Acquire) > 0
    }

    /// Gives chunks back when a stream has got so far.
    fn close(
        &self,
        session: &Session,
        stream: u64,
        chunks: Vec<ChunkGuard>,
    ) -> Result<(), VgpuError> {
        if chunks.is_empty() {
            return Ok(());
        }
        self.under_way.fetch_add(1, AcqRel);
        let closed = Closed {
            _chunks: chunks,
            under_way: Arc::clone(&self.under_way),
        };
        session.stream_release(stream, 0, Box::new(move || drop(closed)))
    }
}
