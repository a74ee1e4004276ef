//! A session at rest: what is saved of it, and how it is made again on another device.
//!
//! A session can be saved while nothing of it is queued or running. Everything that its program can name gets the same
//! number again: handles come from tables that go on where the old ones were, addresses from a device with the same address
//! space. What is read back is as untrusted as calls of a program: each object is made by the same checks and charges.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use mica_cuda_abi::{CuResult, FunctionAttribute, Limit};
use mica_gpu::budget::CONTEXTS;
use mica_gpu::{Copy3d, DevicePtr, EventFlags, HostSpan, ModuleOptions, Place, StreamFlags};
use mica_snapshot::{
    SavedAllocation, SavedContext, SavedEvent, SavedHost, SavedLate, SavedModule, SavedSession,
    SavedStream, Span,
};

use super::{Context, Event, Session, Stream, Tables, lock};
use crate::handle::{HandleTable, ObjectKind};
use crate::ranges::{Owner, Range};
use crate::{Result, VgpuError};

/// Numbers that context limits have.
const LIMITS: std::ops::Range<u32> = 0..16;

fn refused(what: impl Into<String>) -> VgpuError {
    VgpuError::Argument(what.into())
}

/// Adds the session's device and host memory to what is saved, without the contents.
fn list_memory(tables: &Tables, saved: &mut SavedSession) {
    for (&address, range) in &tables.ranges.0 {
        let (context, bytes) = (range.context, range.bytes);
        match &range.owner {
            Owner::Allocation { .. } => saved.allocations.push(SavedAllocation {
                context,
                address,
                bytes,
            }),
            Owner::Host { offset, charge, .. } => saved.host.push(SavedHost {
                context,
                address,
                bytes,
                offset: *offset,
                charged: charge.is_some(),
            }),
            _ => {}
        }
    }
}

/// An object that is made again.
enum Made<'a> {
    Stream(&'a SavedStream),
    Event(&'a SavedEvent),
    Module(&'a SavedModule),
}

/// Objects in the order in which the program made them: a driver that is asked the same in the same order puts variables of
/// modules where they were.
fn made_in_order(saved: &SavedSession) -> Vec<(u64, Made<'_>)> {
    let streams = saved.streams.iter().map(|s| (s.made, Made::Stream(s)));
    let events = saved.events.iter().map(|e| (e.made, Made::Event(e)));
    let modules = saved.modules.iter().map(|m| (m.made, Made::Module(m)));
    let mut all: Vec<_> = streams.chain(events).chain(modules).collect();
    all.sort_by_key(|(made, _)| *made);
    all
}

impl Session {
    /// Bytes of the images that are kept of its modules, which are most of what is saved besides memory.
    pub fn image_bytes(&self) -> u64 {
        let tables = self.read();
        let kept = (tables.modules.iter()).filter_map(|(_, module)| module.kept.as_ref());
        kept.map(|kept| kept.image.len() as u64).sum()
    }

    /// Everything that the program can name but for the contents of memory.
    ///
    /// # Errors
    /// The program has something that cannot be saved: the sentence names it.
    pub fn save(&self) -> Result<SavedSession> {
        self.check()?;
        self.collect_freed(true);
        let tables = self.read();
        if let Some(obstacle) = self.obstacle(&tables) {
            return Err(refused(obstacle));
        }
        let mut saved = SavedSession {
            tables: vec![
                tables.contexts.saved(),
                tables.streams.saved(),
                tables.events.saved(),
                tables.modules.saved(),
            ],
            ..SavedSession::default()
        };
        saved.contexts = self.saved_contexts(&tables);
        for (handle, stream) in tables.streams.iter().filter(|(_, s)| !s.is_default) {
            saved.streams.push(SavedStream {
                handle,
                context: stream.context,
                non_blocking: stream.flags.non_blocking,
                priority: stream.priority,
                made: stream.made,
            });
        }
        for (handle, event) in tables.events.iter() {
            saved.events.push(SavedEvent {
                handle,
                context: event.context,
                disable_timing: event.flags.disable_timing,
                age_ns: self.gpu.event_age_ns(event.id)?,
                made: event.made,
            });
        }
        saved.modules = self.saved_modules(&tables)?;
        list_memory(&tables, &mut saved);
        let late = self.late.all().into_iter();
        (saved.late).extend(late.map(|(context, code, message)| SavedLate {
            context,
            code: code as u32,
            message,
        }));
        Ok(saved)
    }

    fn saved_contexts(&self, tables: &Tables) -> Vec<SavedContext> {
        let contexts = tables.contexts.iter().map(|(handle, context)| {
            let mut streams = tables.streams.iter();
            let default = streams.find(|(_, stream)| stream.is_default && stream.context == handle);
            let limit = |number| {
                let limit = Limit::from_number(number)?;
                let value = self.gpu.context_limit(context.id, limit).ok()?;
                Some((number, value))
            };
            SavedContext {
                handle,
                default_stream: default.map_or(0, |(stream, _)| stream),
                limits: LIMITS.filter_map(limit).collect(),
            }
        });
        contexts.collect()
    }

    fn saved_modules(&self, tables: &Tables) -> Result<Vec<SavedModule>> {
        let mut modules: Vec<_> = tables.modules.iter().collect();
        modules.sort_by_key(|(_, module)| module.id);
        let saved = modules.into_iter().map(|(handle, module)| {
            let kept = module.kept.as_ref();
            let kept = kept.ok_or_else(|| refused("a module whose image was not kept"))?;
            let variables = self.gpu.module_info(module.id)?.globals.into_iter();
            let variables = variables.map(|variable| Span {
                address: variable.address.0,
                bytes: variable.bytes,
            });
            let attributes = lock(&kept.attributes);
            Ok(SavedModule {
                handle,
                context: module.context,
                image: kept.image.clone(),
                memcheck: kept.memcheck,
                variables: variables.collect(),
                made: module.made,
                attributes: attributes.iter().map(|(of, value)| (*of, *value)).collect(),
            })
        });
        saved.collect()
    }

    /// What cannot be saved, in words that a program's author knows.
    fn obstacle(&self, tables: &Tables) -> Option<String> {
        let some = |is: bool, what: &str| is.then(|| format!("its program has {what}"));
        let ranges = || tables.ranges.0.values().map(|range| &range.owner);
        let shared = (tables.events.iter()).any(|(_, event)| event.progress.is_some());
        let unoffered =
            |owner: &Owner| matches!(owner, Owner::Host { is_offered, .. } if !is_offered);
        let freeing = |owner: &Owner| matches!(owner, Owner::Allocation { freeing: true, .. });
        let outside = self.gpu.address_space().is_some_and(|(base, bytes)| {
            let mut allocations = tables.ranges.0.iter();
            allocations.any(|(address, range)| {
                let end = address.wrapping_sub(base).saturating_add(range.bytes);
                matches!(range.owner, Owner::Allocation { .. }) && end > bytes
            })
        });
        let own = [
            (
                self.gpu.address_space().is_none(),
                "a GPU whose memory cannot be given the same addresses again",
            ),
            (
                ranges().any(unoffered),
                "host memory whose files it cannot bring again (more than 256 pieces of cuMemAllocHost and the like)",
            ),
            (
                outside,
                "memory at addresses that no other worker could give it again (others were reserved when it was allocated)",
            ),
            (
                self.has_managed_variables(tables),
                "managed variables in its modules",
            ),
            (
                !tables.reserved.is_empty() || !tables.frames.is_empty(),
                "memory that it maps itself (cuMemCreate, cuMemMap), or that is another process's",
            ),
            (!tables.arrays.is_empty(), "arrays (cuArrayCreate)"),
            (!tables.textures.is_empty(), "textures or surfaces"),
            (
                !tables.graphs.is_empty() || !tables.templates.is_empty(),
                "graphs that are ready to be launched (cuGraphInstantiate)",
            ),
            (shared, "events that other processes have too"),
            (
                !lock(&self.faulted).is_empty(),
                "a context that a kernel has broken",
            ),
            (
                ranges().any(freeing),
                "memory that a stream has yet to free",
            ),
        ];
        let own = own.into_iter().find_map(|(is, what)| some(is, what));
        let mut contexts = tables.contexts.iter();
        own.or_else(|| contexts.find_map(|(_, context)| self.gpu.obstacle_to_saving(context.id)))
    }

    /// Whether the bytes of a module's variable are elsewhere than in the device's memory.
    fn has_managed_variables(&self, tables: &Tables) -> bool {
        tables.modules.iter().any(|(_, module)| {
            // A driver keeps them itself, and the library in the program exchanges the bytes.
            module.is_bound.load(Relaxed)
                || self.gpu.has_driver()
                    && self
                        .gpu
                        .module_info(module.id)
                        .is_ok_and(|info| info.globals.iter().any(|global| global.is_managed))
        })
    }

    /// The place of the next object among all that the session has made.
    pub(super) fn next_made(&self) -> u64 {
        self.made.fetch_add(1, Relaxed)
    }

    /// Makes everything again that was saved, in a session that has nothing yet.
    ///
    /// # Errors
    /// The limits of the virtual GPU do not allow it, addresses are not to be had, or what was saved makes no sense. The session
    /// is to be closed then.
    pub fn restore(&self, saved: &SavedSession) -> Result<()> {
        self.check()?;
        let [contexts, streams, events, modules] = &saved.tables[..] else {
            return Err(refused("a saved session has four tables of handles"));
        };
        {
            let mut tables = self.write();
            if !tables.contexts.is_empty() {
                return Err(refused(
                    "a session that has something cannot be another one",
                ));
            }
            tables.contexts = HandleTable::continued(ObjectKind::Context, contexts)?;
            tables.streams = HandleTable::continued(ObjectKind::Stream, streams)?;
            tables.events = HandleTable::continued(ObjectKind::Event, events)?;
            tables.modules = HandleTable::continued(ObjectKind::Module, modules)?;
        }
        if saved.contexts.len() > CONTEXTS {
            return Err(refused(format!("more than {CONTEXTS} contexts")));
        }
        saved
            .contexts
            .iter()
            .try_for_each(|context| self.restore_context(context))?;
        made_in_order(saved)
            .into_iter()
            .try_for_each(|(_, made)| match made {
                Made::Stream(stream) => self.restore_stream(stream),
                Made::Event(event) => self.restore_event(event),
                Made::Module(module) => self.restore_module(module),
            })?;
        saved
            .allocations
            .iter()
            .try_for_each(|memory| self.restore_allocation(memory))?;
        let mut tables = self.write();
        tables.contexts.end_continuing(contexts)?;
        tables.streams.end_continuing(streams)?;
        tables.events.end_continuing(events)?;
        tables.modules.end_continuing(modules)?;
        for late in &saved.late {
            let unknown = || refused(format!("{} is not an error", late.code));
            let code = CuResult::from_code(late.code).ok_or_else(unknown)?;
            if late.context != 0 {
                tables.contexts.get(late.context)?;
            }
            self.late.note(late.context, code, late.message.clone());
        }
        Ok(())
    }

    fn restore_context(&self, saved: &SavedContext) -> Result<()> {
        let shares = (self.object_share()?, self.object_share()?);
        let id = self.gpu.context_create()?;
        // First: whatever fails now, the end of the session ends the context.
        let mut tables = self.write();
        let share = shares.0;
        let context = Context { id, share };
        if let Err(error) = tables.contexts.insert_at(saved.handle, context) {
            let _ = self.gpu.context_destroy(id);
            return Err(error);
        }
        lock(&self.live).push(id);
        let stream = Stream {
            id: self.gpu.default_stream(id)?,
            context: saved.handle,
            is_default: true,
            flags: StreamFlags::default(),
            priority: 0,
            made: 0,
            share: shares.1,
        };
        tables.streams.insert_at(saved.default_stream, stream)?;
        drop(tables);
        if self.vgpu.is_suspended() {
            self.gpu.context_suspend(id)?;
        }
        for (number, value) in &saved.limits {
            let limit = Limit::from_number(*number);
            let limit = limit.ok_or_else(|| refused(format!("there is no limit {number}")))?;
            if self.gpu.context_limit(id, limit)? != *value {
                self.gpu.context_set_limit(id, limit, *value)?;
            }
        }
        Ok(())
    }

    fn restore_stream(&self, saved: &SavedStream) -> Result<()> {
        let limit = self.vgpu.spec().max_streams;
        let counter = &self.vgpu.counters().streams;
        let taken = counter.fetch_update(AcqRel, Acquire, |now| {
            (limit == 0 || now < limit).then_some(now + 1)
        });
        if taken.is_err() {
            return Err(VgpuError::Streams { limit });
        }
        let made = self.make_stream(saved);
        if made.is_err() {
            counter.fetch_sub(1, AcqRel);
        }
        made
    }

    fn make_stream(&self, saved: &SavedStream) -> Result<()> {
        let share = self.object_share()?;
        let mut tables = self.write();
        let owner = tables.contexts.get(saved.context)?.id;
        let flags = StreamFlags {
            non_blocking: saved.non_blocking,
        };
        let (least, greatest) = self.gpu.properties().stream_priorities;
        let priority = (saved.priority).clamp(greatest.min(least), least.max(greatest));
        let stream = Stream {
            id: self.gpu.stream_create(owner, flags, priority)?,
            context: saved.context,
            is_default: false,
            flags,
            priority,
            made: self.next_made(),
            share,
        };
        tables.streams.insert_at(saved.handle, stream)
    }

    fn restore_event(&self, saved: &SavedEvent) -> Result<()> {
        let share = self.object_share()?;
        let mut tables = self.write();
        let owner = tables.contexts.get(saved.context)?.id;
        let flags = EventFlags {
            disable_timing: saved.disable_timing,
        };
        let id = self.gpu.event_create(owner, flags)?;
        if let Some(age_ns) = saved.age_ns {
            self.gpu.event_set_age(id, age_ns)?;
        }
        let event = Event {
            id,
            context: saved.context,
            flags,
            progress: None,
            made: self.next_made(),
            share,
        };
        tables.events.insert_at(saved.handle, Arc::new(event))
    }

    fn restore_module(&self, saved: &SavedModule) -> Result<()> {
        let options = ModuleOptions {
            memcheck: saved.memcheck,
        };
        let loaded = self.load(saved.context, &saved.image, &options, Some(saved))?;
        let same = |(variable, span): (&mica_gpu::GlobalDescription, &Span)| {
            (variable.address.0, variable.bytes) == (span.address, span.bytes)
        };
        if !loaded.info.globals.iter().zip(&saved.variables).all(same) {
            return Err(refused("a module has other variables than before"));
        }
        for ((kernel, number), value) in &saved.attributes {
            let attribute = FunctionAttribute::from_number(*number);
            let unknown = || refused(format!("{number} is not an attribute of a kernel"));
            let attribute = attribute.ok_or_else(unknown)?;
            self.kernel_set_attribute(saved.handle, *kernel, attribute, *value)?;
        }
        Ok(())
    }

    fn restore_allocation(&self, saved: &SavedAllocation) -> Result<()> {
        let (context, bytes) = (saved.context, saved.bytes);
        let owner = self.context_id(context)?;
        let share = self.object_share()?;
        let taken = self.gpu.allocation_bytes(bytes).unwrap_or(u64::MAX);
        let charge = self.vgpu.charge(taken, self)?;
        let address = DevicePtr(saved.address);
        self.watch(context, self.gpu.memory_alloc_at(owner, address, bytes))?;
        let freeing = false;
        let range = Range {
            bytes,
            context,
            owner: Owner::Allocation { charge, freeing },
            share,
        };
        self.write().ranges.0.insert(saved.address, range);
        Ok(())
    }

    /// Fills a buffer with memory of a context.
    pub fn save_memory(&self, context: u64, address: u64, into: &mut Vec<u8>) -> Result<()> {
        self.copy_now(context, address, into, false)
    }

    /// Fills memory of a context from a buffer.
    pub fn restore_memory(&self, context: u64, address: u64, from: &mut Vec<u8>) -> Result<()> {
        self.copy_now(context, address, from, true)
    }

    #[expect(unsafe_code, reason = "a host span is made from a buffer")]
    fn copy_now(
        &self,
        context: u64,
        address: u64,
        buffer: &mut Vec<u8>,
        to_device: bool,
    ) -> Result<()> {
        let id = self.context_id(context)?;
        self.read().ranges.check(address, buffer.len() as u64)?;
        let stream = self.gpu.default_stream(id)?;
        // SAFETY: the copy is waited for; where that fails, the buffer is never used or freed again.
        let span = unsafe { HostSpan::new(buffer.as_mut_ptr(), buffer.len() as u64) };
        let (host, device) = (Place::Host(span), Place::Device(DevicePtr(address)));
        let copy = match to_device {
            true => Copy3d::linear(device, host, span.len()),
            false => Copy3d::linear(host, device, span.len()),
        };
        let copied = self.gpu.copy(stream, &copy);
        let copied = copied.and_then(|()| self.gpu.stream_synchronize(stream));
        if copied.is_err() {
            // The device may still use it. The session of a buffer that is lost so ends.
            std::mem::forget(std::mem::take(buffer));
        }
        self.watch(context, copied)
    }
}
