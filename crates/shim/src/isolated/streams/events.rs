//! Events.

use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use mica_cuda_abi::event_flags::{self, DISABLE_TIMING, INTERPROCESS};
use mica_cuda_abi::{CuResult, Handle, event_use_flags};
use mica_wire::session::{
    EventCreate, EventCreateShared, EventDestroy, EventElapsed, EventQuery, EventRecord,
    EventSynchronize,
};

use super::{Stream, resolve};
use crate::isolated::capture::{self, Captured};
use crate::isolated::check::objects::{self, ObjectKind};
use crate::isolated::context::{Context, current};
use crate::isolated::graphs::operations::Op;
use crate::isolated::handles::{Kind, Object, Pool};
use crate::isolated::modules::managed_variables;
use crate::isolated::state::{State, state};
use crate::isolated::support::{
    Answer, Code, bad_handle, driver, entries, invalid, lock, put, stream_entries,
};

/// An event of this process.
pub(crate) type Event = Object<EventState>;

#[derive(Default)]
pub(crate) struct EventState {
    context: AtomicPtr<Context>,
    epoch: AtomicU64,
    wire: AtomicU64,
    flags: AtomicU32,
    /// Whether it was ever recorded outside of a capture.
    recorded: AtomicBool,
    /// Counts its records.
    records: AtomicU64,
    /// The record that is known to have been reached, as `records` was after it.
    reached: AtomicU64,
    /// Whether a graph of the worker names it.
    in_graph: AtomicBool,
    /// Where in a capture it was recorded last.
    pub(crate) captured: Mutex<Option<Captured>>,
}

impl Kind for EventState {
    const MAGIC: u64 = 0x4d49_4341_4556_5431;
}

static POOL: Pool<EventState> = Pool::new();

/// Events of the worker that no event of the program stands for: never recorded, or known to have been reached, which is
/// the same to a new event. Many programs make an event for each of their steps.
static IDLE: Mutex<Vec<IdleEvent>> = Mutex::new(Vec::new());
/// Most of them.
const MOST_IDLE: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
struct IdleEvent {
    epoch: u64,
    is_timed: bool,
    wire: u64,
}

/// An event of the worker that can be used again, for a new event of a context.
fn take_idle(context: &Context, is_timed: bool) -> Option<u64> {
    let mut idle = lock(&IDLE);
    let epoch = context.epoch();
    let fits = |event: &IdleEvent| (event.epoch, event.is_timed) == (epoch, is_timed);
    let at = idle.iter().rposition(fits)?;
    Some(idle.swap_remove(at).wire)
}

/// Keeps the worker's event of one that the program has destroyed, if there is room.
fn keep_idle(event: IdleEvent) -> bool {
    let mut idle = lock(&IDLE);
    let has_room = idle.len() < MOST_IDLE;
    if has_room {
        idle.push(event);
    }
    has_room
}

/// Forgets the events of a life of a context that is over: the worker has ended them.
pub(crate) fn forget_epoch(epoch: u64) {
    lock(&IDLE).retain(|event| event.epoch != epoch);
}

/// Beside the program's flags: it is another program's event.
const IMPORTED: u32 = 1 << 31;

impl Event {
    /// The worker's handle.
    pub(crate) fn wire(&self) -> u64 {
        self.wire.load(Relaxed)
    }

    fn context(&self) -> Answer<&'static Context> {
        // SAFETY: null, or set from a reference to a context; those are never freed.
        let context = unsafe { self.context.load(Relaxed).as_ref() };
        let context = context.ok_or(Code(CuResult::InvalidHandle as u32))?;
        if context.epoch() != self.epoch.load(Acquire) {
            return Err(CuResult::ContextIsDestroyed.into());
        }
        Ok(context)
    }

    /// Work that records it is about to be submitted, or was just submitted: what was answered in between is of
    /// the record before.
    pub(crate) fn note_record(&self) {
        *lock(&self.captured) = None;
        self.recorded.store(true, Relaxed);
        self.records.fetch_add(1, Release);
    }

    /// An attribute of a launch names it. The launch may be, or become, a node of a graph, which records the event whenever
    /// the graph is launched.
    pub(crate) fn note_in_attribute(&self) {
        self.note_record();
        self.note_in_graph();
    }

    /// Whether its last record is known to have been reached; without a question to the worker.
    fn is_known_reached(&self) -> bool {
        let records = self.records.load(Acquire);
        // Other programs may have recorded a shared one since.
        let is_own = self.flags.load(Relaxed) & INTERPROCESS == 0;
        is_own && records != 0 && self.reached.load(Acquire) == records
    }

    /// A graph that names it goes to the worker.
    pub(crate) fn note_in_graph(&self) {
        self.in_graph.store(true, Relaxed);
    }

    /// The worker's event, if nothing that was done with it matters any more.
    fn idle(&self) -> Option<IdleEvent> {
        let flags = self.flags.load(Relaxed);
        let is_reached = self.records.load(Acquire) == 0 || self.is_known_reached();
        let is_free = is_reached && flags & INTERPROCESS == 0 && !self.in_graph.load(Relaxed);
        is_free.then(|| IdleEvent {
            epoch: self.epoch.load(Acquire),
            is_timed: flags & DISABLE_TIMING == 0,
            wire: self.wire(),
        })
    }

    /// Before a stream waits for it: an event of another program is waited for here, since the device knows nothing of
    /// that program's work.
    pub(crate) fn wait_if_imported(&self, state: &State) -> Answer {
        if self.flags.load(Relaxed) & IMPORTED == 0 {
            return Ok(());
        }
        let event = self.wire();
        let done = state.client.call(&EventSynchronize { event });
        self.context()?.checked(done).map(drop)
    }
}

fn new_event(context: &'static Context, wire: u64, flags: u32) -> &'static Event {
    POOL.take(EventState::default, |event| {
        let context_pointer = std::ptr::from_ref(context).cast_mut();
        event.context.store(context_pointer, Relaxed);
        event.wire.store(wire, Relaxed);
        event.flags.store(flags, Relaxed);
        event.recorded.store(false, Relaxed);
        event.records.store(0, Relaxed);
        event.reached.store(0, Relaxed);
        event.in_graph.store(false, Relaxed);
        *lock(&event.captured) = None;
        event.epoch.store(context.epoch(), Release);
    })
}

/// An event of another program, which the worker has under this handle.
pub(crate) fn open_event(context: &'static Context, wire: u64) -> &'static Event {
    new_event(context, wire, INTERPROCESS | DISABLE_TIMING | IMPORTED)
}

/// An event that other programs can have.
///
/// # Safety
/// The program's handle.
pub(crate) unsafe fn shareable_event(handle: Handle) -> Answer<(&'static Event, &'static Context)> {
    // SAFETY: our contract.
    let (event, context) = unsafe { event_of(handle)? };
    match event.flags.load(Relaxed) & INTERPROCESS {
        0 => bad_handle(),
        _ => Ok((event, context)),
    }
}

unsafe fn event_of(handle: Handle) -> Answer<(&'static Event, &'static Context)> {
    // SAFETY: the program's handle.
    let event = unsafe { Event::find(handle) }.ok_or(Code(CuResult::InvalidHandle as u32))?;
    Ok((event, event.context()?))
}

fn record(event: &'static Event, stream: &'static Stream, flags: u32) -> Answer {
    if flags & !event_use_flags::ALL != 0 {
        return invalid();
    }
    let state = state()?;
    let context = stream.context()?;
    event.context()?;
    if stream.capturing.load(Acquire) {
        if flags & event_use_flags::EXTERNAL != 0 {
            return capture::record(stream, Op::EventRecord(event));
        }
        *lock(&event.captured) = capture::mark(stream)?;
        return Ok(());
    }
    capture::forbid_legacy(stream)?;
    event.note_record();
    let request = EventRecord {
        event: event.wire(),
        stream: stream.wire(),
    };
    let posted = state.client.post(&request, &[]);
    event.note_record();
    context.checked(posted)
}

/// Nobody can ask about an event whose last record was captured, also when the capture is over: the driver
/// then calls it a wrong value.
fn refuse_captured(event: &Event) -> Answer {
    match &*lock(&event.captured) {
        Some(mark) if !mark.is_active() => Err(CuResult::InvalidValue.into()),
        Some(_) => Err(CuResult::CapturedEvent.into()),
        None => Ok(()),
    }
}

/// What it takes to ask about an event: the state, the event, its context, and how often it has been recorded.
type Asked = (&'static State, &'static Event, &'static Context, u64);

/// An event that is not known to have been reached.
///
/// # Safety
/// As [`event_of`].
unsafe fn unreached(event: Handle) -> Answer<Option<Asked>> {
    let state = state()?;
    // SAFETY: our contract.
    let (event, context) = unsafe { event_of(event) }?;
    context.check(state)?;
    refuse_captured(event)?;
    if event.is_known_reached() {
        return Ok(None);
    }
    Ok(Some((state, event, context, event.records.load(Acquire))))
}

driver! {
    fn event_create(out: *mut Handle, flags: u32) {
        let needs_untimed = flags & (INTERPROCESS | DISABLE_TIMING) == INTERPROCESS;
        if out.is_null() || flags & !event_flags::ALL != 0 || needs_untimed {
            return invalid();
        }
        let (state, context) = current()?;
        let (is_own, is_timed) = (flags & INTERPROCESS == 0, flags & DISABLE_TIMING == 0);
        let idle = if is_own { take_idle(context, is_timed) } else { None };
        let wire = match idle {
            Some(wire) => wire,
            None => {
                let made = match is_own {
                    true => state.client.call(&EventCreate { context: context.wire(), disable_timing: !is_timed }),
                    false => state.client.call(&EventCreateShared { context: context.wire() }),
                };
                context.checked(made)?.value
            }
        };
        let event = new_event(context, wire, flags).handle();
        objects::made(ObjectKind::Event, event as u64, 0, context.epoch());
        put(out, event)
    }

    fn event_destroy(handle: Handle) {
        let state = state()?;
        let Some(event) = Event::find(handle) else {
            return bad_handle();
        };
        let (alive, wire) = (event.context(), event.wire());
        let idle = event.idle();
        if !POOL.give(event) {
            return bad_handle();
        }
        objects::gone(ObjectKind::Event, handle as u64);
        let context = alive?;
        if idle.is_some_and(keep_idle) {
            return Ok(());
        }
        context.checked(state.client.post(&EventDestroy { event: wire }, &[]))
    }

    fn event_record<const PT>(event: Handle, stream: Handle) {
        let (event, _) = event_of(event)?;
        let (_, _, stream) = resolve::<PT>(stream)?;
        record(event, stream, 0)
    }

    fn event_record_with_flags<const PT>(event: Handle, stream: Handle, flags: u32) {
        let (event, _) = event_of(event)?;
        let (_, _, stream) = resolve::<PT>(stream)?;
        record(event, stream, flags)
    }

    fn event_query(event: Handle) {
        let Some((state, event, context, records)) = unreached(event)? else {
            return Ok(());
        };
        let reached = context.checked(state.client.call(&EventQuery { event: event.wire() }))?;
        if !reached.value {
            return Err(CuResult::NotReady.into());
        }
        event.reached.store(records, Release);
        managed_variables::pull(state);
        context.check(state)
    }

    fn event_synchronize(event: Handle) {
        let Some((state, event, context, records)) = unreached(event)? else {
            return Ok(());
        };
        let done = state.client.wait(&EventSynchronize { event: event.wire() });
        state.waited();
        context.checked(done)?;
        event.reached.store(records, Release);
        context.check(state)
    }

    fn event_elapsed(out: *mut f32, start: Handle, end: Handle) {
        let state = state()?;
        let ((start, _), (end, context)) = (event_of(start)?, event_of(end)?);
        let no_timing = [start, end].iter().any(|event| {
            event.flags.load(Relaxed) & DISABLE_TIMING != 0 || !event.recorded.load(Relaxed)
        });
        if no_timing {
            return bad_handle();
        }
        let request = EventElapsed { start: start.wire(), end: end.wire() };
        put(out, context.checked(state.client.call(&request))?.value)
    }
}

entries! {
    cuEventCreate = event_create;
    cuEventDestroy = event_destroy;
    cuEventDestroy_v2 = event_destroy;
    cuEventQuery = event_query;
    cuEventSynchronize = event_synchronize;
    cuEventElapsedTime = event_elapsed;
    cuEventElapsedTime_v2 = event_elapsed;
}

stream_entries! {
    cuEventRecord, cuEventRecord_ptsz = event_record;
    cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz = event_record_with_flags;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached() -> &'static Event {
        let event = POOL.take(EventState::default, |event| {
            event.in_graph.store(false, Relaxed);
            event.flags.store(0, Relaxed);
        });
        event.note_record();
        answered_that_it_was_reached(event);
        event
    }

    fn answered_that_it_was_reached(event: &Event) {
        event.reached.store(event.records.load(Acquire), Release);
    }

    #[test]
    fn an_event_that_a_graph_may_record_again_is_not_used_for_another_one() {
        assert!(reached().idle().is_some());
        for note in [Event::note_in_graph, Event::note_in_attribute] {
            let event = reached();
            note(event);
            answered_that_it_was_reached(event);
            assert!(event.idle().is_none());
        }
    }
}
