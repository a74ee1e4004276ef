//! Knows when streams are being captured: such a stream is never made to wait.

use std::ffi::c_void;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use mica_cuda_abi::{CuResult, CuStatus, DefaultStream, Handle, Symbol};

use super::driver::real;
use super::graphs;
use super::state::page;

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD: Handle = 2 as Handle;
const STATUS_NONE: u32 = 0;

/// Whether any stream of the process is being captured.
pub(crate) fn any() -> bool {
    page().is_some_and(|page| page.client.captures.load(Relaxed) > 0)
}

/// Whether the stream a call means is being captured. Costs nothing while none is.
#[inline]
pub(crate) fn is_capturing(symbol: Symbol, stream: Handle) -> bool {
    any() && ask(symbol, stream)
}

#[cold]
fn ask(symbol: Symbol, stream: Handle) -> bool {
    let per_thread = symbol.entry().stream == DefaultStream::PerThread;
    let stream = if stream.is_null() && per_thread {
        PER_THREAD
    } else {
        stream
    };
    let is_capturing =
        real!(cuStreamIsCapturing as unsafe extern "C" fn(Handle, *mut u32) -> CuStatus);
    let mut status = STATUS_NONE;
    // SAFETY: the program's stream, and room for the answer.
    let result = unsafe { is_capturing(stream, &mut status) };
    // The legacy stream cannot be asked while another is captured; launching on it fails anyway.
    result != 0 || status != STATUS_NONE
}

fn begun(status: CuStatus) -> CuStatus {
    if let (Some(page), 0) = (page(), status) {
        page.client.captures.fetch_add(1, AcqRel);
    }
    status
}

/// `cuStreamBeginCapture`.
pub(crate) unsafe fn begin_v1(
    _: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's argument.
    begun(unsafe { real(stream) })
}

/// `cuStreamBeginCapture_v2`.
pub(crate) unsafe fn begin(
    _: Symbol,
    real: unsafe extern "C" fn(Handle, u32) -> CuStatus,
    stream: Handle,
    mode: u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    begun(unsafe { real(stream, mode) })
}

/// `cuStreamBeginCaptureToGraph`.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn begin_to_graph(
    _: Symbol,
    real: unsafe extern "C" fn(
        Handle,
        Handle,
        *const Handle,
        *const c_void,
        usize,
        u32,
    ) -> CuStatus,
    stream: Handle,
    graph: Handle,
    needs: *const Handle,
    data: *const c_void,
    count: usize,
    mode: u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    begun(unsafe { real(stream, graph, needs, data, count, mode) })
}

/// `cuStreamBeginRecaptureToGraph`.
pub(crate) unsafe fn begin_recapture(
    _: Symbol,
    real: unsafe extern "C" fn(Handle, u32, Handle, *const c_void, *mut c_void) -> CuStatus,
    stream: Handle,
    mode: u32,
    graph: Handle,
    callback: *const c_void,
    user: *mut c_void,
) -> CuStatus {
    // SAFETY: the program's arguments.
    begun(unsafe { real(stream, mode, graph, callback, user) })
}

/// `cuStreamEndCapture`: an error other than "not capturing" ends the capture too, also from the wrong thread.
pub(crate) unsafe fn end(
    _: Symbol,
    real: unsafe extern "C" fn(Handle, *mut Handle) -> CuStatus,
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
    if let Some(page) = page()
        && !goes_on.iter().any(|code| *code as CuStatus == status)
    {
        let ended = |captures: u32| captures.checked_sub(1);
        let before = page.client.captures.fetch_update(AcqRel, Relaxed, ended);
        if status == 0 && !graph.is_null() {
            // SAFETY: the driver has just written it.
            graphs::captured(unsafe { graph.read() }, before.is_ok_and(|count| count > 1));
        }
    }
    status
}
