//! Counts the moments at which the process has nothing submitted.
//!
//! Many of them after few launches each is what a bursty program looks like to the daemon.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuStatus, Handle, Symbol};
use mica_wire::host::page::ClientPage;

use super::pools::EPOCH;
use super::state::{page, state};
use super::{context, launch};

/// The event recorded last, and the launches there were then.
static LAST_EVENT: AtomicU64 = AtomicU64::new(0);
static LAST_EVENT_LAUNCHES: AtomicU64 = AtomicU64::new(0);
/// Launches at the last drain: polling again after it is no further drain.
static LAST_DRAIN: AtomicU64 = AtomicU64::new(0);

/// `cuStreamSynchronize`.
pub(crate) unsafe fn stream(
    _: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's argument.
    waiting(|| unsafe { real(stream) })
}

/// `cuCtxSynchronize`.
pub(crate) unsafe fn whole_context(
    _: Symbol,
    real: unsafe extern "C" fn() -> CuStatus,
) -> CuStatus {
    // SAFETY: takes no arguments.
    waiting(|| unsafe { real() })
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
    EPOCH.fetch_add(1, Relaxed);
    if status == 0 {
        event_done(page, event);
    }
    status
}

/// `cuStreamQuery`.
pub(crate) unsafe fn stream_query(
    _: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    stream: Handle,
) -> CuStatus {
    let before = page().map(launches);
    // SAFETY: the program's argument.
    let status = unsafe { real(stream) };
    if let (Some(page), 0) = (page(), status) {
        all_done(page, before);
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
    _: Symbol,
    real: unsafe extern "C" fn(Handle, Handle) -> CuStatus,
    event: Handle,
    stream: Handle,
) -> CuStatus {
    recorded(event);
    // SAFETY: the program's arguments.
    unsafe { real(event, stream) }
}

/// `cuEventRecordWithFlags`.
pub(crate) unsafe fn record_with_flags(
    _: Symbol,
    real: unsafe extern "C" fn(Handle, Handle, u32) -> CuStatus,
    event: Handle,
    stream: Handle,
    flags: u32,
) -> CuStatus {
    recorded(event);
    // SAFETY: the program's arguments.
    unsafe { real(event, stream, flags) }
}

/// A call that waits for submitted work.
pub(crate) fn waiting(call: impl FnOnce() -> CuStatus) -> CuStatus {
    let Some(page) = page() else {
        return call();
    };
    let before = launches(page);
    page.counters.syncing.fetch_add(1, Relaxed);
    let status = call();
    page.counters.syncing.fetch_sub(1, Relaxed);
    EPOCH.fetch_add(1, Relaxed);
    if status == 0 {
        if let Some(direct) = state() {
            context::notice(direct);
        }
        all_done(page, Some(before));
    }
    status
}

pub(crate) fn launches(page: &ClientPage) -> u64 {
    page.counters.launches.load(Relaxed)
}

fn recorded(event: Handle) {
    if let Some(page) = page() {
        LAST_EVENT.store(event as u64, Relaxed);
        LAST_EVENT_LAUNCHES.store(launches(page), Relaxed);
    }
}

fn event_done(page: &ClientPage, event: Handle) {
    if LAST_EVENT.load(Relaxed) == event as u64 {
        all_done(page, Some(LAST_EVENT_LAUNCHES.load(Relaxed)));
    }
}

/// Everything of the first `before` launches is done: a drain if none came since.
fn all_done(page: &ClientPage, before: Option<u64>) {
    let now = launches(page);
    if before == Some(now) && LAST_DRAIN.swap(now, Relaxed) != now {
        launch::drained();
        let drains = &page.counters.drains;
        drains.store(drains.load(Relaxed).wrapping_add(1), Relaxed);
    }
}

/// A wait of our own has seen all of the first `before` launches done.
pub(crate) fn waited(page: &ClientPage, before: u64) {
    if launches(page) == before {
        LAST_DRAIN.store(before, Relaxed);
    }
}

/// Whether nothing has been submitted since the last drain.
pub(crate) fn idle(page: &ClientPage) -> bool {
    LAST_DRAIN.load(Relaxed) == launches(page) && page.counters.syncing.load(Relaxed) == 0
}
