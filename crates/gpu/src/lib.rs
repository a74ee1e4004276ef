//! What a physical GPU can do.
//!
//! Owns [`Gpu`], the one interface the engine has to a device; the newtypes for its addresses and
//! handles; and the conformance suite every backend passes. It decides nothing: quotas, leases and
//! handle ownership belong to the engine above.
//!
//! Every call may come from any thread. Handles are dense numbers private to one `Gpu` value; a
//! stale or foreign handle gives `InvalidHandle`, never a crash. Asynchronous calls on one stream run
//! in order; errors found later are sticky for the context and returned by every later call on it.
#![deny(clippy::unwrap_used, clippy::expect_used)]
#![deny(missing_docs)]

pub mod budget;
#[cfg(feature = "conformance")]
pub mod conformance;
mod graph;
pub mod profile;
mod types;
mod value_wait;

pub use budget::{SessionBudget, Share};
pub use graph::*;
pub use types::*;
pub use value_wait::{ValueWait, WaitCondition};

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use mica_cuda_abi::{CuResult, DeviceAttribute, FunctionAttribute, Limit};

/// A backend's refusal: the CUDA code the program sees, and a sentence for the log.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message} ({})", code.name())]
pub struct GpuError {
    /// What the program is told.
    pub code: CuResult,
    /// What the operator is told: names and values.
    pub message: String,
}

impl GpuError {
    /// An error with its explanation.
    pub fn new(code: CuResult, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

fn absent(what: &str) -> GpuError {
    GpuError::new(
        CuResult::NotSupported,
        format!("this device does not offer {what}"),
    )
}

/// Shorthand for results of device calls.
pub type Result<T, E = GpuError> = std::result::Result<T, E>;

fn without_graphs<T>(what: &str) -> Result<T> {
    let sentence = format!("this device has no {what}");
    Err(GpuError::new(CuResult::NotSupported, sentence))
}

/// One physical device (or the software one).
pub trait Gpu: Send + Sync {
    /// Name, memory, limits.
    fn properties(&self) -> &DeviceProperties;
    /// An attribute; `None` if unknown to this device.
    fn attribute(&self, attribute: DeviceAttribute) -> Option<i32>;
    /// Whether a real driver stands behind this device, so that questions about kernels are its to answer.
    fn has_driver(&self) -> bool {
        false
    }
    /// For each pair of multiprocessors the hardware cluster it belongs to, and its place in the cluster; `None`
    /// where the device does not tell.
    fn processor_map(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        None
    }
    /// Free and total bytes of device memory.
    fn memory_info(&self) -> Result<(u64, u64)>;

    /// Counts what the device holds for the one session it serves against this budget, from now on. The first
    /// call counts. Not for devices that several sessions share.
    fn attach_budget(&self, _budget: &Arc<SessionBudget>) {}
    /// Tells this recorder of every kernel and copy that ends, while it is on. The first call counts. Whether the
    /// device can.
    fn attach_recorder(&self, _recorder: &Arc<profile::Recorder>) -> bool {
        false
    }
    /// How many launches [`Gpu::launch_row`] takes; 0 where nothing is gained by it.
    fn row_length(&self) -> usize {
        0
    }
    /// Launches so many kernels on one stream, in order, at once. `false` if none of them was launched: then they are to be
    /// launched one by one, which also tells what is wrong with any of them.
    fn launch_row(&self, _stream: StreamId, _launches: &[Launch<'_>]) -> bool {
        false
    }
    /// Whether there is plenty of room for an operation that holds `bytes`: a look without locks, before
    /// [`Gpu::make_room`].
    fn has_plenty_of_room(&self, _bytes: u64) -> bool {
        true
    }
    /// Waits until the stream's session has room for one more operation that holds `bytes`. Call it without any
    /// lock before work is submitted; one submission from each thread may follow.
    ///
    /// # Errors
    /// `OutOfMemory` if only the program itself can make room, with a callback that it has to answer.
    fn make_room(&self, _stream: StreamId, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// A context: an address space with its own streams, modules and sticky error.
    fn context_create(&self) -> Result<ContextId>;
    /// Ends a context: cancels its work, frees everything it held. Possible after a fault, and the
    /// only thing that is.
    fn context_destroy(&self, context: ContextId) -> Result<()>;
    /// Waits for all work of the context.
    fn context_synchronize(&self, context: ContextId) -> Result<()>;
    /// The context's sticky error with its explanation, if it has one. Does not wait.
    fn context_fault(&self, context: ContextId) -> Option<GpuError>;
    /// Refuses a context that is gone or is known to have faulted, without asking a driver: a fault that no call has met yet
    /// may not be known.
    fn context_usable(&self, context: ContextId) -> Result<()> {
        self.default_stream(context)?;
        self.context_fault(context).map_or(Ok(()), Err)
    }
    /// A limit of a context.
    fn context_limit(&self, context: ContextId, limit: Limit) -> Result<u64>;
    /// Sets a limit of a context.
    fn context_set_limit(&self, context: ContextId, limit: Limit, value: u64) -> Result<()>;
    /// Pauses all running and queued kernels, copies and fills of the context (software: within 1 ms), and returns
    /// when none of them touches memory any more. Copies and fills of at most 64 KiB may go on where nothing is
    /// before them, and callbacks do.
    fn context_suspend(&self, context: ContextId) -> Result<()>;
    /// Undoes [`Gpu::context_suspend`].
    fn context_resume(&self, context: ContextId) -> Result<()>;
    /// Cancels running and queued kernels on a stream (or on all); they count as finished, their
    /// effects are undefined, and later work on the stream runs normally.
    fn cancel(&self, context: ContextId, stream: Option<StreamId>) -> Result<u64>;

    /// Ends running and queued kernels of the context as a watchdog does: if there were any, the
    /// context is broken from then on with `LaunchTimeout`. Says how many there were.
    fn abort(&self, context: ContextId) -> Result<Aborted> {
        let kernels = self.cancel(context, None)?;
        Ok(Aborted { kernels, copies: 0 })
    }

    /// Starts what was held back for the calling thread to run itself, should it wait for it next.
    /// Call it before doing anything that takes time.
    fn settle(&self) {}
    /// Whether nothing is queued or running on any stream; false where the device cannot tell.
    fn is_idle(&self) -> bool {
        false
    }

    /// Whether nothing is queued or running, for a moment in which nobody submits: a device with a driver asks it.
    fn is_at_rest(&self) -> bool {
        self.is_idle()
    }

    /// A stream. Lower `priority` runs first; the range is in [`DeviceProperties`].
    fn stream_create(
        &self,
        context: ContextId,
        flags: StreamFlags,
        priority: i32,
    ) -> Result<StreamId>;
    /// Destroys a stream once its work is done; returns at once.
    fn stream_destroy(&self, stream: StreamId) -> Result<()>;
    /// Waits for the stream's work.
    fn stream_synchronize(&self, stream: StreamId) -> Result<()>;
    /// Whether the stream's work is done.
    fn stream_query(&self, stream: StreamId) -> Result<bool>;
    /// Whether work that comes on the stream would run at once: neither it nor a stream that is ordered against it
    /// has work. Asked before a window is copied; a device without windows need not tell.
    fn stream_is_clear(&self, _stream: StreamId) -> Result<bool> {
        Ok(false)
    }
    /// Makes later work on `stream` wait for `event`.
    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<()>;
    /// Makes later work on `stream` wait until a word in memory meets a condition.
    fn stream_wait_value(&self, stream: StreamId, wait: &ValueWait) -> Result<()>;
    /// Runs `callback` after the stream's earlier work, before its later work.
    fn stream_callback(&self, stream: StreamId, callback: HostCallback) -> Result<()>;
    /// Runs `release` after the stream's earlier work. It belongs to the engine and returns at once, so it needs
    /// no thread where a program's callbacks run: one of those may be waiting for this very release. It holds
    /// `bytes` until then.
    fn stream_release(&self, stream: StreamId, _bytes: u64, release: HostCallback) -> Result<()> {
        self.stream_callback(stream, release)
    }
    /// As [`Gpu::stream_release`], where a program waits for the release.
    fn stream_release_soon(&self, stream: StreamId, release: HostCallback) -> Result<()> {
        self.stream_release(stream, 0, release)
    }
    /// Runs releases that streams have reached, unless another thread does: for a thread that waits for something else.
    fn look_at_releases(&self) {}
    /// The stream that stands for `0`: ordered against all blocking streams of its context.
    fn default_stream(&self, context: ContextId) -> Result<StreamId>;

    /// An event.
    fn event_create(&self, context: ContextId, flags: EventFlags) -> Result<EventId>;
    /// Destroys an event; work that waits for it still does.
    fn event_destroy(&self, event: EventId) -> Result<()>;
    /// Records the stream's progress.
    fn event_record(&self, event: EventId, stream: StreamId) -> Result<()>;
    /// Whether the event's last record was reached; true if never recorded.
    fn event_query(&self, event: EventId) -> Result<bool>;
    /// Waits for the event's last record.
    fn event_synchronize(&self, event: EventId) -> Result<()>;
    /// Milliseconds between two reached events with timing.
    fn event_elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32>;

    /// How long ago the last record of an event was reached; `None` if it was never recorded.
    fn event_age_ns(&self, _event: EventId) -> Result<Option<u64>> {
        Err(absent("the age of events"))
    }
    /// Makes a new event one that was reached so long ago.
    fn event_set_age(&self, _event: EventId, _age_ns: u64) -> Result<()> {
        Err(absent("events from before"))
    }

    /// First address and length of the space that all addresses of the device lie in, where another device can be made with the
    /// same one and continue this one.
    fn address_space(&self) -> Option<(u64, u64)> {
        None
    }
    /// Why a context cannot be made again on another device by the calls of this interface; `None` if it can.
    fn obstacle_to_saving(&self, _context: ContextId) -> Option<String> {
        Some("what it holds on this device cannot be made again".into())
    }
    /// As [`Gpu::memory_alloc`], at the address that the allocation had on the device which this one continues.
    ///
    /// # Errors
    /// Also if the address is taken.
    fn memory_alloc_at(&self, _context: ContextId, _address: DevicePtr, _bytes: u64) -> Result<()> {
        Err(absent("allocations at wanted addresses"))
    }

    /// Loads PTX, a fatbin or a cubin. The image is untrusted.
    fn module_load(
        &self,
        context: ContextId,
        image: &[u8],
        options: &ModuleOptions,
    ) -> Result<ModuleId>;
    /// As [`Gpu::module_load`], with the variables at the addresses that they had on the device which this one continues, in
    /// the order of [`ModuleInfo::globals`].
    ///
    /// # Errors
    /// Also if an address is taken.
    fn module_load_at(
        &self,
        _context: ContextId,
        _image: &[u8],
        _options: &ModuleOptions,
        _variables: &[DevicePtr],
    ) -> Result<ModuleId> {
        Err(absent("variables of modules at wanted addresses"))
    }
    /// Unloads a module.
    fn module_unload(&self, module: ModuleId) -> Result<()>;
    /// Kernels, parameter layouts and variables of a module.
    fn module_info(&self, module: ModuleId) -> Result<ModuleInfo>;
    /// Moves a module's variable, by its index in [`ModuleInfo::globals`], to memory of the same context
    /// that the host shares; launches from now on use it there. Most devices cannot.
    fn module_bind(&self, module: ModuleId, global: u32, address: DevicePtr) -> Result<()> {
        let what = format!(
            "variable {global} of module {} cannot move to {:#x}",
            module.0, address.0
        );
        Err(GpuError::new(CuResult::NotSupported, what))
    }
    /// Launches a kernel; shape errors come back at once, faults later.
    fn launch(&self, stream: StreamId, launch: &Launch<'_>) -> Result<()>;
    /// Launches a kernel with launch attributes, which no plain launch has. A device without any takes the hints
    /// among them as done.
    fn launch_with(
        &self,
        stream: StreamId,
        launch: &Launch<'_>,
        attributes: &[LaunchAttribute],
    ) -> Result<()> {
        for attribute in attributes {
            let is_alone = attribute.value[..3] == [1, 1, 1];
            match attribute.id {
                LaunchAttribute::CLUSTER_DIMENSION if !is_alone => {
                    let what = "this device has no clusters of blocks";
                    return Err(GpuError::new(CuResult::InvalidClusterSize, what));
                }
                id if LaunchAttribute::records_event(id) => {
                    return Err(absent("a launch that records an event"));
                }
                _ => {}
            }
        }
        let asked = |attribute: &LaunchAttribute| {
            attribute.id == LaunchAttribute::COOPERATIVE && attribute.value[0] != 0
        };
        let cooperative = launch.cooperative || attributes.iter().any(asked);
        let launch = Launch {
            cooperative,
            ..launch.clone()
        };
        self.launch(stream, &launch)
    }
    /// All that is known of one kernel.
    fn kernel_description(&self, module: ModuleId, kernel: u32) -> Result<KernelDescription> {
        let info = self.module_info(module)?;
        let found = info.kernels.into_iter().nth(kernel as usize);
        found.ok_or_else(|| {
            let what = format!("module {} has no kernel {kernel}", module.0);
            GpuError::new(CuResult::InvalidValue, what)
        })
    }
    /// A `CUfunction_attribute` of a kernel.
    fn kernel_attribute(
        &self,
        _module: ModuleId,
        _kernel: u32,
        _attribute: FunctionAttribute,
    ) -> Result<i32> {
        Err(absent("reading a kernel's attribute"))
    }
    /// Sets a `CUfunction_attribute` of a kernel.
    fn kernel_set_attribute(
        &self,
        _module: ModuleId,
        _kernel: u32,
        _attribute: FunctionAttribute,
        _value: i32,
    ) -> Result<()> {
        Err(absent("setting a kernel's attribute"))
    }
    /// Clusters of a kernel's blocks that run at once, or the largest that fits.
    fn clusters(&self, _question: &ClusterQuestion<'_>) -> Result<u32> {
        Err(absent("clusters of blocks"))
    }
    /// Dynamic shared memory that each of so many blocks on one multiprocessor can have.
    fn available_shared(
        &self,
        _module: ModuleId,
        _kernel: u32,
        _blocks: u32,
        _block_threads: u32,
    ) -> Result<u64> {
        Err(absent("asking for available shared memory"))
    }
    /// A tensor map.
    fn tensor_map(&self, _context: ContextId, _request: &TensorMapRequest) -> Result<TensorMap> {
        Err(absent("a tensor map"))
    }

    /// Whether the device launches graphs as a whole. One that does not gets their nodes one by one.
    fn offers_graphs(&self) -> bool {
        false
    }
    /// Makes a graph ready to be launched.
    ///
    /// # Errors
    /// `NotSupported` if there is a node that this device cannot have in a graph.
    fn graph_instantiate(
        &self,
        _context: ContextId,
        _plan: &GraphPlan<'_>,
        _keeper: GraphKeeper,
    ) -> Result<GraphId> {
        without_graphs("graphs")
    }
    /// Replaces what a graph is made of; launches under way are not changed. After an error the graph is as before.
    fn graph_update(
        &self,
        _graph: GraphId,
        _plan: &GraphPlan<'_>,
        _keeper: GraphKeeper,
    ) -> Result<()> {
        without_graphs("graphs")
    }
    /// Launches a graph. Two launches of one graph run one after the other.
    fn graph_launch(&self, _graph: GraphId, _stream: StreamId) -> Result<()> {
        without_graphs("graphs")
    }
    /// Brings to the device what the next launch needs there.
    fn graph_upload(&self, _graph: GraphId, _stream: StreamId) -> Result<()> {
        without_graphs("graphs")
    }
    /// Destroys a graph; launches under way end as usual.
    fn graph_destroy(&self, _graph: GraphId) -> Result<()> {
        without_graphs("graphs")
    }
    /// A graph without nodes, for the handles of conditional nodes.
    fn template_create(&self, _context: ContextId) -> Result<TemplateId> {
        without_graphs("conditional nodes in graphs")
    }
    /// Destroys a template. Graphs that were made with it stay.
    fn template_destroy(&self, _template: TemplateId) -> Result<()> {
        without_graphs("conditional nodes in graphs")
    }
    /// The handle of a conditional node: what kernels of the graph set its value by. With a `default` each launch
    /// begins with this value.
    fn conditional_create(&self, _template: TemplateId, _default: Option<u32>) -> Result<u64> {
        without_graphs("conditional nodes in graphs")
    }

    /// Blocks of this kernel that fit on one multiprocessor.
    fn occupancy(
        &self,
        module: ModuleId,
        kernel: u32,
        block_threads: u32,
        dynamic_shared: u64,
    ) -> Result<u32>;

    /// Bytes of device memory that [`Gpu::memory_alloc`] takes for a request of `bytes`, besides what the device
    /// charges to its session's budget itself; `None` if there are not so many.
    fn allocation_bytes(&self, bytes: u64) -> Option<u64> {
        bytes.checked_next_multiple_of(256)
    }
    /// Most bytes that the device charges itself for an allocation of which [`Gpu::allocation_bytes`] says 0, beyond
    /// those that were asked for.
    fn piece_bytes(&self) -> u64 {
        8192
    }
    /// Bytes of device memory that [`Gpu::array_create`] takes for an array; `None` if the device does not know.
    fn array_bytes(&self, _descriptor: &ArrayDescriptor) -> Option<u64> {
        None
    }
    /// Bytes of device memory that the variables of a module take.
    fn module_bytes(&self, module: ModuleId) -> Result<u64> {
        let info = self.module_info(module)?;
        let bytes = info.globals.iter().map(|global| global.bytes);
        let taken = |bytes: u64| self.allocation_bytes(bytes).unwrap_or(u64::MAX);
        Ok(bytes.map(taken).fold(0, u64::saturating_add))
    }

    /// Linear device memory, 256-byte aligned (2 MiB frames behind it).
    fn memory_alloc(&self, context: ContextId, bytes: u64) -> Result<DevicePtr>;
    /// Frees what [`Gpu::memory_alloc`] gave; waits for no stream. A kernel or a queued copy that
    /// still uses it faults.
    fn memory_free(&self, context: ContextId, address: DevicePtr) -> Result<()>;
    /// The live allocation or mapping that holds `address`: base and size.
    fn memory_range(&self, context: ContextId, address: DevicePtr) -> Result<(DevicePtr, u64)>;
    /// A file with the windows of [`Gpu::memory_window`], for one other process; given to whoever asks
    /// first. `None` where there is none.
    fn take_window_file(&self) -> Option<OwnedFd> {
        None
    }
    /// Instead of [`Gpu::take_window_file`]: has windows lie in a part of a file that the other process has already, and
    /// that may have any contents. `false` if they cannot.
    fn place_windows(&self, file: BorrowedFd<'_>, part: std::ops::Range<u64>) -> bool {
        let _ = (file, part);
        false
    }
    /// Lets the holder of the window file touch the allocation around `address` in place, and gives
    /// `bytes` from there their pages. `None` if this memory cannot be shown.
    fn memory_window(
        &self,
        context: ContextId,
        address: DevicePtr,
        bytes: u64,
    ) -> Result<Option<MemoryWindow>> {
        let _ = (context, address, bytes);
        Ok(None)
    }
    /// Bytes between host and device or device and device, in stream order. Rows and slices for
    /// 2D and 3D; a plain copy has one row.
    fn copy(&self, stream: StreamId, copy: &Copy3d) -> Result<()>;
    /// Whether [`Gpu::copy`] has read its source when it returns, where the source is host memory that was not
    /// pinned.
    fn reads_pageable_at_once(&self) -> bool {
        false
    }
    /// Pins host memory of this process, so that copies from and to it need no staging of the device's own and
    /// run while the caller does something else. Pinning lasts as long as the context; memory that is pinned may be
    /// pinned again. Devices that copy with the processor need none.
    ///
    /// # Safety
    /// The span stays mapped as long as the context lives.
    unsafe fn pin(&self, _context: ContextId, _span: HostSpan) -> Result<()> {
        Ok(())
    }
    /// Fills rows with an 8-, 16- or 32-bit pattern in stream order.
    fn fill(&self, stream: StreamId, fill: &Fill2d) -> Result<()>;

    /// Makes host memory of this process visible to kernels at the returned address.
    ///
    /// # Safety
    /// The span stays mapped until [`Gpu::host_unregister`] returns.
    unsafe fn host_register(
        &self,
        context: ContextId,
        span: HostSpan,
        fd: Option<BorrowedFd<'_>>,
        fd_offset: u64,
    ) -> Result<DevicePtr>;
    /// As [`Gpu::host_register`], at the address that the memory had on the device which this one continues.
    ///
    /// # Safety
    /// As [`Gpu::host_register`].
    ///
    /// # Errors
    /// Also if the address is taken.
    unsafe fn host_register_at(
        &self,
        _context: ContextId,
        _span: HostSpan,
        _fd: BorrowedFd<'_>,
        _fd_offset: u64,
        _address: DevicePtr,
    ) -> Result<()> {
        Err(absent("host memory at wanted addresses"))
    }
    /// Ends [`Gpu::host_register`].
    fn host_unregister(&self, context: ContextId, address: DevicePtr) -> Result<()>;

    /// Reserves device address space.
    fn address_reserve(&self, bytes: u64, align: u64) -> Result<DevicePtr>;
    /// Reserves device address space where the caller wants it. After an error nothing is reserved: a device that would
    /// take another place refuses.
    fn address_reserve_at(&self, address: DevicePtr, bytes: u64) -> Result<()>;
    /// Gives reserved address space back; it must be unmapped.
    fn address_free(&self, address: DevicePtr, bytes: u64) -> Result<()>;
    /// Physical memory without an address.
    fn frame_create(&self, bytes: u64) -> Result<FrameId>;
    /// Drops the reference; memory goes when the last mapping does.
    fn frame_release(&self, frame: FrameId) -> Result<()>;
    /// Maps a whole frame at a reserved address, not yet accessible.
    fn frame_map(&self, address: DevicePtr, frame: FrameId) -> Result<()>;
    /// Unmaps the whole mappings in a reserved range; holes in it are allowed. Kernels that still
    /// use it fault.
    fn frame_unmap(&self, address: DevicePtr, bytes: u64) -> Result<()>;
    /// Sets access of mapped memory.
    fn frame_access(&self, address: DevicePtr, bytes: u64, access: Access) -> Result<()>;

    /// A file with which a device of another process takes in an allocation of [`Gpu::memory_alloc`] by
    /// [`Gpu::frame_import`], and the bytes of that frame. Memory that is shared stays while anybody has it.
    fn memory_export(&self, _context: ContextId, _address: DevicePtr) -> Result<(OwnedFd, u64)> {
        Err(absent("sharing an allocation with other processes"))
    }
    /// As [`Gpu::memory_export`], for a frame.
    fn frame_export(&self, _frame: FrameId) -> Result<OwnedFd> {
        Err(absent("sharing a frame with other processes"))
    }
    /// A frame of memory of another process. The file may be anything.
    fn frame_import(&self, _file: OwnedFd, _bytes: u64) -> Result<FrameId> {
        Err(absent("memory of other processes"))
    }

    /// Begins to copy bytes of a frame from `offset` on to host memory, beside all streams. The frame is mapped and readable
    /// at `at`, and the caller has stopped all work that could change it. Frame and host memory stay as they are until
    /// [`Gpu::frame_copied`] says that the copy has ended, which every caller asks. Bytes that were never written may be
    /// left alone by a device without a driver: `into` is zeros there.
    fn frame_save(
        &self,
        _frame: FrameId,
        _at: DevicePtr,
        _offset: u64,
        _into: HostSpan,
    ) -> Result<FrameCopy> {
        Err(absent("copying frames beside streams"))
    }
    /// Begins to undo [`Gpu::frame_save`] in a new frame, which is zeros and writable at `at`.
    fn frame_load(
        &self,
        _frame: FrameId,
        _at: DevicePtr,
        _offset: u64,
        _from: HostSpan,
    ) -> Result<FrameCopy> {
        Err(absent("copying frames beside streams"))
    }
    /// Whether a copy that [`Gpu::frame_save`] or [`Gpu::frame_load`] began has ended; waits for its end if `wait` is set.
    /// The number means nothing any more once it has ended or failed.
    fn frame_copied(&self, _copy: FrameCopy, _wait: bool) -> Result<bool> {
        Err(absent("copying frames beside streams"))
    }
    /// What the device's own books say of the allocation or mapping at an address; `None` where it keeps none.
    fn memory_standing(&self, _address: DevicePtr) -> Option<MemoryStanding> {
        None
    }
    /// Undoes [`Gpu::pin`] of the same span and context. After an error the span is still pinned, unless the context is gone.
    fn unpin(&self, _context: ContextId, _span: HostSpan) -> Result<()> {
        Ok(())
    }
    /// Gives back memory that the device keeps for later allocations; whether there was any.
    fn trim(&self) -> bool {
        false
    }
    /// Sums over the device's own books; zeros where it keeps none.
    fn memory_sums(&self) -> MemorySums {
        MemorySums::default()
    }
    /// Ends waits of calls for memory that is away: the session that the device serves is over.
    fn give_up_waits(&self) {}

    /// An array for textures and surfaces.
    fn array_create(&self, context: ContextId, descriptor: &ArrayDescriptor) -> Result<ArrayId>;
    /// Frees an array.
    fn array_destroy(&self, array: ArrayId) -> Result<()>;
    /// A texture object; its handle is what kernels receive.
    fn texture_create(&self, context: ContextId, descriptor: &TextureDescriptor) -> Result<u64>;
    /// A surface object over an array.
    fn surface_create(&self, context: ContextId, array: ArrayId) -> Result<u64>;
    /// Destroys a texture or surface object.
    fn texture_destroy(&self, context: ContextId, handle: u64) -> Result<()>;

    /// GPU time used so far by the context, where the device can tell.
    fn context_gpu_time_ns(&self, context: ContextId) -> Option<u64>;
}
