//! Large copies pass the gate like kernels; small ones are not worth a turn.

use std::ffi::c_void;

use mica_cuda_abi::{CuStatus, DevicePtr, Handle, Symbol};

use super::launch::submit;
use super::sync;

/// A copy of this size holds the copy engine as long as a kernel holds the processors.
const LARGE: usize = 1 << 20;

#[inline(always)]
fn pass(symbol: Symbol, bytes: usize, stream: Handle) {
    if bytes >= LARGE {
        submit(symbol, stream);
    }
}

/// `cuMemcpyHtoDAsync`.
pub(crate) unsafe fn to_device_async(
    symbol: Symbol,
    real: unsafe extern "C" fn(DevicePtr, *const c_void, usize, Handle) -> CuStatus,
    to: DevicePtr,
    from: *const c_void,
    bytes: usize,
    stream: Handle,
) -> CuStatus {
    pass(symbol, bytes, stream);
    // SAFETY: the program's arguments.
    unsafe { real(to, from, bytes, stream) }
}

/// `cuMemcpyDtoHAsync`.
pub(crate) unsafe fn to_host_async(
    symbol: Symbol,
    real: unsafe extern "C" fn(*mut c_void, DevicePtr, usize, Handle) -> CuStatus,
    to: *mut c_void,
    from: DevicePtr,
    bytes: usize,
    stream: Handle,
) -> CuStatus {
    pass(symbol, bytes, stream);
    // SAFETY: the program's arguments.
    unsafe { real(to, from, bytes, stream) }
}

/// `cuMemcpyDtoDAsync`, `cuMemcpyAsync`.
pub(crate) unsafe fn linear_async(
    symbol: Symbol,
    real: unsafe extern "C" fn(DevicePtr, DevicePtr, usize, Handle) -> CuStatus,
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    stream: Handle,
) -> CuStatus {
    pass(symbol, bytes, stream);
    // SAFETY: the program's arguments.
    unsafe { real(to, from, bytes, stream) }
}

/// `cuMemcpyHtoD`.
pub(crate) unsafe fn to_device(
    symbol: Symbol,
    real: unsafe extern "C" fn(DevicePtr, *const c_void, usize) -> CuStatus,
    to: DevicePtr,
    from: *const c_void,
    bytes: usize,
) -> CuStatus {
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    unsafe { real(to, from, bytes) }
}

/// `cuMemcpyDtoH`: also waits for what was submitted before it.
pub(crate) unsafe fn to_host(
    symbol: Symbol,
    real: unsafe extern "C" fn(*mut c_void, DevicePtr, usize) -> CuStatus,
    to: *mut c_void,
    from: DevicePtr,
    bytes: usize,
) -> CuStatus {
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    sync::waiting(|| unsafe { real(to, from, bytes) })
}

/// `cuMemcpyDtoD`, `cuMemcpy`.
pub(crate) unsafe fn linear(
    symbol: Symbol,
    real: unsafe extern "C" fn(DevicePtr, DevicePtr, usize) -> CuStatus,
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
) -> CuStatus {
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    sync::waiting(|| unsafe { real(to, from, bytes) })
}
