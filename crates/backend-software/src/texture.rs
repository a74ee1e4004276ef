//! Arrays, and how texture and surface objects look at memory.

use mica_gpu::{ArrayDescriptor, Result, TextureDescriptor, TextureResource};
use mica_kernel::{Dim3, TextureView};

use crate::core::State;
use crate::error::{bad_handle, invalid_value};
use crate::memory::DeviceMemory;

const LAYERED: u32 = 1;
const CUBEMAP: u32 = 4;
/// Rows begin at multiples of this.
const ROW_ALIGN: u64 = 32;
/// Most texels of linear memory a texture can show (as compute capability 8.0).
const MOST_LINEAR: u64 = 1 << 28;

/// An array: rows of texels in device memory.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) context: u64,
    pub(crate) base: u64,
    pub(crate) row_pitch: u64,
    pub(crate) slice_pitch: u64,
    descriptor: ArrayDescriptor,
}

/// Bytes of one channel of a `CUarray_format`.
fn channel_bytes(format: u32) -> Option<u64> {
    Some(match format {
        1 | 8 => 1,
        2 | 9 | 16 => 2,
        3 | 10 | 32 => 4,
        _ => return None,
    })
}

/// Bytes of a texel.
fn texel_bytes(format: u32, channels: u32) -> Result<u64> {
    match (channel_bytes(format), channels) {
        (Some(bytes), 1 | 2 | 4) => Ok(bytes * u64::from(channels)),
        _ => Err(invalid_value(format!(
            "array format {format} with {channels} channels"
        ))),
    }
}

impl Array {
    /// Bytes of memory for a shape, with its pitches; refuses shapes no device has.
    pub(crate) fn layout(descriptor: &ArrayDescriptor) -> Result<(u64, u64, u64)> {
        let texel = texel_bytes(descriptor.format, descriptor.channels)?;
        let layered = descriptor.flags & LAYERED != 0;
        let (width, height, depth) = (descriptor.width, descriptor.height, descriptor.depth);
        let most = match (height, depth, layered) {
            (0, 0, _) => (131_072, 0, 0),
            (0, _, true) => (32_768, 0, 2048),
            (_, 0, _) => (131_072, 65_536, 0),
            (_, _, true) => (32_768, 32_768, 2048),
            (0, _, false) => return Err(invalid_value("an array with slices but no rows")),
            (_, _, false) => (16_384, 16_384, 16_384),
        };
        let cube = descriptor.flags & CUBEMAP != 0;
        if width == 0 || width > most.0 || height > most.1 || depth > most.2 {
            return Err(invalid_value(format!(
                "an array of {width}×{height}×{depth} texels"
            )));
        }
        if cube && (width != height || !depth.is_multiple_of(6) || depth == 0) {
            return Err(invalid_value("a cube map needs six square faces"));
        }
        let row = (width * texel).next_multiple_of(ROW_ALIGN);
        let slice = row * height.max(1);
        Ok((slice * depth.max(1), row, slice))
    }

    pub(crate) fn new(
        context: u64,
        base: u64,
        row_pitch: u64,
        slice_pitch: u64,
        descriptor: ArrayDescriptor,
    ) -> Self {
        Self {
            context,
            base,
            row_pitch,
            slice_pitch,
            descriptor,
        }
    }

    /// Bytes in a row, rows, slices.
    pub(crate) fn extent_bytes(&self) -> (u64, u64, u64) {
        let texel = texel_bytes(self.descriptor.format, self.descriptor.channels).unwrap_or(1);
        (
            self.descriptor.width * texel,
            self.descriptor.height.max(1),
            self.descriptor.depth.max(1),
        )
    }

    fn view(&self) -> TextureView {
        let d = &self.descriptor;
        TextureView {
            base: self.base,
            extent: Dim3 {
                x: d.width as u32,
                y: d.height.max(1) as u32,
                z: d.depth.max(1) as u32,
            },
            row_pitch: self.row_pitch,
            slice_pitch: self.slice_pitch,
            channels: d.channels,
            format: d.format,
            address_mode: [1; 3],
            filter: 0,
            normalized_coords: false,
            read_as_integer: true,
            layered: d.flags & LAYERED != 0,
            cubemap: d.flags & CUBEMAP != 0,
            border: [0.0; 4],
        }
    }
}

/// How a texture object of `context` reads.
pub(crate) fn texture_view(
    memory: &DeviceMemory,
    state: &State,
    context: u64,
    descriptor: &TextureDescriptor,
) -> Result<TextureView> {
    if descriptor.filter > 1 || descriptor.address_mode.iter().any(|mode| *mode > 3) {
        return Err(invalid_value("an unknown filter or address mode"));
    }
    let view = match descriptor.resource {
        TextureResource::Array(id) => {
            let array = state.arrays.get(&id.0);
            array
                .filter(|array| array.context == context)
                .ok_or_else(|| bad_handle("array", id.0))?
                .view()
        }
        TextureResource::Linear(address, bytes) => {
            let texel = texel_bytes(descriptor.format, descriptor.channels)?;
            let width = bytes / texel;
            if width == 0 || width > MOST_LINEAR || !address.0.is_multiple_of(texel) {
                return Err(invalid_value(format!(
                    "a texture of {width} texels in a row"
                )));
            }
            linear(memory, descriptor, address.0, (width, 1), bytes)?
        }
        TextureResource::Pitched(address, width, height, pitch) => {
            let texel = texel_bytes(descriptor.format, descriptor.channels)?;
            let ok = (1..=131_072).contains(&width)
                && (1..=65_000).contains(&height)
                && pitch >= width * texel
                && pitch.is_multiple_of(32)
                && address.0.is_multiple_of(texel);
            if !ok {
                return Err(invalid_value(format!(
                    "a texture of {width}×{height} texels with a pitch of {pitch} bytes"
                )));
            }
            linear(memory, descriptor, address.0, (width, height), pitch)?
        }
    };
    Ok(TextureView {
        address_mode: descriptor.address_mode,
        filter: descriptor.filter,
        normalized_coords: descriptor.normalized_coords,
        read_as_integer: descriptor.read_as_integer,
        border: descriptor.border,
        ..view
    })
}

fn linear(
    memory: &DeviceMemory,
    descriptor: &TextureDescriptor,
    base: u64,
    (width, height): (u64, u64),
    pitch: u64,
) -> Result<TextureView> {
    let texel = texel_bytes(descriptor.format, descriptor.channels)?;
    let bytes = pitch.saturating_mul(height - 1) + width * texel;
    if !memory.is_live(base, bytes, false) {
        return Err(invalid_value(format!(
            "{bytes} bytes at {base:#x} are not all in one live allocation"
        )));
    }
    Ok(TextureView {
        base,
        extent: Dim3 {
            x: width as u32,
            y: height as u32,
            z: 1,
        },
        row_pitch: pitch,
        slice_pitch: pitch.saturating_mul(height),
        channels: descriptor.channels,
        format: descriptor.format,
        address_mode: descriptor.address_mode,
        filter: descriptor.filter,
        normalized_coords: descriptor.normalized_coords,
        read_as_integer: descriptor.read_as_integer,
        layered: false,
        cubemap: false,
        border: descriptor.border,
    })
}

/// How a surface object reads and writes.
pub(crate) fn surface_view(state: &State, context: u64, array: u64) -> Result<TextureView> {
    let known = state
        .arrays
        .get(&array)
        .filter(|known| known.context == context)
        .ok_or_else(|| bad_handle("array", array))?;
    Ok(known.view())
}
