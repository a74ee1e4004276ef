//! Executable graphs: made ready in the worker, launched with one posted call.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use mica_cuda_abi::{CuResult, Handle};
use mica_wire::session::{
    ContextSynchronize, GraphDestroy, GraphLaunch, GraphOptions, GraphUpload,
};

use super::flatten::{Flat, build, drop_kept, flatten};
use super::memory;
use super::operations::{Kept, Op};
use super::{Graph, Held, Node};
use crate::isolated::capture;
use crate::isolated::check::objects::{self, ObjectKind};
use crate::isolated::context::{Context, current};
use crate::isolated::handles::{Kind, Object};
use crate::isolated::modules::managed_variables;
use crate::isolated::state::{State, state};
use crate::isolated::streams::events::Event;
use crate::isolated::streams::resolve;
use crate::isolated::support::{
    Answer, Code, driver, entries, get, invalid, lock, not_supported, put, put_opt, stream_entries,
};

pub(crate) type Exec = Object<ExecState>;

/// `CUgraphInstantiate_flags`.
mod flag {
    pub(crate) const UPLOAD: u64 = 2;
    pub(crate) const DEVICE_LAUNCH: u64 = 4;
    pub(crate) const NODE_PRIORITY: u64 = 8;
    pub(crate) const ALL: u64 = 0xf;
}

pub(crate) struct ExecState {
    pub(crate) inner: Mutex<Inner>,
    pub(crate) context: &'static Context,
    epoch: u64,
    flags: u64,
    id: u64,
    launched: AtomicBool,
}

pub(crate) struct Inner {
    pub(crate) wire: u64,
    pub(crate) flat: Vec<Flat>,
    pub(crate) kept: Kept,
    pub(crate) held: Held,
    /// Events that a launch records.
    pub(crate) records: Vec<&'static Event>,
    /// The worker's template of the graph it was made of last; 0 without conditional nodes.
    pub(crate) template: u64,
}

/// The events that nodes record.
pub(crate) fn records(flat: &[Flat]) -> Vec<&'static Event> {
    let event = |part: &Flat| match part.op {
        Op::EventRecord(event) if part.is_enabled => Some(event),
        _ => None,
    };
    flat.iter().filter_map(event).collect()
}

impl Kind for ExecState {
    const MAGIC: u64 = 0x4d49_4341_4558_4531;
}

fn instantiate(graph: Handle, flags: u64) -> Answer<Handle> {
    let (state, context) = current()?;
    // SAFETY: the program's handle.
    let Some(graph) = (unsafe { Graph::find(graph) }) else {
        return invalid();
    };
    if flags & !flag::ALL != 0 {
        return invalid();
    }
    if flags & flag::DEVICE_LAUNCH != 0 {
        return not_supported(
            "a graph that kernels launch (CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)",
        );
    }
    let mut flat = Vec::new();
    flatten(graph, &[], &mut flat)?;
    let (nodes, kept) = build(state, context, &flat)?;
    let template = graph.template();
    let options = GraphOptions {
        template,
        node_priorities: flags & flag::NODE_PRIORITY != 0,
    };
    let made = state
        .client
        .graph_instantiate(context.wire(), &nodes, options);
    let wire = match context.checked(made) {
        Ok(wire) => wire,
        Err(error) => {
            drop_kept(state, context, kept);
            return Err(error);
        }
    };
    let exec = Object::leak(ExecState {
        inner: Mutex::new(Inner {
            wire,
            records: records(&flat),
            flat,
            kept,
            held: graph.all_held(),
            template,
        }),
        context,
        epoch: context.epoch(),
        flags,
        id: state.number(),
        launched: AtomicBool::new(false),
    });
    let handle = exec.handle();
    objects::made(ObjectKind::GraphExec, handle as u64, 0, exec.epoch);
    Ok(handle)
}

pub(crate) unsafe fn exec_of(handle: Handle) -> Answer<(&'static State, &'static Exec)> {
    let state = state()?;
    // SAFETY: the program's handle.
    let exec = unsafe { Exec::find(handle) }.ok_or(Code(CuResult::InvalidValue as u32))?;
    if exec.context.epoch() != exec.epoch {
        return Err(CuResult::ContextIsDestroyed.into());
    }
    Ok((state, exec))
}

/// Has the device fetch what the next launch needs.
unsafe fn upload<const PT: bool>(exec: Handle, stream: Handle) -> Answer {
    // SAFETY: the program's handles.
    let ((state, context, stream), (_, exec)) = unsafe { (resolve::<PT>(stream)?, exec_of(exec)?) };
    if stream.capturing.load(Acquire) {
        return Ok(());
    }
    let inner = lock(&exec.inner);
    memory::map(&inner.held)?;
    let request = GraphUpload {
        graph: inner.wire,
        stream: stream.wire(),
    };
    drop(inner);
    context.checked(state.client.post(&request, &[]))
}

driver! {
    fn graph_instantiate(out: *mut Handle, graph: Handle, node: *mut Handle, log: *mut u8, bytes: usize) {
        put_opt(node, std::ptr::null_mut());
        if bytes > 0 {
            put_opt(log, 0);
        }
        put(out, instantiate(graph, 0)?)
    }

    fn graph_instantiate_with_flags(out: *mut Handle, graph: Handle, flags: u64) {
        put(out, instantiate(graph, flags)?)
    }

    fn graph_instantiate_with_params<const PT>(out: *mut Handle, graph: Handle, params: *mut [u64; 4]) {
        let [flags, stream, ..] = get(params)?;
        let made = instantiate(graph, flags)?;
        if flags & flag::UPLOAD != 0 {
            upload::<PT>(made, stream as Handle)?;
        }
        // The node in error and the result follow the flags and the stream to upload on.
        (*params)[2] = 0;
        (*params)[3] = 0;
        put(out, made)
    }

    fn graph_launch<const PT>(exec: Handle, stream: Handle) {
        let (state, context, stream) = resolve::<PT>(stream)?;
        let (_, exec) = exec_of(exec)?;
        let inner = lock(&exec.inner);
        if stream.capturing.load(Acquire) {
            let child = Graph::new(state);
            let mut nodes: Vec<&'static Node> = Vec::new();
            for part in &inner.flat {
                if matches!(part.op, Op::Conditional(_)) {
                    return not_supported("a graph with conditional nodes inside another");
                }
                let after: Vec<_> = part.after.iter().filter_map(|index| nodes.get(*index as usize).copied()).collect();
                nodes.push(child.add(part.op.clone(), &after));
            }
            for held in &inner.held {
                capture::graph_of(stream)?.hold(held.clone());
            }
            return capture::record(stream, Op::Child(child));
        }
        capture::forbid_legacy(stream)?;
        memory::map(&inner.held)?;
        managed_variables::push(state, context, stream.wire())?;
        for event in &inner.records {
            event.note_record();
        }
        if !exec.launched.swap(true, Relaxed) {
            memory::note_outliving(&inner.held, inner.flat.iter().map(|part| &part.op));
        }
        let request = GraphLaunch { graph: inner.wire, stream: stream.wire() };
        let posted = state.client.post(&request, &[]);
        for event in &inner.records {
            event.note_record();
        }
        context.checked(posted)
    }

    fn graph_upload<const PT>(exec: Handle, stream: Handle) {
        upload::<PT>(exec, stream)
    }

    fn exec_destroy(exec: Handle) {
        let state = state()?;
        let Some(exec) = Exec::find(exec) else {
            return invalid();
        };
        exec.retire();
        objects::gone(ObjectKind::GraphExec, exec.handle() as u64);
        let mut inner = lock(&exec.inner);
        let (kept, held) = (std::mem::take(&mut inner.kept), std::mem::take(&mut inner.held));
        inner.flat = Vec::new();
        if exec.context.epoch() != exec.epoch {
            return Ok(());
        }
        let mut waited = Ok(());
        if !kept.callbacks.is_empty() || !held.is_empty() {
            // Launches that are under way use them.
            let context = exec.context.wire();
            waited = exec.context.checked(state.client.call(&ContextSynchronize { context })).map(drop);
        }
        let destroyed = exec.context.checked(state.client.post(&GraphDestroy { graph: inner.wire }, &[]));
        drop_kept(state, exec.context, kept);
        drop(held);
        waited.and(destroyed)
    }

    fn exec_flags(exec: Handle, out: *mut u64) {
        put(out, exec_of(exec)?.1.flags)
    }

    fn exec_id(exec: Handle, out: *mut u32) {
        put(out, exec_of(exec)?.1.id as u32)
    }
}

entries! {
    cuGraphInstantiate = graph_instantiate;
    cuGraphInstantiate_v2 = graph_instantiate;
    cuGraphInstantiateWithFlags = graph_instantiate_with_flags;
    cuGraphExecDestroy = exec_destroy;
    cuGraphExecGetFlags = exec_flags;
    cuGraphExecGetId = exec_id;
}

stream_entries! {
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz = graph_instantiate_with_params;
    cuGraphLaunch, cuGraphLaunch_ptsz = graph_launch;
    cuGraphUpload, cuGraphUpload_ptsz = graph_upload;
}
