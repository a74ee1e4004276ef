//! What a [`crate::Vgpu`] needs of whoever serves it. Handles are the session's.

use std::sync::mpsc;

use mica_gpu::{GlobalDescription, HostCallback, ModuleInfo, TensorMap, TensorMapRequest};
use mica_vgpu::Statistics;

use crate::vgpu::Memory;
use crate::{DeviceInfo, Error, Result};

/// A launch, with its packed parameters.
pub(crate) struct LaunchCall<'a> {
    pub(crate) stream: u64,
    pub(crate) module: u64,
    pub(crate) kernel: u32,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
    pub(crate) cooperative: bool,
    pub(crate) params: &'a [u8],
}

/// Bytes on their way to the host: they come, or the reason why not.
pub(crate) type PendingBytes = mpsc::Receiver<Result<Vec<u8>>>;

pub(crate) trait Backend: Send + Sync {
    fn info(&self) -> DeviceInfo;
    /// The context of the driver library of this process that memory and streams are in, if they are in one.
    fn driver_context(&self) -> Option<usize> {
        None
    }
    /// Does some work with that context current on this thread; without one, just does it.
    fn with_context(&self, work: &mut dyn FnMut()) -> Result<()> {
        work();
        Ok(())
    }
    fn memory(&self) -> Result<Memory>;
    fn statistics(&self) -> Result<Statistics>;
    /// Ends the context and begins a new one.
    fn reset(&self) -> Result<()>;
    /// Handle of the default stream of the context now.
    fn default_stream(&self) -> u64;
    fn synchronize(&self) -> Result<()>;
    fn cancel(&self, stream: Option<u64>) -> Result<u64>;

    fn alloc(&self, bytes: u64) -> Result<u64>;
    fn free(&self, address: u64) -> Result<()>;
    /// The bytes may be changed on return; the write is in stream order.
    fn write(&self, stream: u64, address: u64, bytes: &[u8]) -> Result<()>;
    /// Returns when the bytes are there.
    fn read(&self, stream: u64, address: u64, bytes: &mut [u8]) -> Result<()>;
    /// Starts a read.
    fn read_later(&self, stream: u64, address: u64, bytes: u64) -> Result<PendingBytes>;
    fn copy(&self, stream: u64, dst: u64, src: u64, bytes: u64) -> Result<()>;
    fn fill(&self, stream: u64, address: u64, value: u32, element: u32, count: u64) -> Result<()>;

    fn stream_create(&self, non_blocking: bool, priority: i32) -> Result<u64>;
    fn stream_destroy(&self, stream: u64) -> Result<()>;
    fn stream_synchronize(&self, stream: u64) -> Result<()>;
    fn stream_query(&self, stream: u64) -> Result<bool>;
    fn stream_wait_event(&self, stream: u64, event: u64) -> Result<()>;
    fn stream_callback(&self, stream: u64, callback: HostCallback) -> Result<()>;

    fn event_create(&self, timing: bool) -> Result<u64>;
    fn event_destroy(&self, event: u64) -> Result<()>;
    fn event_record(&self, event: u64, stream: u64) -> Result<()>;
    fn event_query(&self, event: u64) -> Result<bool>;
    fn event_synchronize(&self, event: u64) -> Result<()>;
    fn event_elapsed_ms(&self, start: u64, end: u64) -> Result<f32>;

    fn module_load(&self, image: &[u8]) -> Result<(u64, ModuleInfo)>;
    fn module_unload(&self, module: u64) -> Result<()>;
    /// A variable that the description of the module does not have.
    fn module_global(&self, _module: u64, _name: &str) -> Result<Option<GlobalDescription>> {
        Ok(None)
    }
    fn launch(&self, launch: &LaunchCall<'_>) -> Result<()>;
    fn occupancy(&self, module: u64, kernel: u32, threads: u32, shared: u64) -> Result<u32>;

    fn tensor_map(&self, request: &TensorMapRequest) -> Result<TensorMap>;

    // The limits of a virtual GPU that a daemon keeps are changed through the daemon.

    /// Changes the memory limit.
    fn resize(&self, _bytes: u64) -> Result<()> {
        Err(Error::DaemonOnly("a new memory limit", "resize"))
    }
    /// Changes the share.
    fn set_share(&self, _percent: f64) -> Result<()> {
        Err(Error::DaemonOnly("a new share", "resize"))
    }
    fn suspend(&self) -> Result<()> {
        Err(Error::DaemonOnly("suspending", "suspend"))
    }
    fn resume(&self) -> Result<()> {
        Err(Error::DaemonOnly("resuming", "resume"))
    }
}
