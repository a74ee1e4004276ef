//! Memory that the device copies from and to by itself: staging chunks, and buffers for small reads.
//!
//! A real driver copies memory that is not pinned through staging memory of its own, with the calling thread
//! waiting. Pinned once, at a context's first copy, these copies run while the thread reads the next call. Not with the
//! context: a program waits for its context before its first kernel, and many a first kernel comes before any copy.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, Mutex};

use mica_gpu::HostSpan;
use mica_wire::session::{CHUNK_BYTES, CHUNKS};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{Dispatcher, lock};

/// Buffers for reads at the same time; further ones use memory that is not pinned.
const BUFFERS: usize = 16;
/// Bytes of each.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

/// Contexts that have not copied yet.
#[derive(Default)]
pub(super) struct NotPinned {
    contexts: Mutex<Vec<u64>>,
    /// Whether there are any, for a thread that only asks.
    any: AtomicBool,
    /// Whether the pages of staging memory have been asked for.
    is_backed: AtomicBool,
}

impl NotPinned {
    /// A context has ended without a copy, maybe.
    pub(super) fn forget(&self, context: u64) {
        lock(&self.contexts).retain(|of| *of != context);
    }
}

/// Buffers for small reads.
pub(super) struct ReadBuffers {
    memory: *mut u8,
    /// One bit a buffer that is free.
    free: Mutex<u32>,
}

// SAFETY: plain memory; who holds a buffer uses it alone.
unsafe impl Send for ReadBuffers {}
// SAFETY: as for `Send`.
unsafe impl Sync for ReadBuffers {}

impl Drop for ReadBuffers {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; the session's contexts, and so the device's use of it, have ended.
        let _ = unsafe { munmap(self.memory.cast(), BUFFERS * BUFFER_BYTES) };
    }
}

impl ReadBuffers {
    fn new() -> Option<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                BUFFERS * BUFFER_BYTES,
                protection,
                MapFlags::PRIVATE,
            )
        };
        Some(Self {
            memory: memory.ok()?.cast(),
            free: Mutex::new((1 << BUFFERS) - 1),
        })
    }

    /// A buffer of one's own, if one is free.
    pub(super) fn take(&self) -> Option<ReadBuffer<'_>> {
        let mut free = lock(&self.free);
        let index = free.trailing_zeros();
        if index as usize >= BUFFERS {
            return None;
        }
        *free &= !(1 << index);
        Some(ReadBuffer {
            buffers: self,
            index,
        })
    }
}

/// A buffer for one read.
pub(super) struct ReadBuffer<'a> {
    buffers: &'a ReadBuffers,
    index: u32,
}

impl ReadBuffer<'_> {
    pub(super) fn pointer(&self) -> *mut u8 {
        let offset = self.index as usize * BUFFER_BYTES;
        self.buffers.memory.wrapping_add(offset)
    }

    /// The first bytes, which the device has written.
    pub(super) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: within the buffer, which is this reader's; the device has done with it.
        unsafe { std::slice::from_raw_parts(self.pointer(), len.min(BUFFER_BYTES)) }
    }

    /// Never gives the buffer back: the device may still write to it.
    pub(super) fn abandon(self) {
        std::mem::forget(self);
    }
}

impl Drop for ReadBuffer<'_> {
    fn drop(&mut self) {
        *lock(&self.buffers.free) |= 1 << self.index;
    }
}

impl Dispatcher {
    /// Has staging memory get its pages while the first context is made, where they will be pinned.
    pub(super) fn prepare_for_copies(&self) {
        if !self.session.gpu().has_driver() || self.not_pinned.is_backed.swap(true, AcqRel) {
            return;
        }
        let port = Arc::clone(&self.port);
        // Those of a virtual machine are there.
        if port.ivshmem().is_none() {
            // Without a thread the pages come when they are pinned.
            let _ = std::thread::Builder::new()
                .name("staging".into())
                .spawn(move || port.area().back_chunks());
        }
    }

    /// A new context: what copies go through is pinned when it copies.
    pub(super) fn pin_later(&self, context: u64) {
        if self.session.gpu().has_driver() {
            lock(&self.not_pinned.contexts).push(context);
            self.not_pinned.any.store(true, Release);
        }
    }

    /// Pins what copies go through, for contexts that may be about to copy.
    #[inline]
    pub(super) fn pin_now(&self) {
        if self.not_pinned.any.load(Acquire) {
            self.pin_all();
        }
    }

    #[cold]
    fn pin_all(&self) {
        // Held to the end: a second copy waits for the pages too.
        let mut contexts = lock(&self.not_pinned.contexts);
        for context in contexts.drain(..) {
            self.pin_for_copies(context);
        }
        self.not_pinned.any.store(false, Release);
    }

    /// Pins what copies go through. Without success copies are slower.
    fn pin_for_copies(&self, context: u64) {
        let Some(buffers) = self.read_buffers() else {
            return;
        };
        let bytes = (BUFFERS * BUFFER_BYTES) as u64;
        let staging = self.port.area().chunk_pointer(0, 0, 0);
        for (pointer, bytes) in [
            (Some(buffers.memory), bytes),
            (staging, (CHUNKS * CHUNK_BYTES) as u64),
        ] {
            let Some(pointer) = pointer else { continue };
            // SAFETY: both live as long as the dispatcher, which outlives the session's contexts.
            let pinned = unsafe {
                let span = HostSpan::new(pointer, bytes);
                self.session.pin(context, span)
            };
            if let Err(error) = pinned {
                tracing::warn!(%error, bytes, "memory for copies is not pinned");
            }
        }
    }

    /// Buffers for small reads, where the device has a use for them.
    pub(super) fn read_buffers(&self) -> Option<&ReadBuffers> {
        self.read_buffers.get_or_init(ReadBuffers::new).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_given_to_one_reader_each_until_there_are_none() {
        let buffers = ReadBuffers::new().unwrap();
        let mut taken: Vec<_> = (0..BUFFERS).map(|_| buffers.take().unwrap()).collect();
        assert!(buffers.take().is_none());
        let mut pointers: Vec<_> = taken.iter().map(|b| b.pointer() as usize).collect();
        pointers.dedup();
        assert_eq!(pointers.len(), BUFFERS);
        let given = taken.pop().unwrap().pointer();
        assert_eq!(buffers.take().unwrap().pointer(), given);
        taken.pop().unwrap().abandon();
        assert!(buffers.take().is_some());
        drop(taken);
    }
}
