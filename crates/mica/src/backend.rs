//! What a [`crate::Vgpu`] needs of whoever serves it. Handles are the session's.

use std::sync::mpsc;

use mica_cuda_abi::DeviceAttribute;
use mica_gpu::{
    ArrayDescriptor, Copy3d, GlobalDescription, HostCallback, ModuleInfo, Place, TensorMap,
    TensorMapRequest, TextureDescriptor,
};
use mica_vgpu::{GraphNode, OwnedLaunch, RawAttribute, Statistics};

use crate::vgpu::Memory;
use crate::{DeviceInfo, Error, Result};

/// A launch, with its packed parameters.
#[derive(Clone, Copy)]
pub(crate) struct LaunchCall<'a> {
    pub(crate) stream: u64,
    pub(crate) module: u64,
    pub(crate) kernel: u32,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
    pub(crate) cooperative: bool,
    pub(crate) attributes: &'a [RawAttribute],
    pub(crate) params: &'a [u8],
}

impl LaunchCall<'_> {
    /// The same, to be kept.
    pub(crate) fn owned(self) -> OwnedLaunch {
        OwnedLaunch {
            module: self.module,
            kernel: self.kernel,
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.dynamic_shared,
            cooperative: self.cooperative,
            params: self.params.to_vec(),
            attributes: self.attributes.to_vec(),
        }
    }
}

/// The device's side of a copy of a box between it and dense rows of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceSide {
    /// Device memory or an array.
    pub(crate) place: Place,
    /// Bytes between rows and between slices of device memory.
    pub(crate) pitch: (u64, u64),
    /// Bytes in a row, rows, slices.
    pub(crate) extent: (u64, u64, u64),
}

impl DeviceSide {
    /// The copy between this and host memory with the same rows, one after the other.
    pub(crate) fn copy(&self, host: Place, to_device: bool) -> Copy3d {
        let (width, height, depth) = self.extent;
        let (dense, none) = ((width, width * height), (0, 0, 0));
        let (src, src_pitch, dst, dst_pitch) = match to_device {
            true => (host, dense, self.place, self.pitch),
            false => (self.place, self.pitch, host, dense),
        };
        Copy3d {
            src,
            src_pitch,
            src_offset: none,
            dst,
            dst_pitch,
            dst_offset: none,
            width_bytes: width,
            height,
            depth,
        }
    }
}

/// Bytes on their way to the host: they come, or the reason why not.
pub(crate) type PendingBytes = mpsc::Receiver<Result<Vec<u8>>>;

/// Memory that host and device both use in place; freed when dropped.
pub(crate) trait ManagedMemory: Send + Sync {
    /// Address on the device.
    fn device(&self) -> u64;
    /// First byte in this process, valid for reads and writes of the whole length while this exists.
    fn host(&self) -> *mut u8;
    /// Asks for a part to be brought to the device, or to the host.
    fn prefetch(&self, stream: u64, offset: u64, bytes: u64, to_device: bool) -> Result<()>;
}

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
    /// As [`Backend::write`], for rows and slices; `bytes` has them one after the other.
    fn write_box(&self, stream: u64, to: &DeviceSide, bytes: &[u8]) -> Result<()>;
    /// As [`Backend::read`], for rows and slices.
    fn read_box(&self, stream: u64, from: &DeviceSide, bytes: &mut [u8]) -> Result<()>;
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

    /// Makes a graph ready. Its host functions run in stream order each time it is launched.
    fn graph_instantiate(&self, nodes: Vec<GraphNode>) -> Result<u64>;
    /// Replaces a graph's nodes.
    fn graph_update(&self, graph: u64, nodes: Vec<GraphNode>) -> Result<()>;
    fn graph_launch(&self, graph: u64, stream: u64) -> Result<()>;
    fn graph_upload(&self, graph: u64, stream: u64) -> Result<()>;
    fn graph_destroy(&self, graph: u64) -> Result<()>;

    fn array_create(&self, descriptor: &ArrayDescriptor) -> Result<u64>;
    fn array_destroy(&self, array: u64) -> Result<()>;
    /// A texture object; an array in it is named by its handle.
    fn texture_create(&self, descriptor: &TextureDescriptor) -> Result<u64>;
    fn surface_create(&self, array: u64) -> Result<u64>;
    fn texture_destroy(&self, texture: u64) -> Result<()>;
    fn surface_destroy(&self, surface: u64) -> Result<()> {
        self.texture_destroy(surface)
    }

    /// An attribute of the device, where it knows it.
    fn attribute(&self, attribute: DeviceAttribute) -> Result<Option<i32>>;
    /// Memory that host and device both use in place, charged to the memory limit.
    fn managed_alloc(&self, bytes: u64) -> Result<Box<dyn ManagedMemory>>;
    /// Records what ends from now on; `None` where the device does not tell.
    fn recorder(&self) -> Option<std::sync::Arc<mica_gpu::profile::Recorder>> {
        None
    }

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
