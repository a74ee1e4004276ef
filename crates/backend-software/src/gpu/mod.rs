//! The device interface, call by call.
//!
//! Owns the list of calls and the short ones; what takes more than a few lines is in the module of its kind.

mod events;
mod launches;
mod objects;
mod streams;
mod tensor_maps;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mica_cuda_abi::{DeviceAttribute, Limit};
use mica_gpu::{
    Aborted, Access, ArrayDescriptor, ArrayId, ClusterQuestion, ContextId, Copy3d,
    DeviceProperties, DevicePtr, EventFlags, EventId, Fill2d, FrameCopy, FrameId, Gpu, GpuError,
    HostCallback, HostSpan, Launch, LaunchAttribute, MemoryWindow, ModuleId, ModuleInfo,
    ModuleOptions, Result, SessionBudget, StreamFlags, StreamId, TensorMap, TensorMapRequest,
    TextureDescriptor, ValueWait,
};

use crate::answers;
use crate::context::Context;
use crate::core::{OpKind, State};
use crate::device::SoftwareGpu;
use crate::error::bad_handle;
use crate::memory::Purpose;
use crate::module::Module;
use crate::texture::Array;
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
        // A transfer is gated as kernels are; only the copy threads can wait.
        let may_run = self.core.gate.as_ref().is_none_or(|gate| gate.may_run());
        let is_short = bytes <= INLINE_BYTES && transfer.is_one_slice();
        if !is_short || !may_run || context.is_suspended() || !self.core.is_clear(&state, stream.0)
        {
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
        self.core.transfer(&context, stream.0, &transfer);
        let mut state = self.core.state();
        self.core.complete(&mut state, stream.0);
        context.check()
    }

    fn own_module(&self, module: ModuleId) -> Result<Arc<Module>> {
        let state = self.core.state();
        let known = state.modules.get(&module.0).cloned();
        known.ok_or_else(|| bad_handle("module", module.0))
    }
}

impl Gpu for SoftwareGpu {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn attribute(&self, attribute: DeviceAttribute) -> Option<i32> {
        Some(answers::attribute(&self.facts, attribute))
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        Ok(self.core.memory.info())
    }

    fn attach_budget(&self, budget: &Arc<SessionBudget>) {
        self.core.memory.attach_budget(budget);
    }

    fn attach_recorder(&self, recorder: &Arc<mica_gpu::profile::Recorder>) -> bool {
        self.core.recording.attach(recorder);
        true
    }

    fn has_plenty_of_room(&self, bytes: u64) -> bool {
        self.core.has_plenty_of_room(bytes)
    }

    fn make_room(&self, stream: StreamId, bytes: u64) -> Result<()> {
        self.core.make_room(stream.0, bytes)
    }

    fn context_create(&self) -> Result<ContextId> {
        self.new_context()
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

    fn context_limit(&self, context: ContextId, limit: Limit) -> Result<u64> {
        self.healthy(context)?.limit(limit)
    }

    fn context_set_limit(&self, context: ContextId, limit: Limit, value: u64) -> Result<()> {
        self.healthy(context)?.set_limit(limit, value)
    }

    fn context_suspend(&self, context: ContextId) -> Result<()> {
        self.set_suspended(context, true)
    }

    fn context_resume(&self, context: ContextId) -> Result<()> {
        self.set_suspended(context, false)
    }

    fn cancel(&self, context: ContextId, stream: Option<StreamId>) -> Result<u64> {
        self.cancel_kernels(context, stream)
    }

    fn abort(&self, context: ContextId) -> Result<Aborted> {
        self.abort_kernels(context)
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
        self.open_stream(context, flags, priority)
    }

    fn stream_destroy(&self, stream: StreamId) -> Result<()> {
        self.close_stream(stream)
    }

    fn stream_synchronize(&self, stream: StreamId) -> Result<()> {
        self.wait_for_stream(stream.0)
    }

    fn stream_query(&self, stream: StreamId) -> Result<bool> {
        let state = self.core.state();
        state.healthy_stream(stream.0)?;
        Ok(self.core.is_done(&state, stream.0))
    }

    fn stream_is_clear(&self, stream: StreamId) -> Result<bool> {
        let state = self.core.state();
        state.healthy_stream(stream.0)?;
        Ok(self.core.is_clear(&state, stream.0))
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        self.queue_wait(stream, event)
    }

    fn stream_wait_value(&self, stream: StreamId, wait: &ValueWait) -> Result<()> {
        self.queue_value_wait(stream, wait)
    }

    fn stream_callback(&self, stream: StreamId, callback: HostCallback) -> Result<()> {
        let mut state = self.core.state();
        state.healthy_stream(stream.0)?;
        let op = OpKind::Callback(callback);
        self.core.submit(&mut state, stream.0, op);
        Ok(())
    }

    fn stream_release(&self, stream: StreamId, bytes: u64, release: HostCallback) -> Result<()> {
        let mut state = self.core.state();
        state.healthy_stream(stream.0)?;
        let op = OpKind::Release(release, bytes);
        self.core.submit(&mut state, stream.0, op);
        Ok(())
    }

    fn default_stream(&self, context: ContextId) -> Result<StreamId> {
        let state = self.core.state();
        Ok(StreamId(state.context(context.0)?.default_stream))
    }

    fn event_create(&self, context: ContextId, flags: EventFlags) -> Result<EventId> {
        self.new_event(context, flags)
    }

    fn event_destroy(&self, event: EventId) -> Result<()> {
        let mut state = self.core.state();
        match state.events.remove(&event.0) {
            Some(_) => Ok(()),
            None => Err(bad_handle("event", event.0)),
        }
    }

    fn event_record(&self, event: EventId, stream: StreamId) -> Result<()> {
        self.queue_record(event, stream)
    }

    fn event_query(&self, event: EventId) -> Result<bool> {
        let state = self.core.state();
        let event = state.event(event.0)?;
        event.context.check()?;
        Ok(event.reached.load(Ordering::Acquire) >= event.recorded.load(Ordering::Acquire))
    }

    fn event_synchronize(&self, event: EventId) -> Result<()> {
        self.wait_for_event(event)
    }

    fn event_elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32> {
        self.elapsed_ms(start, end)
    }

    fn event_age_ns(&self, event: EventId) -> Result<Option<u64>> {
        self.age_of_event(event)
    }

    fn event_set_age(&self, event: EventId, age_ns: u64) -> Result<()> {
        self.set_age_of_event(event, age_ns)
    }

    fn module_load(
        &self,
        context: ContextId,
        image: &[u8],
        options: &ModuleOptions,
    ) -> Result<ModuleId> {
        self.load_module(context, image, options, None)
    }

    fn module_load_at(
        &self,
        context: ContextId,
        image: &[u8],
        options: &ModuleOptions,
        variables: &[DevicePtr],
    ) -> Result<ModuleId> {
        self.load_module(context, image, options, Some(variables))
    }

    fn address_space(&self) -> Option<(u64, u64)> {
        Some(self.arena())
    }

    fn obstacle_to_saving(&self, context: ContextId) -> Option<String> {
        self.obstacle(context)
    }

    fn module_unload(&self, module: ModuleId) -> Result<()> {
        let removed = self.core.state().modules.remove(&module.0);
        let is_known = removed.is_some();
        drop(removed);
        self.cache.tidy();
        match is_known {
            true => Ok(()),
            false => Err(bad_handle("module", module.0)),
        }
    }

    fn module_info(&self, module: ModuleId) -> Result<ModuleInfo> {
        Ok(self.own_module(module)?.info.clone())
    }

    fn module_bind(&self, module: ModuleId, global: u32, address: DevicePtr) -> Result<()> {
        self.own_module(module)?.bind(global, address.0)
    }

    fn launch(&self, stream: StreamId, launch: &Launch<'_>) -> Result<()> {
        self.submit_launch(stream, launch, None)
    }

    fn launch_with(
        &self,
        stream: StreamId,
        launch: &Launch<'_>,
        attributes: &[LaunchAttribute],
    ) -> Result<()> {
        self.launch_by_attributes(stream, launch, attributes)
    }

    fn clusters(&self, question: &ClusterQuestion<'_>) -> Result<u32> {
        self.clusters_at_once(question)
    }

    fn tensor_map(&self, context: ContextId, request: &TensorMapRequest) -> Result<TensorMap> {
        self.healthy(context)?;
        tensor_maps::encode(request)
    }

    fn occupancy(
        &self,
        module: ModuleId,
        kernel: u32,
        block_threads: u32,
        dynamic_shared: u64,
    ) -> Result<u32> {
        self.blocks_at_once(module, kernel, block_threads, dynamic_shared)
    }

    fn allocation_bytes(&self, bytes: u64) -> Option<u64> {
        self.core.memory.taken_bytes(bytes)
    }

    fn array_bytes(&self, descriptor: &ArrayDescriptor) -> Option<u64> {
        let (bytes, _, _) = Array::layout(descriptor).ok()?;
        self.core.memory.taken_bytes(bytes)
    }

    fn module_bytes(&self, module: ModuleId) -> Result<u64> {
        Ok(self.own_module(module)?.taken_bytes())
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

    fn place_windows(&self, file: BorrowedFd<'_>, part: std::ops::Range<u64>) -> bool {
        self.core.memory.place_windows(file, part)
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
        let at = unsafe { self.core.memory.register(context.id, span, file, None) }?;
        Ok(DevicePtr(at))
    }

    unsafe fn host_register_at(
        &self,
        context: ContextId,
        span: HostSpan,
        fd: BorrowedFd<'_>,
        fd_offset: u64,
        address: DevicePtr,
    ) -> Result<()> {
        let context = self.healthy(context)?;
        let (file, wanted) = (Some((fd, fd_offset)), Some(address.0));
        // SAFETY: the caller keeps the span mapped, as this function asks.
        unsafe { self.core.memory.register(context.id, span, file, wanted) }.map(drop)
    }

    fn host_unregister(&self, context: ContextId, address: DevicePtr) -> Result<()> {
        let context = self.healthy(context)?;
        self.core.memory.unregister(context.id, address.0)
    }

    fn address_reserve(&self, bytes: u64, align: u64) -> Result<DevicePtr> {
        self.core.memory.reserve(bytes, align).map(DevicePtr)
    }

    fn address_reserve_at(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        self.core.memory.reserve_at(address.0, bytes)
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

    fn memory_export(&self, context: ContextId, address: DevicePtr) -> Result<(OwnedFd, u64)> {
        self.healthy(context)?;
        let memory = &self.core.memory;
        self.while_still(|| memory.export(context.0, address.0))
    }

    fn frame_export(&self, frame: FrameId) -> Result<OwnedFd> {
        self.while_still(|| self.core.memory.frame_export(frame.0))
    }

    fn frame_import(&self, file: OwnedFd, bytes: u64) -> Result<FrameId> {
        self.core.memory.frame_import(file, bytes).map(FrameId)
    }

    fn frame_save(
        &self,
        frame: FrameId,
        _: DevicePtr,
        offset: u64,
        into: HostSpan,
    ) -> Result<FrameCopy> {
        self.core.memory.frame_save(frame.0, offset, into)
    }

    fn frame_load(
        &self,
        frame: FrameId,
        _: DevicePtr,
        offset: u64,
        from: HostSpan,
    ) -> Result<FrameCopy> {
        self.core.memory.frame_load(frame.0, offset, from)
    }

    fn frame_copied(&self, copy: FrameCopy, wait: bool) -> Result<bool> {
        self.core.memory.frame_copied(copy, wait)
    }

    fn array_create(&self, context: ContextId, descriptor: &ArrayDescriptor) -> Result<ArrayId> {
        self.new_array(context, descriptor)
    }

    fn array_destroy(&self, array: ArrayId) -> Result<()> {
        self.drop_array(array)
    }

    fn texture_create(&self, context: ContextId, descriptor: &TextureDescriptor) -> Result<u64> {
        self.new_texture_object(context, descriptor)
    }

    fn surface_create(&self, context: ContextId, array: ArrayId) -> Result<u64> {
        self.new_surface_object(context, array)
    }

    fn texture_destroy(&self, context: ContextId, handle: u64) -> Result<()> {
        self.drop_texture(context, handle)
    }

    fn context_gpu_time_ns(&self, context: ContextId) -> Option<u64> {
        let metered = self.core.metered();
        let context = metered.iter().find(|c| c.id == context.0)?;
        let alive = !context.destroyed.load(Ordering::Relaxed);
        alive.then(|| self.core.device_ns(&context.meter))
    }
}
