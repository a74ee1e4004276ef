//! Streams and events.

use std::sync::Arc;

use crate::backend::LaunchCall;
use crate::buffer::{DeviceBuffer, Plain};
use crate::finished::Finished;
use crate::launch::{Grid, KernelParams};
use crate::module::Kernel;
use crate::vgpu::Vgpu;
use crate::{Error, Result};

#[derive(Debug)]
struct Owned {
    vgpu: Vgpu,
    handle: u64,
    is_default: bool,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.is_default {
            let _ = self.vgpu.backend.stream_destroy(self.handle);
        }
    }
}

/// Work in order. Clones are the same stream.
///
/// ```
/// # fn main() -> Result<(), mica::Error> {
/// let device = mica::Device::software()?;
/// let vgpu = mica::Vgpu::builder().memory(16 << 20).build(&device)?;
/// let stream = vgpu.stream()?;
/// let mut a = vgpu.alloc::<u32>(1000)?;
/// a.copy_from_in(&stream, &[7; 1000])?;
/// let later = a.download(&stream)?;
/// assert_eq!(later.wait()?, [7; 1000]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Stream {
    owned: Arc<Owned>,
}

impl Stream {
    pub(crate) fn new(vgpu: &Vgpu, non_blocking: bool, priority: i32) -> Result<Self> {
        let handle = vgpu.backend.stream_create(non_blocking, priority)?;
        Ok(Self::wrap(vgpu, handle, false))
    }

    pub(crate) fn default_of(vgpu: &Vgpu) -> Self {
        Self::wrap(vgpu, vgpu.backend.default_stream(), true)
    }

    fn wrap(vgpu: &Vgpu, handle: u64, is_default: bool) -> Self {
        let vgpu = vgpu.clone();
        let owned = Arc::new(Owned {
            vgpu,
            handle,
            is_default,
        });
        Self { owned }
    }

    pub(crate) fn handle(&self) -> u64 {
        self.owned.handle
    }

    /// The stream (`CUstream`) of the process's driver library, where [`Vgpu::driver_context`] is one.
    pub fn driver_handle(&self) -> Option<u64> {
        self.vgpu().driver_context().map(|_| self.handle())
    }

    fn vgpu(&self) -> &Vgpu {
        &self.owned.vgpu
    }

    /// Launches a kernel with typed parameters: a tuple of numbers and buffers.
    ///
    /// # Errors
    /// At once for parameters that do not fit the kernel and impossible shapes; what happens while
    /// it runs is told by later calls.
    pub fn launch(&self, kernel: &Kernel, grid: Grid, params: impl KernelParams) -> Result<()> {
        let packed = kernel.pack(&params)?;
        self.vgpu().backend.launch(&LaunchCall {
            stream: self.handle(),
            module: kernel.module_handle(),
            kernel: kernel.index(),
            grid: grid.blocks,
            block: grid.threads,
            dynamic_shared: grid.shared_bytes,
            cooperative: grid.cooperative,
            params: &packed,
        })
    }

    /// Sets every byte of a buffer.
    pub fn fill_bytes<T: Plain>(&self, buffer: &DeviceBuffer<T>, value: u8) -> Result<()> {
        let (address, bytes) = (buffer.address(), buffer.size_bytes());
        let backend = &self.vgpu().backend;
        backend.fill(self.handle(), address, value.into(), 1, bytes)
    }

    /// Sets every value of a buffer of 1-, 2- or 4-byte values.
    pub fn fill<T: Plain>(&self, buffer: &mut DeviceBuffer<T>, value: T) -> Result<()> {
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
        let (address, count) = (buffer.address(), buffer.len() as u64);
        let (pattern, element) = (u32::from_le_bytes(pattern), bytes.len() as u32);
        let backend = &self.vgpu().backend;
        backend.fill(self.handle(), address, pattern, element, count)
    }

    /// Waits for all its work.
    pub fn synchronize(&self) -> Result<()> {
        self.vgpu().backend.stream_synchronize(self.handle())
    }

    /// Whether all its work is done.
    pub fn is_idle(&self) -> Result<bool> {
        self.vgpu().backend.stream_query(self.handle())
    }

    /// Makes its later work wait for an event.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        let backend = &self.vgpu().backend;
        backend.stream_wait_event(self.handle(), event.handle)
    }

    /// Runs a function in this process after its earlier work and before its later. The function
    /// may wait, but not use the virtual GPU.
    pub fn call(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        let backend = &self.vgpu().backend;
        backend.stream_callback(self.handle(), Box::new(function))
    }

    /// A future that ends when the work queued so far has, for programs that wait for many streams with few threads. No
    /// runtime is needed: the future wakes whoever polls it.
    ///
    /// ```
    /// # use std::{pin::pin, sync::Arc, task::{Context, Poll, Wake}, thread::Thread};
    /// # struct Unpark(Thread);
    /// # impl Wake for Unpark {
    /// #     fn wake(self: Arc<Self>) { self.0.unpark() }
    /// # }
    /// # fn block_on<T>(future: impl Future<Output = T>) -> T {
    /// #     let waker = Arc::new(Unpark(std::thread::current())).into();
    /// #     let mut future = pin!(future);
    /// #     loop {
    /// #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
    /// #             Poll::Ready(value) => return value,
    /// #             Poll::Pending => std::thread::park(),
    /// #         }
    /// #     }
    /// # }
    /// # fn main() -> Result<(), mica::Error> {
    /// let device = mica::Device::software()?;
    /// let vgpu = mica::Vgpu::builder().memory(16 << 20).build(&device)?;
    /// let work = async {
    ///     let (a, b) = (vgpu.stream()?, vgpu.stream()?);
    ///     let (mut x, mut y) = (vgpu.alloc::<u32>(1000)?, vgpu.alloc::<u32>(1000)?);
    ///     a.fill(&mut x, 7)?;
    ///     b.fill(&mut y, 8)?;
    ///     b.finished()?.await?;
    ///     Ok::<_, mica::Error>((x.read_later(&a)?.await?, y.read_later(&b)?.await?))
    /// };
    /// let (x, y) = block_on(work)?;
    /// assert_eq!((x[999], y[999]), (7, 8));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If nothing can be queued any more. The future gives what went wrong in earlier work.
    pub fn finished(&self) -> Result<Finished> {
        Finished::of(self)
    }

    /// Cancels its running and queued kernels; how many.
    pub fn cancel(&self) -> Result<u64> {
        self.vgpu().backend.cancel(Some(self.handle()))
    }
}

/// A point in a stream's work.
///
/// ```
/// # fn main() -> Result<(), mica::Error> {
/// let device = mica::Device::software()?;
/// let vgpu = mica::Vgpu::builder().memory(16 << 20).build(&device)?;
/// let stream = vgpu.stream()?;
/// let (start, end) = (vgpu.event()?, vgpu.event()?);
/// start.record(&stream)?;
/// let buffer = vgpu.alloc::<u8>(1 << 20)?;
/// end.record(&stream)?;
/// end.synchronize()?;
/// assert!(end.elapsed_since_ms(&start)? >= 0.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Event {
    vgpu: Vgpu,
    handle: u64,
}

impl Event {
    pub(crate) fn new(vgpu: &Vgpu, timing: bool) -> Result<Self> {
        let handle = vgpu.backend.event_create(timing)?;
        let vgpu = vgpu.clone();
        Ok(Self { vgpu, handle })
    }

    /// Marks where a stream is now.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let backend = &self.vgpu.backend;
        backend.event_record(self.handle, stream.handle())
    }

    /// Whether the mark was reached.
    pub fn is_reached(&self) -> Result<bool> {
        self.vgpu.backend.event_query(self.handle)
    }

    /// Waits for the mark.
    pub fn synchronize(&self) -> Result<()> {
        self.vgpu.backend.event_synchronize(self.handle)
    }

    /// Milliseconds since an earlier event; both reached.
    pub fn elapsed_since_ms(&self, start: &Event) -> Result<f32> {
        let backend = &self.vgpu.backend;
        backend.event_elapsed_ms(start.handle, self.handle)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.vgpu.backend.event_destroy(self.handle);
    }
}
