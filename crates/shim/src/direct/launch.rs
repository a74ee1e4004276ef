//! Submissions pass the gate.
//!
//! With the gate open that is one load and one count. Under leases a thread waits for its turn, and
//! no more is queued than can be finished soon after the turn ends.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

use mica_cuda_abi::{CuStatus, Handle, Symbol};
use mica_limits::monotonic_ns;
use mica_wire::host::page::gate;

use super::state::{Direct, page, state};
use super::{capture, context, drain, host_waits, streams, sync};

const DEPTH_MIN: u32 = 2;
const DEPTH_MAX: u32 = 1024;
/// A lease whose work took longer than this to finish had too much queued.
const DRAIN_LONG_NS: u64 = 3_000_000;
const DRAIN_SHORT_NS: u64 = 1_000_000;

/// Submissions that may be outstanding under a lease.
static DEPTH: AtomicU32 = AtomicU32::new(16);
/// Submissions since the last wait, under leases.
static OUTSTANDING: AtomicU32 = AtomicU32::new(0);
/// Whether the depth was reached since the last hand-over.
static DEPTH_REACHED: AtomicBool = AtomicBool::new(false);

/// Lets one submission through, now or when it may go.
#[inline(always)]
pub(crate) fn submit(symbol: Symbol, stream: Handle) {
    let Some(page) = page() else {
        return;
    };
    if gate::state(page.lease.gate.load(Relaxed)) != gate::OPEN {
        wait_for_turn(symbol, stream);
    }
    // Two threads may lose a count between them; nothing is decided by one launch.
    streams::used(symbol, stream);
    let launches = &page.counters.launches;
    launches.store(launches.load(Relaxed).wrapping_add(1), Relaxed);
}

#[cold]
fn wait_for_turn(symbol: Symbol, stream: Handle) {
    // Launch hooks are entered without a guard, so that they cost nothing; here is theirs.
    let _ = std::panic::catch_unwind(|| take_turn(symbol, stream as usize));
}

fn take_turn(symbol: Symbol, stream: usize) {
    let Some(direct) = state() else {
        return;
    };
    // What is captured runs nowhere yet, and waiting could end the capture.
    if capture::is_capturing(symbol, stream as Handle) {
        return;
    }
    loop {
        let lease = direct.gate.enter(&mut |sequence| {
            let over = page().is_none_or(sync::finished);
            if !over {
                drain::lease_ended(sequence);
            }
            over
        });
        if lease.is_none() || OUTSTANDING.fetch_add(1, Relaxed) + 1 < DEPTH.load(Relaxed) {
            return;
        }
        DEPTH_REACHED.store(true, Relaxed);
        if !wait_for_queue(direct) {
            return;
        }
        // The lease may have ended, and been given back by another thread, while this one waited: what
        // went now would run in somebody else's time.
    }
}

/// Waits while as much is queued as may be, for the queue or the end of the lease; false if nobody should wait for
/// it: then the submission goes with the rest.
fn wait_for_queue(direct: &Direct) -> bool {
    if host_waits::seen() || drain::is_stuck() || capture::any() {
        return false;
    }
    let end_ns = direct.link.page().lease.lease_end_ns.load(Relaxed);
    let left_ns = end_ns.saturating_sub(monotonic_ns());
    let done = drain::wait(drain::ask(), left_ns.min(drain::PATIENCE_NS));
    done || !drain::is_stuck()
}

/// Waits for everything submitted, however long that takes, and learns from it how much may be queued.
/// False if that was not possible. Never on a thread of the program.
pub(crate) fn drain() -> bool {
    let begun = monotonic_ns();
    if !synchronize() {
        return false;
    }
    let took = monotonic_ns() - begun;
    let depth = DEPTH.load(Relaxed);
    let reached = DEPTH_REACHED.swap(false, Relaxed);
    if took > DRAIN_LONG_NS {
        DEPTH.store((depth / 2).max(DEPTH_MIN), Relaxed);
    } else if took < DRAIN_SHORT_NS && reached {
        DEPTH.store((depth * 2).min(DEPTH_MAX), Relaxed);
    }
    true
}

/// Everything submitted so far has finished.
#[inline]
pub(crate) fn drained() {
    if OUTSTANDING.load(Relaxed) != 0 {
        OUTSTANDING.store(0, Relaxed);
    }
}

/// Waits for the work of all contexts; false if it may not be waited for now.
fn synchronize() -> bool {
    // Waiting for a context while one of its streams is captured would end the capture.
    let Some(_none_begins) = capture::hold_off() else {
        return false;
    };
    let (Some(page), Some(direct)) = (page(), state()) else {
        return false;
    };
    let (before, streams) = (sync::launches(page), streams::seen());
    page.counters.syncing.fetch_add(1, Relaxed);
    let done = context::synchronize_all(direct);
    page.counters.syncing.fetch_sub(1, Relaxed);
    drained();
    sync::waited(page, before, streams);
    done
}

/// `cuLaunchCooperativeKernel`.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn cooperative(
    symbol: Symbol,
    real: unsafe extern "C" fn(
        Handle,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        u32,
        Handle,
        *mut *mut c_void,
    ) -> CuStatus,
    function: Handle,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: Handle,
    params: *mut *mut c_void,
) -> CuStatus {
    submit(symbol, stream);
    // SAFETY: the program's arguments.
    unsafe { real(function, gx, gy, gz, bx, by, bz, shared, stream, params) }
}

/// `cuLaunchCooperativeKernelMultiDevice`.
pub(crate) unsafe fn cooperative_many(
    symbol: Symbol,
    real: unsafe extern "C" fn(*mut c_void, u32, u32) -> CuStatus,
    list: *mut c_void,
    count: u32,
    flags: u32,
) -> CuStatus {
    submit(symbol, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    unsafe { real(list, count, flags) }
}

/// `cuLaunch`.
pub(crate) unsafe fn legacy(
    symbol: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    function: Handle,
) -> CuStatus {
    submit(symbol, std::ptr::null_mut());
    // SAFETY: the program's argument.
    unsafe { real(function) }
}

/// `cuLaunchGrid`.
pub(crate) unsafe fn legacy_grid(
    symbol: Symbol,
    real: unsafe extern "C" fn(Handle, i32, i32) -> CuStatus,
    function: Handle,
    width: i32,
    height: i32,
) -> CuStatus {
    submit(symbol, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    unsafe { real(function, width, height) }
}

/// `cuLaunchGridAsync`.
pub(crate) unsafe fn legacy_grid_async(
    symbol: Symbol,
    real: unsafe extern "C" fn(Handle, i32, i32, Handle) -> CuStatus,
    function: Handle,
    width: i32,
    height: i32,
    stream: Handle,
) -> CuStatus {
    submit(symbol, stream);
    // SAFETY: the program's arguments.
    unsafe { real(function, width, height, stream) }
}
