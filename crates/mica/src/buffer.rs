//! Typed device memory.

use std::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::backend::PendingBytes;
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
    address: u64,
    len: usize,
    _values: PhantomData<T>,
}

impl<T: Plain> DeviceBuffer<T> {
    pub(crate) fn new(vgpu: &Vgpu, len: usize) -> Result<Self> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .filter(|bytes| *bytes > 0)
            .ok_or_else(|| Error::Argument(format!("a buffer of {len} values has no size")))?;
        let address = vgpu.backend.alloc(bytes as u64)?;
        Ok(Self {
            vgpu: vgpu.clone(),
            address,
            len,
            _values: PhantomData,
        })
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

    fn check(&self, what: &str, len: usize) -> Result<()> {
        if len == self.len {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "{what} has {len} values, the buffer {}",
            self.len
        )))
    }

    /// Copies values here, after earlier work of the default stream.
    pub fn copy_from(&mut self, values: &[T]) -> Result<()> {
        let stream = self.vgpu.default_stream();
        self.copy_from_in(&stream, values)
    }

    /// Copies values here in the order of a stream; `values` may be changed on return.
    pub fn copy_from_in(&mut self, stream: &Stream, values: &[T]) -> Result<()> {
        self.check("the source", values.len())?;
        let backend = &self.vgpu.backend;
        backend.write(stream.handle(), self.address, values.as_bytes())
    }

    /// Copies another buffer here in the order of a stream.
    pub fn copy_from_buffer(&mut self, stream: &Stream, source: &DeviceBuffer<T>) -> Result<()> {
        self.check("the source", source.len)?;
        let (dst, src, bytes) = (self.address, source.address, self.size_bytes());
        self.vgpu.backend.copy(stream.handle(), dst, src, bytes)
    }

    /// Copies the values into a slice; waits for earlier work of the default stream.
    pub fn copy_to(&self, values: &mut [T]) -> Result<()>
    where
        T: IntoBytes + FromBytes,
    {
        self.check("the destination", values.len())?;
        let stream = self.vgpu.default_stream().handle();
        let bytes = values.as_mut_bytes();
        self.vgpu.backend.read(stream, self.address, bytes)
    }

    /// The values; waits for earlier work of the default stream.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut values = vec![T::new_zeroed(); self.len];
        self.copy_to(&mut values)?;
        Ok(values)
    }

    /// Starts to copy the values to the host in the order of a stream.
    pub fn download(&self, stream: &Stream) -> Result<Download<T>> {
        let backend = &self.vgpu.backend;
        let bytes = backend.read_later(stream.handle(), self.address, self.size_bytes())?;
        Ok(Download {
            bytes,
            len: self.len,
            _values: PhantomData,
        })
    }
}

impl<T: Plain> DeviceBuffer<T> {
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
        let _ = self.vgpu.backend.free(self.address);
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
