//! Whether a box of bytes lies in memory of the session, whatever its program says about it.

use mica_gpu::{Copy3d, Fill2d, Place};

use super::Tables;
use crate::{Result, VgpuError};

/// Bytes from the first to the last of a box of rows; `None` if that overflows.
fn span_bytes(pitch: (u64, u64), width: u64, height: u64, depth: u64) -> Option<u64> {
    if width == 0 || height == 0 || depth == 0 {
        return Some(0);
    }
    let slices = (depth - 1).checked_mul(pitch.1)?;
    let rows = (height - 1).checked_mul(pitch.0)?;
    slices.checked_add(rows)?.checked_add(width)
}

/// A copy as the device knows it; `None` if it is of no bytes.
pub(super) fn checked_copy(tables: &Tables, copy: &Copy3d) -> Result<Option<Copy3d>> {
    let mut device = *copy;
    let extent = (copy.width_bytes, copy.height, copy.depth);
    device.src = checked(tables, copy.src, copy.src_pitch, copy.src_offset, extent)?;
    device.dst = checked(tables, copy.dst, copy.dst_pitch, copy.dst_offset, extent)?;
    Ok((copy_bytes(copy) > 0).then_some(device))
}

/// Bytes that a checked copy moves.
pub(super) fn copy_bytes(copy: &Copy3d) -> u64 {
    copy.width_bytes * copy.height * copy.depth
}

/// Bytes from the first to the last of a fill that makes sense.
pub(super) fn fill_bytes(fill: &Fill2d) -> Result<u64> {
    let bad = || VgpuError::Argument(format!("a fill of {fill:?} makes no sense"));
    if !matches!(fill.element_bytes, 1 | 2 | 4) {
        return Err(bad());
    }
    let element = u64::from(fill.element_bytes);
    let width = fill.width.checked_mul(element).ok_or_else(bad)?;
    if fill.height > 1 && fill.pitch < width {
        return Err(bad());
    }
    span_bytes((fill.pitch, 0), width, fill.height, 1).ok_or_else(bad)
}

/// Checks one side of a copy and names its array as the device does.
fn checked(
    tables: &Tables,
    place: Place,
    pitch: (u64, u64),
    offset: (u64, u64, u64),
    (width, height, depth): (u64, u64, u64),
) -> Result<Place> {
    let bad = |what: &str| VgpuError::Argument(format!("a copy {what}"));
    let total = width
        .checked_mul(height)
        .and_then(|area| area.checked_mul(depth));
    if total.is_none() {
        return Err(bad("of more bytes than there are"));
    }
    if let Place::Array(handle) = place {
        let array = tables.arrays.get(handle.0)?;
        let (bytes, rows, slices) = super::arrays::extent(&array.descriptor)?;
        let fits = |at: u64, len: u64, end: u64| at.checked_add(len).is_some_and(|e| e <= end);
        if !(fits(offset.0, width, bytes)
            && fits(offset.1, height, rows)
            && fits(offset.2, depth, slices))
        {
            return Err(bad("beyond the edge of an array"));
        }
        return Ok(Place::Array(array.id));
    }
    if height > 1 && pitch.0 < width || depth > 1 && pitch.1 < pitch.0.saturating_mul(height) {
        return Err(bad("with rows or slices that overlap"));
    }
    let bytes = span_bytes(pitch, width, height, depth).ok_or_else(|| bad("that wraps around"))?;
    if bytes == 0 {
        return Ok(place);
    }
    let start = (offset.1.checked_mul(pitch.0))
        .and_then(|y| {
            y.checked_add(offset.2.checked_mul(pitch.1)?)?
                .checked_add(offset.0)
        })
        .ok_or_else(|| bad("that wraps around"))?;
    match place {
        Place::Host(span) => {
            let end = start.checked_add(bytes);
            if end.is_none_or(|end| end > span.len()) {
                return Err(bad("beyond the end of host memory"));
            }
        }
        Place::Device(address) => {
            let first = address.0.checked_add(start);
            let first = first.ok_or_else(|| bad("that wraps around"))?;
            tables.ranges.check(first, bytes)?;
        }
        Place::Array(_) => {}
    }
    Ok(place)
}
