//! Events: recording, waiting, timing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use mica_cuda_abi::CuResult;
use mica_gpu::{ContextId, EventFlags, EventId, GpuError, Result, StreamId};

use crate::core::{Event, OpKind};
use crate::device::SoftwareGpu;
use crate::meter::now_ns;

impl SoftwareGpu {
    /// Makes an event.
    pub(super) fn new_event(&self, context: ContextId, flags: EventFlags) -> Result<EventId> {
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

    /// Puts an event behind the work of a stream.
    pub(super) fn queue_record(&self, event: EventId, stream: StreamId) -> Result<()> {
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

    /// Waits until an event is reached.
    pub(super) fn wait_for_event(&self, event: EventId) -> Result<()> {
        let event = Arc::clone(self.core.state().event(event.0)?);
        event.context.check()?;
        let record = event.recorded.load(Ordering::Acquire);
        self.core.settle();
        self.wait_for(&event.reached, record);
        self.after_wait(&event.context)
    }

    /// How long ago the last record of an event was reached; `None` if it was never recorded.
    pub(super) fn age_of_event(&self, event: EventId) -> Result<Option<u64>> {
        let event = Arc::clone(self.core.state().event(event.0)?);
        let recorded = event.recorded.load(Ordering::Acquire);
        if event.reached.load(Ordering::Acquire) < recorded {
            let what = "an event that is not reached yet";
            return Err(GpuError::new(CuResult::NotReady, what));
        }
        let age_ns = now_ns().wrapping_sub(event.reached_ns.load(Ordering::Acquire));
        Ok((recorded > 0).then_some(age_ns))
    }

    /// Makes a new event one that was reached so long ago.
    pub(super) fn set_age_of_event(&self, event: EventId, age_ns: u64) -> Result<()> {
        let event = Arc::clone(self.core.state().event(event.0)?);
        // Before this device's time began, for some: only differences count.
        let reached_ns = now_ns().wrapping_sub(age_ns);
        event.reached_ns.store(reached_ns, Ordering::Release);
        event.recorded.store(1, Ordering::Release);
        event.reached.store(1, Ordering::Release);
        Ok(())
    }

    /// Milliseconds between two events.
    pub(super) fn elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32> {
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
        Ok(at(end).wrapping_sub(at(start)) as f32 / 1e6)
    }
}
