//! A virtual GPU behind a worker.

mod callbacks;
mod convert;
mod graphs;
mod managed;

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use mica_cuda_abi::DeviceAttribute;
use mica_gpu::{
    ArrayDescriptor, DevicePtr, GlobalDescription, HostCallback, ModuleInfo, TensorMap,
    TensorMapRequest, TextureDescriptor,
};
use mica_limits::{Environment, connect_session};
use mica_vgpu::{GraphNode, Statistics};
use mica_wire::session::client::{DeviceBox, HostBox, SessionClient};
use mica_wire::session::{
    self as wire, CopyBox, CopyPlace, Field as _, SessionError, SharedHostMemory,
};

use crate::backend::{Backend, DeviceSide, LaunchCall, ManagedMemory, PendingBytes};
use crate::device::DeviceInfo;
use crate::vgpu::Memory;
use crate::{Error, Result};
use callbacks::Callbacks;

pub(crate) struct Connected {
    client: Arc<SessionClient>,
    context: Mutex<wire::NewContext>,
    callbacks: Arc<Callbacks>,
    /// Host memory whose copies are over; freed when the next is made.
    spent: Arc<Mutex<Vec<SharedHostMemory>>>,
    /// Numbers of the host functions of graphs, by graph.
    graphs: Mutex<HashMap<u64, Vec<u64>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connected {
    pub(crate) fn open(environment: &Environment) -> Result<Arc<Self>> {
        let program = std::env::args().next().unwrap_or_default();
        Self::with(connect_session(environment, &program)?)
    }

    pub(crate) fn over(socket: std::os::fd::OwnedFd) -> Result<Arc<Self>> {
        let program = std::env::args().next().unwrap_or_default();
        Self::with(SessionClient::connect(socket, &program)?)
    }

    fn with(client: SessionClient) -> Result<Arc<Self>> {
        let context = client.call(&wire::ContextCreate { flags: 0 })?;
        Ok(Arc::new(Self {
            client: Arc::new(client),
            context: Mutex::new(context),
            callbacks: Arc::default(),
            spent: Arc::default(),
            graphs: Mutex::default(),
        }))
    }

    fn context(&self) -> u64 {
        lock(&self.context).context
    }

    /// Tells of an error that an earlier posted call ran into; costs a load when there is none.
    fn check_late(&self) -> Result<()> {
        if !self.client.late_pending() {
            return Ok(());
        }
        match self.client.take_late(self.context())? {
            None => Ok(()),
            Some(late) => Err(SessionError::Refused {
                code: late.code,
                message: late.message,
            }
            .into()),
        }
    }

    /// Prints what kernels have printed, as a synchronization does.
    fn synced<T>(&self, result: Result<T, SessionError>) -> Result<T> {
        for (kind, bytes) in self.client.take_output().unwrap_or_default() {
            let _ = match kind {
                0 => std::io::stdout().write_all(&bytes),
                1 => std::io::stderr().write_all(&bytes),
                _ => {
                    mica_limits::write_profile(&bytes);
                    Ok(())
                }
            };
        }
        Ok(result?)
    }

    fn post<R: wire::Posted>(&self, request: &R) -> Result<()> {
        self.check_late()?;
        Ok(self.client.post(request, &[])?)
    }

    fn free_spent(&self) {
        for memory in std::mem::take(&mut *lock(&self.spent)) {
            let _ = self.client.host_free(self.context(), memory);
        }
    }
}

impl Backend for Connected {
    fn info(&self) -> DeviceInfo {
        let s = self.client.snapshot();
        DeviceInfo {
            name: s.name.clone(),
            uuid: s.uuid,
            compute_capability: s.compute_capability,
            total_memory: s.total_memory,
            multiprocessors: s.multiprocessors,
            max_threads_per_block: s.max_threads_per_block,
            max_shared_per_block: s.max_shared_per_block,
            stream_priorities: s.stream_priorities,
        }
    }

    fn memory(&self) -> Result<Memory> {
        let state = self.client.call(&wire::MemoryInfo {})?;
        Ok(Memory {
            free_bytes: state.free_bytes,
            limit_bytes: state.limit_bytes,
            used_bytes: state.used_bytes,
        })
    }

    fn statistics(&self) -> Result<Statistics> {
        let c = self.client.call(&wire::Counters {})?;
        Ok(Statistics {
            launches: c.launches,
            bytes_from_host: c.bytes_from_host,
            bytes_to_host: c.bytes_to_host,
            bytes_on_device: c.bytes_on_device,
            denials: c.denials,
            faults: c.faults,
            used_bytes: c.used_bytes,
            peak_bytes: c.peak_bytes,
            streams: c.streams as u32,
            modules: c.modules as u32,
            sessions: c.sessions as u32,
            gpu_time_ns: c.gpu_time_ns,
        })
    }

    fn reset(&self) -> Result<()> {
        let mut context = lock(&self.context);
        let old = context.context;
        let _ = self.client.call(&wire::ContextDestroy { context: old });
        *context = self.client.call(&wire::ContextCreate { flags: 0 })?;
        Ok(())
    }

    fn default_stream(&self) -> u64 {
        lock(&self.context).default_stream
    }

    fn synchronize(&self) -> Result<()> {
        let context = self.context();
        let result = self.client.call(&wire::ContextSynchronize { context });
        self.synced(result.map(drop))
    }

    fn cancel(&self, stream: Option<u64>) -> Result<u64> {
        let context = self.context();
        let stream = stream.unwrap_or(0);
        Ok(self.client.call(&wire::Cancel { context, stream })?.value)
    }

    fn alloc(&self, bytes: u64) -> Result<u64> {
        let context = self.context();
        Ok(self
            .client
            .call(&wire::MemoryAlloc { context, bytes })?
            .value)
    }

    fn free(&self, address: u64) -> Result<()> {
        let context = self.context();
        self.client.call(&wire::MemoryFree { context, address })?;
        Ok(())
    }

    fn write(&self, stream: u64, address: u64, bytes: &[u8]) -> Result<()> {
        self.check_late()?;
        Ok(self.client.write(stream, address, bytes)?)
    }

    fn read(&self, stream: u64, address: u64, bytes: &mut [u8]) -> Result<()> {
        let result = self.client.read(stream, address, bytes);
        self.synced(result)
    }

    fn read_later(&self, stream: u64, address: u64, bytes: u64) -> Result<PendingBytes> {
        self.check_late()?;
        self.free_spent();
        let memory = self.client.host_alloc(self.context(), bytes, false)?;
        let (dst, src) = (
            CopyPlace::Device(memory.device()),
            CopyPlace::Device(address),
        );
        let area = CopyBox::linear(dst, src, bytes);
        self.client.post(&wire::Copy { stream, area }, &[])?;
        let (sender, receiver) = mpsc::channel();
        let spent = Arc::clone(&self.spent);
        let deliver = move || {
            // SAFETY: mapped for `len` bytes; the stream has passed the copy into it.
            let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()) };
            let _ = sender.send(Ok(bytes.to_vec()));
            lock(&spent).push(memory);
        };
        self.stream_callback(stream, Box::new(deliver))?;
        Ok(receiver)
    }

    fn copy(&self, stream: u64, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let area = CopyBox::linear(CopyPlace::Device(dst), CopyPlace::Device(src), bytes);
        self.post(&wire::Copy { stream, area })
    }

    fn write_box(&self, stream: u64, to: &DeviceSide, bytes: &[u8]) -> Result<()> {
        self.check_late()?;
        let (host, device) = boxes(to, bytes.as_ptr().cast_mut())?;
        // SAFETY: `bytes` is borrowed for the whole call, and only read.
        Ok(unsafe { self.client.write_box(stream, &host, &device) }?)
    }

    fn read_box(&self, stream: u64, from: &DeviceSide, bytes: &mut [u8]) -> Result<()> {
        let (host, device) = boxes(from, bytes.as_mut_ptr())?;
        // SAFETY: `bytes` is borrowed for the whole call.
        let result = unsafe { self.client.read_box(stream, &host, &device) };
        self.synced(result)
    }

    fn fill(&self, stream: u64, address: u64, value: u32, element: u32, count: u64) -> Result<()> {
        self.post(&wire::Fill {
            stream,
            address,
            pitch: count * u64::from(element),
            value,
            element_bytes: element,
            width: count,
            height: 1,
        })
    }

    fn stream_create(&self, non_blocking: bool, priority: i32) -> Result<u64> {
        let context = self.context();
        let request = wire::StreamCreate {
            context,
            non_blocking,
            priority,
        };
        Ok(self.client.call(&request)?.value)
    }

    fn stream_destroy(&self, stream: u64) -> Result<()> {
        Ok(self.client.post(&wire::StreamDestroy { stream }, &[])?)
    }

    fn stream_synchronize(&self, stream: u64) -> Result<()> {
        let result = self.client.call(&wire::StreamSynchronize { stream });
        self.synced(result.map(drop))
    }

    fn stream_query(&self, stream: u64) -> Result<bool> {
        Ok(self.client.call(&wire::StreamQuery { stream })?.value)
    }

    fn stream_wait_event(&self, stream: u64, event: u64) -> Result<()> {
        self.post(&wire::StreamWaitEvent { stream, event })
    }

    fn stream_callback(&self, stream: u64, callback: HostCallback) -> Result<()> {
        let number = Callbacks::keep(&self.callbacks, &self.client, callback)?;
        let request = wire::StreamCallback {
            stream,
            callback: number,
        };
        let posted = self.post(&request);
        if posted.is_err() {
            self.callbacks.forget(number);
        }
        posted
    }

    fn event_create(&self, timing: bool) -> Result<u64> {
        let request = wire::EventCreate {
            context: self.context(),
            disable_timing: !timing,
        };
        Ok(self.client.call(&request)?.value)
    }

    fn event_destroy(&self, event: u64) -> Result<()> {
        Ok(self.client.post(&wire::EventDestroy { event }, &[])?)
    }

    fn event_record(&self, event: u64, stream: u64) -> Result<()> {
        self.post(&wire::EventRecord { event, stream })
    }

    fn event_query(&self, event: u64) -> Result<bool> {
        Ok(self.client.call(&wire::EventQuery { event })?.value)
    }

    fn event_synchronize(&self, event: u64) -> Result<()> {
        let result = self.client.call(&wire::EventSynchronize { event });
        self.synced(result.map(drop))
    }

    fn event_elapsed_ms(&self, start: u64, end: u64) -> Result<f32> {
        Ok(self.client.call(&wire::EventElapsed { start, end })?.value)
    }

    fn module_load(&self, image: &[u8]) -> Result<(u64, ModuleInfo)> {
        let exact = mica_limits::memcheck();
        let loaded = self.client.module_load(self.context(), image, exact)?;
        let kernels = loaded.kernels.into_iter().map(convert::kernel).collect();
        let globals = loaded.globals.into_iter();
        let globals = globals.map(|global| GlobalDescription {
            name: global.name,
            address: DevicePtr(global.address),
            bytes: global.bytes,
            is_managed: global.is_managed,
        });
        let globals = globals.collect();
        Ok((loaded.module, ModuleInfo { kernels, globals }))
    }

    fn module_unload(&self, module: u64) -> Result<()> {
        self.client.call(&wire::ModuleUnload { module })?;
        Ok(())
    }

    fn launch(&self, launch: &LaunchCall<'_>) -> Result<()> {
        self.check_late()?;
        if !launch.attributes.is_empty() {
            let (request, tail) = graphs::launch_with(&launch.owned(), launch.stream);
            return Ok(self.client.post(&request, &tail)?);
        }
        let request = wire::Launch {
            stream: launch.stream,
            module: launch.module,
            kernel: launch.kernel,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            cooperative: launch.cooperative,
        };
        Ok(self.client.launch(&request, launch.params)?)
    }

    fn occupancy(&self, module: u64, kernel: u32, threads: u32, shared: u64) -> Result<u32> {
        let request = wire::Occupancy {
            module,
            kernel,
            block_threads: threads,
            dynamic_shared: shared,
        };
        Ok(self.client.call(&request)?.value as u32)
    }

    fn tensor_map(&self, request: &TensorMapRequest) -> Result<TensorMap> {
        let mut shape = Vec::with_capacity(256);
        convert::tensor_map_shape(request).put(&mut shape);
        let context = self.context();
        let made = self
            .client
            .call_with(&wire::TensorMap { context }, &shape)?
            .bytes;
        let length = made.len();
        made.try_into()
            .map_err(|_| Error::Argument(format!("a tensor map has 128 bytes, {length} came")))
    }

    fn graph_instantiate(&self, nodes: Vec<GraphNode>) -> Result<u64> {
        self.make_graph(&nodes)
    }

    fn graph_update(&self, graph: u64, nodes: Vec<GraphNode>) -> Result<()> {
        self.change_graph(graph, &nodes)
    }

    fn graph_launch(&self, graph: u64, stream: u64) -> Result<()> {
        self.post(&wire::GraphLaunch { graph, stream })
    }

    fn graph_upload(&self, graph: u64, stream: u64) -> Result<()> {
        self.post(&wire::GraphUpload { graph, stream })
    }

    fn graph_destroy(&self, graph: u64) -> Result<()> {
        self.end_graph(graph)
    }

    fn array_create(&self, descriptor: &ArrayDescriptor) -> Result<u64> {
        let (context, shape) = (self.context(), convert::array_shape(descriptor));
        Ok((self.client.call(&wire::ArrayCreate { context, shape })?).value)
    }

    fn array_destroy(&self, array: u64) -> Result<()> {
        self.client.call(&wire::ArrayDestroy { array })?;
        Ok(())
    }

    fn texture_create(&self, descriptor: &TextureDescriptor) -> Result<u64> {
        let (context, shape) = (self.context(), convert::texture_shape(descriptor));
        Ok((self.client.call(&wire::TextureCreate { context, shape })?).value)
    }

    fn surface_create(&self, array: u64) -> Result<u64> {
        let context = self.context();
        Ok((self.client.call(&wire::SurfaceCreate { context, array })?).value)
    }

    fn texture_destroy(&self, handle: u64) -> Result<()> {
        let context = self.context();
        self.client
            .call(&wire::TextureDestroy { context, handle })?;
        Ok(())
    }

    fn attribute(&self, attribute: DeviceAttribute) -> Result<Option<i32>> {
        let known = self.client.snapshot().attributes.iter();
        let found = known.copied().find(|(id, _)| *id == attribute as u32);
        Ok(found.map(|(_, value)| value))
    }

    fn managed_alloc(&self, bytes: u64) -> Result<Box<dyn ManagedMemory>> {
        managed::alloc(&self.client, self.context(), bytes)
    }
}

/// Both sides of a copy between rows of this process, one after the other, and the device.
fn boxes(side: &DeviceSide, pointer: *mut u8) -> Result<(HostBox, DeviceBox)> {
    let (width, height, _) = side.extent;
    let host = HostBox {
        pointer,
        pitch: (width, width * height),
        extent: side.extent,
    };
    let device = DeviceBox {
        place: convert::place(side.place)?,
        pitch: side.pitch,
        offset: [0; 3],
    };
    Ok((host, device))
}
