//! Large copies pass the gate like kernels; small ones are not worth a turn.

use std::ffi::c_void;

use mica_cuda_abi::{CuStatus, DevicePtr, Handle, Symbol, function};

use super::submission::submit;
use super::{streams, sync};

/// A copy of this size holds the copy engine as long as a kernel holds the processors.
const LARGE: usize = 1 << 20;

/// The stream of calls that name none.
pub(super) const DEFAULT: Handle = std::ptr::null_mut();

/// Lets a copy of so many bytes through, now or when it may go.
#[inline(always)]
pub(crate) fn pass(symbol: Symbol, bytes: usize, stream: Handle) {
    if bytes >= LARGE {
        submit(symbol, stream);
    }
}

/// Hooks that let a call pass as so many bytes on a stream, and then do what the driver does. A row a hook: its name, the
/// driver's function, the arguments; bytes and stream.
macro_rules! passing_hooks {
    ($(
        $(#[$attribute:meta])*
        $name:ident $(<$($type:ident),+>)? = $real:ty,
        ($($argument:ident: $kind:ty),*) passes $bytes:expr, $stream:expr;
    )*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// The arguments are the program's, and as the driver asks.
        #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
        pub(crate) unsafe fn $name $(<$($type),+>)? (
            symbol: Symbol,
            real: $real,
            $($argument: $kind),*
        ) -> CuStatus {
            $crate::direct::copies::pass(symbol, $bytes, $stream);
            // SAFETY: the program's arguments.
            unsafe { real($($argument),*) }
        }
    )*};
}
pub(super) use passing_hooks;

passing_hooks! {
    /// `cuMemcpyHtoDAsync`, `cuMemcpyDtoHAsync`, `cuMemcpyDtoDAsync`, `cuMemcpyAsync`.
    #[inline(always)]
    linear_async<To, From> = unsafe extern "C" fn(To, From, usize, Handle) -> CuStatus,
        (to: To, from: From, bytes: usize, stream: Handle) passes bytes, stream;

    /// `cuMemcpyHtoD`, `cuMemcpyDtoD`, `cuMemcpy`: within the device they return before the copy is done.
    linear<To, From> = unsafe extern "C" fn(To, From, usize) -> CuStatus,
        (to: To, from: From, bytes: usize) passes bytes, DEFAULT;

    /// `cuMemcpyHtoA`, `cuMemcpyDtoA`, `cuMemcpyAtoD`: an array and an offset in it, on either side.
    array<A, B, C> = unsafe extern "C" fn(A, B, C, usize) -> CuStatus,
        (a: A, b: B, c: C, bytes: usize) passes bytes, DEFAULT;

    /// `cuMemcpyHtoAAsync`, `cuMemcpyAtoHAsync`.
    array_async<A, B, C> = unsafe extern "C" fn(A, B, C, usize, Handle) -> CuStatus,
        (a: A, b: B, c: C, bytes: usize, stream: Handle) passes bytes, stream;

    /// `cuMemcpyAtoA`.
    between_arrays = function::cuMemcpyAtoA,
        (to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize)
        passes bytes, DEFAULT;

    /// `cuMemcpy2DAsync`.
    flat_async = function::cuMemcpy2DAsync_v2,
        (copy: *const c_void, stream: Handle)
        // SAFETY: the program's descriptor.
        passes unsafe { extent_bytes(copy, FLAT_EXTENT, 2) }, stream;

    /// `cuMemcpy3DAsync`.
    deep_async = function::cuMemcpy3DAsync_v2,
        (copy: *const c_void, stream: Handle)
        // SAFETY: the program's descriptor.
        passes unsafe { extent_bytes(copy, DEEP_EXTENT, 3) }, stream;

    /// `cuMemcpy2D`, `cuMemcpy2DUnaligned`.
    flat = function::cuMemcpy2D_v2,
        (copy: *const c_void)
        // SAFETY: the program's descriptor.
        passes unsafe { extent_bytes(copy, FLAT_EXTENT, 2) }, DEFAULT;

    /// `cuMemcpy3D`, `cuMemcpy3DPeer`.
    deep = function::cuMemcpy3D_v2,
        (copy: *const c_void)
        // SAFETY: the program's descriptor.
        passes unsafe { extent_bytes(copy, DEEP_EXTENT, 3) }, DEFAULT;

    /// `cuMemcpyPeer`.
    peer = function::cuMemcpyPeer,
        (to: DevicePtr, there: Handle, from: DevicePtr, here: Handle, bytes: usize)
        passes bytes, DEFAULT;

    /// `cuMemcpyPeerAsync`.
    peer_async = function::cuMemcpyPeerAsync,
        (to: DevicePtr, there: Handle, from: DevicePtr, here: Handle, bytes: usize, stream: Handle)
        passes bytes, stream;
}

/// `cuMemcpyDtoH`: also waits for what was submitted before it.
pub(crate) unsafe fn to_host<From>(
    symbol: Symbol,
    real: unsafe extern "C" fn(*mut c_void, From, usize) -> CuStatus,
    to: *mut c_void,
    from: From,
    bytes: usize,
) -> CuStatus {
    pass(symbol, bytes, DEFAULT);
    // SAFETY: the program's arguments.
    waits(symbol, || unsafe { real(to, from, bytes) })
}

/// A copy that waits for what was submitted before it.
fn waits(symbol: Symbol, call: impl FnOnce() -> CuStatus) -> CuStatus {
    let on_default = || streams::all_on(symbol, DEFAULT);
    sync::waiting(on_default, call)
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
    pass(symbol, bytes, DEFAULT);
    // SAFETY: the program's arguments.
    waits(symbol, || unsafe { real(to, from, offset, bytes) })
}

/// `cuMemcpy2D`, `cuMemcpy3D` and what is like them, as they were before CUDA 3.2: taken for large.
pub(crate) unsafe fn described_v1(
    symbol: Symbol,
    real: function::cuMemcpy2D,
    copy: *const c_void,
) -> CuStatus {
    submit(symbol, DEFAULT);
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
