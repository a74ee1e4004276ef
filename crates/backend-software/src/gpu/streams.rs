//! Contexts and streams: making and ending them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mica_cuda_abi::CuResult;
use mica_gpu::{Aborted, ContextId, EventId, GpuError, Result, StreamFlags, StreamId};

use crate::attributes::MOST_URGENT;
use crate::context::Context;
use crate::core::{ContextEntry, OpKind, State, Stream, StreamKind};
use crate::device::SoftwareGpu;
use crate::error::{bad_handle, invalid_value};

impl SoftwareGpu {
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
            descendants: VecDeque::new(),
            active: false,
            destroyed: false,
            last_submitted: 0,
            progress: Arc::new(AtomicU64::new(0)),
        };
        state.streams.insert(id, stream);
        id
    }

    /// Makes a context with its default stream.
    pub(super) fn new_context(&self) -> Result<ContextId> {
        let mut state = self.core.state();
        let id = state.new_id();
        let context = Arc::new(Context::new(id));
        let default_stream = Self::new_stream(&mut state, &context, StreamKind::Default, 0);
        self.core.metered().push(Arc::clone(&context));
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

    /// Ends the kernels of a context, or of one of its streams. How many.
    pub(super) fn cancel_kernels(
        &self,
        context: ContextId,
        stream: Option<StreamId>,
    ) -> Result<u64> {
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

    /// Ends the kernels and transfers of a context as a fault of theirs. How many.
    pub(super) fn abort_kernels(&self, context: ContextId) -> Result<Aborted> {
        let mut state = self.core.state();
        let broken = Arc::clone(&state.healthy_context(context.0)?.context);
        let (has_grids, transfers) = self.core.has_work(&state, context.0);
        if !has_grids && transfers == 0 {
            return Ok(Aborted::default());
        }
        // First, so that nobody who waits for them takes their end for a good one.
        broken.set_fault(GpuError::new(
            CuResult::LaunchTimeout,
            format!("the work of context {} was ended from outside", context.0),
        ));
        let kernels = self.core.cancel_grids(&mut state, context.0, None);
        self.core.pump_context(&mut state, context.0);
        Ok(Aborted {
            kernels,
            copies: transfers,
        })
    }

    /// Makes a stream of a context.
    pub(super) fn open_stream(
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

    /// Forgets a stream, once its work is done.
    pub(super) fn close_stream(&self, stream: StreamId) -> Result<()> {
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

    /// Lets a stream wait for what an event recorded last.
    pub(super) fn queue_wait(&self, stream: StreamId, event: EventId) -> Result<()> {
        let mut state = self.core.state();
        state.healthy_stream(stream.0)?;
        let event = Arc::clone(state.event(event.0)?);
        let record = event.recorded.load(Ordering::Acquire);
        let op = OpKind::Wait(event, record);
        self.core.submit(&mut state, stream.0, op);
        Ok(())
    }
}
