//! The device interface, call by call.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, PoisonError};

use mica_cuda_abi::{CuResult, DeviceAttribute, Limit};
use mica_gpu::*;

use super::machine::{drop_module, parse};
use super::{ContextState, Memory, State, TestGpu, Work, missing, no};

impl Gpu for TestGpu {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }
    fn attribute(&self, attribute: DeviceAttribute) -> Option<i32> {
        let number = attribute as i32;
        (number <= 120).then_some(number * 10)
    }
    fn memory_info(&self) -> Result<(u64, u64)> {
        let total = self.properties.total_memory;
        Ok((total - self.in_use(), total))
    }

    fn context_create(&self) -> Result<ContextId> {
        let mut state = self.state();
        let (id, stream) = (state.id(), state.id());
        let context = ContextState {
            default_stream: stream,
            ..ContextState::default()
        };
        state.contexts.insert(id, context);
        state.streams.insert(stream, id);
        Ok(ContextId(id))
    }
    fn context_destroy(&self, context: ContextId) -> Result<()> {
        let mut state = self.state();
        state.drop_context(context.0)?;
        self.changed.notify_all();
        Ok(())
    }
    fn context_synchronize(&self, context: ContextId) -> Result<()> {
        self.wait(context.0)
    }
    fn context_fault(&self, context: ContextId) -> Option<GpuError> {
        self.state().contexts.get(&context.0)?.fault.clone()
    }
    fn context_limit(&self, context: ContextId, limit: Limit) -> Result<u64> {
        self.with_context(context, |_, _| limit as u64 * 1024)
    }
    fn context_set_limit(&self, context: ContextId, _: Limit, _: u64) -> Result<()> {
        self.with_context(context, |_, _| ())
    }
    fn context_suspend(&self, context: ContextId) -> Result<()> {
        self.with_context(context, |state, id| {
            if let Some(c) = state.contexts.get_mut(&id) {
                c.suspended = true;
            }
        })
    }
    fn context_resume(&self, context: ContextId) -> Result<()> {
        self.with_context(context, |state, id| {
            if let Some(c) = state.contexts.get_mut(&id) {
                c.suspended = false;
            }
            state.run_queue(id);
            self.changed.notify_all();
        })
    }
    fn cancel(&self, context: ContextId, _: Option<StreamId>) -> Result<u64> {
        self.with_context(context, |state, id| {
            let mut cancelled = 0;
            if let Some(c) = state.contexts.get_mut(&id) {
                cancelled = u64::from(c.blocked);
                c.blocked = false;
            }
            state.run_queue(id);
            self.changed.notify_all();
            cancelled
        })
    }

    fn stream_create(&self, context: ContextId, _: StreamFlags, _: i32) -> Result<StreamId> {
        self.with_context(context, |state, context| {
            let id = state.id();
            state.streams.insert(id, context);
            StreamId(id)
        })
    }
    fn stream_destroy(&self, stream: StreamId) -> Result<()> {
        let gone = self.state().streams.remove(&stream.0);
        gone.map(drop).ok_or(missing("no stream"))
    }
    fn stream_synchronize(&self, stream: StreamId) -> Result<()> {
        let context = self.state().context_of(stream)?;
        self.wait(context)
    }
    fn stream_query(&self, stream: StreamId) -> Result<bool> {
        let context = self.state().context_of(stream)?;
        self.idle(context)
    }
    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        let state = self.state();
        state.events.get(&event.0).ok_or(missing("no event"))?;
        state.context_of(stream).map(drop)
    }
    fn stream_wait_value(&self, stream: StreamId, _: &ValueWait) -> Result<()> {
        self.state().context_of(stream).map(drop)
    }
    fn stream_callback(&self, stream: StreamId, callback: HostCallback) -> Result<()> {
        let (shared, changed) = (Arc::clone(&self.state), Arc::clone(&self.changed));
        let mut state = self.state();
        let context = state.context_of(stream)?;
        // On a thread of its own, as a callback may wait; later work waits for it.
        let run: Work = Box::new(move |state| {
            if let Some(c) = state.contexts.get_mut(&context) {
                c.callbacks += 1;
            }
            std::thread::spawn(move || {
                callback();
                let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(c) = state.contexts.get_mut(&context) {
                    c.callbacks -= 1;
                }
                state.run_queue(context);
                changed.notify_all();
            });
        });
        state.submit(stream, run)
    }
    fn default_stream(&self, context: ContextId) -> Result<StreamId> {
        self.with_context(context, |state, id| {
            StreamId(state.contexts.get(&id).map_or(0, |c| c.default_stream))
        })
    }

    fn event_create(&self, context: ContextId, _: EventFlags) -> Result<EventId> {
        self.with_context(context, |state, context| {
            let id = state.id();
            state.events.insert(id, context);
            EventId(id)
        })
    }
    fn event_destroy(&self, event: EventId) -> Result<()> {
        let gone = self.state().events.remove(&event.0);
        gone.map(drop).ok_or(missing("no event"))
    }
    fn event_record(&self, event: EventId, stream: StreamId) -> Result<()> {
        let state = self.state();
        state.events.get(&event.0).ok_or(missing("no event"))?;
        state.context_of(stream).map(drop)
    }
    fn event_query(&self, event: EventId) -> Result<bool> {
        let context = *self
            .state()
            .events
            .get(&event.0)
            .ok_or(missing("no event"))?;
        self.idle(context)
    }
    fn event_synchronize(&self, event: EventId) -> Result<()> {
        let context = *self
            .state()
            .events
            .get(&event.0)
            .ok_or(missing("no event"))?;
        self.wait(context)
    }
    fn event_elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32> {
        let state = self.state();
        state.events.get(&start.0).ok_or(missing("no event"))?;
        state.events.get(&end.0).ok_or(missing("no event"))?;
        Ok(1.5)
    }

    fn module_load(&self, context: ContextId, image: &[u8], _: &ModuleOptions) -> Result<ModuleId> {
        let text = std::str::from_utf8(image).map_err(|_| no(CuResult::InvalidImage, "no text"))?;
        self.with_context(context, |state, context| {
            let info = parse(text, &mut |bytes| {
                let address = (context << 44) + (state.id() << 24);
                state
                    .memory
                    .insert(address, (bytes, Memory::Owned(vec![0; bytes as usize])));
                state.in_use += bytes;
                address
            })?;
            let id = state.id();
            state.modules.insert(id, (context, info));
            Ok(ModuleId(id))
        })?
    }
    fn module_unload(&self, module: ModuleId) -> Result<()> {
        let mut state = self.state();
        state.modules.get(&module.0).ok_or(missing("no module"))?;
        drop_module(&mut state, module.0);
        Ok(())
    }
    fn module_info(&self, module: ModuleId) -> Result<ModuleInfo> {
        let state = self.state();
        let found = state.modules.get(&module.0);
        Ok(found.ok_or(missing("no module"))?.1.clone())
    }
    fn launch(&self, stream: StreamId, launch: &Launch<'_>) -> Result<()> {
        let mut state = self.state();
        let context = state.context_of(stream)?;
        let (_, info) = state
            .modules
            .get(&launch.module.0)
            .ok_or(missing("no module"))?;
        let kernel = info.kernels.get(launch.kernel as usize);
        let name = kernel.ok_or(missing("no kernel"))?.name.clone();
        let threads: u64 = launch.block.iter().map(|d| u64::from(*d)).product();
        let blocks: u64 = launch.grid.iter().map(|d| u64::from(*d)).product();
        if threads == 0 || threads > 1024 || blocks == 0 {
            return Err(no(CuResult::InvalidValue, "an impossible shape"));
        }
        let params = launch.params.to_vec();
        let run: Work = Box::new(move |state| state.kernel(context, &name, &params));
        let result = state.submit(stream, run);
        self.changed.notify_all();
        result
    }
    fn occupancy(&self, module: ModuleId, _: u32, threads: u32, _: u64) -> Result<u32> {
        self.module_info(module)?;
        Ok(2048 / threads.max(1))
    }

    fn memory_alloc(&self, context: ContextId, bytes: u64) -> Result<DevicePtr> {
        self.with_context(context, |state, id| {
            self.take(state, bytes)?;
            let address = (id << 44) + (state.id() << 24);
            let memory = Memory::Owned(vec![0; bytes as usize]);
            state.memory.insert(address, (bytes, memory));
            Ok(DevicePtr(address))
        })?
    }
    fn memory_free(&self, context: ContextId, address: DevicePtr) -> Result<()> {
        let mut state = self.state();
        state
            .contexts
            .get(&context.0)
            .ok_or(missing("no context"))?;
        let gone = state.memory.remove(&address.0);
        let (bytes, _) = gone.ok_or(no(CuResult::InvalidValue, "no allocation"))?;
        state.in_use -= bytes;
        Ok(())
    }
    fn memory_range(&self, _: ContextId, address: DevicePtr) -> Result<(DevicePtr, u64)> {
        let state = self.state();
        let (at, _) = state.find(address.0).ok_or(missing("no memory"))?;
        let start = address.0 - at;
        Ok((
            DevicePtr(start),
            state.memory.get(&start).map_or(0, |m| m.0),
        ))
    }
    fn copy(&self, stream: StreamId, copy: &Copy3d) -> Result<()> {
        let mut state = self.state();
        let context = state.context_of(stream)?;
        let copy = *copy;
        state.submit(stream, Box::new(move |state| state.copy(context, &copy)))
    }
    fn fill(&self, stream: StreamId, fill: &Fill2d) -> Result<()> {
        let mut state = self.state();
        let context = state.context_of(stream)?;
        let fill = *fill;
        let work = move |state: &mut State| {
            let element = &fill.value.to_le_bytes()[..fill.element_bytes as usize];
            let row = element.repeat(fill.width as usize);
            for y in 0..fill.height {
                if state.write(fill.dst.0 + y * fill.pitch, &row).is_none() {
                    return state.fault(context, CuResult::IllegalAddress, "a fill went wild");
                }
            }
        };
        state.submit(stream, Box::new(work))
    }

    unsafe fn host_register(
        &self,
        context: ContextId,
        span: HostSpan,
        _: Option<BorrowedFd<'_>>,
        _: u64,
    ) -> Result<DevicePtr> {
        self.with_context(context, |state, id| {
            let address = (id << 44) + (state.id() << 24);
            state
                .memory
                .insert(address, (span.len(), Memory::Host(span)));
            DevicePtr(address)
        })
    }
    fn host_unregister(&self, _: ContextId, address: DevicePtr) -> Result<()> {
        let gone = self.state().memory.remove(&address.0);
        gone.map(drop).ok_or(missing("not registered"))
    }

    fn address_reserve(&self, bytes: u64, _: u64) -> Result<DevicePtr> {
        let mut state = self.state();
        let address = state.id() << 44;
        state.reserved.insert(address, bytes);
        Ok(DevicePtr(address))
    }
    fn address_reserve_at(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        let mut state = self.state();
        let end = address.0.saturating_add(bytes);
        let overlaps = |(at, held): (&u64, &u64)| *at < end && address.0 < at + held;
        if state.reserved.iter().any(overlaps) {
            return Err(missing("free addresses"));
        }
        state.reserved.insert(address.0, bytes);
        Ok(())
    }
    fn address_free(&self, address: DevicePtr, _: u64) -> Result<()> {
        let gone = self.state().reserved.remove(&address.0);
        gone.map(drop).ok_or(missing("not reserved"))
    }
    fn frame_create(&self, bytes: u64) -> Result<FrameId> {
        let mut state = self.state();
        self.take(&mut state, bytes)?;
        let id = state.id();
        state.frames.insert(id, bytes);
        Ok(FrameId(id))
    }
    fn frame_release(&self, frame: FrameId) -> Result<()> {
        let mut state = self.state();
        let bytes = state.frames.remove(&frame.0).ok_or(missing("no frame"))?;
        state.in_use -= bytes;
        Ok(())
    }
    fn frame_map(&self, address: DevicePtr, frame: FrameId) -> Result<()> {
        let mut state = self.state();
        let bytes = *state.frames.get(&frame.0).ok_or(missing("no frame"))?;
        let memory = Memory::Owned(vec![0; bytes as usize]);
        state.memory.insert(address.0, (bytes, memory));
        Ok(())
    }
    fn frame_unmap(&self, address: DevicePtr, _: u64) -> Result<()> {
        let gone = self.state().memory.remove(&address.0);
        gone.map(drop).ok_or(missing("not mapped"))
    }
    fn frame_access(&self, _: DevicePtr, _: u64, _: Access) -> Result<()> {
        Ok(())
    }

    fn array_create(&self, context: ContextId, d: &ArrayDescriptor) -> Result<ArrayId> {
        let texel = match d.format {
            1 | 8 => 1,
            2 | 9 | 16 => 2,
            _ => 4,
        } * u64::from(d.channels);
        let bytes = texel * d.width * d.height.max(1) * d.depth.max(1);
        self.with_context(context, |state, context| {
            self.take(state, bytes)?;
            let id = state.id();
            state
                .arrays
                .insert(id, (context, vec![0; bytes as usize], *d));
            Ok(ArrayId(id))
        })?
    }
    fn array_destroy(&self, array: ArrayId) -> Result<()> {
        let mut state = self.state();
        let (_, data, _) = state.arrays.remove(&array.0).ok_or(missing("no array"))?;
        state.in_use -= data.len() as u64;
        Ok(())
    }
    fn texture_create(&self, context: ContextId, _: &TextureDescriptor) -> Result<u64> {
        self.with_context(context, |state, context| {
            let id = state.id();
            state.textures.insert(id, context);
            id
        })
    }
    fn surface_create(&self, context: ContextId, _: ArrayId) -> Result<u64> {
        self.with_context(context, |state, context| {
            let id = state.id();
            state.textures.insert(id, context);
            id
        })
    }
    fn texture_destroy(&self, _: ContextId, handle: u64) -> Result<()> {
        let gone = self.state().textures.remove(&handle);
        gone.map(drop).ok_or(missing("no texture"))
    }

    fn context_gpu_time_ns(&self, _: ContextId) -> Option<u64> {
        None
    }
}
