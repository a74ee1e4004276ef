//! Tells a recorder of kernels, copies and graphs by the driver's events: one before, one after.
//!
//! Begin and end are those of the GPU's own clock, as fine as the driver tells them (half a microsecond). They are placed on
//! the host's clock by an event that was reached at a known time, renewed every ten seconds. What other tenants ran
//! meanwhile in their slices is part of a span: the driver does not tell it apart. A graph is one span.
//!
//! An event on either side takes time of the GPU, which short kernels in a row feel; recording is off
//! unless somebody profiles.

use std::collections::VecDeque;
use std::sync::Arc;

use mica_gpu::profile::{Activity, Recorder, Span};
use mica_gpu::{Copy3d, EventId, Fill2d, GpuError, Launch, Place, Result, StreamId};

use super::streams::done;
use super::{Context, CudaGpu, Event, Stream, lock};
use crate::driver::Raw;

/// Spans of a context whose end was not seen yet; more are not recorded.
const MOST_PENDING: usize = 4096;
/// Spans whose end is looked for with each submission.
const LOOKS: usize = 8;
/// How long one event places others on the host's clock: the driver tells times as 32-bit floats.
const RENEWED_AFTER_NS: u64 = 10_000_000_000;

/// An event that was reached at a known time.
#[derive(Clone, Copy, Debug)]
struct Base {
    event: EventId,
    at_ns: u64,
}

#[derive(Debug)]
struct Pending {
    activity: Activity,
    name: String,
    stream: u64,
    queued_ns: u64,
    bytes: u64,
    begin: EventId,
    end: EventId,
    base: Base,
}

/// What is recorded of one context.
#[derive(Debug, Default)]
pub(super) struct ContextRecording {
    base: Option<Base>,
    /// Bases that pending spans may need.
    old_bases: Vec<EventId>,
    /// A stream of its own for bases, so that no other waits for it.
    clock: Option<StreamId>,
    idle: Vec<EventId>,
    pending: VecDeque<Pending>,
}

/// What a span will be called.
pub(super) struct Subject {
    activity: Activity,
    name: String,
    bytes: u64,
}

impl Subject {
    pub(super) fn copy(copy: &Copy3d) -> Self {
        let of_host = |place: &Place| matches!(place, Place::Host(_));
        let name = match (of_host(&copy.src), of_host(&copy.dst)) {
            (true, true) => "host to host",
            (true, false) => "host to device",
            (false, true) => "device to host",
            (false, false) => "device to device",
        };
        let rows = copy.height.saturating_mul(copy.depth);
        Self {
            activity: Activity::Copy,
            name: name.to_owned(),
            bytes: copy.width_bytes.saturating_mul(rows),
        }
    }

    pub(super) fn fill(fill: &Fill2d) -> Self {
        let row = fill.width.saturating_mul(u64::from(fill.element_bytes));
        Self {
            activity: Activity::Fill,
            name: "fill".to_owned(),
            bytes: row.saturating_mul(fill.height),
        }
    }

    pub(super) fn graph() -> Self {
        Self {
            activity: Activity::Kernel,
            name: "(graph)".to_owned(),
            bytes: 0,
        }
    }
}

fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one time; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}

impl CudaGpu {
    /// Submits something to a stream, between two events if it is recorded.
    #[inline]
    pub(super) fn recorded(
        &self,
        stream: StreamId,
        subject: impl FnOnce() -> Subject,
        submit: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match self.recorder.get().filter(|recorder| recorder.is_on()) {
            None => submit(),
            Some(recorder) => self.submit_between(recorder, stream, subject(), submit),
        }
    }

    /// Whether somebody wants to know of each kernel.
    pub(super) fn is_recording(&self) -> bool {
        self.recorder.get().is_some_and(|recorder| recorder.is_on())
    }

    pub(super) fn kernel_subject(&self, launch: &Launch<'_>) -> Subject {
        let name = self.kernel_name(launch.module, launch.kernel);
        Subject {
            activity: Activity::Kernel,
            name: name.unwrap_or_else(|| "?".to_owned()),
            bytes: 0,
        }
    }

    fn submit_between(
        &self,
        recorder: &Arc<Recorder>,
        id: StreamId,
        subject: Subject,
        submit: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let stream = self.stream(id)?;
        let context = Arc::clone(&stream.context);
        let queued_ns = now_ns();
        // What cannot be recorded runs all the same.
        let begin = self.begin_span(&stream).ok().flatten();
        let submitted = submit();
        if let Some((base, begin)) = begin {
            let ended = submitted.is_ok().then(|| self.end_span(&stream));
            let mut recording = lock(&context.recording);
            match ended {
                Some(Ok(end)) => recording.pending.push_back(Pending {
                    activity: subject.activity,
                    name: subject.name,
                    stream: id.0,
                    queued_ns,
                    bytes: subject.bytes,
                    begin,
                    end,
                    base,
                }),
                _ => recording.idle.push(begin),
            }
        }
        self.tell_reached(recorder, &context, LOOKS);
        submitted
    }

    fn begin_span(&self, stream: &Stream) -> Result<Option<(Base, EventId)>> {
        let context = &stream.context;
        let recording = lock(&context.recording);
        if recording.pending.len() >= MOST_PENDING {
            return Ok(None);
        }
        let base = recording.base;
        drop(recording);
        let is_young = |base: &Base| now_ns().saturating_sub(base.at_ns) < RENEWED_AFTER_NS;
        let base = match base.filter(is_young) {
            Some(base) => base,
            None => self.new_base(context)?,
        };
        let begin = self.idle_event(context)?;
        self.record_in(stream, begin)?;
        Ok(Some((base, begin)))
    }

    fn end_span(&self, stream: &Stream) -> Result<EventId> {
        let end = self.idle_event(&stream.context)?;
        self.record_in(stream, end)?;
        Ok(end)
    }

    fn idle_event(&self, context: &Arc<Context>) -> Result<EventId> {
        match lock(&context.recording).idle.pop() {
            Some(event) => Ok(event),
            None => self.new_event(Arc::clone(context), true),
        }
    }

    fn record_in(&self, stream: &Stream, event: EventId) -> Result<()> {
        let event = self.event(event)?;
        // SAFETY: the driver's own handles.
        self.call(&stream.context, "cuEventRecord", || unsafe {
            (self.driver.functions.event_record)(event.raw as Raw, stream.raw as Raw)
        })
    }

    /// Finds out what time it is on the GPU.
    fn new_base(&self, context: &Arc<Context>) -> Result<Base> {
        let clock = lock(&context.recording).clock;
        let clock = match clock {
            Some(clock) => clock,
            None => {
                let made = self.new_stream(Arc::clone(context), true, 0)?;
                lock(&context.recording).clock = Some(made);
                made
            }
        };
        let id = self.new_event(Arc::clone(context), true)?;
        self.record_in(&self.stream(clock)?, id)?;
        let event = self.event(id)?;
        // SAFETY: the driver's own handle.
        self.call(context, "cuEventSynchronize", || unsafe {
            (self.driver.functions.event_synchronize)(event.raw as Raw)
        })?;
        let base = Base {
            event: id,
            at_ns: now_ns(),
        };
        let mut recording = lock(&context.recording);
        if let Some(old) = recording.base.replace(base) {
            recording.old_bases.push(old.event);
        }
        Ok(base)
    }

    /// Tells of spans of all contexts that have ended.
    pub(super) fn tell_all_reached(&self) {
        let Some(recorder) = self.recorder.get().filter(|recorder| recorder.is_on()) else {
            return;
        };
        for context in self.contexts.all() {
            self.tell_reached(recorder, &context, usize::MAX);
        }
    }

    /// Tells of a context's spans that have ended, so many at most.
    fn tell_reached(&self, recorder: &Recorder, context: &Arc<Context>, most: usize) {
        let mut recording = lock(&context.recording);
        for _ in 0..most {
            let Some(first) = recording.pending.front() else {
                break;
            };
            match self.event(first.end).map(|end| self.is_reached(&end)) {
                Ok(Ok(false)) => break,
                Ok(Ok(true)) => {
                    if let Ok(span) = self.span_of(first) {
                        recorder.record(&first.name, span);
                    }
                }
                // The context is over, and with it the events.
                Ok(Err(_)) | Err(_) => {}
            }
            if let Some(told) = recording.pending.pop_front() {
                recording.idle.extend([told.begin, told.end]);
            }
        }
        if recording.pending.is_empty() {
            for event in std::mem::take(&mut recording.old_bases) {
                let _ = self.end_event(event);
            }
        }
    }

    fn is_reached(&self, event: &Event) -> Result<bool> {
        // SAFETY: the driver's own handle.
        done(self.call(&event.context, "cuEventQuery", || unsafe {
            (self.driver.functions.event_query)(event.raw as Raw)
        }))
    }

    fn span_of(&self, pending: &Pending) -> Result<Span, GpuError> {
        let ns = |ms: f32| (f64::from(ms.max(0.0)) * 1e6) as u64;
        let began = ns(self.elapsed_ms(pending.base.event, pending.begin)?);
        let took = ns(self.elapsed_ms(pending.begin, pending.end)?);
        let begin_ns = pending.base.at_ns + began;
        Ok(Span {
            activity: pending.activity,
            name: 0,
            stream: pending.stream,
            queued_ns: pending.queued_ns.min(begin_ns),
            begin_ns,
            end_ns: begin_ns + took,
            bytes: pending.bytes,
        })
    }
}
