//! Fills of linear and pitched memory.

use std::sync::atomic::Ordering::Acquire;

use mica_cuda_abi::Handle;
use mica_wire::session::Fill;

use super::{Place, Target, device_place};
use crate::isolated::capture;
use crate::isolated::graphs::operations::Op;
use crate::isolated::modules::managed_variables;
use crate::isolated::state::State;
use crate::isolated::streams::resolve;
use crate::isolated::support::{Answer, driver, invalid, stream_entries};

/// Checks a fill and gives it the wire's form, without a stream.
pub(crate) fn fill_op(
    state: &State,
    dst: u64,
    pitch: u64,
    value: u32,
    element_bytes: u32,
    width: u64,
    height: u64,
) -> Answer<Fill> {
    if !matches!(element_bytes, 1 | 2 | 4) || !dst.is_multiple_of(element_bytes.into()) {
        return invalid();
    }
    let Place::Device(address) = device_place(state, dst)? else {
        return invalid();
    };
    let row = width.checked_mul(element_bytes.into());
    let bytes = row.and_then(|row| {
        height
            .saturating_sub(1)
            .checked_mul(pitch)?
            .checked_add(row)
    });
    match bytes {
        Some(bytes) if state.memory.covers(address, bytes) => {}
        _ => return invalid(),
    }
    if height > 1 && row.is_some_and(|row| pitch < row) {
        return invalid();
    }
    Ok(Fill {
        stream: 0,
        address,
        pitch: if height > 1 { pitch } else { row.unwrap_or(0) },
        value,
        element_bytes,
        width,
        height,
    })
}

fn fill(
    (state, context, stream): Target,
    dst: u64,
    pitch: usize,
    value: u32,
    element_bytes: u32,
    width: usize,
    height: usize,
) -> Answer {
    if width == 0 || height == 0 {
        return Ok(());
    }
    let mut request = fill_op(
        state,
        dst,
        pitch as u64,
        value,
        element_bytes,
        width as u64,
        height as u64,
    )?;
    if stream.capturing.load(Acquire) {
        return capture::record(stream, Op::Fill(request));
    }
    capture::forbid_legacy(stream)?;
    managed_variables::push(state, context, stream.wire())?;
    request.stream = stream.wire();
    context.checked(state.client.post(&request, &[]))
}

driver! {
    fn set_8<const PT>(dst: u64, value: u8, count: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, 0, value.into(), 1, count, 1)
    }
    fn set_16<const PT>(dst: u64, value: u16, count: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, 0, value.into(), 2, count, 1)
    }
    fn set_32<const PT>(dst: u64, value: u32, count: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, 0, value, 4, count, 1)
    }
    fn set_8_async<const PT>(dst: u64, value: u8, count: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, 0, value.into(), 1, count, 1)
    }
    fn set_16_async<const PT>(dst: u64, value: u16, count: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, 0, value.into(), 2, count, 1)
    }
    fn set_32_async<const PT>(dst: u64, value: u32, count: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, 0, value, 4, count, 1)
    }
    fn set_2d_8<const PT>(dst: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, pitch, value.into(), 1, width, height)
    }
    fn set_2d_16<const PT>(dst: u64, pitch: usize, value: u16, width: usize, height: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, pitch, value.into(), 2, width, height)
    }
    fn set_2d_32<const PT>(dst: u64, pitch: usize, value: u32, width: usize, height: usize) {
        fill(resolve::<PT>(std::ptr::null_mut())?, dst, pitch, value, 4, width, height)
    }
    fn set_2d_8_async<const PT>(dst: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, pitch, value.into(), 1, width, height)
    }
    fn set_2d_16_async<const PT>(dst: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, pitch, value.into(), 2, width, height)
    }
    fn set_2d_32_async<const PT>(dst: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle) {
        fill(resolve::<PT>(stream)?, dst, pitch, value, 4, width, height)
    }
}

stream_entries! {
    cuMemsetD8_v2, cuMemsetD8_v2_ptds = set_8;
    cuMemsetD16_v2, cuMemsetD16_v2_ptds = set_16;
    cuMemsetD32_v2, cuMemsetD32_v2_ptds = set_32;
    cuMemsetD8Async, cuMemsetD8Async_ptsz = set_8_async;
    cuMemsetD16Async, cuMemsetD16Async_ptsz = set_16_async;
    cuMemsetD32Async, cuMemsetD32Async_ptsz = set_32_async;
    cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds = set_2d_8;
    cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds = set_2d_16;
    cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds = set_2d_32;
    cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz = set_2d_8_async;
    cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz = set_2d_16_async;
    cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz = set_2d_32_async;
}
