//! Memory of this process that contents of frames wait in.

use std::num::NonZero;

use mica_cuda_abi::CuResult;
use mica_gpu::{GpuError, HostSpan, Result};
use mica_memory::CHUNK_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Most threads that copy at a time: eight were slower than four on a Xeon with 16 cores (10.6 and 5.6 ms for 64 MiB of fresh
/// memory, one thread 26.6).
const MOST_THREADS: usize = 4;
/// Bytes that are worth a thread of their own.
const THREAD_BYTES: u64 = 4 << 20;

/// One segment of a backing store: anonymous memory of [`CHUNK_BYTES`].
#[derive(Debug)]
pub(crate) struct HostMemory(usize);

impl HostMemory {
    pub(crate) fn new() -> Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is given, so nothing that exists can be replaced.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                CHUNK_BYTES as usize,
                protection,
                MapFlags::PRIVATE,
            )
        };
        let at = at.map_err(|error| {
            let what =
                format!("{CHUNK_BYTES} bytes of host memory for memory that leaves: {error}");
            GpuError::new(CuResult::OutOfMemory, what)
        })?;
        // SAFETY: advice on a mapping just made; refusal changes nothing but speed.
        let _ = unsafe { rustix::mm::madvise(at, CHUNK_BYTES as usize, Advice::LinuxHugepage) };
        Ok(Self(at as usize))
    }

    /// Has the system give all pages. Without this the driver would ask for them one by one when it pins the memory, and
    /// launches no kernel meanwhile.
    pub(crate) fn populate(&self) {
        // SAFETY: our mapping, whose contents stay. A system that does not know the advice gives the pages when they are
        // touched.
        let _ = unsafe {
            rustix::mm::madvise(
                self.0 as *mut _,
                CHUNK_BYTES as usize,
                Advice::LinuxPopulateWrite,
            )
        };
    }

    /// A part of it.
    pub(crate) fn span(&self, offset: u64, bytes: u64) -> HostSpan {
        // SAFETY: mapped until this is dropped, which nobody does before its pieces are back and its pinning contexts are gone.
        unsafe { HostSpan::new((self.0 + offset as usize) as *mut u8, bytes) }
    }

    /// Gives the pages of a part back to the system; the part reads as zeros afterwards.
    pub(crate) fn forget(&self, offset: u64, bytes: u64) {
        let at = (self.0 + offset as usize) as *mut _;
        // SAFETY: a part of our mapping that nobody uses.
        let _ = unsafe { rustix::mm::madvise(at, bytes as usize, Advice::LinuxDontNeed) };
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has a piece of it any more.
        let _ = unsafe { rustix::mm::munmap(self.0 as *mut _, CHUNK_BYTES as usize) };
    }
}

/// Copies between two pieces of host memory of one length, by several threads: into memory that was never touched a copy
/// waits for the system to clear pages more than for the bytes.
pub(crate) fn copy_between(to: HostSpan, from: HostSpan) {
    let bytes = to.len().min(from.len());
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (bytes / THREAD_BYTES).clamp(1, (processors / 2).clamp(1, MOST_THREADS) as u64);
    let part = bytes.div_ceil(threads);
    let (to, from) = (to.as_ptr() as usize, from.as_ptr() as usize);
    let copy = |index: u64| {
        let begin = (index * part).min(bytes);
        let length = (bytes - begin).min(part) as usize;
        let (to, from) = (to + begin as usize, from + begin as usize);
        // SAFETY: both spans are mapped for their length, which the parts do not leave, and belong to different pieces.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, length) };
    };
    std::thread::scope(|scope| {
        for index in 1..threads {
            let spawned = std::thread::Builder::new().spawn_scoped(scope, move || copy(index));
            if spawned.is_err() {
                copy(index);
            }
        }
        copy(0);
    });
}
