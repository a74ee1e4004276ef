//! Stream capture: calls on a capturing stream become nodes of a graph.

use std::ffi::c_void;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use mica_cuda_abi::{CuResult, Handle};

use super::context::Context;
use super::events::Event;
use super::graph_ops::Op;
use super::graphs::{Graph, Node};
use super::state::state;
use super::streams::{Stream, resolve};
use super::support::{
    Answer, Code, bad_handle, driver, entries, get, invalid, lock, put, put_opt, stream_entries,
};

/// A capture that is going on.
pub(super) struct Capture {
    id: u64,
    graph: &'static Graph,
    origin: &'static Stream,
    mode: u32,
    thread: std::thread::ThreadId,
    broken: AtomicBool,
    over: AtomicBool,
    /// Streams that have joined, the origin first.
    streams: Mutex<Vec<&'static Stream>>,
}

/// A stream's part in a capture.
pub(super) struct StreamCapture {
    capture: Arc<Capture>,
    /// Nodes that the next one comes after.
    after: Vec<&'static Node>,
}

/// A point in a capture that an event stands for.
pub(super) struct Captured {
    capture: Arc<Capture>,
    after: Vec<&'static Node>,
}

impl Captured {
    pub(super) fn is_active(&self) -> bool {
        !self.capture.over.load(Acquire)
    }
}

/// Captures going on in the process, so that those who never capture pay one load.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static ALL: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

thread_local! {
    /// `cuThreadExchangeStreamCaptureMode`.
    static MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(GLOBAL) };
}

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

fn union(into: &mut Vec<&'static Node>, from: &[&'static Node]) {
    for node in from {
        if !into.iter().any(|known| std::ptr::eq(*known, *node)) {
            into.push(node);
        }
    }
}

/// Adds a node for a call on a capturing stream.
pub(super) fn record(stream: &'static Stream, op: Op) -> Answer {
    let mut slot = lock(&stream.capture);
    let Some(part) = slot.as_mut() else {
        return Err(CuResult::IllegalState.into());
    };
    if part.capture.broken.load(Acquire) {
        return Err(CuResult::StreamCaptureInvalidated.into());
    }
    let node = part.capture.graph.add(op, &part.after);
    part.after = vec![node];
    Ok(())
}

/// The graph that a capturing stream builds.
pub(super) fn graph_of(stream: &'static Stream) -> Answer<&'static Graph> {
    match lock(&stream.capture).as_ref() {
        Some(part) => Ok(part.capture.graph),
        None => Err(CuResult::IllegalState.into()),
    }
}

/// Breaks a capture by a call that cannot be captured.
pub(super) fn refuse(stream: &'static Stream) -> Answer {
    if let Some(part) = lock(&stream.capture).as_ref() {
        part.capture.broken.store(true, Release);
    }
    Err(CuResult::StreamCaptureUnsupported.into())
}

/// Where a capturing stream is now, for an event.
pub(super) fn mark(stream: &'static Stream) -> Answer<Option<Captured>> {
    let slot = lock(&stream.capture);
    match slot.as_ref() {
        Some(part) if part.capture.broken.load(Acquire) => {
            Err(CuResult::StreamCaptureInvalidated.into())
        }
        Some(part) => Ok(Some(Captured {
            capture: Arc::clone(&part.capture),
            after: part.after.clone(),
        })),
        None => Ok(None),
    }
}

/// Whether a wait for an event is a matter of captures: then it is done.
pub(super) fn joins(stream: &'static Stream, event: &'static Event) -> Answer<bool> {
    if ACTIVE.load(Acquire) == 0 {
        return Ok(false);
    }
    let captured = lock(&event.captured);
    let Some(captured) = captured.as_ref().filter(|captured| captured.is_active()) else {
        if stream.capturing.load(Acquire) {
            // Work outside cannot be waited for inside.
            if let Some(part) = lock(&stream.capture).as_ref() {
                part.capture.broken.store(true, Release);
            }
            return Err(CuResult::StreamCaptureIsolation.into());
        }
        return Ok(false);
    };
    let mut slot = lock(&stream.capture);
    match slot.as_mut() {
        Some(part) if !Arc::ptr_eq(&part.capture, &captured.capture) => {
            part.capture.broken.store(true, Release);
            captured.capture.broken.store(true, Release);
            return Err(CuResult::StreamCaptureMerge.into());
        }
        Some(part) => union(&mut part.after, &captured.after),
        None => {
            if stream.is_legacy() {
                captured.capture.broken.store(true, Release);
                return Err(CuResult::StreamCaptureImplicit.into());
            }
            *slot = Some(StreamCapture {
                capture: Arc::clone(&captured.capture),
                after: captured.after.clone(),
            });
            stream.capturing.store(true, Release);
            lock(&captured.capture.streams).push(stream);
        }
    }
    Ok(true)
}

/// Refuses to wait for a stream that captures.
pub(super) fn forbid_wait(stream: &'static Stream) -> Answer {
    if stream.capturing.load(Acquire) {
        return refuse(stream);
    }
    forbid_legacy(stream)
}

/// Refuses work on the legacy stream while a stream that it is ordered against captures.
#[inline]
pub(super) fn forbid_legacy(stream: &'static Stream) -> Answer {
    if ACTIVE.load(Acquire) == 0 || !stream.is_legacy() {
        return Ok(());
    }
    break_blocking(stream.context()?, CuResult::StreamCaptureImplicit)
}

/// Refuses to wait for a context in which a stream captures.
pub(super) fn forbid_implicit(context: &'static Context) -> Answer {
    if ACTIVE.load(Acquire) == 0 {
        return Ok(());
    }
    break_blocking(context, CuResult::StreamCaptureUnsupported)
}

fn break_blocking(context: &'static Context, error: CuResult) -> Answer {
    let mut refused = false;
    for capture in lock(&ALL).iter() {
        let of_context = |stream: &&'static Stream| {
            stream.is_blocking()
                && stream
                    .context()
                    .is_ok_and(|found| std::ptr::eq(found, context))
        };
        if lock(&capture.streams).iter().any(of_context) {
            capture.broken.store(true, Release);
            refused = true;
        }
    }
    match refused {
        true => Err(error.into()),
        false => Ok(()),
    }
}

/// Refuses calls that may wait behind the program's back while a capture forbids them.
pub(super) fn forbid_unsafe() -> Answer {
    if ACTIVE.load(Acquire) == 0 {
        return Ok(());
    }
    let mode = MODE.try_with(std::cell::Cell::get).unwrap_or(GLOBAL);
    if mode == RELAXED {
        return Ok(());
    }
    let here = std::thread::current().id();
    for capture in lock(&ALL).iter() {
        let applies = match capture.mode {
            GLOBAL => mode == GLOBAL || capture.thread == here,
            THREAD_LOCAL => capture.thread == here,
            _ => false,
        };
        if applies {
            capture.broken.store(true, Release);
            return Err(CuResult::StreamCaptureUnsupported.into());
        }
    }
    Ok(())
}

/// A stream is destroyed: its capture cannot end well.
pub(super) fn abandon(stream: &'static Stream) {
    let Some(part) = lock(&stream.capture).take() else {
        return;
    };
    stream.capturing.store(false, Release);
    part.capture.broken.store(true, Release);
    let is_origin = std::ptr::eq(part.capture.origin, stream);
    lock(&part.capture.streams).retain(|other| !std::ptr::eq(*other, stream));
    if is_origin {
        finish(&part.capture);
    }
}

fn finish(capture: &Arc<Capture>) {
    capture.over.store(true, Release);
    for stream in lock(&capture.streams).drain(..) {
        stream.capturing.store(false, Release);
        *lock(&stream.capture) = None;
    }
    let mut all = lock(&ALL);
    let before = all.len();
    all.retain(|other| !Arc::ptr_eq(other, capture));
    ACTIVE.fetch_sub(before - all.len(), AcqRel);
}

fn begin(
    stream: &'static Stream,
    mode: u32,
    graph: &'static Graph,
    after: Vec<&'static Node>,
) -> Answer {
    if mode > RELAXED {
        return invalid();
    }
    if stream.is_legacy() {
        return Err(CuResult::StreamCaptureUnsupported.into());
    }
    if stream.capturing.load(Acquire) {
        return Err(CuResult::IllegalState.into());
    }
    let capture = Arc::new(Capture {
        id: state()?.number(),
        graph,
        origin: stream,
        mode,
        thread: std::thread::current().id(),
        broken: AtomicBool::new(false),
        over: AtomicBool::new(false),
        streams: Mutex::new(vec![stream]),
    });
    *lock(&stream.capture) = Some(StreamCapture {
        capture: Arc::clone(&capture),
        after,
    });
    lock(&ALL).push(capture);
    ACTIVE.fetch_add(1, AcqRel);
    stream.capturing.store(true, Release);
    Ok(())
}

/// Whether everything that other streams have captured comes before the origin's end.
fn is_joined(capture: &Capture, end: &[&'static Node]) -> bool {
    let mut seen: Vec<&'static Node> = Vec::new();
    let mut open: Vec<&'static Node> = end.to_vec();
    while let Some(node) = open.pop() {
        if seen.iter().any(|known| std::ptr::eq(*known, node)) {
            continue;
        }
        seen.push(node);
        open.extend(node.after());
    }
    let streams = lock(&capture.streams);
    streams.iter().all(|stream| {
        let part = lock(&stream.capture);
        part.as_ref().is_none_or(|part| {
            let known = |node: &&'static Node| seen.iter().any(|known| std::ptr::eq(*known, *node));
            part.after.iter().all(known)
        })
    })
}

unsafe fn capture_info(
    stream: &'static Stream,
    status: *mut u32,
    id: *mut u64,
    graph: *mut Handle,
    after: *mut *const Handle,
    edges: *mut *const c_void,
    count: *mut usize,
) -> Answer {
    thread_local! {
        /// What the last answer pointed at; the program may look at it until its next call.
        static LAST: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let slot = lock(&stream.capture);
    // SAFETY: the program's pointers.
    unsafe {
        let Some(part) = slot.as_ref() else {
            put_opt(count, 0);
            return put(status, 0);
        };
        let broken = part.capture.broken.load(Acquire);
        put(status, if broken { 2 } else { 1 })?;
        put_opt(id, part.capture.id);
        put_opt(graph, part.capture.graph.handle());
        put_opt(count, part.after.len());
        put_opt(edges, std::ptr::null());
        if !after.is_null() {
            let nodes: Vec<usize> = part
                .after
                .iter()
                .map(|node| node.handle() as usize)
                .collect();
            let pointer = LAST.with(|last| {
                *last.borrow_mut() = nodes;
                last.borrow().as_ptr().cast::<Handle>()
            });
            put(after, pointer)?;
        }
    }
    Ok(())
}

unsafe fn nodes_of(nodes: *const Handle, count: usize) -> Answer<Vec<&'static Node>> {
    if nodes.is_null() && count > 0 {
        return invalid();
    }
    let node = |index: usize| {
        // SAFETY: the program says that there are `count` handles.
        unsafe { Node::find(nodes.add(index).read()) }.ok_or(Code(CuResult::InvalidValue as u32))
    };
    (0..count).map(node).collect()
}

unsafe fn update_dependencies(
    stream: &'static Stream,
    nodes: *const Handle,
    count: usize,
    flags: u32,
) -> Answer {
    // SAFETY: the program's handles.
    let nodes = unsafe { nodes_of(nodes, count)? };
    let mut slot = lock(&stream.capture);
    let Some(part) = slot.as_mut() else {
        return Err(CuResult::IllegalState.into());
    };
    match flags {
        0 => union(&mut part.after, &nodes),
        1 => part.after = nodes,
        _ => return invalid(),
    }
    Ok(())
}

driver! {
    fn begin_capture<const PT>(stream: Handle) {
        let (state, _, stream) = resolve::<PT>(stream)?;
        begin(stream, GLOBAL, Graph::new(state), Vec::new())
    }

    fn begin_capture_v2<const PT>(stream: Handle, mode: u32) {
        let (state, _, stream) = resolve::<PT>(stream)?;
        begin(stream, mode, Graph::new(state), Vec::new())
    }

    fn begin_capture_to_graph<const PT>(stream: Handle, graph: Handle, nodes: *const Handle, _edges: *const c_void, count: usize, mode: u32) {
        let (_, _, stream) = resolve::<PT>(stream)?;
        let Some(graph) = Graph::find(graph) else {
            return bad_handle();
        };
        begin(stream, mode, graph, nodes_of(nodes, count)?)
    }

    fn end_capture<const PT>(stream: Handle, out: *mut Handle) {
        let (_, _, stream) = resolve::<PT>(stream)?;
        let slot = lock(&stream.capture);
        let Some(part) = slot.as_ref() else {
            return Err(CuResult::IllegalState.into());
        };
        let (capture, end) = (Arc::clone(&part.capture), part.after.clone());
        drop(slot);
        if !std::ptr::eq(capture.origin, stream) {
            capture.broken.store(true, Release);
            return Err(CuResult::StreamCaptureUnmatched.into());
        }
        if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
            return Err(CuResult::StreamCaptureWrongThread.into());
        }
        let broken = capture.broken.load(Acquire);
        let joined = broken || is_joined(&capture, &end);
        finish(&capture);
        if broken || !joined {
            put_opt(out, std::ptr::null_mut());
            return Err(match broken {
                true => CuResult::StreamCaptureInvalidated.into(),
                false => CuResult::StreamCaptureUnjoined.into(),
            });
        }
        put(out, capture.graph.handle())
    }

    fn is_capturing<const PT>(stream: Handle, out: *mut u32) {
        let (_, _, stream) = resolve::<PT>(stream)?;
        if stream.is_legacy() {
            forbid_legacy(stream)?;
        }
        let none = std::ptr::null_mut::<c_void>();
        capture_info(stream, out, none.cast(), none.cast(), none.cast(), none.cast(), none.cast())
    }

    fn capture_info_v1<const PT>(stream: Handle, status: *mut u32, id: *mut u64) {
        let (_, _, stream) = resolve::<PT>(stream)?;
        let none = std::ptr::null_mut::<c_void>();
        capture_info(stream, status, id, none.cast(), none.cast(), none.cast(), none.cast())
    }

    fn capture_info_v2<const PT>(stream: Handle, status: *mut u32, id: *mut u64, graph: *mut Handle, after: *mut *const Handle, count: *mut usize) {
        let (_, _, stream) = resolve::<PT>(stream)?;
        capture_info(stream, status, id, graph, after, std::ptr::null_mut(), count)
    }

    fn capture_info_v3<const PT>(stream: Handle, status: *mut u32, id: *mut u64, graph: *mut Handle, after: *mut *const Handle, edges: *mut *const c_void, count: *mut usize) {
        let (_, _, stream) = resolve::<PT>(stream)?;
        capture_info(stream, status, id, graph, after, edges, count)
    }

    fn update_capture<const PT>(stream: Handle, nodes: *const Handle, count: usize, flags: u32) {
        let (_, _, stream) = resolve::<PT>(stream)?;
        update_dependencies(stream, nodes, count, flags)
    }

    fn update_capture_v2<const PT>(stream: Handle, nodes: *const Handle, _edges: *const c_void, count: usize, flags: u32) {
        let (_, _, stream) = resolve::<PT>(stream)?;
        update_dependencies(stream, nodes, count, flags)
    }

    fn exchange_mode(mode: *mut u32) {
        state()?;
        let wanted = get(mode)?;
        if wanted > RELAXED {
            return invalid();
        }
        let before = MODE.try_with(|mode| mode.replace(wanted)).unwrap_or(GLOBAL);
        put(mode, before)
    }
}

entries! {
    cuThreadExchangeStreamCaptureMode = exchange_mode;
}

stream_entries! {
    cuStreamBeginCapture, cuStreamBeginCapture_ptsz = begin_capture;
    cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz = begin_capture_v2;
    cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz = begin_capture_to_graph;
    cuStreamEndCapture, cuStreamEndCapture_ptsz = end_capture;
    cuStreamIsCapturing, cuStreamIsCapturing_ptsz = is_capturing;
    cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz = capture_info_v1;
    cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz = capture_info_v2;
    cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz = capture_info_v3;
    cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz = update_capture;
    cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz = update_capture_v2;
}
