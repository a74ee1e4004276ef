//! The device interface, call by call.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mica_cuda_abi::CuResult;
use mica_gpu::{
    Access, ArrayDescriptor, ArrayId, ContextId, Copy3d, DeviceProperties, DevicePtr, EventFlags,
    EventId, Fill2d, FrameId, Gpu, GpuError, HostCallback, HostSpan, Launch, MemoryWindow,
    ModuleId, ModuleInfo, ModuleOptions, Result, StreamFlags, StreamId, TextureDescriptor,
};

use crate::attributes::{self, MOST_URGENT};
use crate::context::Context;
use crate::core::{ContextEntry, Event, OpKind, State, Stream, StreamKind};
use crate::device::SoftwareGpu;
use crate::error::{bad_handle, invalid_value};
use crate::memory::Purpose;
use crate::module::Module;
use crate::texture::{self, Array};
use crate::transfer::Transfer;

/// Transfers up to this size on an idle stream are done by the caller: handing them to another
/// thread would take longer.
const INLINE_BYTES: u64 = 64 << 10;

impl SoftwareGpu {
    fn healthy(&self, context: ContextId) -> Result<Arc<Context>> {
        let state = self.core.state();
        Ok(Arc::clone(&state.healthy_context(context.0)?.context))
    }

    fn submit_transfer(
        &self,
        stream: StreamId,
        make: impl FnOnce(&State, u64) -> Result<Transfer>,
    ) -> Result<()> {
        let mut state = self.core.state();
        let context = Arc::clone(&state.healthy_stream(stream.0)?.context);
        let transfer = make(&state, context.id)?;
        let bytes = transfer.bytes();
        if bytes > INLINE_BYTES || !self.core.is_clear(&state, stream.0) {
            let op = if bytes == 0 {
                OpKind::Marker
            } else {
                OpKind::Transfer(transfer)
            };
            self.core.submit(&mut state, stream.0, op);
            return Ok(());
        }
        self.core.submit(&mut state, stream.0, OpKind::Inline);
        drop(state);
        self.core.transfer(&context, &transfer);
        let mut state = self.core.state();
        self.core.complete(&mut state, stream.0);
        context.check()
    }

    fn new_stream(
        state: &mut State,
        context: &Arc<Context>,
        kind: StreamKind,
        priority: i32,
    ) -> u64 {
        let id = state.new_id();
        let stream = Stream {
            context: Arc::clone(context),
            kind,
            priority,
            queue: VecDeque::new(),
            active: false,
            destroyed: false,
            last_submitted: 0,
            progress: Arc::new(AtomicU64::new(0)),
        };
        state.streams.insert(id, stream);
        id
    }

    fn own_module(&self, module: ModuleId) -> Result<Arc<Module>> {
        let state = self.core.state();
        let known = state.modules.get(&module.0).cloned();
        known.ok_or_else(|| bad_handle("module", module.0))
    }

    fn new_texture(&self, context: &Context, view: mica_kernel::TextureView) -> u64 {
        let id = self.core.state().new_id();
        let mut textures = context
            .textures
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        textures.insert(id, view);
        id
    }
}

impl Gpu for SoftwareGpu {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn attribute(&self, attribute: u32) -> Option<i32> {
        attributes::attribute(&self.facts, attribute)
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        Ok(self.core.memory.info())
    }

    fn context_create(&self) -> Result<ContextId> {
        let mut state = self.core.state();
        let id = state.new_id();
        let context = Arc::new(Context::new(id));
        let default_stream = Self::new_stream(&mut state, &context, StreamKind::Default, 0);
        state.contexts.insert(
            id,
            ContextEntry {
                context,
                default_stream,
                streams: vec![default_stream],
            },
        );
        Ok(ContextId(id))
    }

    fn context_destroy(&self, context: ContextId) -> Result<()> {
        self.destroy(context.0)
    }

    fn context_synchronize(&self, context: ContextId) -> Result<()> {
        self.wait_for_context(context)
    }

    fn context_fault(&self, context: ContextId) -> Option<GpuError> {
        let state = self.core.state();
        state.context(context.0).ok()?.context.fault().cloned()
    }

    fn context_limit(&self, context: ContextId, limit: u32) -> Result<u64> {
        self.healthy(context)?.limit(limit)
    }

    fn context_set_limit(&self, context: ContextId, limit: u32, value: u64) -> Result<()> {
        self.healthy(context)?.set_limit(limit, value)
    }

    fn context_suspend(&self, context: ContextId) -> Result<()> {
        self.set_suspended(context, true)
    }

    fn context_resume(&self, context: ContextId) -> Result<()> {
        self.set_suspended(context, false)
    }

    fn cancel(&self, context: ContextId, stream: Option<StreamId>) -> Result<u64> {
        let mut state = self.core.state();
        state.healthy_context(context.0)?;
        if let Some(stream) = stream
            && state.stream(stream.0)?.context.id != context.0
        {
            return Err(bad_handle("stream", stream.0));
        }
        let stream = stream.map(|s| s.0);
        Ok(self.core.cancel_grids(&mut state, context.0, stream))
    }

    fn abort(&self, context: ContextId) -> Result<u64> {
        let mut state = self.core.state();
        let broken = Arc::clone(&state.healthy_context(context.0)?.context);
        if !self.core.has_grids(&state, context.0) {
            return Ok(0);
        }
        // First, so that nobody who waits for them takes their end for a good one.
        broken.set_fault(GpuError::new(
            CuResult::LaunchTimeout,
            format!(
                "the kernels of context {} were ended from outside",
                context.0
            ),
        ));
        let count = self.core.cancel_grids(&mut state, context.0, None);
        self.core.pump_context(&mut state, context.0);
        Ok(count)
    }

    fn settle(&self) {
        self.core.settle();
    }

    fn is_idle(&self) -> bool {
        self.core.state().operations == 0
    }

    fn stream_create(
        &self,
        context: ContextId,
        flags: StreamFlags,
        priority: i32,
    ) -> Result<StreamId> {
        let mut state = self.core.state();
        let owner = Arc::clone(&state.healthy_context(context.0)?.context);
        let kind = if flags.non_blocking {
            StreamKind::NonBlocking
        } else {
            StreamKind::Blocking
        };
        let priority = priority.clamp(MOST_URGENT, 0);
        let id = Self::new_stream(&mut state, &owner, kind, priority);
        if let Some(entry) = state.contexts.get_mut(&context.0) {
            entry.streams.push(id);
        }
        Ok(StreamId(id))
    }

    fn stream_destroy(&self, stream: StreamId) -> Result<()> {
        let mut state = self.core.state();
        let known = state.stream(stream.0)?;
        if known.kind == StreamKind::Default {
            return Err(invalid_value("the default stream cannot be destroyed"));
        }
        let context = known.context.id;
        let is_over = known.queue.is_empty();
        if is_over {
            state.streams.remove(&stream.0);
            if let Some(entry) = state.contexts.get_mut(&context) {
                entry.streams.retain(|id| *id != stream.0);
            }
        } else if let Some(known) = state.streams.get_mut(&stream.0) {
            known.destroyed = true;
        }
        Ok(())
    }

    fn stream_synchronize(&self, stream: StreamId) -> Result<()> {
        self.wait_for_stream(stream.0)
    }

    fn stream_query(&self, stream: StreamId) -> Result<bool> {
        let state = self.core.state();
        state.healthy_stream(stream.0)?;
        Ok(self.core.is_clear(&state, stream.0))
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        let mut state = self.core.state();
        state.healthy_stream(stream.0)?;
        let event = Arc::clone(state.event(event.0)?);
        let record = event.recorded.load(Ordering::Acquire);
        let op = OpKind::Wait(event, record);
        self.core.submit(&mut state, stream.0, op);
        Ok(())
    }

    fn stream_callback(&self, stream: StreamId, callback: HostCallback) -> Result<()> {
        let mut state = self.core.state();
        state.healthy_stream(stream.0)?;
        let op = OpKind::Callback(callback);
        self.core.submit(&mut state, stream.0, op);
        Ok(())
    }

    fn default_stream(&self, context: ContextId) -> Result<StreamId> {
        let state = self.core.state();
        Ok(StreamId(state.context(context.0)?.default_stream))
    }

    fn event_create(&self, context: ContextId, flags: EventFlags) -> Result<EventId> {
        let mut state = self.core.state();
        let context = Arc::clone(&state.healthy_context(context.0)?.context);
        let id = state.new_id();
        let event = Event {
            context,
            timing: !flags.disable_timing,
            recorded: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            reached_ns: AtomicU64::new(0),
            waiters: Mutex::default(),
        };
        state.events.insert(id, Arc::new(event));
        Ok(EventId(id))
    }

    fn event_destroy(&self, event: EventId) -> Result<()> {
        let mut state = self.core.state();
        match state.events.remove(&event.0) {
            Some(_) => Ok(()),
            None => Err(bad_handle("event", event.0)),
        }
    }

    fn event_record(&self, event: EventId, stream: StreamId) -> Result<()> {
        let mut state = self.core.state();
        let context = state.healthy_stream(stream.0)?.context.id;
        let event = Arc::clone(state.event(event.0)?);
        if event.context.id != context {
            return Err(GpuError::new(
                CuResult::InvalidHandle,
                "an event can only be recorded on streams of its own context",
            ));
        }
        let record = event.recorded.fetch_add(1, Ordering::AcqRel) + 1;
        let op = OpKind::Record(event, record);
        self.core.submit(&mut state, stream.0, op);
        Ok(())
    }

    fn event_query(&self, event: EventId) -> Result<bool> {
        let state = self.core.state();
        let event = state.event(event.0)?;
        event.context.check()?;
        Ok(event.reached.load(Ordering::Acquire) >= event.recorded.load(Ordering::Acquire))
    }

    fn event_synchronize(&self, event: EventId) -> Result<()> {
        let event = Arc::clone(self.core.state().event(event.0)?);
        event.context.check()?;
        let record = event.recorded.load(Ordering::Acquire);
        self.core.settle();
        self.wait_for(&event.reached, record);
        self.after_wait(&event.context)
    }

    fn event_elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32> {
        let state = self.core.state();
        let (start, end) = (state.event(start.0)?, state.event(end.0)?);
        for event in [start, end] {
            event.context.check()?;
            let recorded = event.recorded.load(Ordering::Acquire);
            if recorded == 0 || !event.timing {
                return Err(GpuError::new(
                    CuResult::InvalidHandle,
                    "an event without timing, or never recorded",
                ));
            }
            if event.reached.load(Ordering::Acquire) < recorded {
                return Err(GpuError::new(
                    CuResult::NotReady,
                    "an event that is not reached yet",
                ));
            }
        }
        let at = |event: &Event| event.reached_ns.load(Ordering::Acquire) as i64;
        Ok((at(end) - at(start)) as f32 / 1e6)
    }

    fn module_load(
        &self,
        context: ContextId,
        image: &[u8],
        options: &ModuleOptions,
    ) -> Result<ModuleId> {
        let context = self.healthy(context)?;
        let compiled = self.cache.compile(image, options)?;
        let memory = Arc::clone(&self.core.memory);
        let module = Arc::new(Module::new(memory, context.id, &compiled)?);
        let mut state = self.core.state();
        // The context may have gone while the compiler ran.
        state.healthy_context(context.id)?;
        let id = state.new_id();
        state.modules.insert(id, module);
        Ok(ModuleId(id))
    }

    fn module_unload(&self, module: ModuleId) -> Result<()> {
        let removed = self.core.state().modules.remove(&module.0);
        match removed {
            Some(_) => Ok(()),
            None => Err(bad_handle("module", module.0)),
        }
    }

    fn module_info(&self, module: ModuleId) -> Result<ModuleInfo> {
        Ok(self.own_module(module)?.info.clone())
    }

    fn module_bind(&self, module: ModuleId, global: u32, address: DevicePtr) -> Result<()> {
        self.own_module(module)?.bind(global, address.0)
    }

    fn launch(&self, stream: StreamId, launch: &Launch<'_>) -> Result<()> {
        self.submit_launch(stream, launch)
    }

    fn occupancy(
        &self,
        module: ModuleId,
        kernel: u32,
        block_threads: u32,
        dynamic_shared: u64,
    ) -> Result<u32> {
        let module = self.own_module(module)?;
        let kernel = module
            .info
            .kernels
            .get(kernel as usize)
            .ok_or_else(|| bad_handle("kernel", u64::from(kernel)))?;
        let shared = u64::from(kernel.static_shared).saturating_add(dynamic_shared);
        if block_threads == 0 {
            return Err(invalid_value("occupancy of empty blocks"));
        }
        if block_threads > kernel.max_threads || shared > crate::area::SHARED {
            return Ok(0);
        }
        Ok(attributes::occupancy(
            &self.facts,
            kernel.registers,
            block_threads,
            shared,
        ))
    }

    fn memory_alloc(&self, context: ContextId, bytes: u64) -> Result<DevicePtr> {
        let context = self.healthy(context)?;
        let at = self
            .core
            .memory
            .alloc(context.id, bytes, Purpose::Program)?;
        Ok(DevicePtr(at))
    }

    fn memory_free(&self, context: ContextId, address: DevicePtr) -> Result<()> {
        let context = self.healthy(context)?;
        self.core.memory.free(context.id, address.0)?;
        Ok(())
    }

    fn take_window_file(&self) -> Option<OwnedFd> {
        self.core.memory.take_window_file()
    }

    fn memory_window(
        &self,
        context: ContextId,
        address: DevicePtr,
        bytes: u64,
    ) -> Result<Option<MemoryWindow>> {
        self.healthy(context)?;
        let memory = &self.core.memory;
        let window = match memory.window(address.0) {
            None => return Ok(None),
            Some(Ok(window)) => window,
            Some(Err(base)) => self.while_still(|| memory.open_window(base))?,
        };
        memory.populate(window, address.0, bytes);
        Ok(Some(MemoryWindow {
            base: DevicePtr(window.base),
            bytes: window.bytes,
            offset: window.offset,
        }))
    }

    fn memory_range(&self, context: ContextId, address: DevicePtr) -> Result<(DevicePtr, u64)> {
        let context = self.healthy(context)?;
        let (base, bytes) = self.core.memory.range(context.id, address.0)?;
        Ok((DevicePtr(base), bytes))
    }

    fn copy(&self, stream: StreamId, copy: &Copy3d) -> Result<()> {
        self.submit_transfer(stream, |state, context| {
            Transfer::copy(&self.core.memory, state, context, copy)
        })
    }

    fn fill(&self, stream: StreamId, fill: &Fill2d) -> Result<()> {
        self.submit_transfer(stream, |_, _| Transfer::fill(&self.core.memory, fill))
    }

    unsafe fn host_register(
        &self,
        context: ContextId,
        span: HostSpan,
        fd: Option<BorrowedFd<'_>>,
        fd_offset: u64,
    ) -> Result<DevicePtr> {
        let context = self.healthy(context)?;
        let file = fd.map(|fd| (fd, fd_offset));
        // SAFETY: the caller keeps the span mapped, as this function asks.
        let at = unsafe { self.core.memory.register(context.id, span, file) }?;
        Ok(DevicePtr(at))
    }

    fn host_unregister(&self, context: ContextId, address: DevicePtr) -> Result<()> {
        let context = self.healthy(context)?;
        self.core.memory.unregister(context.id, address.0)
    }

    fn address_reserve(&self, bytes: u64, align: u64) -> Result<DevicePtr> {
        self.core.memory.reserve(bytes, align).map(DevicePtr)
    }

    fn address_free(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        self.core.memory.unreserve(address.0, bytes)
    }

    fn frame_create(&self, bytes: u64) -> Result<FrameId> {
        self.core.memory.frame_create(bytes).map(FrameId)
    }

    fn frame_release(&self, frame: FrameId) -> Result<()> {
        self.core.memory.frame_release(frame.0)
    }

    fn frame_map(&self, address: DevicePtr, frame: FrameId) -> Result<()> {
        self.core.memory.frame_map(address.0, frame.0)
    }

    fn frame_unmap(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        self.core.memory.frame_unmap(address.0, bytes)
    }

    fn frame_access(&self, address: DevicePtr, bytes: u64, access: Access) -> Result<()> {
        self.core.memory.frame_access(address.0, bytes, access)
    }

    fn array_create(&self, context: ContextId, descriptor: &ArrayDescriptor) -> Result<ArrayId> {
        let context = self.healthy(context)?;
        let (bytes, row, slice) = Array::layout(descriptor)?;
        let base = self
            .core
            .memory
            .alloc(context.id, bytes, Purpose::Internal)?;
        let array = Array::new(context.id, base, row, slice, *descriptor);
        let mut state = self.core.state();
        let id = state.new_id();
        state.arrays.insert(id, Arc::new(array));
        Ok(ArrayId(id))
    }

    fn array_destroy(&self, array: ArrayId) -> Result<()> {
        let removed = self.core.state().arrays.remove(&array.0);
        let array = removed.ok_or_else(|| bad_handle("array", array.0))?;
        self.core.memory.free_internal(array.context, array.base);
        Ok(())
    }

    fn texture_create(&self, context: ContextId, descriptor: &TextureDescriptor) -> Result<u64> {
        let context = self.healthy(context)?;
        let view = {
            let state = self.core.state();
            texture::texture_view(&self.core.memory, &state, context.id, descriptor)?
        };
        Ok(self.new_texture(&context, view))
    }

    fn surface_create(&self, context: ContextId, array: ArrayId) -> Result<u64> {
        let context = self.healthy(context)?;
        let view = texture::surface_view(&self.core.state(), context.id, array.0)?;
        Ok(self.new_texture(&context, view))
    }

    fn texture_destroy(&self, context: ContextId, handle: u64) -> Result<()> {
        let context = self.healthy(context)?;
        let mut textures = context
            .textures
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        match textures.remove(&handle) {
            Some(_) => Ok(()),
            None => Err(bad_handle("texture", handle)),
        }
    }

    fn context_gpu_time_ns(&self, context: ContextId) -> Option<u64> {
        let state = self.core.state();
        let context = &state.context(context.0).ok()?.context;
        Some(self.core.device_ns(&context.meter))
    }
}
