//! An NVIDIA GPU behind a worker: the same sessions and the same engine, on the real driver.
//!
//! The worker alone opens the device. Its share is kept by the hardware's time slices on its own channel
//! groups, as in direct mode; it passes no leases, so what needs them is refused before a worker is
//! started. What the driver takes beyond what the engine charges (contexts, code) the daemon sees from the
//! driver's own figure for the worker, and counts.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use mica_backend_cuda::{CudaDriver, CudaGpu};
use mica_limits::{HostLink, Slice};
use mica_wire::host::page::client_flags;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::{SharedDevice, WorkerError};

/// New channel groups are looked for this often; mostly there are none.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// The one GPU that the environment shows this worker. Contexts keep its sessions apart.
///
/// # Errors
/// There is no driver, or it cannot share the GPU.
pub(crate) fn device() -> Result<SharedDevice, WorkerError> {
    keep_clear_of_the_programs_addresses();
    let failed = |error: mica_backend_cuda::DriverError| WorkerError::Device(error.to_string());
    let driver = CudaDriver::load().map_err(failed)?;
    let gpu = CudaGpu::open(driver, 0).map_err(failed)?;
    Ok(SharedDevice(Arc::new(gpu)))
}

/// Moves what the driver will map far below where programs have their own mappings.
///
/// Device addresses are this process's, and a program that uses them must not have anything of its own
/// there: `cudaMemcpyDefault` tells by the address which side is meant. Systems hand out addresses downwards
/// from a place that differs by at most a tebibyte from process to process, so what lies several below
/// it meets nothing. No memory is taken; if even the addresses are refused, all is as it would have been.
fn keep_clear_of_the_programs_addresses() {
    const BYTES: usize = 4 << 40;
    // SAFETY: no address is given, so nothing that exists is replaced; nobody can touch what is mapped.
    let kept = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            BYTES,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    if let Err(error) = kept {
        tracing::warn!("device addresses may equal addresses of programs: {error}");
    }
}

/// Starts the thread that keeps the slice.
pub(crate) fn keep_slice(link: Arc<HostLink>) -> Result<(), WorkerError> {
    let run = move || {
        let page = link.page();
        let mut slice = Slice::default();
        let mut applied = None;
        loop {
            let command = page.commands.command.load(Acquire);
            let state = (command, mica_rm::generation());
            let overwritten = mica_rm::take_overwritten();
            let has_context = !mica_rm::compute_group_ids().is_empty();
            if has_context && (overwritten || applied != Some(state)) {
                applied = Some(state);
                if let Err(error) = slice.apply(page) {
                    link.note(
                        2,
                        &format!("the worker's time slice cannot be set: {error}"),
                    );
                }
                // After the slice was tried: the daemon ends a process that has a context and neither
                // mechanism.
                page.client.flags.fetch_or(client_flags::CONTEXT, Release);
                link.ring();
            }
            let word = &page.commands.command;
            let _ = futex::wait(word, futex::Flags::empty(), command, Some(&LOOK_EVERY));
        }
    };
    std::thread::Builder::new()
        .name("slices".into())
        .spawn(run)
        .map(drop)
        .map_err(WorkerError::Thread)
}
