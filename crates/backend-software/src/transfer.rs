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

/// Bytes and rows of a transfer that are moved without a look at whether it should hold still. Each row may lie on two pages
/// that the system has yet to give, some 0.7 µs each.
const SLICE_BYTES: u64 = 256 << 10;
const SLICE_ROWS: u64 = 512;

/// How far a transfer has got.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Rows that are done.
    row: u64,
    /// Bytes of the next row that are done.
    done: u64,
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

    /// Whether the source and the destination of a copy are the host's; `None` for a fill.
    pub(crate) fn ends_at_host(&self) -> Option<[bool; 2]> {
        match self {
            Self::Copy { src, dst, .. } => Some([src, dst].map(|side| side.device_bytes == 0)),
            Self::Fill(_) => None,
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

    /// Rows of all slices, and bytes in each.
    fn rows(&self) -> (u64, u64) {
        match self {
            Self::Copy {
                width,
                height,
                depth,
                ..
            } => (height.saturating_mul(*depth), *width),
            Self::Fill(fill) => {
                let width = fill.width.saturating_mul(u64::from(fill.element_bytes));
                (fill.height, width)
            }
        }
    }

    /// Does a slice of it: so little that whoever wants it to hold still waits for less than a millisecond. True
    /// when it is done.
    pub(crate) fn step(&self, memory: &DeviceMemory, progress: &mut Progress) -> Result<bool> {
        let before = *progress;
        // SAFETY: raw byte moves with nothing to drop; device ranges are checked, host ranges are kept valid by
        // `HostSpan`'s contract.
        let done = unsafe { guarded(memory, &self.device_ranges(), || self.move_slice(progress)) };
        if done.is_ok() {
            self.note_written(memory, before, *progress);
        }
        done
    }

    /// Tells a checked device which device memory a slice has written.
    fn note_written(&self, memory: &DeviceMemory, from: Progress, to: Progress) {
        if memory.shadow().is_none() {
            return;
        }
        let (rows, width) = self.rows();
        for row in from.row..rows.min(to.row.saturating_add(1)) {
            let begin = if row == from.row { from.done } else { 0 };
            let end = if row == to.row { to.done } else { width };
            let at = match *self {
                Self::Copy { dst, .. } if dst.device_bytes == 0 => return,
                Self::Copy { .. } => self.sides_of(row, begin, end - begin).1,
                Self::Fill(fill) => fill.dst.0 + row * fill.pitch + begin,
            };
            memory.note_written(at, end - begin);
        }
    }

    /// Where so many bytes of a row of a copy are read and written, when so many are done: from its end where the row moves
    /// forward over itself.
    fn sides_of(&self, row: u64, done: u64, bytes: u64) -> (u64, u64) {
        let Self::Copy {
            src,
            dst,
            width,
            height,
            ..
        } = *self
        else {
            return (0, 0);
        };
        let (z, y) = (row / height, row % height);
        let from = src.at + z * src.slice + y * src.row;
        let to = dst.at + z * dst.slice + y * dst.row;
        let at = match to > from && to - from < width {
            true => width - done - bytes,
            false => done,
        };
        (from + at, to + at)
    }

    /// Does all of it, for callers that have made sure that it is short.
    pub(crate) fn run(&self, memory: &DeviceMemory) -> Result<()> {
        let mut progress = Progress::default();
        while !self.step(memory, &mut progress)? {}
        Ok(())
    }

    /// Device memory that must be live: address, bytes, whether it is written.
    fn device_ranges(&self) -> [Range; 2] {
        match self {
            Self::Copy { src, dst, .. } => [
                (src.at, src.device_bytes, false),
                (dst.at, dst.device_bytes, true),
            ],
            Self::Fill(fill) => {
                let width = fill.width * u64::from(fill.element_bytes);
                let bytes = span(width, fill.height, 1, fill.pitch, 0).unwrap_or(0);
                [(fill.dst.0, bytes, true), (fill.dst.0, 0, false)]
            }
        }
    }

    /// # Safety
    /// Every row is mapped, or lies in the arena under a recovery scope.
    unsafe fn move_slice(&self, progress: &mut Progress) -> bool {
        let (rows, width) = self.rows();
        let (mut bytes, mut rows_left) = (SLICE_BYTES, SLICE_ROWS);
        while progress.row < rows && bytes > 0 && rows_left > 0 {
            let piece = (width - progress.done).min(bytes);
            // SAFETY: as the function asks; the piece lies in its row.
            unsafe { self.move_piece(progress, piece) };
            progress.done += piece;
            bytes -= piece;
            if progress.done == width {
                (progress.row, progress.done) = (progress.row + 1, 0);
                rows_left -= 1;
            }
        }
        progress.row >= rows
    }

    /// # Safety
    /// The row is mapped, or lies in the arena under a recovery scope, and has so many bytes left.
    unsafe fn move_piece(&self, progress: &Progress, bytes: u64) {
        match *self {
            Self::Copy { .. } => {
                // Overlapping rows are moved, not garbled: backwards if they move forward.
                let (from, to) = self.sides_of(progress.row, progress.done, bytes);
                // SAFETY: as the function asks.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
            }
            Self::Fill(fill) => {
                let at = fill.dst.0 + progress.row * fill.pitch + progress.done;
                let count = (bytes / u64::from(fill.element_bytes)) as usize;
                // SAFETY: as the function asks; rows are aligned to the pattern (checked), and pieces are whole
                // patterns.
                unsafe {
                    match fill.element_bytes {
                        1 => std::ptr::write_bytes(at as *mut u8, fill.value as u8, count),
                        2 => fill_row(at as *mut u16, fill.value as u16, count),
                        _ => fill_row(at as *mut u32, fill.value, count),
                    }
                }
            }
        }
    }
}

/// Device memory: address, bytes, whether it is written.
type Range = (u64, u64, bool);

/// Touches device memory that may have been freed since it was asked for: the ranges are checked again, and stay mapped
/// meanwhile.
///
/// # Safety
/// `touch` owns nothing that must be dropped, and touches nothing beside the ranges that is not kept valid otherwise.
pub(crate) unsafe fn guarded<T: Copy>(
    memory: &DeviceMemory,
    ranges: &[Range],
    touch: impl FnOnce() -> T,
) -> Result<T> {
    let _pin = memory.pin();
    let gone = |at: u64| {
        GpuError::new(
            CuResult::IllegalAddress,
            format!("work touched {at:#x}, which was freed or unmapped before it ran"),
        )
    };
    let dead = |(at, bytes, write): &&Range| !memory.is_live(*at, *bytes, *write);
    if let Some((at, ..)) = ranges.iter().find(dead) {
        return Err(gone(*at));
    }
    let arena = memory.arena();
    let scope = Scope {
        arena: (arena.base(), arena.len()),
        executable: None,
    };
    // The scope catches what the pin cannot: a file behind registered memory that was cut off.
    // SAFETY: as the function asks; the ranges are live and pinned.
    let touched = unsafe { recover::run(scope, touch) };
    touched.map_err(|trap| gone(trap.address))
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

/// The side of a copy that is an array.
fn resolve_array(
    state: &State,
    context: u64,
    id: mica_gpu::ArrayId,
    (x, y, z): (u64, u64, u64),
    (width, height, depth): (u64, u64, u64),
) -> Result<Side> {
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
    Ok(Side {
        at: array.base + z * slice + y * row + x,
        row,
        slice,
        device_bytes: span(width, height, depth, row, slice).unwrap_or(0),
    })
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
        return resolve_array(state, context, *id, (x, y, z), (width, height, depth));
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
    use super::*;

    #[test]
    fn a_slice_has_few_rows_however_narrow_they_are() {
        let mut memory = vec![1_u8; 40_000];
        let side = |at: u64| Side {
            at,
            row: 10,
            slice: 10_000,
            device_bytes: 0,
        };
        let begin = memory.as_mut_ptr() as u64;
        let copy = Transfer::Copy {
            src: side(begin),
            dst: side(begin + 20_000),
            width: 1,
            height: 1000,
            depth: 2,
        };
        let mut progress = Progress::default();
        let mut slices = 0;
        loop {
            let before = progress.row;
            // SAFETY: both sides are inside `memory`.
            let is_done = unsafe { copy.move_slice(&mut progress) };
            assert!(progress.row - before <= SLICE_ROWS);
            slices += 1;
            if is_done {
                break;
            }
        }
        assert_eq!((progress.row, slices), (2000, 4));
    }

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
