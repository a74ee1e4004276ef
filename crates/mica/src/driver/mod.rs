//! A virtual GPU through the driver library of this process.
//!
//! In a virtual GPU that library is Mica's, in either mode, so its limits hold. Memory and streams are those of the device's
//! primary context, which the CUDA runtime uses too: NVIDIA's libraries and Python's frameworks in this process can share them.

mod functions;
mod graphs;
mod host;
mod modules;
mod structs;
mod textures;

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex};

use mica_cuda_abi::{CuResult, DeviceAttribute};
use mica_gpu::{
    ArrayDescriptor, GlobalDescription, HostCallback, LaunchAttribute, ModuleInfo, TensorMap,
    TensorMapKind, TensorMapRequest, TextureDescriptor,
};
use mica_vgpu::{GraphNode, RawAttribute, Statistics};

use crate::backend::{Backend, DeviceSide, LaunchCall, ManagedMemory, PendingBytes};
use crate::device::DeviceInfo;
use crate::vgpu::Memory;
use crate::{Error, Result};
use functions::{Functions, Raw, check};
use graphs::Graphs;
use host::Spent;
use modules::Modules;

/// The first device of the driver library, in its primary context.
pub(crate) struct Driven {
    functions: Arc<Functions>,
    device: c_int,
    context: usize,
    info: DeviceInfo,
    modules: Modules,
    graphs: Graphs,
    spent: Arc<Mutex<Spent>>,
}

/// While this exists the context is current on the thread.
struct Entered<'a> {
    functions: &'a Functions,
    is_pushed: bool,
}

impl<'a> Entered<'a> {
    fn new(functions: &'a Functions, context: usize) -> Result<Self> {
        let mut now: Raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuCtxGetCurrent", unsafe {
            (functions.context_current)(&mut now)
        })?;
        let is_pushed = now as usize != context;
        if is_pushed {
            // SAFETY: the primary context is retained for as long as anybody who enters it lives.
            check("cuCtxPushCurrent", unsafe {
                (functions.context_push)(context as Raw)
            })?;
        }
        Ok(Entered {
            functions,
            is_pushed,
        })
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.is_pushed {
            let mut old: Raw = std::ptr::null_mut();
            // SAFETY: writes one handle; the context was pushed on this thread.
            unsafe { (self.functions.context_pop)(&mut old) };
        }
    }
}

impl Driven {
    /// The first device that the program's driver library shows.
    pub(crate) fn open() -> Result<Arc<Self>> {
        let functions = Functions::load()?;
        let (mut device, mut context): (c_int, Raw) = (0, std::ptr::null_mut());
        // SAFETY: takes a number.
        check("cuInit", unsafe { (functions.init)(0) })?;
        // SAFETY: writes one number.
        check("cuDeviceGet", unsafe { (functions.device)(&mut device, 0) })?;
        // SAFETY: writes one handle; released when this is dropped.
        check("cuDevicePrimaryCtxRetain", unsafe {
            (functions.primary_retain)(&mut context, device)
        })?;
        let mut made = Self {
            functions: Arc::new(functions),
            device,
            context: context as usize,
            info: DeviceInfo::default(),
            modules: Modules::default(),
            graphs: Graphs::default(),
            spent: Arc::default(),
        };
        made.info = made.describe()?;
        Ok(Arc::new(made))
    }

    fn enter(&self) -> Result<Entered<'_>> {
        Entered::new(&self.functions, self.context)
    }

    /// Makes a call of the driver with the context current.
    fn call(&self, name: &'static str, call: impl FnOnce(&Functions) -> c_uint) -> Result<()> {
        let _entered = self.enter()?;
        check(name, call(&self.functions))
    }

    fn number(&self, attribute: DeviceAttribute) -> Result<u32> {
        let value = self.attribute(attribute)?;
        Ok(value.unwrap_or(0).unsigned_abs())
    }

    fn describe(&self) -> Result<DeviceInfo> {
        let (mut name, mut uuid, mut total_memory) = ([0_u8; 256], [0; 16], 0);
        let mut stream_priorities = (0, 0);
        // SAFETY: the name has the length passed; the others write one value of their type each.
        self.call("cuDeviceGetName", |f| unsafe {
            (f.device_name)(name.as_mut_ptr().cast(), name.len() as c_int, self.device)
        })?;
        // SAFETY: as above.
        self.call("cuDeviceGetUuid", |f| unsafe {
            (f.device_uuid)(&mut uuid, self.device)
        })?;
        // SAFETY: as above.
        self.call("cuDeviceTotalMem", |f| unsafe {
            (f.device_memory)(&mut total_memory, self.device)
        })?;
        // SAFETY: as above.
        self.call("cuCtxGetStreamPriorityRange", |f| unsafe {
            (f.priorities)(&mut stream_priorities.0, &mut stream_priorities.1)
        })?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        use DeviceAttribute as A;
        let major = self.number(A::ComputeCapabilityMajor)?;
        let minor = self.number(A::ComputeCapabilityMinor)?;
        Ok(DeviceInfo {
            name: String::from_utf8_lossy(name).into_owned(),
            uuid,
            compute_capability: (major, minor),
            total_memory: total_memory as u64,
            multiprocessors: self.number(A::MultiprocessorCount)?,
            max_threads_per_block: self.number(A::MaxThreadsPerBlock)?,
            max_shared_per_block: self.number(A::MaxSharedMemoryPerBlockOptin)?,
            stream_priorities,
        })
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // What still runs uses memory that copies to the host are to free.
        let _ = self.synchronize();
        self.free_spent();
        // SAFETY: retained once in `open`.
        unsafe { (self.functions.primary_release)(self.device) };
    }
}

/// The driver's answer to a question that may have the answer "not yet".
fn reached(function: &'static str, code: c_uint) -> Result<bool> {
    match code {
        code if code == CuResult::NotReady as c_uint => Ok(false),
        code => check(function, code).map(|()| true),
    }
}

fn cannot<T>(what: &str) -> Result<T> {
    Err(Error::Argument(format!(
        "a virtual GPU through the driver library cannot {what}"
    )))
}

/// What makes a launch a cooperative one.
fn cooperative() -> RawAttribute {
    let mut value = [0; 16];
    value[0] = 1;
    let id = LaunchAttribute::COOPERATIVE;
    RawAttribute { id, value }
}

impl Backend for Driven {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn driver_context(&self) -> Option<usize> {
        Some(self.context)
    }

    fn with_context(&self, work: &mut dyn FnMut()) -> Result<()> {
        let _entered = self.enter()?;
        work();
        Ok(())
    }

    fn memory(&self) -> Result<Memory> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        self.call("cuMemGetInfo", |f| unsafe {
            (f.memory_info)(&mut free, &mut total)
        })?;
        Ok(Memory {
            free_bytes: free as u64,
            limit_bytes: total as u64,
            used_bytes: total.saturating_sub(free) as u64,
        })
    }

    fn statistics(&self) -> Result<Statistics> {
        Err(Error::DaemonOnly("counting", "show"))
    }

    fn reset(&self) -> Result<()> {
        cannot("begin anew: other libraries of the process use its context")
    }

    fn default_stream(&self) -> u64 {
        0
    }

    fn synchronize(&self) -> Result<()> {
        // SAFETY: no parameters; the context is current.
        self.call("cuCtxSynchronize", |f| unsafe { (f.context_synchronize)() })
    }

    fn cancel(&self, _: Option<u64>) -> Result<u64> {
        Err(Error::DaemonOnly("cancelling", "cancel"))
    }

    fn alloc(&self, bytes: u64) -> Result<u64> {
        self.free_spent();
        let mut address = 0;
        // SAFETY: writes one address.
        self.call("cuMemAlloc", |f| unsafe {
            (f.memory_alloc)(&mut address, bytes as usize)
        })?;
        Ok(address)
    }

    fn free(&self, address: u64) -> Result<()> {
        // SAFETY: the driver refuses what is no allocation.
        self.call("cuMemFree", |f| unsafe { (f.memory_free)(address) })
    }

    fn write(&self, stream: u64, address: u64, bytes: &[u8]) -> Result<()> {
        let (source, len) = (bytes.as_ptr().cast::<c_void>(), bytes.len());
        // SAFETY: the source is borrowed until the stream has passed the copy, by the wait below.
        self.call("cuMemcpyHtoDAsync", |f| unsafe {
            (f.copy_to_device)(address, source, len, stream as Raw)
        })?;
        self.stream_synchronize(stream)
    }

    fn read(&self, stream: u64, address: u64, bytes: &mut [u8]) -> Result<()> {
        let (target, len) = (bytes.as_mut_ptr().cast::<c_void>(), bytes.len());
        // SAFETY: the target is borrowed until the stream has passed the copy, by the wait below.
        self.call("cuMemcpyDtoHAsync", |f| unsafe {
            (f.copy_to_host)(target, address, len, stream as Raw)
        })?;
        self.stream_synchronize(stream)
    }

    fn read_later(&self, stream: u64, address: u64, bytes: u64) -> Result<PendingBytes> {
        self.read_to_host(stream, address, bytes)
    }

    fn copy(&self, stream: u64, dst: u64, src: u64, bytes: u64) -> Result<()> {
        // SAFETY: the driver refuses ranges that are no memory.
        self.call("cuMemcpyDtoDAsync", |f| unsafe {
            (f.copy_on_device)(dst, src, bytes as usize, stream as Raw)
        })
    }

    fn write_box(&self, stream: u64, to: &DeviceSide, bytes: &[u8]) -> Result<()> {
        self.copy_rows(stream, to, textures::source(bytes), true)
    }

    fn read_box(&self, stream: u64, from: &DeviceSide, bytes: &mut [u8]) -> Result<()> {
        self.copy_rows(stream, from, (bytes.as_mut_ptr(), bytes.len()), false)
    }

    fn fill(&self, stream: u64, address: u64, value: u32, element: u32, count: u64) -> Result<()> {
        let (count, stream) = (count as usize, stream as Raw);
        // SAFETY: the driver refuses ranges that are no memory.
        self.call("cuMemsetAsync", |f| unsafe {
            match element {
                1 => (f.fill_8)(address, value as u8, count, stream),
                2 => (f.fill_16)(address, value as u16, count, stream),
                _ => (f.fill_32)(address, value, count, stream),
            }
        })
    }

    fn stream_create(&self, non_blocking: bool, priority: i32) -> Result<u64> {
        let mut stream: Raw = std::ptr::null_mut();
        let flags = c_uint::from(non_blocking);
        // SAFETY: writes one handle.
        self.call("cuStreamCreateWithPriority", |f| unsafe {
            (f.stream_create)(&mut stream, flags, priority)
        })?;
        Ok(stream as u64)
    }

    fn stream_destroy(&self, stream: u64) -> Result<()> {
        // SAFETY: `Stream` destroys each of its handles once.
        self.call("cuStreamDestroy", |f| unsafe {
            (f.stream_destroy)(stream as Raw)
        })
    }

    fn stream_synchronize(&self, stream: u64) -> Result<()> {
        // SAFETY: a live handle of `Stream`, or the default stream.
        self.call("cuStreamSynchronize", |f| unsafe {
            (f.stream_synchronize)(stream as Raw)
        })
    }

    fn stream_query(&self, stream: u64) -> Result<bool> {
        let _entered = self.enter()?;
        // SAFETY: as above.
        reached("cuStreamQuery", unsafe {
            (self.functions.stream_query)(stream as Raw)
        })
    }

    fn stream_wait_event(&self, stream: u64, event: u64) -> Result<()> {
        // SAFETY: live handles of `Stream` and `Event`.
        self.call("cuStreamWaitEvent", |f| unsafe {
            (f.stream_wait)(stream as Raw, event as Raw, 0)
        })
    }

    fn stream_callback(&self, stream: u64, callback: HostCallback) -> Result<()> {
        self.call_back(stream, Box::new(move |_| callback()))
    }

    fn event_create(&self, timing: bool) -> Result<u64> {
        let mut event: Raw = std::ptr::null_mut();
        // `CU_EVENT_DISABLE_TIMING` is 2.
        let flags = if timing { 0 } else { 2 };
        // SAFETY: writes one handle.
        self.call("cuEventCreate", |f| unsafe {
            (f.event_create)(&mut event, flags)
        })?;
        Ok(event as u64)
    }

    fn event_destroy(&self, event: u64) -> Result<()> {
        // SAFETY: `Event` destroys its handle once.
        self.call("cuEventDestroy", |f| unsafe {
            (f.event_destroy)(event as Raw)
        })
    }

    fn event_record(&self, event: u64, stream: u64) -> Result<()> {
        // SAFETY: live handles.
        self.call("cuEventRecord", |f| unsafe {
            (f.event_record)(event as Raw, stream as Raw)
        })
    }

    fn event_query(&self, event: u64) -> Result<bool> {
        let _entered = self.enter()?;
        // SAFETY: a live handle.
        reached("cuEventQuery", unsafe {
            (self.functions.event_query)(event as Raw)
        })
    }

    fn event_synchronize(&self, event: u64) -> Result<()> {
        // SAFETY: a live handle.
        self.call("cuEventSynchronize", |f| unsafe {
            (f.event_synchronize)(event as Raw)
        })
    }

    fn event_elapsed_ms(&self, start: u64, end: u64) -> Result<f32> {
        let mut elapsed = 0.0;
        // SAFETY: writes one number; live handles.
        self.call("cuEventElapsedTime", |f| unsafe {
            (f.event_elapsed)(&mut elapsed, start as Raw, end as Raw)
        })?;
        Ok(elapsed)
    }

    fn module_load(&self, image: &[u8]) -> Result<(u64, ModuleInfo)> {
        self.load_module(image)
    }

    fn module_unload(&self, module: u64) -> Result<()> {
        self.unload_module(module)
    }

    fn module_global(&self, module: u64, name: &str) -> Result<Option<GlobalDescription>> {
        self.find_global(module, name)
    }

    fn launch(&self, launch: &LaunchCall<'_>) -> Result<()> {
        self.launch_kernel(launch)
    }

    fn occupancy(&self, module: u64, kernel: u32, threads: u32, shared: u64) -> Result<u32> {
        let function = self.modules.function(module, kernel)?;
        let mut blocks = 0;
        // SAFETY: writes one number; the function's module is loaded.
        self.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", |f| unsafe {
            (f.occupancy)(&mut blocks, function, threads as c_int, shared as usize)
        })?;
        Ok(blocks.unsigned_abs())
    }

    fn tensor_map(&self, request: &TensorMapRequest) -> Result<TensorMap> {
        /// The driver wants 64 bytes of alignment.
        #[repr(C, align(64))]
        struct Room(TensorMap);
        if !(1..=5).contains(&request.rank) {
            let rank = request.rank;
            return Err(Error::Argument(format!(
                "a tensor map of {rank} dimensions"
            )));
        }
        let mut room = Room([0; 128]);
        let out = room.0.as_mut_ptr().cast();
        let (data, rank, address) = (request.data_type, request.rank, request.address.0);
        let (dims, strides) = (request.dims.as_ptr(), request.strides.as_ptr());
        let element = request.element_strides.as_ptr();
        let (interleave, swizzle) = (request.interleave, request.swizzle);
        let (l2, fill) = (request.l2_promotion, request.fill);
        match &request.kind {
            TensorMapKind::Tiled(tile) => {
                let tile = tile.as_ptr();
                // SAFETY: writes 128 bytes; all arrays have five numbers, the driver reads at most as many.
                self.call("cuTensorMapEncodeTiled", |f| unsafe {
                    (f.tensor_map_tiled)(
                        out, data, rank, address, dims, strides, tile, element, interleave,
                        swizzle, l2, fill,
                    )
                })?;
            }
            TensorMapKind::Im2col(lower, upper, channels, pixels) => {
                let (lower, upper) = (lower.as_ptr(), upper.as_ptr());
                // SAFETY: as above; corners have a number for each dimension but two.
                self.call("cuTensorMapEncodeIm2col", |f| unsafe {
                    (f.tensor_map_im2col)(
                        out, data, rank, address, dims, strides, lower, upper, *channels, *pixels,
                        element, interleave, swizzle, l2, fill,
                    )
                })?;
            }
            TensorMapKind::Im2colWide(..) => return cannot("make this kind of tensor map"),
        }
        Ok(room.0)
    }

    fn graph_instantiate(&self, nodes: Vec<GraphNode>) -> Result<u64> {
        self.make_graph(&nodes)
    }

    fn graph_update(&self, graph: u64, nodes: Vec<GraphNode>) -> Result<()> {
        self.change_graph(graph, &nodes)
    }

    fn graph_launch(&self, graph: u64, stream: u64) -> Result<()> {
        // SAFETY: live handles.
        self.with_graph(graph, "cuGraphLaunch", |f, exec| unsafe {
            (f.graph_launch)(exec, stream as Raw)
        })
    }

    fn graph_upload(&self, graph: u64, stream: u64) -> Result<()> {
        // SAFETY: live handles.
        self.with_graph(graph, "cuGraphUpload", |f, exec| unsafe {
            (f.graph_upload)(exec, stream as Raw)
        })
    }

    fn graph_destroy(&self, graph: u64) -> Result<()> {
        self.end_graph(graph)
    }

    fn array_create(&self, descriptor: &ArrayDescriptor) -> Result<u64> {
        self.make_array(descriptor)
    }

    fn array_destroy(&self, array: u64) -> Result<()> {
        // SAFETY: made by `array_create`, destroyed once.
        self.call("cuArrayDestroy", |f| unsafe {
            (f.array_destroy)(array as Raw)
        })
    }

    fn texture_create(&self, descriptor: &TextureDescriptor) -> Result<u64> {
        self.make_texture(descriptor)
    }

    fn surface_create(&self, array: u64) -> Result<u64> {
        self.make_surface(array)
    }

    fn texture_destroy(&self, texture: u64) -> Result<()> {
        // SAFETY: made by `texture_create`, destroyed once.
        self.call("cuTexObjectDestroy", |f| unsafe {
            (f.texture_destroy)(texture)
        })
    }

    fn surface_destroy(&self, surface: u64) -> Result<()> {
        // SAFETY: made by `surface_create`, destroyed once.
        self.call("cuSurfObjectDestroy", |f| unsafe {
            (f.surface_destroy)(surface)
        })
    }

    fn attribute(&self, attribute: DeviceAttribute) -> Result<Option<i32>> {
        let mut value = 0;
        // SAFETY: writes one number.
        self.call("cuDeviceGetAttribute", |f| unsafe {
            (f.device_attribute)(&mut value, attribute as c_uint, self.device)
        })?;
        Ok(Some(value))
    }

    fn managed_alloc(&self, bytes: u64) -> Result<Box<dyn ManagedMemory>> {
        self.make_managed(bytes)
    }
}
