//! Typed device memory.

use std::marker::PhantomData;
use std::ops::RangeBounds;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::backend::PendingBytes;
use crate::slice::{DeviceSlice, DeviceSliceMut};
use crate::stream::Stream;
use crate::vgpu::Vgpu;
use crate::{Error, Result};

/// Values that are no more than their bytes: numbers, arrays of them, and structs that derive
/// `zerocopy`'s traits.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static {}
impl<T: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static> Plain for T {}

/// Memory on a virtual GPU for values of one type; freed when dropped.
#[derive(Debug)]
pub struct DeviceBuffer<T: Plain> {
    vgpu: Vgpu,
    /// What was allocated; the values begin at `address`.
    allocation: u64,
    address: u64,
    len: usize,
    _values: PhantomData<T>,
}

/// Every allocation begins at a multiple of this.
const ALLOCATION_ALIGN: u64 = 256;

impl<T: Plain> DeviceBuffer<T> {
    pub(crate) fn new(vgpu: &Vgpu, len: usize) -> Result<Self> {
        Self::aligned(vgpu, len, ALLOCATION_ALIGN)
    }

    pub(crate) fn aligned(vgpu: &Vgpu, len: usize, align: u64) -> Result<Self> {
        let no_size = || Error::Argument(format!("a buffer of {len} values has no size"));
        if !align.is_power_of_two() {
            return Err(Error::Argument(format!(
                "{align} is no alignment: a power of two is"
            )));
        }
        let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| *bytes > 0);
        // What lies before the first multiple of the alignment.
        let spare = align.saturating_sub(ALLOCATION_ALIGN);
        let bytes = bytes.and_then(|bytes| (bytes as u64).checked_add(spare));
        let allocation = vgpu.backend.alloc(bytes.ok_or_else(no_size)?)?;
        Ok(Self {
            vgpu: vgpu.clone(),
            allocation,
            address: allocation.next_multiple_of(align),
            len,
            _values: PhantomData,
        })
    }

    pub(crate) fn vgpu(&self) -> &Vgpu {
        &self.vgpu
    }

    /// How many values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none; never.
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

    /// A part of it, to be read.
    ///
    /// # Errors
    /// If the range is empty or does not lie in the buffer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T>> {
        DeviceSlice::from(self).slice(range)
    }

    /// A part of it, to be written.
    ///
    /// # Errors
    /// If the range is empty or does not lie in the buffer.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<DeviceSliceMut<'_, T>> {
        let values = DeviceSlice::from(&*self).slice(range)?;
        Ok(DeviceSliceMut::of(values))
    }

    /// Copies values here, after earlier work of the default stream.
    ///
    /// # Errors
    /// If the lengths differ, or earlier work failed.
    pub fn copy_from(&mut self, values: &[T]) -> Result<()> {
        let stream = self.vgpu.default_stream();
        self.copy_from_in(&stream, values)
    }

    /// Copies values here in the order of a stream; `values` may be changed on return.
    ///
    /// # Errors
    /// If the lengths differ, or the stream is of another virtual GPU.
    pub fn copy_from_in(&mut self, stream: &Stream, values: &[T]) -> Result<()> {
        DeviceSliceMut::from(self).copy_from(stream, values)
    }

    /// Copies another buffer, or a part of one, here in the order of a stream. [`Stream::timed`] tells how long it takes.
    ///
    /// # Errors
    /// If the lengths differ, or the source or the stream is of another virtual GPU: memory that two of them share is
    /// asked of the daemon (`mica region`).
    pub fn copy_from_buffer<'s>(
        &mut self,
        stream: &Stream,
        source: impl Into<DeviceSlice<'s, T>>,
    ) -> Result<()> {
        DeviceSliceMut::from(self).copy_from_slice(stream, source)
    }

    /// Copies the values into a slice; waits for earlier work of the default stream.
    ///
    /// # Errors
    /// If the lengths differ, or earlier work failed.
    pub fn copy_to(&self, values: &mut [T]) -> Result<()> {
        DeviceSlice::from(self).copy_to(values)
    }

    /// The values; waits for earlier work of the default stream.
    ///
    /// # Errors
    /// If earlier work failed.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        DeviceSlice::from(self).to_vec()
    }

    /// Starts to copy the values to the host in the order of a stream.
    ///
    /// # Errors
    /// If nothing can be queued any more, or the stream is of another virtual GPU or is being captured.
    pub fn download(&self, stream: &Stream) -> Result<Download<T>> {
        DeviceSlice::from(self).download(stream)
    }

    /// As [`DeviceBuffer::download`], to be awaited ([`Stream::finished`] has an example).
    ///
    /// # Errors
    /// If nothing can be queued any more. The future gives what went wrong in earlier work.
    pub fn read_later(
        &self,
        stream: &Stream,
    ) -> Result<impl Future<Output = Result<Vec<T>>> + use<T>> {
        let download = self.download(stream)?;
        let finished = stream.finished()?;
        Ok(async move {
            finished.await?;
            download.wait()
        })
    }
}

impl<T: Plain> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        // Fails only if the context is gone, and the memory with it.
        let _ = self.vgpu.backend.free(self.allocation);
    }
}

/// Values on their way to the host.
#[derive(Debug)]
#[must_use = "the values are what it is for"]
pub struct Download<T: Plain> {
    bytes: PendingBytes,
    len: usize,
    _values: PhantomData<T>,
}

impl<T: Plain> Download<T> {
    pub(crate) fn new(bytes: PendingBytes, len: usize) -> Self {
        Self {
            bytes,
            len,
            _values: PhantomData,
        }
    }

    /// Waits for the values.
    ///
    /// # Errors
    /// If the stream's work failed before it got so far.
    pub fn wait(self) -> Result<Vec<T>> {
        let bytes = self.bytes.recv().unwrap_or_else(|_| {
            Err(Error::Gpu {
                code: mica_cuda_abi::CuResult::ContextIsDestroyed,
                message: "the virtual GPU went before the values came".into(),
            })
        })?;
        let mut values = vec![T::new_zeroed(); self.len];
        let room = values.as_mut_bytes();
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
        Ok(values)
    }
}
