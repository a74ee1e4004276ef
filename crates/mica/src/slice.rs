//! Parts of device memory.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use mica_gpu::{DevicePtr, Fill2d};
use mica_vgpu::GraphOp;
use zerocopy::IntoBytes as _;

use crate::buffer::{DeviceBuffer, Download, Plain};
use crate::graph::{Kept, copy_op};
use crate::profile::Activity;
use crate::stream::Stream;
use crate::vgpu::Vgpu;
use crate::{Error, Result};

/// Values of a [`DeviceBuffer`], all or a part: what is read. Made of a reference to a buffer or by
/// [`DeviceBuffer::slice`].
///
/// ```
/// # fn main() -> Result<(), mica::Error> {
/// let device = mica::Device::software()?;
/// let vgpu = mica::Vgpu::builder().memory(1 << 20).build(&device)?;
/// let mut buffer = vgpu.upload(&[1_u32, 2, 3, 4, 5])?;
/// let stream = vgpu.stream()?;
/// stream.fill(buffer.slice_mut(1..3)?, 9)?;
/// stream.synchronize()?;
/// assert_eq!(buffer.slice(..4)?.to_vec()?, [1, 9, 9, 4]);
/// assert!(buffer.slice(3..6).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DeviceSlice<'b, T: Plain> {
    vgpu: &'b Vgpu,
    address: u64,
    len: usize,
    _values: PhantomData<&'b T>,
}

impl<T: Plain> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Plain> Copy for DeviceSlice<'_, T> {}

/// Values of a [`DeviceBuffer`], all or a part: what is written. Made of a mutable reference to a buffer or by
/// [`DeviceBuffer::slice_mut`].
#[derive(Debug)]
pub struct DeviceSliceMut<'b, T: Plain> {
    values: DeviceSlice<'b, T>,
}

impl<'b, T: Plain> From<&'b DeviceBuffer<T>> for DeviceSlice<'b, T> {
    fn from(buffer: &'b DeviceBuffer<T>) -> Self {
        Self {
            vgpu: buffer.vgpu(),
            address: buffer.address(),
            len: buffer.len(),
            _values: PhantomData,
        }
    }
}

impl<'b, T: Plain> From<&'b mut DeviceBuffer<T>> for DeviceSlice<'b, T> {
    fn from(buffer: &'b mut DeviceBuffer<T>) -> Self {
        Self::from(&*buffer)
    }
}

impl<'b, T: Plain> From<&'b mut DeviceBuffer<T>> for DeviceSliceMut<'b, T> {
    fn from(buffer: &'b mut DeviceBuffer<T>) -> Self {
        Self {
            values: DeviceSlice::from(buffer),
        }
    }
}

impl<'b, T: Plain> From<DeviceSliceMut<'b, T>> for DeviceSlice<'b, T> {
    fn from(slice: DeviceSliceMut<'b, T>) -> Self {
        slice.values
    }
}

impl<'b, T: Plain> DeviceSlice<'b, T> {
    /// How many values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes.
    pub fn size_bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// The address kernels use.
    pub fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn vgpu(&self) -> &'b Vgpu {
        self.vgpu
    }

    /// A part of it.
    ///
    /// # Errors
    /// If the range is empty or does not lie in it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len,
        };
        if start >= end || end > self.len {
            return Err(Error::Argument(format!(
                "{start}..{end} is no part of {} values",
                self.len
            )));
        }
        Ok(Self {
            address: self.address + (start * size_of::<T>()) as u64,
            len: end - start,
            ..*self
        })
    }

    pub(crate) fn check_len(&self, what: &str, len: usize) -> Result<()> {
        if len == self.len {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "{what} has {len} values, the buffer {}",
            self.len
        )))
    }

    /// Copies the values into a slice; waits for earlier work of the default stream.
    ///
    /// # Errors
    /// If the lengths differ, or earlier work failed.
    pub fn copy_to(&self, values: &mut [T]) -> Result<()> {
        self.check_len("the destination", values.len())?;
        let stream = self.vgpu.default_stream();
        let bytes = values.as_mut_bytes();
        self.vgpu.read_bytes(&stream, self.address, bytes)
    }

    /// The values; waits for earlier work of the default stream.
    ///
    /// # Errors
    /// If earlier work failed.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut values = vec![T::new_zeroed(); self.len];
        self.copy_to(&mut values)?;
        Ok(values)
    }

    /// Starts to copy the values to the host in the order of a stream.
    ///
    /// # Errors
    /// If nothing can be queued any more, or the stream is of another virtual GPU or is being captured.
    pub fn download(&self, stream: &Stream) -> Result<Download<T>> {
        self.vgpu.must_own(stream.vgpu(), "the stream")?;
        stream.refuse_in_capture("a copy to the host")?;
        let backend = &self.vgpu.backend;
        let bytes = backend.read_later(stream.handle(), self.address, self.size_bytes())?;
        Ok(Download::new(bytes, self.len))
    }
}

impl<'b, T: Plain> DeviceSliceMut<'b, T> {
    pub(crate) fn of(values: DeviceSlice<'b, T>) -> Self {
        Self { values }
    }

    /// How many values.
    pub fn len(&self) -> usize {
        self.values.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The address kernels use.
    pub fn address(&self) -> u64 {
        self.values.address
    }

    pub(crate) fn vgpu(&self) -> &'b Vgpu {
        self.values.vgpu
    }

    /// The same values, to be read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        self.values
    }

    /// A part of it.
    ///
    /// # Errors
    /// If the range is empty or does not lie in it.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        let values = self.values.slice(range)?;
        Ok(DeviceSliceMut { values })
    }

    /// Two parts of it, the second from `at` on.
    ///
    /// # Errors
    /// If either would be empty.
    pub fn split_at(self, at: usize) -> Result<(Self, Self)> {
        let (first, second) = (self.values.slice(..at)?, self.values.slice(at..)?);
        Ok((Self { values: first }, Self { values: second }))
    }

    pub(crate) fn check_len(&self, what: &str, len: usize) -> Result<()> {
        self.values.check_len(what, len)
    }

    /// Refuses a source of another length or another virtual GPU.
    pub(crate) fn check_source(&self, source: &DeviceSlice<'_, T>) -> Result<()> {
        self.check_len("the source", source.len)?;
        self.vgpu().must_own(source.vgpu, "the source")
    }

    /// Copies values here in the order of a stream; `values` may be changed on return.
    ///
    /// # Errors
    /// If the lengths differ, or the stream is of another virtual GPU.
    pub fn copy_from(&mut self, stream: &Stream, values: &[T]) -> Result<()> {
        self.check_len("the source", values.len())?;
        self.vgpu().must_own(stream.vgpu(), "the stream")?;
        (self.vgpu()).write_bytes(stream, self.address(), values.as_bytes())
    }

    /// Copies other values of the same virtual GPU here in the order of a stream.
    ///
    /// # Errors
    /// If the lengths differ, or the source or the stream is of another virtual GPU: memory that two of them share is
    /// asked of the daemon (`mica region`).
    pub fn copy_from_slice<'s>(
        &mut self,
        stream: &Stream,
        source: impl Into<DeviceSlice<'s, T>>,
    ) -> Result<()> {
        let source = source.into();
        self.check_source(&source)?;
        self.vgpu().must_own(stream.vgpu(), "the stream")?;
        let (to, from, bytes) = (self.address(), source.address, source.size_bytes());
        self.vgpu().copy_bytes(stream, to, from, bytes)
    }
}

/// A fill of so many values.
pub(crate) fn fill_of<T: Plain>(address: u64, len: usize, value: T) -> Result<Fill2d> {
    let bytes = value.as_bytes();
    let mut pattern = [0; 4];
    match bytes.len() {
        1 | 2 | 4 => pattern[..bytes.len()].copy_from_slice(bytes),
        other => {
            return Err(Error::Argument(format!(
                "a fill with {other}-byte values: the device fills 1, 2 or 4 bytes"
            )));
        }
    }
    Ok(Fill2d {
        dst: DevicePtr(address),
        pitch: (len * bytes.len()) as u64,
        value: u32::from_le_bytes(pattern),
        element_bytes: bytes.len() as u32,
        width: len as u64,
        height: 1,
    })
}

impl Vgpu {
    /// Writes bytes to an address of this virtual GPU in the order of a stream; `bytes` may be
    /// changed on return. For addresses that kernels have made; parts of buffers have [`DeviceSliceMut::copy_from`].
    ///
    /// # Errors
    /// If not all of the range is memory of this virtual GPU.
    pub fn write_bytes(&self, stream: &Stream, address: u64, bytes: &[u8]) -> Result<()> {
        let node = || {
            Ok((
                GraphOp::Write(DevicePtr(address), bytes.into()),
                Kept::Nothing,
            ))
        };
        if self.captures.record(stream.handle(), node)? {
            return Ok(());
        }
        let what = (Activity::Copy, "host to device", bytes.len() as u64);
        self.timings
            .around(&*self.backend, what, stream.handle(), || {
                self.backend.write(stream.handle(), address, bytes)
            })
    }

    /// Reads bytes from an address of this virtual GPU, after earlier work of the stream.
    ///
    /// # Errors
    /// If not all of the range is memory of this virtual GPU, or earlier work failed.
    pub fn read_bytes(&self, stream: &Stream, address: u64, bytes: &mut [u8]) -> Result<()> {
        stream.refuse_in_capture("a copy to the host")?;
        let what = (Activity::Copy, "device to host", bytes.len() as u64);
        self.timings
            .around(&*self.backend, what, stream.handle(), || {
                self.backend.read(stream.handle(), address, bytes)
            })
    }

    /// Copies bytes from one address of this virtual GPU to another in the order of a stream. Parts of buffers have
    /// [`DeviceSliceMut::copy_from_slice`].
    ///
    /// # Errors
    /// If not all of both ranges is memory of this virtual GPU.
    pub fn copy_bytes(&self, stream: &Stream, to: u64, from: u64, bytes: u64) -> Result<()> {
        let node = || Ok((copy_op(to, from, bytes), Kept::Nothing));
        if self.captures.record(stream.handle(), node)? {
            return Ok(());
        }
        let what = (Activity::Copy, "device to device", bytes);
        self.timings
            .around(&*self.backend, what, stream.handle(), || {
                self.backend.copy(stream.handle(), to, from, bytes)
            })
    }
}
