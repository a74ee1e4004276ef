//! Streams and events.

use std::sync::Arc;
use std::time::Duration;

use mica_gpu::Fill2d;
use mica_vgpu::GraphOp;

use crate::Result;
use crate::buffer::{DeviceBuffer, Plain};
use crate::finished::Finished;
use crate::graph::{Graph, Kept, call_op, capture};
use crate::launch::{Grid, KernelParams};
use crate::launches::LaunchId;
use crate::module::Kernel;
use crate::profile::Activity;
use crate::slice::{DeviceSliceMut, fill_of};
use crate::vgpu::Vgpu;

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

    pub(crate) fn vgpu(&self) -> &Vgpu {
        &self.owned.vgpu
    }

    pub(crate) fn is_default(&self) -> bool {
        self.owned.is_default
    }

    fn is_captured(&self) -> bool {
        self.vgpu().captures.has(self.handle())
    }

    /// Refuses what cannot be a node of a graph, while the stream is being captured.
    pub(crate) fn refuse_in_capture(&self, what: &str) -> Result<()> {
        self.vgpu().captures.refuse(self.handle(), what)
    }

    /// Launches a kernel with typed parameters: a tuple of numbers and buffers.
    ///
    /// # Errors
    /// At once for parameters that do not fit the kernel, impossible shapes, and kernels and buffers of another virtual GPU;
    /// what happens while it runs is told by later calls.
    pub fn launch(&self, kernel: &Kernel, grid: Grid, params: impl KernelParams) -> Result<()> {
        self.vgpu().must_own(kernel.vgpu(), "the kernel")?;
        let packed = kernel.pack(&params)?;
        let attributes = grid.attributes();
        let launch = kernel.call(self.handle(), grid, &attributes, &packed);
        let node = || {
            let kept = Kept::Kernel(kernel.clone());
            Ok((GraphOp::Launch(launch.owned()), kept))
        };
        if self.vgpu().captures.record(self.handle(), node)? {
            return Ok(());
        }
        let (vgpu, what) = (self.vgpu(), (Activity::Kernel, kernel.name(), 0));
        let backend = &*vgpu.backend;
        (vgpu.timings).around(backend, what, self.handle(), || backend.launch(&launch))
    }

    /// As [`Stream::launch`], for a kernel that may have to be cancelled by itself: [`Vgpu::cancel_launch`] ends it and leaves
    /// everything else on the stream alone. It takes a stream of its own meanwhile, which counts where streams are limited.
    ///
    /// ```
    /// # const PTX: &str = include_str!("../tests/kernels.ptx");
    /// # fn main() -> Result<(), mica::Error> {
    /// use mica::{Device, Grid, Vgpu};
    ///
    /// let vgpu = Vgpu::builder().memory(16 << 20).build(&Device::software()?)?;
    /// let endless = vgpu.load_ptx(PTX)?.kernel("spin")?;
    /// let stream = vgpu.stream()?;
    /// let launch = stream.launch_cancellable(&endless, Grid::new(1, 1), ())?;
    /// assert!(vgpu.cancel_launch(launch)?);
    /// stream.synchronize()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Stream::launch`]; also if there may be no more streams.
    pub fn launch_cancellable(
        &self,
        kernel: &Kernel,
        grid: Grid,
        params: impl KernelParams,
    ) -> Result<LaunchId> {
        self.vgpu().must_own(kernel.vgpu(), "the kernel")?;
        self.refuse_in_capture("a launch that can be cancelled by itself")?;
        let packed = kernel.pack(&params)?;
        let attributes = grid.attributes();
        let launch = kernel.call(self.handle(), grid, &attributes, &packed);
        let vgpu = self.vgpu();
        vgpu.launches.launch(&*vgpu.backend, &launch)
    }

    /// Sets every byte of a buffer.
    ///
    /// # Errors
    /// If the buffer is of another virtual GPU.
    pub fn fill_bytes<T: Plain>(&self, buffer: &DeviceBuffer<T>, value: u8) -> Result<()> {
        self.vgpu().must_own(buffer.vgpu(), "the buffer")?;
        let bytes = buffer.len() * size_of::<T>();
        self.fill_with(fill_of(buffer.address(), bytes, value)?)
    }

    /// Sets every value of a buffer, or of a part of one, of 1-, 2- or 4-byte values.
    ///
    /// # Errors
    /// If values are larger, or the buffer is of another virtual GPU.
    pub fn fill<'b, T: Plain>(
        &self,
        buffer: impl Into<DeviceSliceMut<'b, T>>,
        value: T,
    ) -> Result<()> {
        let buffer = buffer.into();
        self.vgpu().must_own(buffer.vgpu(), "the buffer")?;
        self.fill_with(fill_of(buffer.address(), buffer.len(), value)?)
    }

    fn fill_with(&self, fill: Fill2d) -> Result<()> {
        let node = || Ok((GraphOp::Fill(fill), Kept::Nothing));
        if self.vgpu().captures.record(self.handle(), node)? {
            return Ok(());
        }
        let (address, value, element) = (fill.dst.0, fill.value, fill.element_bytes);
        let (vgpu, stream) = (self.vgpu(), self.handle());
        let what = (Activity::Fill, "fill", fill.width * u64::from(element));
        let backend = &*vgpu.backend;
        vgpu.timings.around(backend, what, stream, || {
            backend.fill(stream, address, value, element, fill.width)
        })
    }

    /// Makes a graph of what a function does on this stream, and on streams that wait for its events: nothing runs until the
    /// graph is launched. Functions of the host are recorded by [`Stream::call_each`]. Work on other streams runs at once.
    ///
    /// ```
    /// # const PTX: &str = include_str!("../tests/kernels.ptx");
    /// # fn main() -> Result<(), mica::Error> {
    /// use mica::{Device, Grid, Vgpu};
    ///
    /// let vgpu = Vgpu::builder().memory(16 << 20).build(&Device::software()?)?;
    /// let vadd = vgpu.load_ptx(PTX)?.kernel("vadd")?;
    /// let (x, y) = (vgpu.upload(&[1.0_f32; 64])?, vgpu.alloc::<f32>(64)?);
    /// let stream = vgpu.stream()?;
    /// let graph = stream.capture(|| {
    ///     stream.launch(&vadd, Grid::new(1, 64), (&x, &y, &y, 64_u32))?;
    ///     stream.launch(&vadd, Grid::new(1, 64), (&x, &y, &y, 64_u32))
    /// })?;
    /// let ready = graph.instantiate()?;
    /// for _ in 0..10 {
    ///     ready.launch(&stream)?;
    /// }
    /// stream.synchronize()?;
    /// assert_eq!(y.to_vec()?, [20.0; 64]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the function; also if the stream is the default one or is being captured already, or if another stream was
    /// taken in and not joined again.
    pub fn capture<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<Graph> {
        capture(self.vgpu(), self, work)
    }

    /// Does some work on this stream and waits for it; how long the device took.
    ///
    /// ```
    /// # fn main() -> Result<(), mica::Error> {
    /// let device = mica::Device::software()?;
    /// let vgpu = mica::Vgpu::builder().memory(16 << 20).build(&device)?;
    /// let (from, mut to) = (vgpu.alloc::<u8>(1 << 20)?, vgpu.alloc::<u8>(1 << 20)?);
    /// let stream = vgpu.stream()?;
    /// let ((), time) = stream.timed(|| to.copy_from_buffer(&stream, &from))?;
    /// println!("{:.1} GB/s", from.size_bytes() as f64 / time.as_secs_f64() / 1e9);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the function; also if the stream is being captured, or the work fails.
    pub fn timed<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Duration)> {
        self.refuse_in_capture("a measurement")?;
        let (start, end) = (self.vgpu().event()?, self.vgpu().event()?);
        start.record(self)?;
        let done = work()?;
        end.record(self)?;
        end.synchronize()?;
        let seconds = f64::from(end.elapsed_since_ms(&start)?) / 1e3;
        Ok((done, Duration::from_secs_f64(seconds.max(0.0))))
    }

    /// Waits for all its work.
    pub fn synchronize(&self) -> Result<()> {
        self.refuse_in_capture("a wait")?;
        self.vgpu().backend.stream_synchronize(self.handle())
    }

    /// Whether all its work is done.
    pub fn is_idle(&self) -> Result<bool> {
        self.refuse_in_capture("a question")?;
        self.vgpu().backend.stream_query(self.handle())
    }

    /// Makes its later work wait for an event. A stream that waits for an event of a captured stream is captured too.
    ///
    /// # Errors
    /// If the event is of another virtual GPU, or a captured stream would wait for work outside of its capture.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        self.vgpu().must_own(event.vgpu(), "the event")?;
        let (stream, event) = (self.handle(), event.handle());
        if (self.vgpu().captures).join(stream, event, self.is_default())? {
            return Ok(());
        }
        self.vgpu().backend.stream_wait_event(stream, event)
    }

    /// Runs a function in this process after its earlier work and before its later. The function
    /// may wait, but not use the virtual GPU.
    pub fn call(&self, function: impl FnOnce() + Send + 'static) -> Result<()> {
        self.refuse_in_capture("a function that runs once (Stream::call_each takes others)")?;
        let backend = &self.vgpu().backend;
        backend.stream_callback(self.handle(), Box::new(function))
    }

    /// As [`Stream::call`], for a function that can run often: a captured one runs at each launch of its graph.
    pub fn call_each(&self, function: impl Fn() + Send + Sync + 'static) -> Result<()> {
        if self.is_captured() {
            let node = || Ok((call_op(function), Kept::Nothing));
            return self.vgpu().captures.record(self.handle(), node).map(drop);
        }
        self.call(function)
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
    owned: Arc<OwnedEvent>,
}

/// The device's event; destroyed with the last [`Event`] or graph that has it.
#[derive(Debug)]
pub(crate) struct OwnedEvent {
    vgpu: Vgpu,
    handle: u64,
}

impl Event {
    pub(crate) fn new(vgpu: &Vgpu, timing: bool) -> Result<Self> {
        let handle = vgpu.backend.event_create(timing)?;
        let vgpu = vgpu.clone();
        let owned = Arc::new(OwnedEvent { vgpu, handle });
        Ok(Self { owned })
    }

    pub(crate) fn vgpu(&self) -> &Vgpu {
        &self.owned.vgpu
    }

    pub(crate) fn handle(&self) -> u64 {
        self.owned.handle
    }

    pub(crate) fn owned(&self) -> Arc<OwnedEvent> {
        Arc::clone(&self.owned)
    }

    /// Marks where a stream is now. In a captured stream it marks a place in the graph, which other streams can wait for;
    /// [`Graph::record`] makes an event a part of a graph.
    ///
    /// # Errors
    /// If the stream is of another virtual GPU, or its work has failed.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.vgpu().must_own(stream.vgpu(), "the stream")?;
        if self.vgpu().captures.mark(self.handle(), stream.handle()) {
            return Ok(());
        }
        let backend = &self.vgpu().backend;
        backend.event_record(self.handle(), stream.handle())
    }

    /// Whether the mark was reached.
    pub fn is_reached(&self) -> Result<bool> {
        self.vgpu().backend.event_query(self.handle())
    }

    /// Waits for the mark.
    pub fn synchronize(&self) -> Result<()> {
        self.vgpu().backend.event_synchronize(self.handle())
    }

    /// Milliseconds since an earlier event; both reached.
    pub fn elapsed_since_ms(&self, start: &Event) -> Result<f32> {
        self.vgpu().must_own(start.vgpu(), "the event")?;
        let backend = &self.vgpu().backend;
        backend.event_elapsed_ms(start.handle(), self.handle())
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        self.vgpu.captures.forget_event(self.handle);
        let _ = self.vgpu.backend.event_destroy(self.handle);
    }
}
