//! What moves or writes memory other than by a plain copy: fills, batches of copies, prefetches. Large ones pass
//! the gate like copies.

use std::ffi::c_void;

use mica_cuda_abi::{CuStatus, DevicePtr, Handle, MemLocation, Symbol, function};

use super::copies::pass;

fn filled<V>(count: usize, rows: usize) -> usize {
    size_of::<V>().saturating_mul(count).saturating_mul(rows)
}

/// `cuMemsetD8`, `cuMemsetD16`, `cuMemsetD32`.
pub(crate) unsafe fn fill<V>(
    symbol: Symbol,
    real: unsafe extern "C" fn(DevicePtr, V, usize) -> CuStatus,
    to: DevicePtr,
    value: V,
    count: usize,
) -> CuStatus {
    pass(symbol, filled::<V>(count, 1), std::ptr::null_mut());
    // SAFETY: the program's arguments.
    unsafe { real(to, value, count) }
}

/// The same on a stream.
pub(crate) unsafe fn fill_async<V>(
    symbol: Symbol,
    real: unsafe extern "C" fn(DevicePtr, V, usize, Handle) -> CuStatus,
    to: DevicePtr,
    value: V,
    count: usize,
    stream: Handle,
) -> CuStatus {
    pass(symbol, filled::<V>(count, 1), stream);
    // SAFETY: the program's arguments.
    unsafe { real(to, value, count, stream) }
}

/// `cuMemsetD2D8`, `cuMemsetD2D16`, `cuMemsetD2D32`.
pub(crate) unsafe fn fill_rows<V>(
    symbol: Symbol,
    real: unsafe extern "C" fn(DevicePtr, usize, V, usize, usize) -> CuStatus,
    to: DevicePtr,
    pitch: usize,
    value: V,
    width: usize,
    height: usize,
) -> CuStatus {
    let bytes = filled::<V>(width, height);
    pass(symbol, bytes, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    unsafe { real(to, pitch, value, width, height) }
}

/// The same on a stream.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn fill_rows_async<V>(
    symbol: Symbol,
    real: unsafe extern "C" fn(DevicePtr, usize, V, usize, usize, Handle) -> CuStatus,
    to: DevicePtr,
    pitch: usize,
    value: V,
    width: usize,
    height: usize,
    stream: Handle,
) -> CuStatus {
    pass(symbol, filled::<V>(width, height), stream);
    // SAFETY: the program's arguments.
    unsafe { real(to, pitch, value, width, height, stream) }
}

/// Bytes that a batch of copies moves.
///
/// # Safety
/// `sizes` is null or the program's list of `count` sizes.
unsafe fn batch_bytes(sizes: *const usize, count: usize) -> usize {
    if sizes.is_null() || count == 0 {
        return 0;
    }
    // SAFETY: our contract.
    let sizes = unsafe { std::slice::from_raw_parts(sizes, count) };
    sizes.iter().copied().fold(0, usize::saturating_add)
}

/// `cuMemcpyBatchAsync`.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn batch(
    symbol: Symbol,
    real: function::cuMemcpyBatchAsync,
    to: *mut c_void,
    from: *mut c_void,
    sizes: *const usize,
    count: usize,
    attributes: *mut c_void,
    places: *mut c_void,
    attribute_count: usize,
    failed: *mut usize,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's list.
    pass(symbol, unsafe { batch_bytes(sizes, count) }, stream);
    // SAFETY: the program's arguments.
    unsafe {
        real(
            to,
            from,
            sizes,
            count,
            attributes,
            places,
            attribute_count,
            failed,
            stream,
        )
    }
}

/// `cuMemcpyBatchAsync_v2`, which does not say what failed.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn batch_v2(
    symbol: Symbol,
    real: function::cuMemcpyBatchAsync_v2,
    to: *mut c_void,
    from: *mut c_void,
    sizes: *const usize,
    count: usize,
    attributes: *mut c_void,
    places: *mut c_void,
    attribute_count: usize,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's list.
    pass(symbol, unsafe { batch_bytes(sizes, count) }, stream);
    // SAFETY: the program's arguments.
    unsafe {
        real(
            to,
            from,
            sizes,
            count,
            attributes,
            places,
            attribute_count,
            stream,
        )
    }
}

/// `cuMemPrefetchAsync`.
pub(crate) unsafe fn prefetch(
    symbol: Symbol,
    real: function::cuMemPrefetchAsync,
    from: DevicePtr,
    bytes: usize,
    device: i32,
    stream: Handle,
) -> CuStatus {
    pass(symbol, bytes, stream);
    // SAFETY: the program's arguments.
    unsafe { real(from, bytes, device, stream) }
}

/// `cuMemPrefetchAsync_v2`.
pub(crate) unsafe fn prefetch_v2(
    symbol: Symbol,
    real: function::cuMemPrefetchAsync_v2,
    from: DevicePtr,
    bytes: usize,
    to: MemLocation,
    flags: u32,
    stream: Handle,
) -> CuStatus {
    pass(symbol, bytes, stream);
    // SAFETY: the program's arguments.
    unsafe { real(from, bytes, to, flags, stream) }
}

/// `cuMemPrefetchBatchAsync`, `cuMemDiscardAndPrefetchBatchAsync`.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn prefetch_batch(
    symbol: Symbol,
    real: function::cuMemPrefetchBatchAsync,
    from: *mut c_void,
    sizes: *const usize,
    count: usize,
    places: *mut c_void,
    place_of: *mut c_void,
    place_count: usize,
    flags: u64,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's list.
    pass(symbol, unsafe { batch_bytes(sizes, count) }, stream);
    // SAFETY: the program's arguments.
    unsafe {
        real(
            from,
            sizes,
            count,
            places,
            place_of,
            place_count,
            flags,
            stream,
        )
    }
}

/// `cuMemDiscardBatchAsync`.
pub(crate) unsafe fn discard_batch(
    symbol: Symbol,
    real: function::cuMemDiscardBatchAsync,
    from: *mut c_void,
    sizes: *const usize,
    count: usize,
    flags: u64,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's list.
    pass(symbol, unsafe { batch_bytes(sizes, count) }, stream);
    // SAFETY: the program's arguments.
    unsafe { real(from, sizes, count, flags, stream) }
}

/// `cuMemcpyWithAttributesAsync`.
pub(crate) unsafe fn with_attributes(
    symbol: Symbol,
    real: function::cuMemcpyWithAttributesAsync,
    to: DevicePtr,
    from: DevicePtr,
    bytes: usize,
    attributes: *mut c_void,
    stream: Handle,
) -> CuStatus {
    pass(symbol, bytes, stream);
    // SAFETY: the program's arguments.
    unsafe { real(to, from, bytes, attributes, stream) }
}
