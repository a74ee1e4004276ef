//! Memory that host and device both use in place.

use std::marker::PhantomData;

use zerocopy::IntoBytes as _;

use crate::backend::ManagedMemory;
use crate::buffer::Plain;
use crate::stream::Stream;
use crate::vgpu::Vgpu;
use crate::{Error, Result};

/// Values that kernels use and the host reads and writes without copies of its own: [`Vgpu::managed`]. They count against the
/// memory limit. The host's calls wait for the virtual GPU's work first.
///
/// ```
/// # const PTX: &str = include_str!("../tests/kernels.ptx");
/// # fn main() -> Result<(), mica::Error> {
/// use mica::{Device, Grid, Vgpu};
///
/// let vgpu = Vgpu::builder().memory(16 << 20).build(&Device::software()?)?;
/// let vadd = vgpu.load_ptx(PTX)?.kernel("vadd")?;
/// let mut data = vgpu.managed::<f32>(64)?;
/// data.write(0, &[1.5; 64])?;
/// let stream = vgpu.default_stream();
/// data.prefetch_to_device(&stream)?;
/// stream.launch(&vadd, Grid::new(1, 64), (&data, &data, &data, 64_u32))?;
/// data.prefetch_to_host(&stream)?;
/// let mut last = [0.0];
/// data.read(63, &mut last)?;
/// assert_eq!(last, [3.0]);
/// # Ok(())
/// # }
/// ```
pub struct ManagedBuffer<T: Plain> {
    // Before the virtual GPU: the memory goes first.
    memory: Box<dyn ManagedMemory>,
    vgpu: Vgpu,
    len: usize,
    _values: PhantomData<T>,
}

impl<T: Plain> std::fmt::Debug for ManagedBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManagedBuffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<T: Plain> ManagedBuffer<T> {
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
        self.memory.device()
    }

    /// Where values from `start` on lie on the host, once the virtual GPU's work has ended.
    fn place(&self, start: usize, count: usize) -> Result<*mut u8> {
        if start.checked_add(count).is_none_or(|end| end > self.len) {
            let len = self.len;
            return Err(Error::Argument(format!(
                "{count} values from {start} on are no part of {len}"
            )));
        }
        self.vgpu.synchronize()?;
        Ok(self.memory.host().wrapping_add(start * size_of::<T>()))
    }

    /// Waits for the virtual GPU's work, then reads values from `start` on.
    ///
    /// # Errors
    /// If there are not so many, or earlier work failed.
    pub fn read(&self, start: usize, values: &mut [T]) -> Result<()> {
        let from = self.place(start, values.len())?;
        let bytes = values.as_mut_bytes();
        // SAFETY: `place` has checked that so many bytes from there on belong to the memory, which `ManagedMemory::host` keeps
        // valid; `bytes` is a borrow of other memory. The device may write at the same time if a kernel runs by then: what it
        // leaves are bytes, and any bytes are a `T`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Waits for the virtual GPU's work, then writes values from `start` on.
    ///
    /// # Errors
    /// If there is no room for so many, or earlier work failed.
    pub fn write(&mut self, start: usize, values: &[T]) -> Result<()> {
        let to = self.place(start, values.len())?;
        let bytes = values.as_bytes();
        // SAFETY: as in `read`, the other way.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Brings the values to the device in the order of a stream, so that a kernel need not fetch them page by page. Where host
    /// and device use the same memory (the software GPU, and isolated mode) there is nothing to bring.
    ///
    /// # Errors
    /// If the stream is of another virtual GPU or is being captured.
    pub fn prefetch_to_device(&self, stream: &Stream) -> Result<()> {
        self.prefetch(stream, true)
    }

    /// As [`ManagedBuffer::prefetch_to_device`], the other way.
    ///
    /// # Errors
    /// If the stream is of another virtual GPU or is being captured.
    pub fn prefetch_to_host(&self, stream: &Stream) -> Result<()> {
        self.prefetch(stream, false)
    }

    fn prefetch(&self, stream: &Stream, to_device: bool) -> Result<()> {
        self.vgpu.must_own(stream.vgpu(), "the stream")?;
        stream.refuse_in_capture("a prefetch")?;
        let bytes = self.size_bytes();
        (self.memory).prefetch(stream.handle(), 0, bytes, to_device)
    }
}

impl Vgpu {
    /// Managed memory for so many values, all zero.
    ///
    /// # Errors
    /// If there is nothing to allocate, or the memory limit does not allow it.
    pub fn managed<T: Plain>(&self, count: usize) -> Result<ManagedBuffer<T>> {
        let bytes = count.checked_mul(size_of::<T>()).filter(|b| *b > 0);
        let no_size = || Error::Argument(format!("a buffer of {count} values has no size"));
        let bytes = bytes.ok_or_else(no_size)?;
        let memory = self.backend.managed_alloc(bytes as u64)?;
        // SAFETY: so many bytes are valid for writes, and nobody else knows of them yet.
        unsafe { std::ptr::write_bytes(memory.host(), 0, bytes) };
        Ok(ManagedBuffer {
            vgpu: self.clone(),
            memory,
            len: count,
            _values: PhantomData,
        })
    }
}
