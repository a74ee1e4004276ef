//! Textures and surfaces: memory that kernels read by coordinates.
//!
//! Owns texture and surface objects. What they read lies in arrays ([`array`]), in pitched memory or in a buffer.

mod array;

use std::sync::Arc;

use mica_gpu::{ArrayId, DevicePtr, TextureDescriptor, TextureResource};

use crate::buffer::{DeviceBuffer, Plain};
use crate::pitched::PitchedBuffer;
use crate::vgpu::Vgpu;
use crate::{Error, Result};
use array::OwnedArray;
pub use array::{Array, ArrayShape};

/// A value that textures can read: numbers of 8 to 32 bits, alone or two or four together.
pub trait Texel: Plain {
    /// `CUarray_format`.
    #[doc(hidden)]
    const FORMAT: u32;
    /// Numbers in it.
    #[doc(hidden)]
    const CHANNELS: u32;
}

macro_rules! texels {
    ($($type:ty = $format:literal,)*) => {$(
        impl Texel for $type {
            const FORMAT: u32 = $format;
            const CHANNELS: u32 = 1;
        }
        impl Texel for [$type; 2] {
            const FORMAT: u32 = $format;
            const CHANNELS: u32 = 2;
        }
        impl Texel for [$type; 4] {
            const FORMAT: u32 = $format;
            const CHANNELS: u32 = 4;
        }
    )*};
}
// The numbers of `CUarray_format`.
texels! { u8 = 1, u16 = 2, u32 = 3, i8 = 8, i16 = 9, i32 = 10, f32 = 32, }

/// What a coordinate outside of a texture reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum AddressMode {
    /// The other end. Only with normalized coordinates.
    Wrap = 0,
    /// The nearest texel.
    #[default]
    Clamp = 1,
    /// The texture mirrored. Only with normalized coordinates.
    Mirror = 2,
    /// [`TextureOptions::border`].
    Border = 3,
}

/// What a coordinate between texels reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Filter {
    /// The nearest texel.
    #[default]
    Nearest = 0,
    /// A mean of the nearest texels, with eight bits of weight. Only where texels are read as floats.
    Linear = 1,
}

/// How a texture is read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TextureOptions {
    /// For each dimension.
    pub address: [AddressMode; 3],
    /// Between texels.
    pub filter: Filter,
    /// Coordinates go from 0 to 1 instead of to the number of texels.
    pub normalized: bool,
    /// Integers of 8 and 16 bits are read as they are, not as floats from 0 (or -1) to 1. Those of 32 bits always are.
    pub integers: bool,
    /// What [`AddressMode::Border`] reads.
    pub border: [f32; 4],
}

/// A texture object, destroyed when dropped. It keeps its array alive, a buffer not.
///
/// ```
/// # const SAMPLE: &str = include_str!("../../tests/textures.ptx");
/// # fn main() -> Result<(), mica::Error> {
/// use mica::{ArrayShape, Device, Filter, Grid, TextureOptions, Vgpu};
///
/// let vgpu = Vgpu::builder().memory(16 << 20).build(&Device::software()?)?;
/// let mut array = vgpu.array::<f32>(ArrayShape::plane(2, 1))?;
/// array.copy_from(&vgpu.default_stream(), &[10.0, 20.0])?;
/// let options = TextureOptions { filter: Filter::Linear, ..TextureOptions::default() };
/// let texture = array.texture(&options)?;
/// // out[i] = texture(x + i, y)
/// let sample = vgpu.load_ptx(SAMPLE)?.kernel("sample")?;
/// let mut out = vgpu.alloc::<f32>(1)?;
/// let grid = Grid::new(1, 1);
/// vgpu.default_stream().launch(&sample, grid, (&texture, &mut out, 1.0_f32, 0.5_f32))?;
/// assert_eq!(out.to_vec()?, [15.0], "half way between the two texels");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Texture {
    vgpu: Vgpu,
    handle: u64,
    _array: Option<Arc<OwnedArray>>,
}

/// A surface object over an array: kernels write to it. Destroyed when dropped.
#[derive(Debug)]
pub struct Surface {
    vgpu: Vgpu,
    handle: u64,
    _array: Arc<OwnedArray>,
}

impl Texture {
    fn new<T: Texel>(
        vgpu: &Vgpu,
        resource: TextureResource,
        options: &TextureOptions,
        array: Option<Arc<OwnedArray>>,
    ) -> Result<Self> {
        let is_wide_integer = size_of::<T>() / T::CHANNELS as usize == 4 && T::FORMAT != 32;
        let descriptor = TextureDescriptor {
            resource,
            format: T::FORMAT,
            channels: T::CHANNELS,
            address_mode: options.address.map(|mode| mode as u32),
            filter: options.filter as u32,
            normalized_coords: options.normalized,
            read_as_integer: options.integers || is_wide_integer,
            border: options.border,
        };
        if descriptor.read_as_integer && options.filter == Filter::Linear {
            let message = "a texture whose texels are read as integers cannot be interpolated";
            return Err(Error::Argument(message.into()));
        }
        Ok(Self {
            vgpu: vgpu.clone(),
            handle: vgpu.backend.texture_create(&descriptor)?,
            _array: array,
        })
    }

    fn of_array<T: Texel>(array: &Arc<OwnedArray>, options: &TextureOptions) -> Result<Self> {
        let resource = TextureResource::Array(ArrayId(array.handle));
        Self::new::<T>(&array.vgpu, resource, options, Some(Arc::clone(array)))
    }

    /// What kernels receive.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    pub(crate) fn vgpu(&self) -> &Vgpu {
        &self.vgpu
    }
}

impl Surface {
    fn of_array(array: &Arc<OwnedArray>) -> Result<Self> {
        Ok(Self {
            vgpu: array.vgpu.clone(),
            handle: array.vgpu.backend.surface_create(array.handle)?,
            _array: Arc::clone(array),
        })
    }

    /// What kernels receive.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    pub(crate) fn vgpu(&self) -> &Vgpu {
        &self.vgpu
    }
}

impl Drop for Texture {
    fn drop(&mut self) {
        // Kernels that use it may still run.
        let _ = self.vgpu.backend.synchronize();
        let _ = self.vgpu.backend.texture_destroy(self.handle);
    }
}

impl Drop for Surface {
    fn drop(&mut self) {
        // As for a texture.
        let _ = self.vgpu.backend.synchronize();
        let _ = self.vgpu.backend.surface_destroy(self.handle);
    }
}

impl<T: Texel> DeviceBuffer<T> {
    /// A texture over the whole buffer, read by element number (`tex.1d` with an integer): no interpolation, and zero outside.
    ///
    /// # Errors
    /// If the device refuses so long a texture.
    pub fn texture(&self) -> Result<Texture> {
        let resource = TextureResource::Linear(DevicePtr(self.address()), self.size_bytes());
        Texture::new::<T>(self.vgpu(), resource, &TextureOptions::default(), None)
    }
}

impl<T: Texel> PitchedBuffer<T> {
    /// A texture with two dimensions over the rows.
    ///
    /// # Errors
    /// If the device refuses so large a texture, or the options contradict each other.
    pub fn texture(&self, options: &TextureOptions) -> Result<Texture> {
        let (width, height) = (self.width() as u64, self.height() as u64);
        let address = DevicePtr(self.address());
        let resource = TextureResource::Pitched(address, width, height, self.pitch_bytes());
        Texture::new::<T>(self.vgpu(), resource, options, None)
    }
}
