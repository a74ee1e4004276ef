//! The entry points for stream capture.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use mica_cuda_abi::{CuResult, Handle};

use super::{GLOBAL, MODE, RELAXED, begin, finish, forbid_question, is_joined, union};
use crate::isolated::check::objects::{self, ObjectKind};
use crate::isolated::graphs::{Graph, Node};
use crate::isolated::state::state;
use crate::isolated::streams::{Stream, resolve};
use crate::isolated::support::{
    Answer, Code, driver, entries, get, invalid, lock, put, put_opt, stream_entries,
};

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
            return invalid();
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
            // The driver ends it all the same.
            finish(&capture);
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
        let graph = capture.graph.handle();
        objects::made(ObjectKind::Graph, graph as u64, 0, 0);
        put(out, graph)
    }

    fn is_capturing<const PT>(stream: Handle, out: *mut u32) {
        let (_, _, stream) = resolve::<PT>(stream)?;
        forbid_question(stream)?;
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
