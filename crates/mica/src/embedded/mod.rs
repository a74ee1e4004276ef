//! A virtual GPU in this process.

mod copies;
mod managed;

use std::sync::{Arc, Mutex};

use mica_cuda_abi::DeviceAttribute;
use mica_gpu::profile::Recorder;
use mica_gpu::{
    ArrayDescriptor, Copy3d, DevicePtr, EventFlags, Fill2d, HostCallback, ModuleInfo,
    ModuleOptions, Place, StreamFlags, TensorMap, TensorMapRequest, TextureDescriptor,
};
use mica_limits::{LocalQuota, Quota};
use mica_ptx::names::readable;
use mica_vgpu::{GraphNode, GraphOptions, NewContext, Session, Statistics, Vgpu, VgpuSpec};

use crate::Result;
use crate::arbiter::TenantGate;
use crate::backend::{Backend, DeviceSide, LaunchCall, ManagedMemory, PendingBytes};
use crate::connected::lock;
use crate::device::{Device, DeviceInfo};
use crate::vgpu::Memory;

pub(crate) struct Embedded {
    device: Device,
    vgpu: Arc<Vgpu>,
    session: Arc<Session>,
    gate: Arc<TenantGate>,
    quota: Arc<LocalQuota>,
    limit_bytes: Mutex<u64>,
    context: Mutex<NewContext>,
    recorder: Arc<Recorder>,
}

impl Embedded {
    pub(crate) fn new(device: &Device, mut spec: VgpuSpec, memory: Option<u64>) -> Result<Self> {
        let arbiter = device.arbiter();
        let bytes = match memory {
            Some(bytes) => {
                arbiter.reserve(0, bytes)?;
                bytes
            }
            None => arbiter.reserve_rest(),
        };
        spec.memory_bytes = bytes;
        let gate = Arc::new(arbiter.join(spec.share_percent, spec.cap, spec.priority));
        let made = Self::with_gate(device, spec, bytes, Arc::clone(&gate));
        if made.is_err() {
            gate.leave();
            let _ = arbiter.reserve(bytes, 0);
        }
        made
    }

    fn with_gate(
        device: &Device,
        spec: VgpuSpec,
        bytes: u64,
        gate: Arc<TenantGate>,
    ) -> Result<Self> {
        let gpu = device.open(gate.clone())?;
        let recorder = Arc::new(Recorder::new(|name| readable(name).into_owned()));
        gpu.attach_recorder(&recorder);
        let quota = Arc::new(LocalQuota::new(bytes));
        let vgpu = Vgpu::new(gpu, quota.clone(), spec);
        let session = vgpu.open_session()?;
        let context = session.context_create()?;
        Ok(Self {
            device: device.clone(),
            vgpu,
            session,
            gate,
            quota,
            limit_bytes: Mutex::new(bytes),
            context: Mutex::new(context),
            recorder,
        })
    }

    fn context(&self) -> u64 {
        lock(&self.context).context
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // The gate opens first, so that what runs can see that it is cancelled.
        self.gate.leave();
        self.session.close();
        let _ = self.device.arbiter().reserve(*lock(&self.limit_bytes), 0);
    }
}

impl Backend for Embedded {
    fn info(&self) -> DeviceInfo {
        let mut info = DeviceInfo::new(self.vgpu.gpu().properties());
        info.total_memory = *lock(&self.limit_bytes);
        info
    }

    fn memory(&self) -> Result<Memory> {
        let view = self.vgpu.memory();
        Ok(Memory {
            free_bytes: view.free_bytes(),
            limit_bytes: view.limit_bytes,
            used_bytes: view.used_bytes,
        })
    }

    fn statistics(&self) -> Result<Statistics> {
        Ok(self.vgpu.statistics())
    }

    fn reset(&self) -> Result<()> {
        let mut context = lock(&self.context);
        // It may be gone already, after a fault under a copy.
        let _ = self.session.context_destroy(context.context);
        *context = self.session.context_create()?;
        Ok(())
    }

    fn default_stream(&self) -> u64 {
        lock(&self.context).default_stream
    }

    fn synchronize(&self) -> Result<()> {
        Ok(self.session.context_synchronize(self.context())?)
    }

    fn cancel(&self, stream: Option<u64>) -> Result<u64> {
        Ok(self.session.cancel(self.context(), stream)?)
    }

    fn alloc(&self, bytes: u64) -> Result<u64> {
        Ok(self.session.memory_alloc(self.context(), bytes)?.0)
    }

    fn free(&self, address: u64) -> Result<()> {
        let context = self.context();
        Ok(self.session.memory_free(context, DevicePtr(address))?)
    }

    fn write(&self, stream: u64, address: u64, bytes: &[u8]) -> Result<()> {
        self.write_bytes(stream, address, bytes)
    }

    fn read(&self, stream: u64, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.read_box(stream, &copies::line(address, bytes.len()), bytes)
    }

    fn read_later(&self, stream: u64, address: u64, bytes: u64) -> Result<PendingBytes> {
        self.start_read(stream, address, bytes)
    }

    fn copy(&self, stream: u64, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let (dst, src) = (Place::Device(DevicePtr(dst)), Place::Device(DevicePtr(src)));
        Ok(self
            .session
            .copy(stream, &Copy3d::linear(dst, src, bytes))?)
    }

    fn write_box(&self, stream: u64, to: &DeviceSide, bytes: &[u8]) -> Result<()> {
        self.copy_in(stream, to, bytes)
    }

    fn read_box(&self, stream: u64, from: &DeviceSide, bytes: &mut [u8]) -> Result<()> {
        self.copy_out(stream, from, bytes)
    }

    fn fill(&self, stream: u64, address: u64, value: u32, element: u32, count: u64) -> Result<()> {
        let fill = Fill2d {
            dst: DevicePtr(address),
            pitch: count * u64::from(element),
            value,
            element_bytes: element,
            width: count,
            height: 1,
        };
        Ok(self.session.fill(stream, &fill)?)
    }

    fn stream_create(&self, non_blocking: bool, priority: i32) -> Result<u64> {
        let flags = StreamFlags { non_blocking };
        Ok(self
            .session
            .stream_create(self.context(), flags, priority)?)
    }

    fn stream_destroy(&self, stream: u64) -> Result<()> {
        Ok(self.session.stream_destroy(stream)?)
    }

    fn stream_synchronize(&self, stream: u64) -> Result<()> {
        Ok(self.session.stream_synchronize(stream)?)
    }

    fn stream_query(&self, stream: u64) -> Result<bool> {
        Ok(self.session.stream_query(stream)?)
    }

    fn stream_wait_event(&self, stream: u64, event: u64) -> Result<()> {
        Ok(self.session.stream_wait_event(stream, event)?)
    }

    fn stream_callback(&self, stream: u64, callback: HostCallback) -> Result<()> {
        Ok(self.session.stream_callback(stream, callback)?)
    }

    fn event_create(&self, timing: bool) -> Result<u64> {
        let disable_timing = !timing;
        let flags = EventFlags { disable_timing };
        Ok(self.session.event_create(self.context(), flags)?)
    }

    fn event_destroy(&self, event: u64) -> Result<()> {
        Ok(self.session.event_destroy(event)?)
    }

    fn event_record(&self, event: u64, stream: u64) -> Result<()> {
        Ok(self.session.event_record(event, stream)?)
    }

    fn event_query(&self, event: u64) -> Result<bool> {
        Ok(self.session.event_query(event)?)
    }

    fn event_synchronize(&self, event: u64) -> Result<()> {
        Ok(self.session.event_synchronize(event)?)
    }

    fn event_elapsed_ms(&self, start: u64, end: u64) -> Result<f32> {
        Ok(self.session.event_elapsed_ms(start, end)?)
    }

    fn module_load(&self, image: &[u8]) -> Result<(u64, ModuleInfo)> {
        let options = ModuleOptions {
            memcheck: mica_limits::memcheck(),
        };
        let loaded = self.session.module_load(self.context(), image, &options)?;
        Ok((loaded.module, loaded.info))
    }

    fn module_unload(&self, module: u64) -> Result<()> {
        Ok(self.session.module_unload(module)?)
    }

    fn launch(&self, launch: &LaunchCall<'_>) -> Result<()> {
        if !launch.attributes.is_empty() {
            return Ok((self.session).launch_with(launch.stream, &launch.owned())?);
        }
        Ok(self.session.launch(
            launch.stream,
            launch.module,
            launch.kernel,
            launch.grid,
            launch.block,
            launch.dynamic_shared,
            launch.cooperative,
            launch.params,
        )?)
    }

    fn occupancy(&self, module: u64, kernel: u32, threads: u32, shared: u64) -> Result<u32> {
        Ok(self.session.occupancy(module, kernel, threads, shared)?)
    }

    fn tensor_map(&self, request: &TensorMapRequest) -> Result<TensorMap> {
        Ok(self.session.tensor_map(self.context(), request)?)
    }

    fn graph_instantiate(&self, nodes: Vec<GraphNode>) -> Result<u64> {
        let options = GraphOptions::default();
        let context = self.context();
        Ok(self.session.graph_instantiate(context, nodes, &options)?)
    }

    fn graph_update(&self, graph: u64, nodes: Vec<GraphNode>) -> Result<()> {
        Ok(self.session.graph_update(graph, nodes, 0)?)
    }

    fn graph_launch(&self, graph: u64, stream: u64) -> Result<()> {
        Ok(self.session.graph_launch(graph, stream)?)
    }

    fn graph_upload(&self, graph: u64, stream: u64) -> Result<()> {
        Ok(self.session.graph_upload(graph, stream)?)
    }

    fn graph_destroy(&self, graph: u64) -> Result<()> {
        Ok(self.session.graph_destroy(graph)?)
    }

    fn array_create(&self, descriptor: &ArrayDescriptor) -> Result<u64> {
        Ok(self.session.array_create(self.context(), descriptor)?)
    }

    fn array_destroy(&self, array: u64) -> Result<()> {
        Ok(self.session.array_destroy(array)?)
    }

    fn texture_create(&self, descriptor: &TextureDescriptor) -> Result<u64> {
        Ok(self.session.texture_create(self.context(), descriptor)?)
    }

    fn surface_create(&self, array: u64) -> Result<u64> {
        Ok(self.session.surface_create(self.context(), array)?)
    }

    fn texture_destroy(&self, texture: u64) -> Result<()> {
        Ok(self.session.texture_destroy(self.context(), texture)?)
    }

    fn attribute(&self, attribute: DeviceAttribute) -> Result<Option<i32>> {
        Ok(self.vgpu.gpu().attribute(attribute))
    }

    fn managed_alloc(&self, bytes: u64) -> Result<Box<dyn ManagedMemory>> {
        managed::alloc(&self.session, self.context(), bytes)
    }

    fn recorder(&self) -> Option<Arc<Recorder>> {
        Some(Arc::clone(&self.recorder))
    }

    fn resize(&self, bytes: u64) -> Result<()> {
        let mut limit = lock(&self.limit_bytes);
        let arbiter = self.device.arbiter();
        // Growing is asked of the device first, shrinking of the virtual GPU: a refusal changes
        // nothing either way.
        if bytes > *limit {
            arbiter.reserve(*limit, bytes)?;
        }
        if let Err(denied) = self.quota.resize(bytes) {
            if bytes > *limit {
                let _ = arbiter.reserve(bytes, *limit);
            }
            return Err(mica_vgpu::VgpuError::Memory(denied).into());
        }
        if bytes < *limit {
            let _ = arbiter.reserve(*limit, bytes);
        }
        *limit = bytes;
        debug_assert_eq!(self.quota.view().limit_bytes, bytes);
        self.vgpu.update_spec(|spec| spec.memory_bytes = bytes);
        Ok(())
    }

    fn set_share(&self, percent: f64) -> Result<()> {
        self.gate.set_share(percent);
        self.vgpu.update_spec(|spec| spec.share_percent = percent);
        Ok(())
    }

    fn suspend(&self) -> Result<()> {
        Ok(self.vgpu.suspend()?)
    }

    fn resume(&self) -> Result<()> {
        Ok(self.vgpu.resume()?)
    }
}
