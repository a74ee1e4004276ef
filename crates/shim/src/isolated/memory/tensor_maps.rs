//! Tensor maps. The device behind the worker makes them: what is in one is its secret.

use mica_cuda_abi::CuResult;
use mica_wire::session::{Field, TensorMap, TensorMapShape};

use crate::isolated::context::any_context;
use crate::isolated::support::{Answer, driver, entries, get, invalid, put, room_for};

/// Bytes of a `CUtensorMap`.
const BYTES: usize = 128;

/// The numbers of an array of the program, of which there are `count`.
///
/// # Safety
/// `numbers` is null or an array of `count` numbers.
unsafe fn numbers<T: Copy + Default>(numbers: *const T, count: u32) -> Answer<[T; 5]> {
    let mut all = [T::default(); 5];
    for (index, number) in all.iter_mut().enumerate().take(count as usize) {
        // SAFETY: our contract.
        *number = unsafe { get(numbers.add(index))? };
    }
    Ok(all)
}

/// Has the worker make a tensor map.
fn encode(shape: &TensorMapShape) -> Answer<[u8; BYTES]> {
    let (state, context) = any_context()?;
    let mut tail = Vec::with_capacity(256);
    shape.put(&mut tail);
    let request = TensorMap {
        context: context.wire(),
    };
    let made = context.checked(state.client.call_with(&request, &tail))?;
    made.bytes.try_into().map_err(|_| CuResult::Unknown.into())
}

/// What all kinds have; ranks that no tensor has are refused.
#[expect(clippy::too_many_arguments, reason = "the driver's")]
unsafe fn shape(
    kind: u32,
    data_type: u32,
    rank: u32,
    address: u64,
    dims: *const u64,
    strides: *const u64,
    element_strides: *const u32,
    rest: [u32; 4],
) -> Answer<TensorMapShape> {
    if !(1..=5).contains(&rank) {
        return invalid();
    }
    let [interleave, swizzle, l2_promotion, fill] = rest;
    // SAFETY: the program's arrays: `rank` numbers, one stride less.
    let (dims, strides, element_strides) = unsafe {
        (
            numbers(dims, rank)?,
            numbers(strides, rank - 1)?,
            numbers(element_strides, rank)?,
        )
    };
    Ok(TensorMapShape {
        kind,
        data_type,
        rank,
        address,
        dims,
        strides,
        tile: [0; 5],
        lower: [0; 5],
        upper: [0; 5],
        channels: 0,
        pixels: 0,
        element_strides,
        interleave,
        mode: 0,
        swizzle,
        l2_promotion,
        fill,
    })
}

driver! {
    fn encode_tiled(
        out: *mut [u8; BYTES], data_type: u32, rank: u32, address: u64, dims: *const u64, strides: *const u64,
        tile: *const u32, element_strides: *const u32, interleave: u32, swizzle: u32, l2_promotion: u32, fill: u32,
    ) {
        room_for(out)?;
        let rest = [interleave, swizzle, l2_promotion, fill];
        let mut shape = shape(0, data_type, rank, address, dims, strides, element_strides, rest)?;
        shape.tile = numbers(tile, rank)?;
        put(out, encode(&shape)?)
    }

    fn encode_im2col(
        out: *mut [u8; BYTES], data_type: u32, rank: u32, address: u64, dims: *const u64, strides: *const u64,
        lower: *const i32, upper: *const i32, channels: u32, pixels: u32, element_strides: *const u32,
        interleave: u32, swizzle: u32, l2_promotion: u32, fill: u32,
    ) {
        room_for(out)?;
        let rest = [interleave, swizzle, l2_promotion, fill];
        let mut shape = shape(1, data_type, rank, address, dims, strides, element_strides, rest)?;
        // The pixel box has neither batch nor channels.
        shape.lower = numbers(lower, rank.saturating_sub(2))?;
        shape.upper = numbers(upper, rank.saturating_sub(2))?;
        (shape.channels, shape.pixels) = (channels, pixels);
        put(out, encode(&shape)?)
    }

    fn encode_im2col_wide(
        out: *mut [u8; BYTES], data_type: u32, rank: u32, address: u64, dims: *const u64, strides: *const u64,
        lower: i32, upper: i32, channels: u32, pixels: u32, element_strides: *const u32,
        interleave: u32, mode: u32, swizzle: u32, l2_promotion: u32, fill: u32,
    ) {
        room_for(out)?;
        let rest = [interleave, swizzle, l2_promotion, fill];
        let mut shape = shape(2, data_type, rank, address, dims, strides, element_strides, rest)?;
        (shape.lower[0], shape.upper[0]) = (lower, upper);
        (shape.channels, shape.pixels, shape.mode) = (channels, pixels, mode);
        put(out, encode(&shape)?)
    }
}

entries! {
    cuTensorMapEncodeTiled = encode_tiled;
    cuTensorMapEncodeIm2col = encode_im2col;
    cuTensorMapEncodeIm2colWide = encode_im2col_wide;
}
