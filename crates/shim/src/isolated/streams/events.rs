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
    /// Where in a capture it was recorded last.
    pub(crate) captured: Mutex<Option<Captured>>,
}

impl Kind for EventState {
    const MAGIC: u64 = 0x4d49_4341_4556_5431;
}

static POOL: Pool<EventState> = Pool::new();

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

    /// Whether its last record is known to have been reached; without a question to the worker.
    fn is_known_reached(&self) -> bool {
        let records = self.records.load(Acquire);
        // Other programs may have recorded a shared one since.
        let is_own = self.flags.load(Relaxed) & INTERPROCESS == 0;
        is_own && records != 0 && self.reached.load(Acquire) == records
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
        let made = match flags & INTERPROCESS {
            0 => state.client.call(&EventCreate { context: context.wire(), disable_timing: flags & DISABLE_TIMING != 0 }),
            _ => state.client.call(&EventCreateShared { context: context.wire() }),
        };
        let wire = context.checked(made)?.value;
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
        if !POOL.give(event) {
            return bad_handle();
        }
        objects::gone(ObjectKind::Event, handle as u64);
        alive?.checked(state.client.post(&EventDestroy { event: wire }, &[]))
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
