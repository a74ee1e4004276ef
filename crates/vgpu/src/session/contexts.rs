//! Contexts and streams.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use mica_cuda_abi::{CuResult, Limit};
use mica_gpu::budget::CONTEXTS;
use mica_gpu::{
    Aborted, ContextId, EventId, GpuError, HostCallback, StreamFlags, StreamId, ValueWait,
};

use super::{Context, Session, Stream, lock, table_full};
use crate::handle::ObjectKind;
use crate::ranges::Owner;
use crate::{Result, VgpuError};

/// A new context's handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewContext {
    /// The context.
    pub context: u64,
    /// Its default stream.
    pub default_stream: u64,
}

fn known_limit(number: u32) -> Result<Limit> {
    let unknown = || VgpuError::Argument(format!("there is no limit {number}"));
    Limit::from_number(number).ok_or_else(unknown)
}

impl Session {
    pub(super) fn context_id(&self, context: u64) -> Result<ContextId> {
        Ok(self.read().contexts.get(context)?.id)
    }

    pub(super) fn stream_id(&self, stream: u64) -> Result<(StreamId, u64)> {
        let tables = self.read();
        let stream = tables.streams.get(stream)?;
        Ok((stream.id, stream.context))
    }

    /// The context of a stream; `None` if the stream is not this session's.
    pub fn context_of_stream(&self, stream: u64) -> Option<u64> {
        self.stream_id(stream).ok().map(|(_, context)| context)
    }

    /// Whether a stream is the default one of its context, which waits for the others.
    pub fn is_default_stream(&self, stream: u64) -> bool {
        let tables = self.read();
        tables.streams.get(stream).is_ok_and(|s| s.is_default)
    }

    /// The context of an event.
    pub fn context_of_event(&self, event: u64) -> Option<u64> {
        Some(self.read().events.get(event).ok()?.context)
    }

    /// Makes a context.
    pub fn context_create(&self) -> Result<NewContext> {
        self.check()?;
        let open = self.read().contexts.len();
        if open >= CONTEXTS {
            let what = format!("the session has {open} contexts; {CONTEXTS} are possible");
            return Err(GpuError::new(CuResult::OutOfMemory, what).into());
        }
        let shares = (self.object_share()?, self.object_share()?);
        let id = self.gpu.context_create()?;
        let stream = match self.gpu.default_stream(id) {
            Ok(stream) => stream,
            Err(error) => {
                let _ = self.gpu.context_destroy(id);
                return Err(error.into());
            }
        };
        let mut tables = self.write();
        // A session that was closed meanwhile has been emptied: nothing may be added to it.
        if self.is_closed() {
            let _ = self.gpu.context_destroy(id);
            return Err(VgpuError::Closed);
        }
        let Ok(context) = tables.contexts.insert(Context {
            id,
            share: shares.0,
        }) else {
            let _ = self.gpu.context_destroy(id);
            return Err(table_full(ObjectKind::Context));
        };
        let stream = Stream {
            id: stream,
            context,
            is_default: true,
            flags: StreamFlags::default(),
            priority: 0,
            made: 0,
            share: shares.1,
        };
        let default_stream = tables
            .streams
            .insert(stream)
            .map_err(|_| table_full(ObjectKind::Stream))?;
        lock(&self.live).push(id);
        drop(tables);
        if self.vgpu.is_suspended() {
            self.gpu.context_suspend(id)?;
        }
        Ok(NewContext {
            context,
            default_stream,
        })
    }

    /// Ends a context: cancels its work and frees all it holds.
    pub fn context_destroy(&self, context: u64) -> Result<()> {
        self.check()?;
        let mut tables = self.write();
        let id = tables.contexts.remove(context)?.id;
        lock(&self.live).retain(|live| *live != id);
        let streams = tables.streams.drain_where(|s| s.context == context);
        let events = tables.events.drain_where(|e| e.context == context);
        let graphs = tables.graphs.drain_where(|g| g.context == context);
        let templates = tables.templates.drain_where(|t| t.context == context);
        let modules = tables.modules.drain_where(|m| m.context == context);
        let arrays = tables.arrays.drain_where(|a| a.context == context);
        tables.textures.retain(|_, (owner, _)| *owner != context);
        let addresses: Vec<u64> = (tables.ranges.0.iter())
            .filter(|(_, range)| range.context == context)
            .map(|(address, _)| *address)
            .collect();
        let mut ranges = Vec::new();
        for address in addresses {
            ranges.extend(tables.ranges.0.remove(&address));
        }
        let freeing =
            |r: &&crate::ranges::Range| matches!(r.owner, Owner::Allocation { freeing: true, .. });
        let pending = ranges.iter().filter(freeing).count() as u64;
        self.frees_pending.fetch_sub(pending, AcqRel);
        drop(tables);
        let counters = self.vgpu.counters();
        let own = streams.iter().filter(|(_, s)| !s.is_default).count() as u32;
        counters.streams.fetch_sub(own, Relaxed);
        counters.modules.fetch_sub(modules.len() as u32, Relaxed);
        let spent = self.gpu.context_gpu_time_ns(id).unwrap_or(0);
        counters.past_gpu_time_ns.fetch_add(spent, Relaxed);
        self.see_drains_out(id);
        let result = self.gpu.context_destroy(id);
        self.late.forget(context);
        lock(&self.faulted).remove(&context);
        // Charges and host mappings go after the device has let go of the memory.
        drop((ranges, arrays, graphs, templates, events, modules));
        Ok(result?)
    }

    /// Waits for all work of a context.
    pub fn context_synchronize(&self, context: u64) -> Result<()> {
        self.check()?;
        let id = self.context_id(context)?;
        let result = self.gpu.context_synchronize(id);
        self.collect_freed(true);
        self.watch(context, result)
    }

    /// Reads a limit by its number, which is untrusted.
    pub fn context_limit(&self, context: u64, limit: u32) -> Result<u64> {
        self.check()?;
        let limit = known_limit(limit)?;
        Ok(self.gpu.context_limit(self.context_id(context)?, limit)?)
    }

    /// Sets a limit by its number, which is untrusted.
    pub fn context_set_limit(&self, context: u64, limit: u32, value: u64) -> Result<()> {
        self.check()?;
        let limit = known_limit(limit)?;
        let id = self.context_id(context)?;
        Ok(self.gpu.context_set_limit(id, limit, value)?)
    }

    /// GPU time of a context, 0 where the device cannot tell.
    pub fn context_gpu_time_ns(&self, context: u64) -> Result<u64> {
        let id = self.context_id(context)?;
        Ok(self.gpu.context_gpu_time_ns(id).unwrap_or(0))
    }

    /// Cancels kernels of a stream, or of the whole context; how many.
    pub fn cancel(&self, context: u64, stream: Option<u64>) -> Result<u64> {
        self.check()?;
        let id = self.context_id(context)?;
        let stream = match stream {
            None => None,
            Some(handle) => match self.stream_id(handle)? {
                (stream, owner) if owner == context => Some(stream),
                _ => {
                    return Err(VgpuError::Handle {
                        kind: ObjectKind::Stream,
                        handle,
                    });
                }
            },
        };
        Ok(self.gpu.cancel(id, stream)?)
    }

    pub(super) fn context_ids(&self) -> Vec<ContextId> {
        lock(&self.live).clone()
    }

    pub(crate) fn abort_all(&self) -> Aborted {
        let each = |id| self.gpu.abort(id).unwrap_or_default();
        self.context_ids().into_iter().map(each).sum()
    }

    /// Pauses all contexts; one that cannot be paused keeps no other from it.
    pub(crate) fn suspend(&self) -> Result<()> {
        let each = |id| self.gpu.context_suspend(id);
        let results: Vec<_> = self.context_ids().into_iter().map(each).collect();
        Ok(results.into_iter().collect::<Result<(), _>>()?)
    }

    pub(crate) fn resume(&self) -> Result<()> {
        for id in self.context_ids() {
            self.gpu.context_resume(id)?;
        }
        self.set_windows_open(true);
        Ok(())
    }

    pub(crate) fn gpu_time_ns(&self) -> u64 {
        let each = |id| self.gpu.context_gpu_time_ns(id).unwrap_or(0);
        self.context_ids().into_iter().map(each).sum()
    }

    /// Makes a stream; the priority is brought into the device's range, as CUDA does.
    pub fn stream_create(&self, context: u64, flags: StreamFlags, priority: i32) -> Result<u64> {
        self.check()?;
        let limit = self.vgpu.spec().max_streams;
        let counter = &self.vgpu.counters().streams;
        let taken = counter.fetch_update(AcqRel, Acquire, |now| {
            (limit == 0 || now < limit).then_some(now + 1)
        });
        if taken.is_err() {
            let refusal = VgpuError::Streams { limit };
            self.vgpu.remark(refusal.to_string());
            return Err(refusal);
        }
        let made = self.stream_create_counted(context, flags, priority);
        if made.is_err() {
            counter.fetch_sub(1, AcqRel);
        }
        made
    }

    fn stream_create_counted(
        &self,
        context: u64,
        flags: StreamFlags,
        priority: i32,
    ) -> Result<u64> {
        let (least, greatest) = self.gpu.properties().stream_priorities;
        let priority = priority.clamp(greatest.min(least), least.max(greatest));
        let share = self.object_share()?;
        let mut tables = self.write();
        let owner = tables.contexts.get(context)?.id;
        let id = self.gpu.stream_create(owner, flags, priority)?;
        let stream = Stream {
            id,
            context,
            is_default: false,
            flags,
            priority,
            made: self.next_made(),
            share,
        };
        tables.streams.insert(stream).map_err(|stream| {
            let _ = self.gpu.stream_destroy(stream.id);
            table_full(ObjectKind::Stream)
        })
    }

    /// Destroys a stream once its work is done; returns at once.
    pub fn stream_destroy(&self, stream: u64) -> Result<()> {
        self.check()?;
        let mut tables = self.write();
        if tables.streams.get(stream)?.is_default {
            return Err(VgpuError::Argument(
                "the default stream cannot be destroyed".into(),
            ));
        }
        let gone = tables.streams.remove(stream)?;
        self.vgpu.counters().streams.fetch_sub(1, AcqRel);
        Ok(self.gpu.stream_destroy(gone.id)?)
    }

    /// Waits for a stream.
    pub fn stream_synchronize(&self, stream: u64) -> Result<()> {
        self.check()?;
        let (id, context) = self.stream_id(stream)?;
        let result = self.gpu.stream_synchronize(id);
        self.watch(context, result)
    }

    /// Whether a stream's work is done.
    pub fn stream_query(&self, stream: u64) -> Result<bool> {
        self.check()?;
        let (id, context) = self.stream_id(stream)?;
        self.watch(context, self.gpu.stream_query(id))
    }

    /// Whether new work of a stream would run at once.
    pub fn stream_is_clear(&self, stream: u64) -> Result<bool> {
        self.check()?;
        let (id, context) = self.stream_id(stream)?;
        self.watch(context, self.gpu.stream_is_clear(id))
    }

    /// Makes later work of a stream wait for an event.
    pub fn stream_wait_event(&self, stream: u64, event: u64) -> Result<()> {
        self.check()?;
        self.make_room(stream, 0)?;
        let tables = self.read();
        let event: EventId = tables.events.get(event)?.id;
        let stream = tables.streams.get(stream)?;
        self.watch(stream.context, self.gpu.stream_wait_event(stream.id, event))
    }

    /// Makes later work of a stream wait for a word in this session's memory.
    pub fn stream_wait_value(&self, stream: u64, wait: &ValueWait) -> Result<()> {
        self.check()?;
        self.make_room(stream, 0)?;
        let tables = self.read();
        tables.ranges.check(wait.address.0, wait.bytes())?;
        let stream = tables.streams.get(stream)?;
        self.watch(stream.context, self.gpu.stream_wait_value(stream.id, wait))
    }

    /// Runs a host function in stream order.
    pub fn stream_callback(&self, stream: u64, callback: HostCallback) -> Result<()> {
        self.check()?;
        self.make_room(stream, 0)?;
        let tables = self.read();
        let stream = tables.streams.get(stream)?;
        self.watch(
            stream.context,
            self.gpu.stream_callback(stream.id, callback),
        )
    }

    /// Runs a function of the engine in stream order, on no thread where a program's functions run. It holds
    /// `bytes` until then.
    pub fn stream_release(&self, stream: u64, bytes: u64, release: HostCallback) -> Result<()> {
        self.check()?;
        let tables = self.read();
        let stream = tables.streams.get(stream)?;
        let queued = self.gpu.stream_release(stream.id, bytes, release);
        self.watch(stream.context, queued)
    }

    /// As [`Session::stream_release`], where the program waits for the release.
    pub fn stream_release_soon(&self, stream: u64, release: HostCallback) -> Result<()> {
        self.check()?;
        let tables = self.read();
        let stream = tables.streams.get(stream)?;
        let queued = self.gpu.stream_release_soon(stream.id, release);
        self.watch(stream.context, queued)
    }

    /// Waits until one more operation that holds `bytes` fits the queues of the session.
    pub(super) fn make_room(&self, stream: u64, bytes: u64) -> Result<()> {
        if self.gpu.has_plenty_of_room(bytes) {
            return Ok(());
        }
        let (id, context) = self.stream_id(stream)?;
        self.watch(context, self.gpu.make_room(id, bytes))
    }
}
