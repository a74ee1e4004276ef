//! Counts the moments at which the process has nothing submitted, or next to nothing.
//!
//! Many of them after few launches each is what a bursty program looks like to the daemon. One submission
//! behind the one that runs is next to nothing: the GPU then ends the process's turn when the running one
//! is done, whatever its slice (two 4 ms kernels in flight got 8 ms of a 14 ms slice, three got all of it).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use mica_cuda_abi::{CuStatus, Handle, Symbol};
use mica_wire::host::page::ClientPage;

use super::state::{page, state};
use super::{books, context, launch, streams};

/// Events recorded lately, each in the place its address gives, and the launches there were then. Two
/// events may share a place: then one of them tells nothing.
static RECORDED: [Recorded; PLACES] = [const { Recorded::none() }; PLACES];
const PLACES: usize = 64;
/// Most submissions outstanding that are next to nothing.
const SHALLOW: u64 = 1;
/// Launches at the last drain: polling again after it is no further drain.
static LAST_DRAIN: AtomicU64 = AtomicU64::new(0);
/// Launches at the last moment with next to nothing submitted.
static LAST_SHALLOW: AtomicU64 = AtomicU64::new(0);

struct Recorded {
    event: AtomicU64,
    launches: AtomicU64,
    /// All of them were on its stream.
    everything: AtomicBool,
}

impl Recorded {
    const fn none() -> Self {
        Self {
            event: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            everything: AtomicBool::new(false),
        }
    }

    fn place(event: Handle) -> &'static Self {
        // Handles are addresses of objects of some hundred bytes.
        let mixed = (event as u64 >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &RECORDED[(mixed >> 58) as usize % PLACES]
    }
}

/// `cuStreamSynchronize`.
pub(crate) unsafe fn stream(
    symbol: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    stream: Handle,
) -> CuStatus {
    let everything = || streams::all_on(symbol, stream);
    // SAFETY: the program's argument.
    waiting(everything, || unsafe { real(stream) })
}

/// `cuCtxSynchronize`.
pub(crate) unsafe fn whole_context(
    _: Symbol,
    real: unsafe extern "C" fn() -> CuStatus,
) -> CuStatus {
    // SAFETY: takes no arguments.
    waiting(context::current_is_only, || unsafe { real() })
}

/// `cuEventSynchronize`.
pub(crate) unsafe fn event(
    _: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    event: Handle,
) -> CuStatus {
    let Some(page) = page() else {
        // SAFETY: the program's argument.
        return unsafe { real(event) };
    };
    page.counters.syncing.fetch_add(1, Relaxed);
    // SAFETY: the program's argument.
    let status = unsafe { real(event) };
    page.counters.syncing.fetch_sub(1, Relaxed);
    books::stale();
    if status == 0 {
        event_done(page, event);
    }
    status
}

/// `cuStreamQuery`.
pub(crate) unsafe fn stream_query(
    symbol: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    stream: Handle,
) -> CuStatus {
    let before = page().map(launches);
    // SAFETY: the program's argument.
    let status = unsafe { real(stream) };
    if let (Some(page), Some(before), 0) = (page(), before, status) {
        all_done(page, before, streams::all_on(symbol, stream));
    }
    status
}

/// `cuEventQuery`.
pub(crate) unsafe fn event_query(
    _: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    event: Handle,
) -> CuStatus {
    // SAFETY: the program's argument.
    let status = unsafe { real(event) };
    if let (Some(page), 0) = (page(), status) {
        event_done(page, event);
    }
    status
}

/// `cuEventRecord`.
pub(crate) unsafe fn record(
    symbol: Symbol,
    real: unsafe extern "C" fn(Handle, Handle) -> CuStatus,
    event: Handle,
    stream: Handle,
) -> CuStatus {
    recorded(event, streams::all_on(symbol, stream));
    // SAFETY: the program's arguments.
    unsafe { real(event, stream) }
}

/// `cuEventRecordWithFlags`.
pub(crate) unsafe fn record_with_flags(
    symbol: Symbol,
    real: unsafe extern "C" fn(Handle, Handle, u32) -> CuStatus,
    event: Handle,
    stream: Handle,
    flags: u32,
) -> CuStatus {
    recorded(event, streams::all_on(symbol, stream));
    // SAFETY: the program's arguments.
    unsafe { real(event, stream, flags) }
}

/// A call that waits for submitted work; `everything` tells whether for all there is.
pub(crate) fn waiting(
    everything: impl FnOnce() -> bool,
    call: impl FnOnce() -> CuStatus,
) -> CuStatus {
    let Some(page) = page() else {
        return call();
    };
    let (before, used, everything) = (launches(page), streams::seen(), everything());
    page.counters.syncing.fetch_add(1, Relaxed);
    let status = call();
    page.counters.syncing.fetch_sub(1, Relaxed);
    books::stale();
    if status == 0 {
        if let Some(direct) = state() {
            context::notice(direct);
        }
        all_done(page, before, everything);
        if everything && launches(page) == before {
            streams::nothing_runs(used);
        }
    }
    status
}

pub(crate) fn launches(page: &ClientPage) -> u64 {
    page.counters.launches.load(Relaxed)
}

fn recorded(event: Handle, everything: bool) {
    if let Some(page) = page() {
        let place = Recorded::place(event);
        place.event.store(event as u64, Relaxed);
        place.launches.store(launches(page), Relaxed);
        place.everything.store(everything, Relaxed);
    }
}

fn event_done(page: &ClientPage, event: Handle) {
    let place = Recorded::place(event);
    if place.event.load(Relaxed) != event as u64 {
        return;
    }
    let (before, now) = (place.launches.load(Relaxed), launches(page));
    match now.wrapping_sub(before) {
        0 => all_done(page, before, place.everything.load(Relaxed)),
        1..=SHALLOW if LAST_SHALLOW.swap(now, Relaxed) != now => count_drain(page),
        _ => {}
    }
}

/// The first `before` launches are done, all of them if `everything`, else those of one stream: a drain, as far
/// as the program can tell, if none came since.
fn all_done(page: &ClientPage, before: u64, everything: bool) {
    let now = launches(page);
    if before != now {
        return;
    }
    if LAST_DRAIN.swap(now, Relaxed) != now {
        count_drain(page);
    }
    if everything {
        page.counters.finished.store(now, Relaxed);
        launch::drained();
    }
}

fn count_drain(page: &ClientPage) {
    let drains = &page.counters.drains;
    drains.store(drains.load(Relaxed).wrapping_add(1), Relaxed);
}

/// A wait of our own has seen all of the first `before` launches done.
pub(crate) fn waited(page: &ClientPage, before: u64, streams: u64) {
    if launches(page) == before {
        LAST_DRAIN.store(before, Relaxed);
        page.counters.finished.store(before, Relaxed);
        streams::nothing_runs(streams);
    }
}

/// Whether it is certain that nothing submitted still runs.
pub(crate) fn finished(page: &ClientPage) -> bool {
    page.counters.finished.load(Relaxed) == launches(page)
}

/// Whether nothing has been submitted since the last drain, as far as the program's own waits tell.
pub(crate) fn idle(page: &ClientPage) -> bool {
    LAST_DRAIN.load(Relaxed) == launches(page) && page.counters.syncing.load(Relaxed) == 0
}
