//! The interface of a device whose memory can leave: memory is made of frames here, work passes the door, everything else
//! is the device's behind it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

use mica_cuda_abi::{CuResult, DeviceAttribute, FunctionAttribute, Limit};
use mica_gpu::*;
use mica_memory::{FRAME_BYTES, Pool};

use crate::alloc::framed_bytes;
use crate::books::{Contents, invalid};
use crate::device::SwapGpu;
use crate::forward::forward;

fn cannot_share() -> GpuError {
    let what = "memory of a swappable virtual GPU is shared with other processes in allocations of 1 to 64 MiB";
    GpuError::new(CuResult::NotSupported, what)
}

impl Gpu for SwapGpu {
    forward! {
        fn properties() -> &DeviceProperties;
        fn attribute(attribute: DeviceAttribute) -> Option<i32>;
        fn has_driver() -> bool;
        fn processor_map() -> Option<(Vec<u8>, Vec<u8>)>;
        fn memory_info() -> Result<(u64, u64)>;
        wait fn context_synchronize(context: ContextId) -> Result<()>;
        fn context_fault(context: ContextId) -> Option<GpuError>;
        fn context_usable(context: ContextId) -> Result<()>;
        fn context_limit(context: ContextId, limit: Limit) -> Result<u64>;
        fn context_set_limit(context: ContextId, limit: Limit, value: u64) -> Result<()>;
        fn cancel(context: ContextId, stream: Option<StreamId>) -> Result<u64>;
        fn abort(context: ContextId) -> Result<Aborted>;
        fn settle() -> ();
        fn is_idle() -> bool;
        fn is_at_rest() -> bool;
        fn stream_create(context: ContextId, flags: StreamFlags, priority: i32) -> Result<StreamId>;
        fn stream_destroy(stream: StreamId) -> Result<()>;
        wait fn stream_synchronize(stream: StreamId) -> Result<()>;
        fn stream_query(stream: StreamId) -> Result<bool>;
        fn stream_is_clear(stream: StreamId) -> Result<bool>;
        queue fn stream_wait_event(stream: StreamId, event: EventId) -> Result<()>;
        queue fn stream_callback(stream: StreamId, callback: HostCallback) -> Result<()>;
        queue fn stream_release(stream: StreamId, bytes: u64, release: HostCallback) -> Result<()>;
        queue fn stream_release_soon(stream: StreamId, release: HostCallback) -> Result<()>;
        fn look_at_releases() -> ();
        fn default_stream(context: ContextId) -> Result<StreamId>;
        fn event_create(context: ContextId, flags: EventFlags) -> Result<EventId>;
        fn event_destroy(event: EventId) -> Result<()>;
        queue fn event_record(event: EventId, stream: StreamId) -> Result<()>;
        fn event_query(event: EventId) -> Result<bool>;
        wait fn event_synchronize(event: EventId) -> Result<()>;
        fn event_elapsed_ms(start: EventId, end: EventId) -> Result<f32>;
        fn event_age_ns(event: EventId) -> Result<Option<u64>>;
        fn event_set_age(event: EventId, age_ns: u64) -> Result<()>;
        fn address_space() -> Option<(u64, u64)>;
        fn module_load(context: ContextId, image: &[u8], options: &ModuleOptions) -> Result<ModuleId>;
        fn module_load_at(context: ContextId, image: &[u8], options: &ModuleOptions, variables: &[DevicePtr]) -> Result<ModuleId>;
        fn module_unload(module: ModuleId) -> Result<()>;
        fn module_info(module: ModuleId) -> Result<ModuleInfo>;
        fn module_bind(module: ModuleId, global: u32, address: DevicePtr) -> Result<()>;
        fn kernel_description(module: ModuleId, kernel: u32) -> Result<KernelDescription>;
        fn kernel_attribute(module: ModuleId, kernel: u32, attribute: FunctionAttribute) -> Result<i32>;
        fn kernel_set_attribute(module: ModuleId, kernel: u32, attribute: FunctionAttribute, value: i32) -> Result<()>;
        fn clusters(question: &ClusterQuestion<'_>) -> Result<u32>;
        fn available_shared(module: ModuleId, kernel: u32, blocks: u32, block_threads: u32) -> Result<u64>;
        fn tensor_map(context: ContextId, request: &TensorMapRequest) -> Result<TensorMap>;
        fn offers_graphs() -> bool;
        fn graph_instantiate(context: ContextId, plan: &GraphPlan<'_>, keeper: GraphKeeper) -> Result<GraphId>;
        fn graph_update(graph: GraphId, plan: &GraphPlan<'_>, keeper: GraphKeeper) -> Result<()>;
        fn graph_destroy(graph: GraphId) -> Result<()>;
        fn template_create(context: ContextId) -> Result<TemplateId>;
        fn template_destroy(template: TemplateId) -> Result<()>;
        fn conditional_create(template: TemplateId, default: Option<u32>) -> Result<u64>;
        fn occupancy(module: ModuleId, kernel: u32, block_threads: u32, dynamic_shared: u64) -> Result<u32>;
        fn array_bytes(descriptor: &ArrayDescriptor) -> Option<u64>;
        fn module_bytes(module: ModuleId) -> Result<u64>;
        fn reads_pageable_at_once() -> bool;
        fn unpin(context: ContextId, span: HostSpan) -> Result<()>;
        fn host_unregister(context: ContextId, address: DevicePtr) -> Result<()>;
        fn address_reserve(bytes: u64, align: u64) -> Result<DevicePtr>;
        fn address_reserve_at(address: DevicePtr, bytes: u64) -> Result<()>;
        fn address_free(address: DevicePtr, bytes: u64) -> Result<()>;
        fn array_create(context: ContextId, descriptor: &ArrayDescriptor) -> Result<ArrayId>;
        fn array_destroy(array: ArrayId) -> Result<()>;
        fn texture_create(context: ContextId, descriptor: &TextureDescriptor) -> Result<u64>;
        fn surface_create(context: ContextId, array: ArrayId) -> Result<u64>;
        fn texture_destroy(context: ContextId, handle: u64) -> Result<()>;
        fn context_gpu_time_ns(context: ContextId) -> Option<u64>;

        // These touch device memory, or have the device touch it.
        door fn stream_wait_value(stream: StreamId, wait: &ValueWait) -> Result<()>;
        door fn graph_launch(graph: GraphId, stream: StreamId) -> Result<()>;
        door fn graph_upload(graph: GraphId, stream: StreamId) -> Result<()>;
        door fn copy(stream: StreamId, copy: &Copy3d) -> Result<()>;
        door fn fill(stream: StreamId, fill: &Fill2d) -> Result<()>;
    }

    fn launch(&self, stream: StreamId, launch: &Launch<'_>) -> Result<()> {
        let _here = self.door.pass(&self.over)?;
        self.guarded(stream, launch, || self.inner.launch(stream, launch))
    }

    fn launch_with(
        &self,
        stream: StreamId,
        launch: &Launch<'_>,
        attributes: &[LaunchAttribute],
    ) -> Result<()> {
        let _here = self.door.pass(&self.over)?;
        self.guarded(stream, launch, || {
            self.inner.launch_with(stream, launch, attributes)
        })
    }

    fn row_length(&self) -> usize {
        match self.guard {
            // Each launch is waited for, so that a fault is known to be its own.
            Some(_) => 0,
            None => self.inner.row_length(),
        }
    }

    fn launch_row(&self, stream: StreamId, launches: &[Launch<'_>]) -> bool {
        let Ok(_here) = self.door.pass(&self.over) else {
            return false;
        };
        self.guard.is_none() && self.inner.launch_row(stream, launches)
    }

    fn give_up_waits(&self) {
        self.over.store(true, Release);
        self.door.look();
        self.inner.give_up_waits();
    }

    fn attach_budget(&self, budget: &Arc<SessionBudget>) {
        let _ = self.budget.set(Arc::clone(budget));
        self.inner.attach_budget(budget);
    }

    fn attach_recorder(&self, recorder: &Arc<mica_gpu::profile::Recorder>) -> bool {
        self.inner.attach_recorder(recorder)
    }

    fn has_plenty_of_room(&self, bytes: u64) -> bool {
        self.door.is_open() && self.inner.has_plenty_of_room(bytes)
    }

    fn make_room(&self, stream: StreamId, bytes: u64) -> Result<()> {
        self.door.wait(&self.over)?;
        match self.inner.has_plenty_of_room(bytes) {
            true => Ok(()),
            false => self.inner.make_room(stream, bytes),
        }
    }

    fn context_create(&self) -> Result<ContextId> {
        let _here = self.door.pass(&self.over)?;
        let context = self.inner.context_create()?;
        self.contexts.add(context);
        // Host memory that was made ready is pinned now.
        self.note_growth();
        Ok(context)
    }

    fn context_destroy(&self, context: ContextId) -> Result<()> {
        // The end of a session does not wait: what is away is dropped there. Where memory moves now, no copy may use the
        // context any more, and none may begin before the context is gone.
        let here = self.door.pass(&self.over);
        let _still = here.is_err().then(|| self.hold_moves());
        let destroyed = self.inner.context_destroy(context);
        self.contexts.remove(context);
        self.maker().free_all(&mut self.books(), context.0);
        destroyed
    }

    fn context_suspend(&self, context: ContextId) -> Result<()> {
        self.contexts.suspend(&*self.inner, context)
    }

    fn context_resume(&self, context: ContextId) -> Result<()> {
        self.contexts.resume(&*self.inner, context)
    }

    fn allocation_bytes(&self, bytes: u64) -> Option<u64> {
        match Pool::serves(bytes) && self.guard.is_none() {
            // Chunks are charged when they come and go.
            true if self.budget.get().is_some() => Some(0),
            true => bytes.checked_next_multiple_of(256),
            false => framed_bytes(bytes),
        }
    }

    fn piece_bytes(&self) -> u64 {
        FRAME_BYTES
    }

    fn memory_alloc(&self, context: ContextId, bytes: u64) -> Result<DevicePtr> {
        let _here = self.door.pass(&self.over)?;
        // A context that is gone or has faulted gets nothing.
        self.inner.context_usable(context)?;
        let made = self.maker().alloc(&mut self.books(), context.0, bytes)?;
        self.note_allocation();
        if !Pool::serves(bytes) {
            self.note_growth();
        }
        Ok(DevicePtr(made))
    }

    fn obstacle_to_saving(&self, context: ContextId) -> Option<String> {
        let guarded = (self.guard.is_some()).then(|| "its allocations are guarded".to_owned());
        guarded.or_else(|| self.inner.obstacle_to_saving(context))
    }

    fn memory_alloc_at(&self, context: ContextId, address: DevicePtr, bytes: u64) -> Result<()> {
        let _here = self.door.pass(&self.over)?;
        self.inner.context_usable(context)?;
        self.maker()
            .alloc_at(&mut self.books(), context.0, address.0, bytes)?;
        self.note_allocation();
        Ok(())
    }

    fn memory_free(&self, context: ContextId, address: DevicePtr) -> Result<()> {
        let _here = self.door.pass(&self.over)?;
        self.maker().free(&mut self.books(), context.0, address.0)
    }

    fn memory_range(&self, context: ContextId, address: DevicePtr) -> Result<(DevicePtr, u64)> {
        let books = self.books();
        match books.range(context.0, address.0) {
            Some((start, bytes)) => Ok((DevicePtr(start), bytes)),
            None if books.is_own(address.0) => Err(invalid(format!(
                "{:#x} is in no allocation of this context",
                address.0
            ))),
            None => self.inner.memory_range(context, address),
        }
    }

    fn trim(&self) -> bool {
        self.maker().trim(&mut self.books())
    }

    fn memory_standing(&self, address: DevicePtr) -> Option<MemoryStanding> {
        self.books().standing(address.0)
    }

    fn memory_sums(&self) -> MemorySums {
        let store_bytes = self.store.bytes().0;
        let books = self.books();
        let (sums, pool) = (books.sums(), books.pool.figures());
        MemorySums {
            away_bytes: sums.out,
            pinned_bytes: sums.pinned,
            store_bytes,
            pool_held_bytes: pool.held_bytes,
            pool_asked_bytes: pool.asked_bytes,
            pool_given_bytes: pool.given_bytes,
            pool_largest_free_bytes: pool.largest_free_bytes,
            pool_pieces: pool.pieces,
        }
    }

    unsafe fn pin(&self, context: ContextId, span: HostSpan) -> Result<()> {
        // SAFETY: our contract is the callee's.
        unsafe { self.inner.pin(context, span) }
    }

    unsafe fn host_register(
        &self,
        context: ContextId,
        span: HostSpan,
        fd: Option<BorrowedFd<'_>>,
        fd_offset: u64,
    ) -> Result<DevicePtr> {
        // SAFETY: our contract is the callee's.
        unsafe { self.inner.host_register(context, span, fd, fd_offset) }
    }

    unsafe fn host_register_at(
        &self,
        context: ContextId,
        span: HostSpan,
        fd: BorrowedFd<'_>,
        fd_offset: u64,
        address: DevicePtr,
    ) -> Result<()> {
        // SAFETY: our contract is the callee's.
        unsafe { (self.inner).host_register_at(context, span, fd, fd_offset, address) }
    }

    fn frame_create(&self, bytes: u64) -> Result<FrameId> {
        let _here = self.door.pass(&self.over)?;
        let device = self.inner.frame_create(bytes)?;
        let number = self.books().add(bytes, device);
        self.note_growth();
        Ok(FrameId(number))
    }

    fn frame_release(&self, frame: FrameId) -> Result<()> {
        self.books().release(&*self.inner, &self.store, frame.0)
    }

    fn frame_map(&self, address: DevicePtr, frame: FrameId) -> Result<()> {
        let _here = self.door.pass(&self.over)?;
        self.books().map(&*self.inner, address.0, frame.0)
    }

    fn frame_unmap(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        let here = self.door.pass(&self.over);
        let mut books = self.books();
        match here {
            Ok(_here) => books.unmap(&*self.inner, &self.store, address.0, bytes),
            // The session ends, and with it everything that could be there.
            Err(_) => {
                let number = books.mapped.get(&address.0).copied();
                number.map_or(Ok(()), |number| {
                    books.drop_mapping(&*self.inner, &self.store, address.0, number)
                })
            }
        }
    }

    fn frame_access(&self, address: DevicePtr, bytes: u64, access: Access) -> Result<()> {
        let _here = self.door.pass(&self.over)?;
        self.books()
            .set_access(&*self.inner, address.0, bytes, access)
    }

    fn memory_export(&self, context: ContextId, address: DevicePtr) -> Result<(OwnedFd, u64)> {
        let _here = self.door.pass(&self.over)?;
        let mut books = self.books();
        let large = books
            .large
            .get(&address.0)
            .filter(|large| large.context == context.0 && large.lead == 0);
        let [number] = large.ok_or_else(cannot_share)?.frames[..] else {
            return Err(cannot_share());
        };
        let frame = books.held(number)?;
        let Contents::Here(device) = frame.contents else {
            return Err(cannot_share());
        };
        let bytes = frame.bytes;
        let file = self.inner.frame_export(device)?;
        books.pin(number, "shared with another process");
        Ok((file, bytes))
    }

    fn frame_export(&self, frame: FrameId) -> Result<OwnedFd> {
        let _here = self.door.pass(&self.over)?;
        let mut books = self.books();
        let Contents::Here(device) = books.held(frame.0)?.contents else {
            return Err(cannot_share());
        };
        let file = self.inner.frame_export(device)?;
        books.pin(frame.0, "shared with another process");
        Ok(file)
    }

    fn frame_import(&self, file: OwnedFd, bytes: u64) -> Result<FrameId> {
        let _here = self.door.pass(&self.over)?;
        let device = self.inner.frame_import(file, bytes)?;
        let mut books = self.books();
        let number = books.add(bytes, device);
        books.pin(number, "belongs to another process");
        Ok(FrameId(number))
    }
}
