//! Device memory in rows that begin at aligned addresses.

use std::marker::PhantomData;

use mica_gpu::{DevicePtr, Place};
use zerocopy::IntoBytes as _;

use crate::backend::DeviceSide;
use crate::buffer::{DeviceBuffer, Plain};
use crate::stream::Stream;
use crate::vgpu::Vgpu;
use crate::{Error, Result};

/// Rows begin at multiples of this, which also textures over pitched memory want.
const PITCH_ALIGN: u64 = 512;

/// Rows of values, each of which begins at an aligned address: [`Vgpu::alloc_pitched`]. Copies to and from the host have the
/// rows one after the other, without what lies between them on the device.
///
/// ```
/// # fn main() -> Result<(), mica::Error> {
/// let device = mica::Device::software()?;
/// let vgpu = mica::Vgpu::builder().memory(1 << 20).build(&device)?;
/// let mut image = vgpu.alloc_pitched::<f32>(3, 2)?;
/// assert_eq!(image.pitch_bytes(), 512);
/// image.copy_from(&vgpu.default_stream(), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!(image.to_vec()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PitchedBuffer<T: Plain> {
    bytes: DeviceBuffer<u8>,
    width: usize,
    height: usize,
    pitch: u64,
    _values: PhantomData<T>,
}

impl<T: Plain> PitchedBuffer<T> {
    fn new(vgpu: &Vgpu, width: usize, height: usize) -> Result<Self> {
        let row = width.checked_mul(size_of::<T>()).filter(|row| *row > 0);
        let pitch = row.and_then(|row| (row as u64).checked_next_multiple_of(PITCH_ALIGN));
        let bytes = pitch.and_then(|pitch| usize::try_from(pitch).ok()?.checked_mul(height));
        let (Some(pitch), Some(bytes)) = (pitch, bytes) else {
            return Err(Error::Argument(format!(
                "{height} rows of {width} values have no size"
            )));
        };
        Ok(Self {
            bytes: DeviceBuffer::aligned(vgpu, bytes, PITCH_ALIGN)?,
            width,
            height,
            pitch,
            _values: PhantomData,
        })
    }

    pub(crate) fn vgpu(&self) -> &Vgpu {
        self.bytes.vgpu()
    }

    /// Values in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Bytes from the begin of one row to the begin of the next.
    pub fn pitch_bytes(&self) -> u64 {
        self.pitch
    }

    /// The address of the first row, which kernels use.
    pub fn address(&self) -> u64 {
        self.bytes.address()
    }

    fn side(&self) -> DeviceSide {
        let rows = self.height as u64;
        DeviceSide {
            place: Place::Device(DevicePtr(self.address())),
            pitch: (self.pitch, self.pitch * rows),
            extent: ((self.width * size_of::<T>()) as u64, rows, 1),
        }
    }

    /// Copies values here in the order of a stream, row after row; `values` may be changed on return.
    ///
    /// # Errors
    /// If there are not as many, or the stream is of another virtual GPU or is being captured.
    pub fn copy_from(&mut self, stream: &Stream, values: &[T]) -> Result<()> {
        check(self.width * self.height, values.len())?;
        write(self.vgpu(), stream, &self.side(), values.as_bytes())
    }

    /// The values, row after row; waits for earlier work of the default stream.
    ///
    /// # Errors
    /// If earlier work failed.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        read(self.vgpu(), &self.side(), self.width * self.height)
    }
}

/// Refuses a source of another length.
pub(crate) fn check(has: usize, values: usize) -> Result<()> {
    match has == values {
        true => Ok(()),
        false => Err(Error::Argument(format!(
            "the source has {values} values, the destination {has}"
        ))),
    }
}

/// Writes rows and slices in the order of a stream.
pub(crate) fn write(vgpu: &Vgpu, stream: &Stream, side: &DeviceSide, bytes: &[u8]) -> Result<()> {
    vgpu.must_own(stream.vgpu(), "the stream")?;
    stream.refuse_in_capture("a copy of rows from the host")?;
    vgpu.backend.write_box(stream.handle(), side, bytes)
}

/// Reads rows and slices after earlier work of the default stream.
pub(crate) fn read<T: Plain>(vgpu: &Vgpu, side: &DeviceSide, count: usize) -> Result<Vec<T>> {
    let mut values = vec![T::new_zeroed(); count];
    let stream = vgpu.default_stream();
    let bytes = values.as_mut_bytes();
    vgpu.backend.read_box(stream.handle(), side, bytes)?;
    Ok(values)
}

impl Vgpu {
    /// Memory for rows of values, all zero. Rows begin at aligned addresses, as textures and fast copies want.
    ///
    /// # Errors
    /// If there is nothing to allocate, or the memory limit does not allow it.
    pub fn alloc_pitched<T: Plain>(&self, width: usize, height: usize) -> Result<PitchedBuffer<T>> {
        let buffer = PitchedBuffer::new(self, width, height)?;
        self.default_stream().fill_bytes(&buffer.bytes, 0)?;
        Ok(buffer)
    }

    /// Memory for so many values, all zero, that begins at a multiple of `align` bytes. Every allocation begins at a multiple
    /// of 256; a larger alignment takes as many bytes more.
    ///
    /// ```
    /// # fn main() -> Result<(), mica::Error> {
    /// let device = mica::Device::software()?;
    /// let vgpu = mica::Vgpu::builder().memory(1 << 20).build(&device)?;
    /// let buffer = vgpu.alloc_aligned::<f32>(100, 4096)?;
    /// assert_eq!(buffer.address() % 4096, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If `align` is not a power of two, or the memory limit does not allow it.
    pub fn alloc_aligned<T: Plain>(&self, count: usize, align: u64) -> Result<DeviceBuffer<T>> {
        let buffer = DeviceBuffer::aligned(self, count, align)?;
        self.default_stream().fill_bytes(&buffer, 0)?;
        Ok(buffer)
    }
}
