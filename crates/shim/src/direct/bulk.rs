//! What moves or writes memory other than by a plain copy: fills, batches of copies, prefetches. Large ones pass
//! the gate like copies.

use std::ffi::c_void;

use mica_cuda_abi::{CuStatus, DevicePtr, Handle, MemLocation, Symbol, function};

use super::copies::{DEFAULT, passing_hooks};

fn filled<V>(count: usize, rows: usize) -> usize {
    size_of::<V>().saturating_mul(count).saturating_mul(rows)
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

passing_hooks! {
    /// `cuMemsetD8`, `cuMemsetD16`, `cuMemsetD32`.
    fill<V> = unsafe extern "C" fn(DevicePtr, V, usize) -> CuStatus,
        (to: DevicePtr, value: V, count: usize) passes filled::<V>(count, 1), DEFAULT;

    /// The same on a stream.
    fill_async<V> = unsafe extern "C" fn(DevicePtr, V, usize, Handle) -> CuStatus,
        (to: DevicePtr, value: V, count: usize, stream: Handle)
        passes filled::<V>(count, 1), stream;

    /// `cuMemsetD2D8`, `cuMemsetD2D16`, `cuMemsetD2D32`.
    fill_rows<V> = unsafe extern "C" fn(DevicePtr, usize, V, usize, usize) -> CuStatus,
        (to: DevicePtr, pitch: usize, value: V, width: usize, height: usize)
        passes filled::<V>(width, height), DEFAULT;

    /// The same on a stream.
    fill_rows_async<V> = unsafe extern "C" fn(DevicePtr, usize, V, usize, usize, Handle) -> CuStatus,
        (to: DevicePtr, pitch: usize, value: V, width: usize, height: usize, stream: Handle)
        passes filled::<V>(width, height), stream;

    /// `cuMemcpyBatchAsync`.
    batch = function::cuMemcpyBatchAsync,
        (to: *mut c_void, from: *mut c_void, sizes: *const usize, count: usize, attributes: *mut c_void,
         places: *mut c_void, attribute_count: usize, failed: *mut usize, stream: Handle)
        // SAFETY: the program's list.
        passes unsafe { batch_bytes(sizes, count) }, stream;

    /// `cuMemcpyBatchAsync_v2`, which does not say what failed.
    batch_v2 = function::cuMemcpyBatchAsync_v2,
        (to: *mut c_void, from: *mut c_void, sizes: *const usize, count: usize, attributes: *mut c_void,
         places: *mut c_void, attribute_count: usize, stream: Handle)
        // SAFETY: the program's list.
        passes unsafe { batch_bytes(sizes, count) }, stream;

    /// `cuMemPrefetchAsync`.
    prefetch = function::cuMemPrefetchAsync,
        (from: DevicePtr, bytes: usize, device: i32, stream: Handle) passes bytes, stream;

    /// `cuMemPrefetchAsync_v2`.
    prefetch_v2 = function::cuMemPrefetchAsync_v2,
        (from: DevicePtr, bytes: usize, to: MemLocation, flags: u32, stream: Handle)
        passes bytes, stream;

    /// `cuMemPrefetchBatchAsync`, `cuMemDiscardAndPrefetchBatchAsync`.
    prefetch_batch = function::cuMemPrefetchBatchAsync,
        (from: *mut c_void, sizes: *const usize, count: usize, places: *mut c_void, place_of: *mut c_void,
         place_count: usize, flags: u64, stream: Handle)
        // SAFETY: the program's list.
        passes unsafe { batch_bytes(sizes, count) }, stream;

    /// `cuMemDiscardBatchAsync`.
    discard_batch = function::cuMemDiscardBatchAsync,
        (from: *mut c_void, sizes: *const usize, count: usize, flags: u64, stream: Handle)
        // SAFETY: the program's list.
        passes unsafe { batch_bytes(sizes, count) }, stream;

    /// `cuMemcpyWithAttributesAsync`.
    with_attributes = function::cuMemcpyWithAttributesAsync,
        (to: DevicePtr, from: DevicePtr, bytes: usize, attributes: *mut c_void, stream: Handle)
        passes bytes, stream;
}
