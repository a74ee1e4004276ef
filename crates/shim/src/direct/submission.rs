//! Submissions pass the gate.
//!
//! With the gate open that is one load and one count. Under leases a thread waits for its turn, and
//! no more is queued than can be finished soon after the turn ends.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuStatus, Handle, Symbol, function};
use mica_limits::Leases;
use mica_wire::host::page::gate;

use super::state::{page, state};
use super::{capture, context, host_waits, streams};

/// This process's part in leases.
pub(crate) static LEASES: Leases = Leases::new();

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
    let patient = || !host_waits::seen() && !capture::any();
    LEASES.take_turn(&direct.gate, &patient, &|| false);
}

/// Waits for the work of all contexts, however long that takes; false if that is not possible now. Never on a thread
/// of the program.
pub(crate) fn drain() -> bool {
    // Waiting for a context while one of its streams is captured would end the capture.
    let Some(_none_begins) = capture::hold_off() else {
        return false;
    };
    let (Some(page), Some(direct)) = (page(), state()) else {
        return false;
    };
    let streams = streams::seen();
    let waited = LEASES.wait_for_all(page, || context::synchronize_all(direct));
    if waited.nothing_since {
        streams::nothing_runs(streams);
    }
    waited.done
}

/// `cuLaunchCooperativeKernel`.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn cooperative(
    symbol: Symbol,
    real: function::cuLaunchCooperativeKernel,
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
    real: function::cuLaunchCooperativeKernelMultiDevice,
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
    real: function::cuLaunch,
    function: Handle,
) -> CuStatus {
    submit(symbol, std::ptr::null_mut());
    // SAFETY: the program's argument.
    unsafe { real(function) }
}

/// `cuLaunchGrid`.
pub(crate) unsafe fn legacy_grid(
    symbol: Symbol,
    real: function::cuLaunchGrid,
    function: Handle,
    width: i32,
    height: i32,
) -> CuStatus {
    submit(symbol, std::ptr::null_mut());
    // SAFETY: the program's arguments.
    unsafe { real(function, width, height) }
}
