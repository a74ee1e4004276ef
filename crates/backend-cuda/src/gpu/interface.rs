//! The [`Gpu`] interface, each call to where it is done.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use mica_cuda_abi::{CuResult, DeviceAttribute, FunctionAttribute, Limit};
use mica_gpu::profile::Recorder;
use mica_gpu::{
    Access, ArrayDescriptor, ArrayId, ClusterQuestion, ContextId, Copy3d, DeviceProperties,
    DevicePtr, EventFlags, EventId, Fill2d, FrameCopy, FrameId, Gpu, GpuError, GraphId,
    GraphKeeper, GraphPlan, HostCallback, HostSpan, KernelDescription, Launch, LaunchAttribute,
    ModuleId, ModuleInfo, ModuleOptions, Result, StreamFlags, StreamId, TemplateId, TensorMap,
    TensorMapRequest, TextureDescriptor, ValueWait,
};

use super::record::Subject;
use super::streams::done;
use super::{CudaGpu, lock, stale};

impl Gpu for CudaGpu {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn attribute(&self, attribute: DeviceAttribute) -> Option<i32> {
        self.driver.attribute(self.ordinal, attribute)
    }

    fn has_driver(&self) -> bool {
        true
    }

    fn processor_map(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        self.driver.processor_map(self.properties.multiprocessors)
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        self.device_memory()
    }

    fn attach_recorder(&self, recorder: &Arc<Recorder>) -> bool {
        let _ = self.recorder.set(Arc::clone(recorder));
        true
    }

    fn is_at_rest(&self) -> bool {
        self.has_no_work()
    }

    fn address_space(&self) -> Option<(u64, u64)> {
        self.own_space()
    }

    fn obstacle_to_saving(&self, context: ContextId) -> Option<String> {
        self.obstacle(context)
    }

    fn event_age_ns(&self, event: EventId) -> Result<Option<u64>> {
        self.age_of(event)
    }

    fn event_set_age(&self, event: EventId, age_ns: u64) -> Result<()> {
        self.set_age(event, age_ns)
    }

    unsafe fn host_register_at(
        &self,
        context: ContextId,
        span: HostSpan,
        _fd: BorrowedFd<'_>,
        _fd_offset: u64,
        address: DevicePtr,
    ) -> Result<()> {
        // SAFETY: our contract is the callee's.
        unsafe { self.register_at(context, span, address) }
    }

    fn context_create(&self) -> Result<ContextId> {
        self.make_context()
    }

    fn context_destroy(&self, context: ContextId) -> Result<()> {
        self.end_context(context)
    }

    fn context_synchronize(&self, context: ContextId) -> Result<()> {
        let context = self.context(context)?;
        let mark = context.submitted.mark();
        // SAFETY: takes nothing; waits for the current context.
        let waited = self.call(&context, "cuCtxSynchronize", || unsafe {
            (self.driver.functions.context_synchronize)()
        });
        if waited.is_ok() {
            context.submitted.waited_for_all(mark);
        }
        self.collected(waited)
    }

    fn context_usable(&self, context: ContextId) -> Result<()> {
        let context = self.context(context)?;
        let fault = lock(&context.fault).clone();
        fault.map_or(Ok(()), Err)
    }

    fn context_fault(&self, context: ContextId) -> Option<GpuError> {
        self.fault_of(context)
    }

    fn context_limit(&self, context: ContextId, limit: Limit) -> Result<u64> {
        self.limit_of(context, limit)
    }

    fn context_set_limit(&self, context: ContextId, limit: Limit, value: u64) -> Result<()> {
        self.set_limit(context, limit, value)
    }

    fn context_suspend(&self, context: ContextId) -> Result<()> {
        self.switch(context, true)
    }

    fn context_resume(&self, context: ContextId) -> Result<()> {
        self.switch(context, false)
    }

    fn cancel(&self, context: ContextId, _stream: Option<StreamId>) -> Result<u64> {
        self.context(context)?;
        Err(GpuError::new(
            CuResult::NotSupported,
            "the driver cannot cancel kernels; only the end of the context ends them",
        ))
    }

    fn stream_create(
        &self,
        context: ContextId,
        flags: StreamFlags,
        priority: i32,
    ) -> Result<StreamId> {
        self.make_stream(context, flags, priority)
    }

    fn stream_destroy(&self, stream: StreamId) -> Result<()> {
        self.end_stream(stream)
    }

    fn stream_synchronize(&self, stream: StreamId) -> Result<()> {
        let waited = match self.wait_by_word(stream) {
            Ok(true) => {
                self.collect_silent();
                return Ok(());
            }
            Ok(false) => {
                let found = self.stream(stream);
                found.and_then(|found| self.wait_in_driver(&found.context, stream))
            }
            Err(error) => Err(error),
        };
        self.collected(waited)
    }

    fn stream_query(&self, stream: StreamId) -> Result<bool> {
        let function = self.driver.functions.stream_query;
        self.collected(done(self.on_stream(stream, "cuStreamQuery", function)))
    }

    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        self.wait_event(stream, event)
    }

    fn stream_wait_value(&self, stream: StreamId, wait: &ValueWait) -> Result<()> {
        self.wait_value(stream, wait)
    }

    fn stream_callback(&self, stream: StreamId, callback: HostCallback) -> Result<()> {
        self.add_callback(stream, callback)
    }

    fn stream_release(&self, stream: StreamId, _bytes: u64, release: HostCallback) -> Result<()> {
        self.add_release(stream, release, false)
    }

    fn stream_release_soon(&self, stream: StreamId, release: HostCallback) -> Result<()> {
        self.add_release(stream, release, true)
    }

    fn look_at_releases(&self) {
        self.releases.look();
    }

    fn default_stream(&self, context: ContextId) -> Result<StreamId> {
        let found = self.context(context)?;
        let stream = found.default_stream.get();
        stream
            .map(|id| StreamId(*id))
            .ok_or_else(|| stale("context", context.0))
    }

    fn event_create(&self, context: ContextId, flags: EventFlags) -> Result<EventId> {
        self.make_event(context, flags)
    }

    fn event_destroy(&self, event: EventId) -> Result<()> {
        self.end_event(event)
    }

    fn event_record(&self, event: EventId, stream: StreamId) -> Result<()> {
        self.record(event, stream)
    }

    fn event_query(&self, event: EventId) -> Result<bool> {
        let function = self.driver.functions.event_query;
        self.collected(done(self.on_event(event, "cuEventQuery", function)))
    }

    fn event_synchronize(&self, event: EventId) -> Result<()> {
        let function = self.driver.functions.event_synchronize;
        self.collected(self.on_event(event, "cuEventSynchronize", function))
    }

    fn event_elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32> {
        self.elapsed_ms(start, end)
    }

    fn module_load(
        &self,
        context: ContextId,
        image: &[u8],
        _options: &ModuleOptions,
    ) -> Result<ModuleId> {
        self.load(context, image)
    }

    fn module_load_at(
        &self,
        context: ContextId,
        image: &[u8],
        _options: &ModuleOptions,
        variables: &[DevicePtr],
    ) -> Result<ModuleId> {
        self.load_at(context, image, variables)
    }

    fn module_unload(&self, module: ModuleId) -> Result<()> {
        self.unload(module)
    }

    fn module_info(&self, module: ModuleId) -> Result<ModuleInfo> {
        self.describe(module)
    }

    fn launch(&self, stream: StreamId, launch: &Launch<'_>) -> Result<()> {
        let subject = || self.kernel_subject(launch);
        self.recorded(stream, subject, || self.start_kernel(stream, launch, &[]))
    }

    fn launch_with(
        &self,
        stream: StreamId,
        launch: &Launch<'_>,
        attributes: &[LaunchAttribute],
    ) -> Result<()> {
        let subject = || self.kernel_subject(launch);
        self.recorded(stream, subject, || {
            self.start_kernel(stream, launch, attributes)
        })
    }

    fn row_length(&self) -> usize {
        self.row_capacity()
    }

    fn launch_row(&self, stream: StreamId, launches: &[Launch<'_>]) -> bool {
        self.start_row(stream, launches)
    }

    fn kernel_description(&self, module: ModuleId, kernel: u32) -> Result<KernelDescription> {
        self.describe_kernel(module, kernel)
    }

    fn kernel_attribute(
        &self,
        module: ModuleId,
        kernel: u32,
        attribute: FunctionAttribute,
    ) -> Result<i32> {
        self.attribute_of(module, kernel, attribute)
    }

    fn kernel_set_attribute(
        &self,
        module: ModuleId,
        kernel: u32,
        attribute: FunctionAttribute,
        value: i32,
    ) -> Result<()> {
        self.set_attribute(module, kernel, attribute, value)
    }

    fn clusters(&self, question: &ClusterQuestion<'_>) -> Result<u32> {
        self.cluster_count(question)
    }

    fn available_shared(
        &self,
        module: ModuleId,
        kernel: u32,
        blocks: u32,
        block_threads: u32,
    ) -> Result<u64> {
        self.shared_for(module, kernel, blocks, block_threads)
    }

    fn tensor_map(&self, context: ContextId, request: &TensorMapRequest) -> Result<TensorMap> {
        self.encode_tensor_map(context, request)
    }

    fn offers_graphs(&self) -> bool {
        self.driver.graphs.is_some()
    }

    fn graph_instantiate(
        &self,
        context: ContextId,
        plan: &GraphPlan<'_>,
        keeper: GraphKeeper,
    ) -> Result<GraphId> {
        self.make_graph(context, plan, keeper)
    }

    fn graph_update(
        &self,
        graph: GraphId,
        plan: &GraphPlan<'_>,
        keeper: GraphKeeper,
    ) -> Result<()> {
        self.change_graph(graph, plan, keeper)
    }

    fn graph_launch(&self, graph: GraphId, stream: StreamId) -> Result<()> {
        self.recorded(stream, Subject::graph, || self.start_graph(graph, stream))
    }

    fn graph_upload(&self, graph: GraphId, stream: StreamId) -> Result<()> {
        self.upload_graph(graph, stream)
    }

    fn graph_destroy(&self, graph: GraphId) -> Result<()> {
        self.end_graph(graph)
    }

    fn template_create(&self, context: ContextId) -> Result<TemplateId> {
        self.make_template(context)
    }

    fn template_destroy(&self, template: TemplateId) -> Result<()> {
        self.end_template(template)
    }

    fn conditional_create(&self, template: TemplateId, default: Option<u32>) -> Result<u64> {
        self.make_conditional(template, default)
    }

    fn occupancy(
        &self,
        module: ModuleId,
        kernel: u32,
        block_threads: u32,
        dynamic_shared: u64,
    ) -> Result<u32> {
        self.blocks_per_multiprocessor(module, kernel, block_threads, dynamic_shared)
    }

    fn memory_alloc(&self, context: ContextId, bytes: u64) -> Result<DevicePtr> {
        self.alloc(context, bytes)
    }

    fn memory_free(&self, context: ContextId, address: DevicePtr) -> Result<()> {
        self.free(context, address)
    }

    fn memory_range(&self, context: ContextId, address: DevicePtr) -> Result<(DevicePtr, u64)> {
        self.range(context, address)
    }

    fn copy(&self, stream: StreamId, copy: &Copy3d) -> Result<()> {
        let subject = || Subject::copy(copy);
        self.recorded(stream, subject, || self.copy_box(stream, copy))
    }

    fn reads_pageable_at_once(&self) -> bool {
        // The driver copies pageable memory to its own staging memory before the call returns.
        true
    }

    unsafe fn pin(&self, context: ContextId, span: HostSpan) -> Result<()> {
        // SAFETY: our contract is the callee's.
        unsafe { self.pin_host(context, span) }
    }

    fn unpin(&self, context: ContextId, span: HostSpan) -> Result<()> {
        self.unpin_host(context, span)
    }

    fn fill(&self, stream: StreamId, fill: &Fill2d) -> Result<()> {
        let subject = || Subject::fill(fill);
        self.recorded(stream, subject, || self.fill_rows(stream, fill))
    }

    unsafe fn host_register(
        &self,
        context: ContextId,
        span: HostSpan,
        _fd: Option<BorrowedFd<'_>>,
        _fd_offset: u64,
    ) -> Result<DevicePtr> {
        // SAFETY: our contract is the callee's.
        unsafe { self.register(context, span) }
    }

    fn host_unregister(&self, context: ContextId, address: DevicePtr) -> Result<()> {
        self.unregister(context, address)
    }

    fn address_reserve(&self, bytes: u64, align: u64) -> Result<DevicePtr> {
        self.reserve(bytes, align)
    }

    fn address_reserve_at(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        self.reserve_at(address, bytes)
    }

    fn address_free(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        self.unreserve(address, bytes)
    }

    fn frame_create(&self, bytes: u64) -> Result<FrameId> {
        self.make_frame(bytes)
    }

    fn frame_release(&self, frame: FrameId) -> Result<()> {
        self.release_frame(frame)
    }

    fn frame_map(&self, address: DevicePtr, frame: FrameId) -> Result<()> {
        self.map_frame(address, frame)
    }

    fn frame_unmap(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        self.unmap(address, bytes)
    }

    fn frame_access(&self, address: DevicePtr, bytes: u64, access: Access) -> Result<()> {
        self.set_access(address, bytes, access)
    }

    fn memory_export(&self, context: ContextId, address: DevicePtr) -> Result<(OwnedFd, u64)> {
        self.export_memory(context, address)
    }

    fn frame_export(&self, frame: FrameId) -> Result<OwnedFd> {
        self.export_frame(frame)
    }

    fn frame_import(&self, file: OwnedFd, bytes: u64) -> Result<FrameId> {
        self.import_frame(file, bytes)
    }

    fn frame_save(
        &self,
        _: FrameId,
        at: DevicePtr,
        offset: u64,
        into: HostSpan,
    ) -> Result<FrameCopy> {
        self.save_frame(DevicePtr(at.0 + offset), into)
    }

    fn frame_load(
        &self,
        _: FrameId,
        at: DevicePtr,
        offset: u64,
        from: HostSpan,
    ) -> Result<FrameCopy> {
        self.load_frame(DevicePtr(at.0 + offset), from)
    }

    fn frame_copied(&self, copy: FrameCopy, wait: bool) -> Result<bool> {
        self.frame_copy_ended(copy, wait)
    }

    fn array_create(&self, context: ContextId, descriptor: &ArrayDescriptor) -> Result<ArrayId> {
        self.make_array(context, descriptor)
    }

    fn array_destroy(&self, array: ArrayId) -> Result<()> {
        self.end_array(array)
    }

    fn texture_create(&self, context: ContextId, descriptor: &TextureDescriptor) -> Result<u64> {
        self.make_texture(context, descriptor)
    }

    fn surface_create(&self, context: ContextId, array: ArrayId) -> Result<u64> {
        self.make_surface(context, array)
    }

    fn texture_destroy(&self, context: ContextId, handle: u64) -> Result<()> {
        self.end_texture(context, handle)
    }

    fn context_gpu_time_ns(&self, _context: ContextId) -> Option<u64> {
        None
    }
}
