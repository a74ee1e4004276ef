//! Waits and queries of the program, which tell when it has nothing submitted.

use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuStatus, Handle, Symbol, function};
use mica_wire::host::page::ClientPage;

use super::state::{page, state};
use super::submission::LEASES;
use super::{context, reconcile, streams};

/// `cuStreamSynchronize`.
pub(crate) unsafe fn stream(
    symbol: Symbol,
    real: function::cuStreamSynchronize,
    stream: Handle,
) -> CuStatus {
    let everything = || streams::all_on(symbol, stream);
    // SAFETY: the program's argument.
    waiting(everything, || unsafe { real(stream) })
}

/// `cuCtxSynchronize`.
pub(crate) unsafe fn whole_context(_: Symbol, real: function::cuCtxSynchronize) -> CuStatus {
    // SAFETY: takes no arguments.
    waiting(context::current_is_only, || unsafe { real() })
}

/// `cuEventSynchronize`.
pub(crate) unsafe fn event(
    _: Symbol,
    real: function::cuEventSynchronize,
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
    reconcile::stale();
    if status == 0 {
        LEASES.event_done(page, event as u64);
    }
    status
}

/// `cuStreamQuery`.
pub(crate) unsafe fn stream_query(
    symbol: Symbol,
    real: function::cuStreamQuery,
    stream: Handle,
) -> CuStatus {
    let before = page().map(launches);
    // SAFETY: the program's argument.
    let status = unsafe { real(stream) };
    if let (Some(page), Some(before), 0) = (page(), before, status) {
        LEASES.all_done(page, before, streams::all_on(symbol, stream));
    }
    status
}

/// `cuEventQuery`.
pub(crate) unsafe fn event_query(
    _: Symbol,
    real: function::cuEventQuery,
    event: Handle,
) -> CuStatus {
    // SAFETY: the program's argument.
    let status = unsafe { real(event) };
    if let (Some(page), 0) = (page(), status) {
        LEASES.event_done(page, event as u64);
    }
    status
}

/// `cuEventRecord`.
pub(crate) unsafe fn record(
    symbol: Symbol,
    real: function::cuEventRecord,
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
    real: function::cuEventRecordWithFlags,
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
    reconcile::stale();
    if status == 0 {
        if let Some(direct) = state() {
            context::notice(direct);
        }
        LEASES.all_done(page, before, everything);
        if everything && launches(page) == before {
            streams::nothing_runs(used);
        }
    }
    status
}

fn launches(page: &ClientPage) -> u64 {
    page.counters.launches.load(Relaxed)
}

fn recorded(event: Handle, everything: bool) {
    if let Some(page) = page() {
        LEASES.recorded(page, event as u64, everything);
    }
}
