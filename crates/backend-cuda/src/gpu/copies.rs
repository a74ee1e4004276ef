//! Copies and fills.
//!
//! Plain runs of bytes take the driver's short paths; boxes and arrays its one general copy. A box
//! whose slices do not lie a whole number of rows apart is copied slice by slice.

use mica_gpu::{Copy3d, DevicePtr, Fill2d, HostSpan, Place, Result, StreamId};

use super::{Context, CudaGpu, Stream, invalid, stale};
use crate::driver::{Memcpy3d, Memcpy3dSide, Raw};

impl CudaGpu {
    pub(super) fn copy_box(&self, id: StreamId, copy: &Copy3d) -> Result<()> {
        let stream = self.stream(id)?;
        if copy.width_bytes == 0 || copy.height == 0 || copy.depth == 0 {
            return Ok(());
        }
        let plain = (copy.height, copy.depth) == (1, 1)
            && copy.src_offset == (0, 0, 0)
            && copy.dst_offset == (0, 0, 0);
        let named = match plain {
            true => self.with_host_side(&stream.context, copy),
            false => *copy,
        };
        let copy = &named;
        self.check_copy(&stream.context, copy)?;
        match (copy.dst, copy.src) {
            (Place::Device(dst), Place::Host(src)) if plain => {
                stream.context.submitted.note_copy(id);
                self.to_device(&stream, dst, src, copy.width_bytes)
            }
            (Place::Host(dst), Place::Device(src)) if plain => {
                stream.context.submitted.note_copy(id);
                self.to_host(&stream, dst, src, copy.width_bytes)
            }
            (Place::Device(dst), Place::Device(src)) if plain => {
                // SAFETY: the driver checks both addresses.
                self.call(&stream.context, "cuMemcpyDtoDAsync", || unsafe {
                    let copy_on = self.driver.functions.copy_on_device;
                    copy_on(dst.0, src.0, copy.width_bytes as usize, stream.raw as Raw)
                })
            }
            _ => self.general_copy(&stream, copy),
        }
    }

    /// A run of bytes between registered host memory and the device, with the host's side as such: the driver need not
    /// be asked what it is, nor take it for device memory.
    fn with_host_side(&self, context: &Context, copy: &Copy3d) -> Copy3d {
        let host = |place| match place {
            Place::Device(address) => self.host_at(context, address, copy.width_bytes),
            Place::Host(_) | Place::Array(_) => None,
        };
        let (Place::Device(_), Place::Device(_)) = (copy.dst, copy.src) else {
            return *copy;
        };
        let mut named = *copy;
        match (host(copy.dst), host(copy.src)) {
            (Some(dst), None) => named.dst = Place::Host(dst),
            (None, Some(src)) => named.src = Place::Host(src),
            // Between two pieces of host memory the device copies as between any two.
            (Some(_), Some(_)) | (None, None) => {}
        }
        named
    }

    /// Refuses a copy that would leave its memory; arrays are the driver's to check.
    pub(super) fn check_copy(&self, context: &Context, copy: &Copy3d) -> Result<()> {
        self.check_place(context, copy.src, copy.src_pitch, copy.src_offset, copy)?;
        self.check_place(context, copy.dst, copy.dst_pitch, copy.dst_offset, copy)
    }

    fn check_place(
        &self,
        context: &Context,
        place: Place,
        pitch: (u64, u64),
        offset: (u64, u64, u64),
        copy: &Copy3d,
    ) -> Result<()> {
        let bytes = extent(pitch, offset, copy);
        match (place, bytes) {
            (Place::Array(_), _) => Ok(()),
            (Place::Host(span), Some(bytes)) if bytes <= span.len() => Ok(()),
            (Place::Device(address), Some(bytes)) => self.check_range(context, address, bytes),
            _ => Err(invalid("a copy passes the end of its host memory")),
        }
    }

    pub(super) fn to_device(
        &self,
        stream: &Stream,
        dst: DevicePtr,
        src: HostSpan,
        bytes: u64,
    ) -> Result<()> {
        // SAFETY: the span is readable for its length, which was checked.
        self.call(&stream.context, "cuMemcpyHtoDAsync", || unsafe {
            let copy = self.driver.functions.copy_to_device;
            copy(
                dst.0,
                src.as_ptr().cast(),
                bytes as usize,
                stream.raw as Raw,
            )
        })
    }

    pub(super) fn to_host(
        &self,
        stream: &Stream,
        dst: HostSpan,
        src: DevicePtr,
        bytes: u64,
    ) -> Result<()> {
        // SAFETY: the span is writable for its length, which was checked.
        self.call(&stream.context, "cuMemcpyDtoHAsync", || unsafe {
            let copy = self.driver.functions.copy_to_host;
            copy(
                dst.as_ptr().cast(),
                src.0,
                bytes as usize,
                stream.raw as Raw,
            )
        })
    }

    fn general_copy(&self, stream: &Stream, copy: &Copy3d) -> Result<()> {
        for part in parts(copy)? {
            let request = self.box_request(&part)?;
            // SAFETY: host spans hold what the copy touches; the driver checks the rest.
            self.call(&stream.context, "cuMemcpy3DAsync", || unsafe {
                (self.driver.functions.copy_3d)(&request, stream.raw as Raw)
            })?;
        }
        Ok(())
    }

    /// The driver's form of one of the [`parts`] of a copy.
    pub(super) fn box_request(&self, copy: &Copy3d) -> Result<Memcpy3d> {
        let side = |place, pitch, offset| self.side(place, pitch, offset, copy);
        Ok(Memcpy3d {
            src: side(copy.src, copy.src_pitch, copy.src_offset)?,
            dst: side(copy.dst, copy.dst_pitch, copy.dst_offset)?,
            width_bytes: copy.width_bytes as usize,
            height: copy.height as usize,
            depth: copy.depth as usize,
        })
    }

    fn side(
        &self,
        place: Place,
        pitch: (u64, u64),
        offset: (u64, u64, u64),
        copy: &Copy3d,
    ) -> Result<Memcpy3dSide> {
        let (kind, host, device, array) = match place {
            Place::Host(span) => (1, span.as_ptr().cast(), 0, std::ptr::null_mut()),
            Place::Device(address) => (2, std::ptr::null_mut(), address.0, std::ptr::null_mut()),
            Place::Array(id) => {
                let array = self.arrays.get(id.0).ok_or_else(|| stale("array", id.0))?;
                (3, std::ptr::null_mut(), 0, array.raw as Raw)
            }
        };
        // The driver wants a pitch of at least a row even where there is only one.
        let row = pitch.0.max(match (copy.height, copy.depth) {
            (1, 1) => offset.0.saturating_add(copy.width_bytes),
            _ => 0,
        });
        let rows = match copy.depth {
            1 => offset.1.saturating_add(copy.height),
            _ => pitch.1.checked_div(row).unwrap_or(0),
        };
        let in_array = kind == 3;
        Ok(Memcpy3dSide {
            x_bytes: offset.0 as usize,
            y: offset.1 as usize,
            z: offset.2 as usize,
            lod: 0,
            kind,
            host,
            device,
            array,
            reserved: std::ptr::null_mut(),
            pitch: if in_array { 0 } else { row as usize },
            height: if in_array { 0 } else { rows as usize },
        })
    }

    pub(super) fn fill_rows(&self, stream: StreamId, fill: &Fill2d) -> Result<()> {
        let stream = self.stream(stream)?;
        if fill.width == 0 || fill.height == 0 {
            return Ok(());
        }
        self.check_fill(&stream.context, fill)?;
        let functions = &self.driver.functions;
        let (to, raw, value) = (fill.dst.0, stream.raw as Raw, fill.value);
        let (pitch, width, height) = (
            fill.pitch as usize,
            fill.width as usize,
            fill.height as usize,
        );
        // SAFETY: the driver checks the address and its alignment.
        let call = || unsafe {
            match (fill.element_bytes, height) {
                (1, 1) => (functions.fill_8)(to, value as u8, width, raw),
                (2, 1) => (functions.fill_16)(to, value as u16, width, raw),
                (4, 1) => (functions.fill_32)(to, value, width, raw),
                (1, _) => (functions.fill_2d_8)(to, pitch, value as u8, width, height, raw),
                (2, _) => (functions.fill_2d_16)(to, pitch, value as u16, width, height, raw),
                (_, _) => (functions.fill_2d_32)(to, pitch, value, width, height, raw),
            }
        };
        self.call(&stream.context, "cuMemsetAsync", call)
    }

    /// Refuses a fill that would leave its memory.
    pub(super) fn check_fill(&self, context: &Context, fill: &Fill2d) -> Result<()> {
        if !matches!(fill.element_bytes, 1 | 2 | 4) {
            return Err(invalid(format!(
                "a fill of {}-byte elements",
                fill.element_bytes
            )));
        }
        let bytes = (fill.height.saturating_sub(1))
            .checked_mul(fill.pitch)
            .zip(fill.width.checked_mul(fill.element_bytes.into()))
            .and_then(|(rows, row)| rows.checked_add(row));
        let bytes = bytes.ok_or_else(|| invalid("a fill passes the end of memory"))?;
        self.check_range(context, fill.dst, bytes)
    }
}

/// A copy in parts that the driver takes: whole where slices lie a whole number of rows apart, else slice by slice.
pub(super) fn parts(copy: &Copy3d) -> Result<Vec<Copy3d>> {
    let whole_rows = |place: Place, pitch: (u64, u64)| {
        matches!(place, Place::Array(_)) || (pitch.0 != 0 && pitch.1.is_multiple_of(pitch.0))
    };
    let at_once = copy.depth == 1
        || (whole_rows(copy.src, copy.src_pitch) && whole_rows(copy.dst, copy.dst_pitch));
    if at_once {
        return Ok(vec![*copy]);
    }
    let part = |slice| {
        let mut one = *copy;
        one.depth = 1;
        (one.src, one.src_offset) = advance(copy.src, copy.src_pitch.1, copy.src_offset, slice)?;
        (one.dst, one.dst_offset) = advance(copy.dst, copy.dst_pitch.1, copy.dst_offset, slice)?;
        Ok(one)
    };
    (0..copy.depth).map(part).collect()
}

/// The same side one or more slices further on.
fn advance(
    place: Place,
    slice_bytes: u64,
    offset: (u64, u64, u64),
    slices: u64,
) -> Result<(Place, (u64, u64, u64))> {
    let bytes = slice_bytes.checked_mul(slices + offset.2);
    let bytes = bytes.ok_or_else(|| invalid("a copy's slices pass the end of memory"))?;
    Ok(match place {
        Place::Device(address) => (
            Place::Device(address.offset(bytes)),
            (offset.0, offset.1, 0),
        ),
        Place::Host(span) => {
            let left = span.len().saturating_sub(bytes);
            // SAFETY: the whole box was found to lie in the span, so its slices do.
            let span = unsafe { HostSpan::new(span.as_ptr().wrapping_add(bytes as usize), left) };
            (Place::Host(span), (offset.0, offset.1, 0))
        }
        Place::Array(id) => (Place::Array(id), (offset.0, offset.1, offset.2 + slices)),
    })
}

/// Bytes from the start of a side's memory to the end of the box.
fn extent(pitch: (u64, u64), offset: (u64, u64, u64), copy: &Copy3d) -> Option<u64> {
    let rows = offset.1.checked_add(copy.height)?.checked_sub(1)?;
    let slices = offset.2.checked_add(copy.depth)?.checked_sub(1)?;
    let row = offset.0.checked_add(copy.width_bytes)?;
    let rows = rows.checked_mul(pitch.0)?;
    slices
        .checked_mul(pitch.1)?
        .checked_add(rows)?
        .checked_add(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_gpu::DevicePtr;

    fn span(buffer: &mut [u8]) -> HostSpan {
        // SAFETY: the test's buffer outlives the span, which nothing dereferences.
        unsafe { HostSpan::new(buffer.as_mut_ptr(), buffer.len() as u64) }
    }

    #[test]
    fn the_extent_of_a_box_is_to_its_last_byte() {
        let place = Place::Device(DevicePtr(4096));
        let mut copy = Copy3d::linear(place, place, 100);
        let extent = |copy: &Copy3d| extent(copy.src_pitch, copy.src_offset, copy);
        assert_eq!(extent(&copy), Some(100));
        copy.width_bytes = 10;
        copy.height = 10;
        copy.src_pitch = (11, 0);
        assert_eq!(extent(&copy), Some(9 * 11 + 10));
        copy.depth = 3;
        copy.src_pitch = (11, 200);
        copy.src_offset = (1, 2, 1);
        assert_eq!(extent(&copy), Some(3 * 200 + 11 * 11 + 11));
        copy.src_pitch = (u64::MAX, u64::MAX);
        assert_eq!(extent(&copy), None);
    }

    #[test]
    fn slices_lie_their_own_pitch_apart() {
        let mut buffer = [0; 100];
        let host = span(&mut buffer);
        let (place, offset) = advance(Place::Host(host), 30, (1, 2, 1), 1).expect("in range");
        let Place::Host(moved) = place else {
            panic!("it stays host memory")
        };
        assert_eq!(moved.as_ptr() as usize - host.as_ptr() as usize, 60);
        assert_eq!(offset, (1, 2, 0));
        assert!(advance(Place::Device(DevicePtr(0)), u64::MAX, (0, 0, 0), 2).is_err());
    }
}
