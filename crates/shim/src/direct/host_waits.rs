//! Programs whose streams wait for a word that the host writes.
//!
//! What such a stream waits for may be written by the very thread that submits next: were that thread made to
//! wait for its queue, neither would go on before the wait is given up. After the first such call no thread of the
//! program waits because much is queued. A lease that ends is drained as anybody's is, and taken away if that fails.

use std::ffi::c_void;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuStatus, DevicePtr, Handle, Symbol};

static SEEN: AtomicBool = AtomicBool::new(false);

/// Whether streams of this program may wait for the host.
pub(crate) fn seen() -> bool {
    SEEN.load(Relaxed)
}

/// `cuStreamWaitValue32`, `cuStreamWaitValue64`.
pub(crate) unsafe fn value<V>(
    _: Symbol,
    real: unsafe extern "C" fn(Handle, DevicePtr, V, u32) -> CuStatus,
    stream: Handle,
    address: DevicePtr,
    value: V,
    flags: u32,
) -> CuStatus {
    SEEN.store(true, Relaxed);
    // SAFETY: the program's arguments.
    unsafe { real(stream, address, value, flags) }
}

/// `cuStreamBatchMemOp`: waits and writes.
pub(crate) unsafe fn batch(
    _: Symbol,
    real: unsafe extern "C" fn(Handle, u32, *mut c_void, u32) -> CuStatus,
    stream: Handle,
    count: u32,
    operations: *mut c_void,
    flags: u32,
) -> CuStatus {
    SEEN.store(true, Relaxed);
    // SAFETY: the program's arguments.
    unsafe { real(stream, count, operations, flags) }
}

/// `cuWaitExternalSemaphoresAsync`.
pub(crate) unsafe fn semaphores(
    _: Symbol,
    real: unsafe extern "C" fn(*const Handle, *const c_void, u32, Handle) -> CuStatus,
    semaphores: *const Handle,
    params: *const c_void,
    count: u32,
    stream: Handle,
) -> CuStatus {
    SEEN.store(true, Relaxed);
    // SAFETY: the program's arguments.
    unsafe { real(semaphores, params, count, stream) }
}
