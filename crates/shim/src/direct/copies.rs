//! Large copies pass the gate like kernels; small ones are not worth a turn.

use std::ffi::c_void;

use mica_cuda_abi::{CuStatus, DevicePtr, Handle, Symbol, function};

use super::submission::submit;
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

/// `cuMemcpyHtoDAsync`, `cuMemcpyDtoHAsync`, `cuMemcpyDtoDAsync`, `cuMemcpyAsync`.
#[inline(always)]
pub(crate) unsafe fn linear_async<To, From>(
    symbol: Symbol,
    real: unsafe extern "C" fn(To, From, usize, Handle) -> CuStatus,
    to: To,
    from: From,
    bytes: usize,
    stream: Handle,
) -> CuStatus {
    pass(symbol, bytes, stream);
    // SAFETY: the program's arguments.
    unsafe { real(to, from, bytes, stream) }
}

/// `cuMemcpyHtoD`, `cuMemcpyDtoD`, `cuMemcpy`: within the device they return before the copy is done.
pub(crate) unsafe fn linear<To, From>(
    symbol: Symbol,
    real: unsafe extern "C" fn(To, From, usize) -> CuStatus,
    to: To,
    from: From,
    bytes: usize,
) -> CuStatus {
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    unsafe { real(to, from, bytes) }
}

/// `cuMemcpyDtoH`: also waits for what was submitted before it.
pub(crate) unsafe fn to_host<From>(
    symbol: Symbol,
    real: unsafe extern "C" fn(*mut c_void, From, usize) -> CuStatus,
    to: *mut c_void,
    from: From,
    bytes: usize,
) -> CuStatus {
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    waits(symbol, || unsafe { real(to, from, bytes) })
}

/// A copy that waits for what was submitted before it.
fn waits(symbol: Symbol, call: impl FnOnce() -> CuStatus) -> CuStatus {
    let on_default = || streams::all_on(symbol, std::ptr::null_mut());
    sync::waiting(on_default, call)
}

/// `cuMemcpyHtoA`, `cuMemcpyDtoA`, `cuMemcpyAtoD`: an array and an offset in it, on either side.
pub(crate) unsafe fn array<A, B, C>(
    symbol: Symbol,
    real: unsafe extern "C" fn(A, B, C, usize) -> CuStatus,
    a: A,
    b: B,
    c: C,
    bytes: usize,
) -> CuStatus {
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    unsafe { real(a, b, c, bytes) }
}

/// `cuMemcpyAtoH`: also waits.
pub(crate) unsafe fn array_to_host(
    symbol: Symbol,
    real: function::cuMemcpyAtoH,
    to: *mut c_void,
    from: Handle,
    offset: usize,
    bytes: usize,
) -> CuStatus {
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    waits(symbol, || unsafe { real(to, from, offset, bytes) })
}

/// `cuMemcpyHtoAAsync`, `cuMemcpyAtoHAsync`.
pub(crate) unsafe fn array_async<A, B, C>(
    symbol: Symbol,
    real: unsafe extern "C" fn(A, B, C, usize, Handle) -> CuStatus,
    a: A,
    b: B,
    c: C,
    bytes: usize,
    stream: Handle,
) -> CuStatus {
    pass(symbol, bytes, stream);
    // SAFETY: the program's arguments.
    unsafe { real(a, b, c, bytes, stream) }
}

/// `cuMemcpyAtoA`.
pub(crate) unsafe fn between_arrays(
    symbol: Symbol,
    real: function::cuMemcpyAtoA,
    to: Handle,
    to_offset: usize,
    from: Handle,
    from_offset: usize,
    bytes: usize,
) -> CuStatus {
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    unsafe { real(to, to_offset, from, from_offset, bytes) }
}

/// `cuMemcpy2D`, `cuMemcpy3D` and what is like them, as they were before CUDA 3.2: taken for large.
pub(crate) unsafe fn described_v1(
    symbol: Symbol,
    real: function::cuMemcpy2D,
    copy: *const c_void,
) -> CuStatus {
    submit(symbol, std::ptr::null_mut());
    // SAFETY: the program's argument.
    unsafe { real(copy) }
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
    real: function::cuMemcpy2DAsync_v2,
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
    real: function::cuMemcpy3DAsync_v2,
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
    real: function::cuMemcpy2D_v2,
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
    real: function::cuMemcpy3D_v2,
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
    real: function::cuMemcpyPeer,
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
    real: function::cuMemcpyPeerAsync,
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
