//! A virtual GPU and how it is made.

use std::sync::Arc;

use mica_cuda_abi::DeviceAttribute;
use mica_limits::Environment;
use mica_scheduler::Priority;
use mica_vgpu::{MemoryFull, NumberFormats, Statistics, VgpuSpec};

use crate::backend::Backend;
use crate::buffer::{DeviceBuffer, Plain};
use crate::connected::Connected;
use crate::device::{Device, DeviceInfo};
use crate::driver::Driven;
use crate::embedded::Embedded;
use crate::graph::Captures;
use crate::launches::Launches;
use crate::module::Module;
use crate::profile::Timings;
use crate::stream::{Event, Stream};
use crate::{Error, Result};

/// Memory of a virtual GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that can still be had.
    pub free_bytes: u64,
    /// The limit.
    pub limit_bytes: u64,
    /// In use.
    pub used_bytes: u64,
}

/// What a virtual GPU is to be.
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until it is built"]
pub struct VgpuBuilder {
    pub(crate) spec: VgpuSpec,
    memory: Option<u64>,
}

impl VgpuBuilder {
    /// Its name, for logs.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.spec.name = name.into();
        self
    }

    /// Its memory limit; by default all that the device has left.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Its share of the device in percent, when others want it too.
    pub fn share(mut self, percent: f64) -> Self {
        self.spec.share_percent = percent;
        self
    }

    /// The share is also the most it gets when nobody else wants the device.
    pub fn cap(mut self, cap: bool) -> Self {
        self.spec.cap = cap;
        self
    }

    /// How urgent its work is.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.spec.priority = priority;
        self
    }

    /// Most streams beside the default one; 0 for no limit.
    pub fn max_streams(mut self, count: u32) -> Self {
        self.spec.max_streams = count;
        self
    }

    /// Whether code with matrix instructions may be loaded.
    pub fn tensor_cores(mut self, allowed: bool) -> Self {
        self.spec.tensor_cores = allowed;
        self
    }

    /// Which number formats code may compute in.
    pub fn precision(mut self, allowed: NumberFormats) -> Self {
        self.spec.precision = allowed;
        self
    }

    /// What happens when its memory is full.
    pub fn memory_full(mut self, policy: MemoryFull) -> Self {
        self.spec.memory_full = policy;
        self
    }

    /// Makes it on a device of this process.
    ///
    /// # Errors
    /// [`Error::Admission`] if the device has not so much memory left to promise.
    pub fn build(self, device: &Device) -> Result<Vgpu> {
        let share = self.spec.share_percent;
        if !(share > 0.0 && share <= 100.0) {
            return Err(Error::Argument(format!(
                "a share of {share} percent is not between 0 and 100"
            )));
        }
        let embedded = Embedded::new(device, self.spec, self.memory)?;
        Ok(Vgpu::over(Arc::new(embedded)))
    }
}

/// A virtual GPU. Clones are the same one.
#[derive(Clone)]
pub struct Vgpu {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) captures: Arc<Captures>,
    pub(crate) launches: Arc<Launches>,
    pub(crate) timings: Arc<Timings>,
}

impl std::fmt::Debug for Vgpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vgpu")
            .field("device", &self.info().name)
            .finish_non_exhaustive()
    }
}

impl Vgpu {
    pub(crate) fn over(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            captures: Arc::default(),
            launches: Arc::default(),
            timings: Arc::default(),
        }
    }

    /// Refuses what belongs to another virtual GPU: its handles and addresses mean something else here.
    pub(crate) fn must_own(&self, other: &Vgpu, what: &str) -> Result<()> {
        match Arc::ptr_eq(&self.backend, &other.backend) {
            true => Ok(()),
            false => Err(Error::Argument(format!(
                "{what} belongs to another virtual GPU, and the two share no memory"
            ))),
        }
    }

    /// Begins one.
    pub fn builder() -> VgpuBuilder {
        VgpuBuilder {
            spec: VgpuSpec::new("embedded", 0),
            memory: None,
        }
    }

    /// The virtual GPU that `mica run` or `mica exec` started this program in.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if there is none; otherwise why it cannot be reached.
    pub fn connect() -> Result<Self> {
        match Environment::read() {
            None => Err(Error::NotConnected),
            Some(environment) => Self::connect_to(&environment?),
        }
    }

    /// The virtual GPU that `mica run` or `mica exec` started this program in, of either mode, through the driver library that
    /// other code of this process uses: NVIDIA's libraries and this crate share memory and streams.
    ///
    /// # Errors
    /// [`Error::NotConnected`] if the driver library is not Mica's; otherwise what the library says.
    pub fn through_driver() -> Result<Self> {
        Ok(Self::over(Driven::open()?))
    }

    /// The context (`CUcontext`) of the process's driver library that memory and streams are in. `None` where they are not
    /// the driver's: in an embedded virtual GPU, and in one that [`Vgpu::connect`] made.
    pub fn driver_context(&self) -> Option<usize> {
        self.backend.driver_context()
    }

    /// Does some work with [`Vgpu::driver_context`] current on this thread.
    ///
    /// # Errors
    /// If the context cannot be made current.
    pub fn with_driver_context<R>(&self, work: impl FnOnce() -> R) -> Result<R> {
        let (mut work, mut result) = (Some(work), None);
        (self.backend).with_context(&mut || result = work.take().map(|work| work()))?;
        result.ok_or_else(|| Error::Argument("the context was not made current".into()))
    }

    /// A virtual GPU of a daemon.
    pub fn connect_to(environment: &Environment) -> Result<Self> {
        Ok(Self::over(Connected::open(environment)?))
    }

    /// A virtual GPU behind a worker's session socket.
    pub fn over_session(socket: std::os::fd::OwnedFd) -> Result<Self> {
        Ok(Self::over(Connected::over(socket)?))
    }

    /// What it shows of its device; the memory is its own.
    pub fn info(&self) -> DeviceInfo {
        self.backend.info()
    }

    /// An attribute of its device, as `cuDeviceGetAttribute` tells it; `None` where it is not known.
    ///
    /// ```
    /// # fn main() -> Result<(), mica::Error> {
    /// use mica::{Device, DeviceAttribute, Vgpu};
    ///
    /// let vgpu = Vgpu::builder().memory(1 << 20).build(&Device::software()?)?;
    /// assert_eq!(vgpu.attribute(DeviceAttribute::WarpSize)?, Some(32));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the driver library refuses the question.
    pub fn attribute(&self, attribute: DeviceAttribute) -> Result<Option<i32>> {
        self.backend.attribute(attribute)
    }

    /// Its memory now.
    pub fn memory(&self) -> Result<Memory> {
        self.backend.memory()
    }

    /// Its counters now.
    pub fn statistics(&self) -> Result<Statistics> {
        self.backend.statistics()
    }

    /// Memory for so many values, all zero.
    ///
    /// # Errors
    /// [`Error::is_out_of_memory`] says if the limit was the reason.
    ///
    /// ```
    /// # fn main() -> Result<(), mica::Error> {
    /// let device = mica::Device::software()?;
    /// let vgpu = mica::Vgpu::builder().memory(1 << 20).build(&device)?;
    /// let all = vgpu.alloc::<u8>(1 << 20)?;
    /// assert!(vgpu.alloc::<u8>(1).unwrap_err().is_out_of_memory());
    /// drop(all);
    /// assert_eq!(vgpu.alloc::<u64>(100)?.to_vec()?, [0; 100]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn alloc<T: Plain>(&self, count: usize) -> Result<DeviceBuffer<T>> {
        let buffer = DeviceBuffer::new(self, count)?;
        self.default_stream().fill_bytes(&buffer, 0)?;
        Ok(buffer)
    }

    /// Memory for so many values that nobody has set: zeros, or what this virtual GPU wrote there
    /// before. For results that are written as a whole, to save the fill of [`Vgpu::alloc`].
    pub fn alloc_unset<T: Plain>(&self, count: usize) -> Result<DeviceBuffer<T>> {
        DeviceBuffer::new(self, count)
    }

    /// Memory with these values.
    pub fn upload<T: Plain>(&self, values: &[T]) -> Result<DeviceBuffer<T>> {
        let mut buffer = DeviceBuffer::new(self, values.len())?;
        buffer.copy_from(values)?;
        Ok(buffer)
    }

    /// A tensor map, by which kernels for compute capability 9.0 and later copy boxes of a tensor; given to a kernel as
    /// [`crate::ByValue`].
    ///
    /// # Errors
    /// If the device has no tensor maps (the software GPU has none), or refuses the shape.
    pub fn tensor_map(&self, request: &crate::TensorMapRequest) -> Result<crate::TensorMap> {
        self.backend.tensor_map(request)
    }

    /// The stream that is ordered against all others that do not opt out.
    pub fn default_stream(&self) -> Stream {
        Stream::default_of(self)
    }

    /// A new stream, ordered against the default one.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self, false, 0)
    }

    /// A new stream of its own order, with a priority (lower runs first).
    pub fn independent_stream(&self, priority: i32) -> Result<Stream> {
        Stream::new(self, true, priority)
    }

    /// An event that keeps time.
    pub fn event(&self) -> Result<Event> {
        Event::new(self, true)
    }

    /// Loads PTX text.
    pub fn load_ptx(&self, ptx: &str) -> Result<Module> {
        self.load(ptx.as_bytes())
    }

    /// Loads PTX, a fatbin or a cubin.
    pub fn load(&self, image: &[u8]) -> Result<Module> {
        Module::new(self, image)
    }

    /// Waits for all work.
    pub fn synchronize(&self) -> Result<()> {
        self.backend.synchronize()
    }

    /// Cancels running and queued kernels; how many.
    pub fn cancel(&self) -> Result<u64> {
        self.backend.cancel(None)
    }

    /// Begins anew after a fault: everything that was on the virtual GPU is gone, and buffers,
    /// modules, streams and events made before are of no use any more.
    pub fn reset(&self) -> Result<()> {
        self.backend.reset()?;
        self.launches.clear();
        Ok(())
    }

    /// Changes the memory limit.
    ///
    /// # Errors
    /// If more is in use, or the device has not so much left, or the virtual GPU is connected.
    pub fn resize(&self, memory_bytes: u64) -> Result<()> {
        self.backend.resize(memory_bytes)
    }

    /// Changes the share.
    pub fn set_share(&self, percent: f64) -> Result<()> {
        if !(percent > 0.0 && percent <= 100.0) {
            return Err(Error::Argument(format!(
                "a share of {percent} percent is not between 0 and 100"
            )));
        }
        self.backend.set_share(percent)
    }

    /// Pauses its work.
    pub fn suspend(&self) -> Result<()> {
        self.backend.suspend()
    }

    /// Lets its work go on.
    pub fn resume(&self) -> Result<()> {
        self.backend.resume()
    }
}
