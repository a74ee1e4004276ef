//! Large copies pass the gate like kernels; small ones are not worth a turn.

use std::ffi::c_void;

use mica_cuda_abi::{CuStatus, DevicePtr, Handle, Symbol};

use super::launch::submit;
use super::{streams, sync};

/// A copy of this size holds the copy engine as long as a kernel holds the processors.
const LARGE: usize = 1 << 20;

/// Lets a copy of so many bytes through, now or when it may go.
#[inline(always)]
pub(crate) fn pass(symbol: Symbol, bytes: usize, stream: Handle) {
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
    let on_default = || streams::all_on(symbol, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    sync::waiting(on_default, || unsafe { real(to, from, bytes) })
}

/// `cuMemcpyDtoD`, `cuMemcpy`: within the device they return before the copy is done.
pub(crate) unsafe fn linear(
    symbol: Symbol,
    real: unsafe extern "C" fn(DevicePtr, DevicePtr, usize) -> CuStatus,
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
) -> CuStatus {
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    unsafe { real(to, from, bytes) }
}

/// Where the extents lie in `CUDA_MEMCPY2D` and `CUDA_MEMCPY3D`: width in bytes, rows, slices.
const FLAT_EXTENT: usize = 112;
const DEEP_EXTENT: usize = 176;

/// Bytes that a copy with `dimensions` extents at an offset of its descriptor moves.
///
/// # Safety
/// `copy` is null or the program's descriptor, which has them there.
unsafe fn extent_bytes(copy: *const c_void, offset: usize, dimensions: usize) -> usize {
    if copy.is_null() {
        return 0;
    }
    // SAFETY: our contract.
    let extents =
        unsafe { std::slice::from_raw_parts(copy.byte_add(offset).cast::<usize>(), dimensions) };
    extents
        .iter()
        .fold(1, |bytes, extent| bytes.saturating_mul(*extent))
}

/// `cuMemcpy2DAsync`.
pub(crate) unsafe fn flat_async(
    symbol: Symbol,
    real: unsafe extern "C" fn(*const c_void, Handle) -> CuStatus,
    copy: *const c_void,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's descriptor.
    pass(
        symbol,
        unsafe { extent_bytes(copy, FLAT_EXTENT, 2) },
        stream,
    );
    // SAFETY: the program's arguments.
    unsafe { real(copy, stream) }
}

/// `cuMemcpy3DAsync`.
pub(crate) unsafe fn deep_async(
    symbol: Symbol,
    real: unsafe extern "C" fn(*const c_void, Handle) -> CuStatus,
    copy: *const c_void,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's descriptor.
    pass(
        symbol,
        unsafe { extent_bytes(copy, DEEP_EXTENT, 3) },
        stream,
    );
    // SAFETY: the program's arguments.
    unsafe { real(copy, stream) }
}

/// `cuMemcpy2D`, `cuMemcpy2DUnaligned`.
pub(crate) unsafe fn flat(
    symbol: Symbol,
    real: unsafe extern "C" fn(*const c_void) -> CuStatus,
    copy: *const c_void,
) -> CuStatus {
    // SAFETY: the program's descriptor.
    let bytes = unsafe { extent_bytes(copy, FLAT_EXTENT, 2) };
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's argument.
    unsafe { real(copy) }
}

/// `cuMemcpy3D`, `cuMemcpy3DPeer`.
pub(crate) unsafe fn deep(
    symbol: Symbol,
    real: unsafe extern "C" fn(*const c_void) -> CuStatus,
    copy: *const c_void,
) -> CuStatus {
    // SAFETY: the program's descriptor.
    let bytes = unsafe { extent_bytes(copy, DEEP_EXTENT, 3) };
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's argument.
    unsafe { real(copy) }
}

/// `cuMemcpyPeer`.
pub(crate) unsafe fn peer(
    symbol: Symbol,
    real: unsafe extern "C" fn(DevicePtr, Handle, DevicePtr, Handle, usize) -> CuStatus,
    to: DevicePtr,
    there: Handle,
    from: DevicePtr,
    here: Handle,
    bytes: usize,
) -> CuStatus {
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    unsafe { real(to, there, from, here, bytes) }
}

/// `cuMemcpyPeerAsync`.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn peer_async(
    symbol: Symbol,
    real: unsafe extern "C" fn(DevicePtr, Handle, DevicePtr, Handle, usize, Handle) -> CuStatus,
    to: DevicePtr,
    there: Handle,
    from: DevicePtr,
    here: Handle,
    bytes: usize,
    stream: Handle,
) -> CuStatus {
    pass(symbol, bytes, stream);
    // SAFETY: the program's arguments.
    unsafe { real(to, there, from, here, bytes, stream) }
}
