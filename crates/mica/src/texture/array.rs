//! Arrays: memory in the order that textures want.

use std::marker::PhantomData;
use std::sync::Arc;

use mica_gpu::{ArrayDescriptor, ArrayId, Place};
use zerocopy::IntoBytes as _;

use super::{Surface, Texel, Texture, TextureOptions};
use crate::backend::DeviceSide;
use crate::pitched::{check, read, write};
use crate::stream::Stream;
use crate::vgpu::Vgpu;
use crate::{Error, Result};

/// `CUDA_ARRAY3D_LAYERED` and `CUDA_ARRAY3D_SURFACE_LDST`.
const LAYERED: u32 = 1;
const SURFACE: u32 = 2;

/// Texels in each dimension of an [`Array`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayShape {
    width: usize,
    height: usize,
    depth: usize,
    is_layered: bool,
}

impl ArrayShape {
    /// One row.
    pub fn line(width: usize) -> Self {
        Self::of(width, 0, 0, false)
    }

    /// Rows.
    pub fn plane(width: usize, height: usize) -> Self {
        Self::of(width, height, 0, false)
    }

    /// Slices of rows.
    pub fn volume(width: usize, height: usize, depth: usize) -> Self {
        Self::of(width, height, depth, false)
    }

    /// Planes that are chosen by a number and never interpolated with each other.
    pub fn layers(width: usize, height: usize, layers: usize) -> Self {
        Self::of(width, height, layers, true)
    }

    fn of(width: usize, height: usize, depth: usize, is_layered: bool) -> Self {
        Self {
            width,
            height,
            depth,
            is_layered,
        }
    }

    /// How many texels; `None` beyond what can be counted.
    fn texels(&self) -> Option<usize> {
        let rows = self.height.max(1).checked_mul(self.depth.max(1))?;
        self.width.checked_mul(rows).filter(|texels| *texels > 0)
    }
}

#[derive(Debug)]
pub(super) struct OwnedArray {
    pub(super) vgpu: Vgpu,
    pub(super) handle: u64,
}

impl Drop for OwnedArray {
    fn drop(&mut self) {
        // Fails only if the context is gone, and the array with it.
        let _ = self.vgpu.backend.array_destroy(self.handle);
    }
}

/// Texels that textures read and surfaces write, in an order of the device's own: [`Vgpu::array`]. Freed when it and its
/// textures and surfaces are dropped. It counts against the memory limit.
///
/// ```
/// # fn main() -> Result<(), mica::Error> {
/// use mica::{ArrayShape, Device, Vgpu};
///
/// let vgpu = Vgpu::builder().memory(16 << 20).build(&Device::software()?)?;
/// let mut array = vgpu.array::<[u8; 4]>(ArrayShape::plane(3, 2))?;
/// let pixels = [[1, 2, 3, 255]; 6];
/// array.copy_from(&vgpu.default_stream(), &pixels)?;
/// assert_eq!(array.to_vec()?, pixels);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Array<T: Texel> {
    owned: Arc<OwnedArray>,
    shape: ArrayShape,
    texels: usize,
    _texels: PhantomData<T>,
}

impl<T: Texel> Array<T> {
    /// Texels in all.
    pub fn len(&self) -> usize {
        self.texels
    }

    /// Whether there are none; never.
    pub fn is_empty(&self) -> bool {
        self.texels == 0
    }

    fn side(&self) -> DeviceSide {
        let row = (self.shape.width * size_of::<T>()) as u64;
        let (rows, slices) = (self.shape.height.max(1), self.shape.depth.max(1));
        let (rows, slices) = (rows as u64, slices as u64);
        DeviceSide {
            place: Place::Array(ArrayId(self.owned.handle)),
            pitch: (row, row * rows),
            extent: (row, rows, slices),
        }
    }

    /// Copies texels here in the order of a stream: row after row, slice after slice. `texels` may be changed on return.
    ///
    /// # Errors
    /// If there are not as many, or the stream is of another virtual GPU or is being captured.
    pub fn copy_from(&mut self, stream: &Stream, texels: &[T]) -> Result<()> {
        check(self.texels, texels.len())?;
        write(&self.owned.vgpu, stream, &self.side(), texels.as_bytes())
    }

    /// The texels; waits for earlier work of the default stream.
    ///
    /// # Errors
    /// If earlier work failed.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        read(&self.owned.vgpu, &self.side(), self.texels)
    }

    /// A texture over it.
    ///
    /// # Errors
    /// If the options contradict each other.
    pub fn texture(&self, options: &TextureOptions) -> Result<Texture> {
        Texture::of_array::<T>(&self.owned, options)
    }

    /// A surface over it.
    ///
    /// # Errors
    /// If the device refuses one.
    pub fn surface(&self) -> Result<Surface> {
        Surface::of_array(&self.owned)
    }
}

impl Vgpu {
    /// An array for textures and surfaces; what is in it is not set.
    ///
    /// # Errors
    /// If the shape has no texels, the device refuses so large an array, or the memory limit does not allow it.
    pub fn array<T: Texel>(&self, shape: ArrayShape) -> Result<Array<T>> {
        let texels = shape.texels();
        let texels = texels.filter(|texels| texels.checked_mul(size_of::<T>()).is_some());
        let nothing = || Error::Argument(format!("{shape:?} has no size"));
        let texels = texels.ok_or_else(nothing)?;
        let descriptor = ArrayDescriptor {
            width: shape.width as u64,
            height: shape.height as u64,
            depth: shape.depth as u64,
            format: T::FORMAT,
            channels: T::CHANNELS,
            flags: SURFACE | if shape.is_layered { LAYERED } else { 0 },
        };
        let handle = self.backend.array_create(&descriptor)?;
        let vgpu = self.clone();
        Ok(Array {
            owned: Arc::new(OwnedArray { vgpu, handle }),
            shape,
            texels,
            _texels: PhantomData,
        })
    }
}
