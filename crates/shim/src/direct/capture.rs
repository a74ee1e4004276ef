//! Knows when streams are being captured: such a stream is never made to wait, and nothing waits for a context
//! in which one is.
//!
//! ```text
//!   begin:  count ── wait for waits of our own to end ── driver
//!   drain:  say that it waits ── captures counted? ── no: driver
//!                                                 └─ yes: not now
//! ```
//! Either sees the other, so that a wait of ours never breaks a capture that begins at the same moment.

use std::ffi::c_void;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mica_cuda_abi::{CuResult, CuStatus, Handle, Symbol, function};

use super::driver::real;
use super::state::page;
use super::submission::LEASES;
use super::{context, graphs, streams};

const STATUS_NONE: u32 = 0;
/// Longest time that a capture waits for a wait of ours: work that never ends must not hold it for good.
const PATIENCE: Duration = Duration::from_secs(2);

/// Streams under capture, with their contexts.
static OPEN: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
/// Waits of our own that go on now.
static WAITS: AtomicU32 = AtomicU32::new(0);

fn open() -> MutexGuard<'static, Vec<(usize, usize)>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether any stream of the process is being captured.
pub(crate) fn any() -> bool {
    page().is_some_and(|page| page.client.captures.load(SeqCst) > 0)
}

/// While this lives no capture begins.
pub(crate) struct HeldOff(());

impl Drop for HeldOff {
    fn drop(&mut self) {
        WAITS.fetch_sub(1, SeqCst);
    }
}

/// Keeps captures from beginning; `None` if there is one.
pub(crate) fn hold_off() -> Option<HeldOff> {
    WAITS.fetch_add(1, SeqCst);
    let held = HeldOff(());
    (!any()).then_some(held)
}

/// Whether the stream a call means is being captured. Costs nothing while none is.
#[inline]
pub(crate) fn is_capturing(symbol: Symbol, stream: Handle) -> bool {
    any() && ask(symbol, stream)
}

#[cold]
fn ask(symbol: Symbol, stream: Handle) -> bool {
    let stream = streams::own_handle(symbol, stream);
    let is_capturing = real!(cuStreamIsCapturing);
    let mut status = STATUS_NONE;
    // SAFETY: the program's stream, and room for the answer.
    let result = unsafe { is_capturing(stream, &mut status) };
    // The legacy stream cannot be asked while another is captured; launching on it fails anyway.
    result != 0 || status != STATUS_NONE
}

/// A call that begins a capture.
fn beginning(symbol: Symbol, stream: Handle, call: impl FnOnce() -> CuStatus) -> CuStatus {
    let Some(page) = page() else {
        return call();
    };
    page.client.captures.fetch_add(1, SeqCst);
    let since = Instant::now();
    while WAITS.load(SeqCst) > 0 && since.elapsed() < PATIENCE && !LEASES.is_stuck() {
        std::thread::sleep(Duration::from_micros(20));
    }
    let status = call();
    match status {
        0 => {
            let stream = streams::own_handle(symbol, stream) as usize;
            open().push((stream, context::owner()));
        }
        _ => drop(page.client.captures.fetch_sub(1, SeqCst)),
    }
    status
}

/// Captures of these streams are over; how many are left, if any was.
fn over(mut ended: impl FnMut(&(usize, usize)) -> bool) -> Option<usize> {
    let mut open = open();
    let before = open.len();
    open.retain(|capture| !ended(capture));
    let over = before - open.len();
    if let (Some(page), 1..) = (page(), over) {
        page.client.captures.fetch_sub(over as u32, SeqCst);
        return Some(open.len());
    }
    None
}

/// A context is gone, and its streams with it.
pub(crate) fn context_ended(context: usize) {
    over(|(_, owner)| *owner == context);
}

/// `cuStreamDestroy`: nobody can end the capture of a stream that is gone.
pub(crate) unsafe fn stream_destroyed(
    _: Symbol,
    real: function::cuStreamDestroy,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's argument.
    let status = unsafe { real(stream) };
    if status == 0 && any() {
        over(|(captured, _)| *captured == stream as usize);
    }
    status
}

/// `cuStreamBeginCapture`.
pub(crate) unsafe fn begin_v1(
    symbol: Symbol,
    real: function::cuStreamBeginCapture,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's argument.
    beginning(symbol, stream, || unsafe { real(stream) })
}

/// `cuStreamBeginCapture_v2`.
pub(crate) unsafe fn begin(
    symbol: Symbol,
    real: function::cuStreamBeginCapture_v2,
    stream: Handle,
    mode: u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    beginning(symbol, stream, || unsafe { real(stream, mode) })
}

/// `cuStreamBeginCaptureToGraph`.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn begin_to_graph(
    symbol: Symbol,
    real: function::cuStreamBeginCaptureToGraph,
    stream: Handle,
    graph: Handle,
    needs: *const Handle,
    data: *const c_void,
    count: usize,
    mode: u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    beginning(symbol, stream, || unsafe {
        real(stream, graph, needs, data, count, mode)
    })
}

/// `cuStreamBeginRecaptureToGraph`.
pub(crate) unsafe fn begin_recapture(
    symbol: Symbol,
    real: function::cuStreamBeginRecaptureToGraph,
    stream: Handle,
    mode: u32,
    graph: Handle,
    callback: *const c_void,
    user: *mut c_void,
) -> CuStatus {
    // SAFETY: the program's arguments.
    beginning(symbol, stream, || unsafe {
        real(stream, mode, graph, callback, user)
    })
}

/// `cuStreamEndCapture`: an error other than "not capturing" ends the capture too, also from the wrong thread.
pub(crate) unsafe fn end(
    symbol: Symbol,
    real: function::cuStreamEndCapture,
    stream: Handle,
    graph: *mut Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(stream, graph) };
    let goes_on = [
        CuResult::IllegalState,
        CuResult::InvalidValue,
        CuResult::InvalidHandle,
        CuResult::InvalidContext,
        // Asked of a stream that only joined: the capture goes on, broken, until its own stream ends it.
        CuResult::StreamCaptureUnmatched,
    ];
    if goes_on.iter().any(|code| *code as CuStatus == status) {
        return status;
    }
    let stream = streams::own_handle(symbol, stream) as usize;
    let mut found = false;
    let left = over(|(captured, _)| *captured == stream && !std::mem::replace(&mut found, true));
    let others = left.is_some_and(|left| left > 0);
    if status != 0 {
        graphs::capture_failed(others);
    } else if !graph.is_null() {
        // SAFETY: the driver has just written it.
        graphs::captured(unsafe { graph.read() }, others);
    }
    status
}
