//! Memory of this process that contents of frames wait in.

use std::num::NonZero;

use mica_cuda_abi::CuResult;
use mica_gpu::{GpuError, HostSpan, Result};
use mica_memory::CHUNK_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Most threads that ask the system for pages at a time.
const MOST_THREADS: usize = 8;

/// One segment of an arena: anonymous memory of [`CHUNK_BYTES`].
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

    /// Has the system give all pages, by several threads where somebody waits for them. Without this the driver would ask
    /// for them one by one when it pins the memory, and launches no kernel meanwhile.
    pub(crate) fn populate(&self, hurry: bool) {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = match hurry {
            true => (processors / 2).clamp(1, MOST_THREADS).next_power_of_two(),
            false => 1,
        };
        let part = CHUNK_BYTES as usize / threads;
        let populate = |index: usize| {
            let at = (self.0 + index * part) as *mut _;
            // SAFETY: a part of our mapping, whose contents stay. A system that does not know the advice gives the pages
            // when they are touched.
            let _ = unsafe { rustix::mm::madvise(at, part, Advice::LinuxPopulateWrite) };
        };
        std::thread::scope(|scope| {
            for index in 1..threads {
                let spawned =
                    std::thread::Builder::new().spawn_scoped(scope, move || populate(index));
                // The pages come when they are touched.
                drop(spawned);
            }
            populate(0);
        });
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
