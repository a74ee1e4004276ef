//! Stream capture: calls on a capturing stream become nodes of a graph.

pub(crate) mod calls;

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};

use mica_cuda_abi::CuResult;

use crate::isolated::context::Context;
use crate::isolated::graphs::operations::Op;
use crate::isolated::graphs::{Graph, Node};
use crate::isolated::state::state;
use crate::isolated::streams::Stream;
use crate::isolated::streams::events::Event;
use crate::isolated::support::{Answer, invalid, lock};

/// A capture that is going on.
pub(crate) struct Capture {
    pub(crate) id: u64,
    pub(crate) graph: &'static Graph,
    pub(crate) origin: &'static Stream,
    pub(crate) mode: u32,
    pub(crate) thread: std::thread::ThreadId,
    pub(crate) broken: AtomicBool,
    pub(crate) over: AtomicBool,
    /// Streams that have joined, the origin first.
    pub(crate) streams: Mutex<Vec<&'static Stream>>,
    /// Where streams ended that were destroyed: the capture must come after these nodes too.
    left: Mutex<Vec<&'static Node>>,
}

/// A stream's part in a capture.
pub(crate) struct StreamCapture {
    pub(crate) capture: Arc<Capture>,
    /// Nodes that the next one comes after.
    pub(crate) after: Vec<&'static Node>,
}

/// A point in a capture that an event stands for.
pub(crate) struct Captured {
    capture: Arc<Capture>,
    after: Vec<&'static Node>,
}

impl Captured {
    pub(crate) fn is_active(&self) -> bool {
        !self.capture.over.load(Acquire)
    }
}

/// Captures going on in the process, so that those who never capture pay one load.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static ALL: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());

thread_local! {
    /// `cuThreadExchangeStreamCaptureMode`.
    pub(crate) static MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(GLOBAL) };
}

pub(crate) const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
pub(crate) const RELAXED: u32 = 2;

/// Adds nodes that are not there yet.
pub(crate) fn union(into: &mut Vec<&'static Node>, from: &[&'static Node]) {
    for node in from {
        if !into.iter().any(|known| std::ptr::eq(*known, *node)) {
            into.push(node);
        }
    }
}

/// Adds a node for a call on a capturing stream.
pub(crate) fn record(stream: &'static Stream, op: Op) -> Answer {
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
pub(crate) fn graph_of(stream: &'static Stream) -> Answer<&'static Graph> {
    match lock(&stream.capture).as_ref() {
        Some(part) => Ok(part.capture.graph),
        None => Err(CuResult::IllegalState.into()),
    }
}

/// Breaks a capture by a call that cannot be captured.
pub(crate) fn refuse(stream: &'static Stream) -> Answer {
    if let Some(part) = lock(&stream.capture).as_ref() {
        part.capture.broken.store(true, Release);
    }
    Err(CuResult::StreamCaptureUnsupported.into())
}

/// Where a capturing stream is now, for an event.
pub(crate) fn mark(stream: &'static Stream) -> Answer<Option<Captured>> {
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
pub(crate) fn joins(stream: &'static Stream, event: &'static Event) -> Answer<bool> {
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
pub(crate) fn forbid_wait(stream: &'static Stream) -> Answer {
    if stream.capturing.load(Acquire) {
        return refuse(stream);
    }
    forbid_legacy(stream)
}

/// Refuses work on the legacy stream while a stream that it is ordered against captures.
#[inline]
pub(crate) fn forbid_legacy(stream: &'static Stream) -> Answer {
    if ACTIVE.load(Acquire) == 0 || !stream.is_legacy() {
        return Ok(());
    }
    let is_ordered = |other: &Stream| other.is_blocking();
    break_captures(
        stream.context()?,
        CuResult::StreamCaptureImplicit,
        is_ordered,
    )
}

/// Refuses to answer whether the legacy stream captures while a blocking stream of its context captures. The capture
/// stays valid.
pub(crate) fn forbid_question(stream: &'static Stream) -> Answer {
    let context = stream.context()?;
    let concerns = |other: &&'static Stream| {
        let found = other.context();
        other.is_blocking() && found.is_ok_and(|found| std::ptr::eq(found, context))
    };
    let captures = lock(&ALL);
    let mut captures = captures.iter().map(|capture| lock(&capture.streams));
    match stream.is_legacy() && captures.any(|streams| streams.iter().any(concerns)) {
        true => Err(CuResult::StreamCaptureImplicit.into()),
        false => Ok(()),
    }
}

/// Refuses to wait for a context in which a stream captures.
pub(crate) fn forbid_implicit(context: &'static Context) -> Answer {
    if ACTIVE.load(Acquire) == 0 {
        return Ok(());
    }
    break_captures(context, CuResult::StreamCaptureUnsupported, |_| true)
}

/// Breaks the captures of a context's streams that a call concerns, and refuses the call if there are any.
fn break_captures(
    context: &'static Context,
    error: CuResult,
    concerns: impl Fn(&Stream) -> bool,
) -> Answer {
    let mut refused = false;
    for capture in lock(&ALL).iter() {
        let of_context = |stream: &&'static Stream| {
            concerns(stream)
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
pub(crate) fn forbid_unsafe() -> Answer {
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

/// A stream is destroyed. A capture that began on it cannot end any more; another one goes on, and asks at its end
/// whether the stream had been joined.
pub(crate) fn abandon(stream: &'static Stream) {
    let Some(part) = lock(&stream.capture).take() else {
        return;
    };
    stream.capturing.store(false, Release);
    lock(&part.capture.streams).retain(|other| !std::ptr::eq(*other, stream));
    if std::ptr::eq(part.capture.origin, stream) {
        part.capture.broken.store(true, Release);
        finish(&part.capture);
    } else {
        union(&mut lock(&part.capture.left), &part.after);
    }
}

/// Ends a capture: its streams are ordinary ones again.
pub(crate) fn finish(capture: &Arc<Capture>) {
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

/// Lets a stream capture into a graph.
pub(crate) fn begin(
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
        left: Mutex::default(),
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
pub(crate) fn is_joined(capture: &Capture, end: &[&'static Node]) -> bool {
    let mut seen: Vec<&'static Node> = Vec::new();
    let mut open: Vec<&'static Node> = end.to_vec();
    while let Some(node) = open.pop() {
        if seen.iter().any(|known| std::ptr::eq(*known, node)) {
            continue;
        }
        seen.push(node);
        open.extend(node.after());
    }
    let known = |node: &&'static Node| seen.iter().any(|known| std::ptr::eq(*known, *node));
    let streams = lock(&capture.streams);
    let are_joined = streams.iter().all(|stream| {
        let part = lock(&stream.capture);
        part.as_ref()
            .is_none_or(|part| part.after.iter().all(known))
    });
    are_joined && lock(&capture.left).iter().all(known)
}
