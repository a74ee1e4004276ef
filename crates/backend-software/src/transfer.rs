//! Copies and fills: checked against live memory when submitted, guarded when done.

use mica_cuda_abi::CuResult;
use mica_gpu::{Copy3d, Fill2d, GpuError, Place, Result};

use crate::core::State;
use crate::error::{bad_handle, invalid_value};
use crate::memory::DeviceMemory;
use crate::recover::{self, Scope};

/// A transfer with its addresses resolved. Memory may be freed before it runs, so it is checked
/// again then, and kept mapped while bytes move.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer {
    Copy {
        src: Side,
        dst: Side,
        width: u64,
        height: u64,
        depth: u64,
    },
    Fill(Fill2d),
}

/// One side: first byte, bytes between rows and between slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    at: u64,
    row: u64,
    slice: u64,
    /// Bytes of device memory from `at` that must be live; 0 for host memory.
    device_bytes: u64,
}

impl Transfer {
    /// Checks a copy against what is live now.
    pub(crate) fn copy(
        memory: &DeviceMemory,
        state: &State,
        context: u64,
        copy: &Copy3d,
    ) -> Result<Self> {
        let extent = (copy.width_bytes, copy.height, copy.depth);
        let side = |place: &Place, pitch, offset, write| {
            resolve(memory, state, context, place, pitch, offset, extent, write)
        };
        Ok(Self::Copy {
            src: side(&copy.src, copy.src_pitch, copy.src_offset, false)?,
            dst: side(&copy.dst, copy.dst_pitch, copy.dst_offset, true)?,
            width: copy.width_bytes,
            height: copy.height,
            depth: copy.depth,
        })
    }

    /// Checks a fill.
    pub(crate) fn fill(memory: &DeviceMemory, fill: &Fill2d) -> Result<Self> {
        if !matches!(fill.element_bytes, 1 | 2 | 4) {
            return Err(invalid_value(format!(
                "a fill pattern of {} bytes; 1, 2 or 4 are possible",
                fill.element_bytes
            )));
        }
        let unit = u64::from(fill.element_bytes);
        if !fill.dst.0.is_multiple_of(unit) || (fill.height > 1 && !fill.pitch.is_multiple_of(unit))
        {
            return Err(invalid_value("a fill that is not aligned to its pattern"));
        }
        let width = fill.width.checked_mul(unit);
        let bytes = width.and_then(|width| span(width, fill.height, 1, fill.pitch, 0));
        match bytes {
            Some(bytes) if memory.is_live(fill.dst.0, bytes, true) => Ok(Self::Fill(*fill)),
            _ => Err(invalid_value(format!(
                "a fill of {} rows of {} elements at {:#x} leaves its allocation",
                fill.height, fill.width, fill.dst.0
            ))),
        }
    }

    /// Bytes moved.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Copy {
                width,
                height,
                depth,
                ..
            } => width.saturating_mul(*height).saturating_mul(*depth),
            Self::Fill(fill) => fill
                .width
                .saturating_mul(fill.height)
                .saturating_mul(u64::from(fill.element_bytes)),
        }
    }

    /// Does it.
    pub(crate) fn run(&self, memory: &DeviceMemory) -> Result<()> {
        let _pin = memory.pin();
        let gone = |at: u64| {
            GpuError::new(
                CuResult::IllegalAddress,
                format!("a transfer touched {at:#x}, which was freed or unmapped before it ran"),
            )
        };
        if let Some(at) = self.dead_address(memory) {
            return Err(gone(at));
        }
        let arena = memory.arena();
        let scope = Scope {
            arena: (arena.base(), arena.len()),
            executable: None,
        };
        // The scope catches what the pin cannot: a file behind registered memory that was cut off.
        // SAFETY: raw byte moves with nothing to drop; device ranges are live and pinned, host
        // ranges are kept valid by `HostSpan`'s contract.
        let done = unsafe { recover::run(scope, || self.move_bytes()) };
        done.map_err(|trap| gone(trap.address))
    }

    /// A device address of this transfer that is no longer live.
    fn dead_address(&self, memory: &DeviceMemory) -> Option<u64> {
        match self {
            Self::Copy { src, dst, .. } => [(src, false), (dst, true)]
                .into_iter()
                .find(|(side, write)| !memory.is_live(side.at, side.device_bytes, *write))
                .map(|(side, _)| side.at),
            Self::Fill(fill) => {
                let width = fill.width * u64::from(fill.element_bytes);
                let bytes = span(width, fill.height, 1, fill.pitch, 0).unwrap_or(0);
                (!memory.is_live(fill.dst.0, bytes, true)).then_some(fill.dst.0)
            }
        }
    }

    /// # Safety
    /// Every row is mapped, or lies in the arena under a recovery scope.
    unsafe fn move_bytes(&self) {
        match *self {
            Self::Copy {
                src,
                dst,
                width,
                height,
                depth,
            } => {
                for z in 0..depth {
                    for y in 0..height {
                        let from = src.at + z * src.slice + y * src.row;
                        let to = dst.at + z * dst.slice + y * dst.row;
                        // SAFETY: as the function asks; overlapping rows are moved, not garbled.
                        unsafe {
                            std::ptr::copy(from as *const u8, to as *mut u8, width as usize);
                        }
                    }
                }
            }
            Self::Fill(fill) => {
                for y in 0..fill.height {
                    let row = fill.dst.0 + y * fill.pitch;
                    let width = fill.width as usize;
                    // SAFETY: as the function asks; rows are aligned to the pattern (checked).
                    unsafe {
                        match fill.element_bytes {
                            1 => std::ptr::write_bytes(row as *mut u8, fill.value as u8, width),
                            2 => fill_row(row as *mut u16, fill.value as u16, width),
                            _ => fill_row(row as *mut u32, fill.value, width),
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
/// `width` aligned elements at `row` may be written, or fault recoverably.
unsafe fn fill_row<T: Copy>(row: *mut T, value: T, width: usize) {
    for x in 0..width {
        // SAFETY: as the function asks.
        unsafe { row.add(x).write(value) };
    }
}

/// Bytes from the first to behind the last; `None` if rows or slices overlap or numbers overflow.
fn span(width: u64, height: u64, depth: u64, row: u64, slice: u64) -> Option<u64> {
    if width == 0 || height == 0 || depth == 0 {
        return Some(0);
    }
    let mut bytes = width;
    if height > 1 {
        if row < width {
            return None;
        }
        bytes = row.checked_mul(height - 1)?.checked_add(bytes)?;
    }
    if depth > 1 {
        if slice < bytes {
            return None;
        }
        bytes = slice.checked_mul(depth - 1)?.checked_add(bytes)?;
    }
    Some(bytes)
}

#[expect(clippy::too_many_arguments, reason = "the parts of one side of a copy")]
fn resolve(
    memory: &DeviceMemory,
    state: &State,
    context: u64,
    place: &Place,
    (row, slice): (u64, u64),
    (x, y, z): (u64, u64, u64),
    (width, height, depth): (u64, u64, u64),
    write: bool,
) -> Result<Side> {
    if let Place::Array(id) = place {
        let array = state
            .arrays
            .get(&id.0)
            .filter(|array| array.context == context)
            .ok_or_else(|| bad_handle("array", id.0))?;
        let (row_bytes, rows, slices) = array.extent_bytes();
        let fits = |at: u64, len: u64, most: u64| at.checked_add(len).is_some_and(|e| e <= most);
        if !fits(x, width, row_bytes) || !fits(y, height, rows) || !fits(z, depth, slices) {
            return Err(invalid_value(format!(
                "a copy of {width}×{height}×{depth} at ({x},{y},{z}) leaves array {}",
                id.0
            )));
        }
        let (row, slice) = (array.row_pitch, array.slice_pitch);
        return Ok(Side {
            at: array.base + z * slice + y * row + x,
            row,
            slice,
            device_bytes: span(width, height, depth, row, slice).unwrap_or(0),
        });
    }
    let refuse = || {
        invalid_value(format!(
            "a copy of {width}×{height}×{depth} bytes with pitches {row} and {slice} does not fit \
             {place:?}"
        ))
    };
    let bytes = span(width, height, depth, row, slice).ok_or_else(refuse)?;
    let offset = z
        .checked_mul(slice)
        .and_then(|a| y.checked_mul(row)?.checked_add(a)?.checked_add(x))
        .ok_or_else(refuse)?;
    let base = match place {
        Place::Host(span) => {
            let fits = offset.checked_add(bytes).is_some_and(|e| e <= span.len());
            if !fits || (bytes > 0 && span.as_ptr().is_null()) {
                return Err(refuse());
            }
            span.as_ptr() as u64
        }
        Place::Device(address) => {
            let at = address.0.checked_add(offset).ok_or_else(refuse)?;
            if !memory.is_live(at, bytes, write) {
                return Err(invalid_value(format!(
                    "{bytes} bytes at {at:#x} are not all in one live allocation"
                )));
            }
            address.0
        }
        Place::Array(_) => return Err(refuse()),
    };
    Ok(Side {
        at: base + offset,
        row,
        slice,
        device_bytes: match place {
            Place::Host(_) => 0,
            _ => bytes,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::span;

    #[test]
    fn spans_of_boxes() {
        assert_eq!(span(10, 1, 1, 0, 0), Some(10));
        assert_eq!(span(10, 3, 1, 16, 0), Some(42));
        assert_eq!(span(10, 3, 2, 16, 48), Some(90));
        assert_eq!(span(10, 3, 1, 9, 0), None);
        assert_eq!(span(10, 3, 2, 16, 40), None);
        assert_eq!(span(8, u64::MAX, 1, u64::MAX, 0), None);
        assert_eq!(span(8, 0, 1, 0, 0), Some(0));
    }
}
