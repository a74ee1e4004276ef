//! Executable graphs: made ready in the worker, launched with one posted call.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Acquire;

use mica_cuda_abi::{CuResult, Handle};
use mica_wire::session::{ContextSynchronize, GraphDestroy, GraphLaunch};

use super::capture;
use super::context::{Context, current};
use super::copy_boxes::Memcpy3d;
use super::events::Event;
use super::flatten::{Flat, build, drop_kept, flatten};
use super::graph_ops::{Kept, Op};
use super::graph_params::{HostParams, KernelParams, KernelParams2, MemsetParams, node_params_op};
use super::graphs::{Graph, Held, Node, node_of};
use super::handles::{Kind, Object};
use super::managed_variables;
use super::state::{State, state};
use super::streams::resolve;
use super::support::{
    Answer, Code, driver, entries, get, invalid, lock, put, put_opt, stream_entries,
};

type Exec = Object<ExecState>;

struct ExecState {
    inner: Mutex<Inner>,
    context: &'static Context,
    epoch: u64,
    flags: u64,
    id: u64,
}

struct Inner {
    wire: u64,
    flat: Vec<Flat>,
    kept: Kept,
    held: Held,
    /// Events that a launch records.
    records: Vec<&'static Event>,
}

/// The events that nodes record.
fn records(flat: &[Flat]) -> Vec<&'static Event> {
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
    if flags & !0xf != 0 {
        return invalid();
    }
    let mut flat = Vec::new();
    flatten(graph, &[], &mut flat)?;
    let (nodes, kept) = build(state, context, &flat)?;
    let wire = context.checked(state.client.graph_instantiate(context.wire(), &nodes))?;
    let exec = Object::leak(ExecState {
        inner: Mutex::new(Inner {
            wire,
            records: records(&flat),
            flat,
            kept,
            held: graph.held(),
        }),
        context,
        epoch: context.epoch(),
        flags,
        id: state.number(),
    });
    Ok(exec.handle())
}

unsafe fn exec_of(handle: Handle) -> Answer<(&'static State, &'static Exec)> {
    let state = state()?;
    // SAFETY: the program's handle.
    let exec = unsafe { Exec::find(handle) }.ok_or(Code(CuResult::InvalidValue as u32))?;
    if exec.context.epoch() != exec.epoch {
        return Err(CuResult::ContextIsDestroyed.into());
    }
    Ok((state, exec))
}

/// Sends changed nodes to the worker.
fn update(state: &'static State, exec: &Exec, inner: &mut Inner, flat: Vec<Flat>) -> Answer {
    let (nodes, mut kept) = build(state, exec.context, &flat)?;
    exec.context
        .checked(state.client.graph_update(inner.wire, &nodes))?;
    // Launches that are under way still use the old ones.
    inner.kept.callbacks.append(&mut kept.callbacks);
    inner.kept.bounces.append(&mut kept.bounces);
    inner.records = records(&flat);
    inner.flat = flat;
    Ok(())
}

unsafe fn set_params(
    exec: Handle,
    node: Handle,
    make: impl FnOnce(&'static State) -> Answer<Op>,
) -> Answer {
    // SAFETY: the program's handles.
    let ((state, exec), node) = unsafe { (exec_of(exec)?, node_of(node)?) };
    let mut inner = lock(&exec.inner);
    let mut flat = inner.flat.clone();
    let Some(part) = flat.iter_mut().find(|part| std::ptr::eq(part.node, node)) else {
        return invalid();
    };
    let mut op = make(state)?;
    if op.kind() != part.op.kind() {
        return invalid();
    }
    if let (Op::Kernel(new), Op::Kernel(old)) = (&mut op, &part.op) {
        new.shape.is_cooperative = old.shape.is_cooperative;
    }
    part.op = op;
    update(state, exec, &mut inner, flat)
}

/// `CUgraphExecUpdateResult` values.
const UPDATED: u32 = 0;
const TOPOLOGY_CHANGED: u32 = 2;
const KIND_CHANGED: u32 = 3;

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
struct UpdateInfo {
    result: u32,
    node: Handle,
    from: Handle,
}

fn update_whole(
    state: &'static State,
    exec: &Exec,
    graph: &Graph,
) -> Answer<Result<(), (u32, Handle)>> {
    let mut inner = lock(&exec.inner);
    let mut new = Vec::new();
    flatten(graph, &[], &mut new)?;
    if new.len() != inner.flat.len() {
        return Ok(Err((TOPOLOGY_CHANGED, std::ptr::null_mut())));
    }
    for (old, new) in inner.flat.iter().zip(&mut new) {
        let handle = new.node.handle();
        if old.op.kind() != new.op.kind() {
            return Ok(Err((KIND_CHANGED, handle)));
        }
        if old.after != new.after {
            return Ok(Err((TOPOLOGY_CHANGED, handle)));
        }
        // Nodes of the graph it was made of go on naming its nodes.
        new.node = old.node;
        new.is_enabled = old.is_enabled;
    }
    inner.held.extend(graph.held());
    update(state, exec, &mut inner, new)?;
    Ok(Ok(()))
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
        let [flags, ..] = get(params)?;
        let made = instantiate(graph, flags)?;
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
                let after: Vec<_> = part.after.iter().filter_map(|index| nodes.get(*index as usize).copied()).collect();
                nodes.push(child.add(part.op.clone(), &after));
            }
            for held in &inner.held {
                capture::graph_of(stream)?.hold(held.clone());
            }
            return capture::record(stream, Op::Child(child));
        }
        capture::forbid_legacy(stream)?;
        managed_variables::push(state, context, stream.wire())?;
        for event in &inner.records {
            event.note_record();
        }
        let request = GraphLaunch { graph: inner.wire, stream: stream.wire() };
        let posted = state.client.post(&request, &[]);
        for event in &inner.records {
            event.note_record();
        }
        context.checked(posted)
    }

    fn graph_upload<const PT>(exec: Handle, stream: Handle) {
        resolve::<PT>(stream)?;
        exec_of(exec).map(drop)
    }

    fn exec_destroy(exec: Handle) {
        let state = state()?;
        let Some(exec) = Exec::find(exec) else {
            return invalid();
        };
        exec.retire();
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
        drop_kept(state, exec.context, kept);
        drop(held);
        exec.context.checked(state.client.post(&GraphDestroy { graph: inner.wire }, &[]))?;
        waited
    }

    fn exec_flags(exec: Handle, out: *mut u64) {
        put(out, exec_of(exec)?.1.flags)
    }

    fn exec_id(exec: Handle, out: *mut u32) {
        put(out, exec_of(exec)?.1.id as u32)
    }

    fn exec_kernel(exec: Handle, node: Handle, params: *const KernelParams) {
        let params = get(params)?;
        set_params(exec, node, |state| params.op(state))
    }

    fn exec_kernel_v2(exec: Handle, node: Handle, params: *const KernelParams2) {
        let params = get(params)?;
        set_params(exec, node, |state| params.op(state))
    }

    fn exec_memcpy(exec: Handle, node: Handle, params: *const Memcpy3d, _context: Handle) {
        let params = get(params)?;
        set_params(exec, node, |state| Ok(Op::Copy(params.op(state)?)))
    }

    fn exec_memset(exec: Handle, node: Handle, params: *const MemsetParams, _context: Handle) {
        let params = get(params)?;
        set_params(exec, node, |state| params.op(state))
    }

    fn exec_host(exec: Handle, node: Handle, params: *const HostParams) {
        let params = get(params)?;
        set_params(exec, node, |_| params.op())
    }

    fn exec_event_record(exec: Handle, node: Handle, event: Handle) {
        exec_of(exec)?;
        let event = Event::find(event).ok_or(Code(CuResult::InvalidHandle as u32))?;
        set_params(exec, node, |_| Ok(Op::EventRecord(event)))
    }

    fn exec_event_wait(exec: Handle, node: Handle, event: Handle) {
        exec_of(exec)?;
        let event = Event::find(event).ok_or(Code(CuResult::InvalidHandle as u32))?;
        set_params(exec, node, |_| Ok(Op::EventWait(event)))
    }

    fn exec_node(exec: Handle, node: Handle, params: *mut u8) {
        set_params(exec, node, |_| node_params_op(None, params))
    }

    fn exec_child(exec: Handle, node: Handle, child: Handle) {
        let ((state, exec), node) = (exec_of(exec)?, node_of(node)?);
        let (Op::Child(old), Some(new)) = (node.op(), Graph::find(child)) else {
            return invalid();
        };
        let (mut before, mut after) = (Vec::new(), Vec::new());
        flatten(old, &[], &mut before)?;
        flatten(new, &[], &mut after)?;
        if before.len() != after.len() {
            return invalid();
        }
        let mut inner = lock(&exec.inner);
        let mut flat = inner.flat.clone();
        for (old, new) in before.iter().zip(&after) {
            let part = flat.iter_mut().find(|part| std::ptr::eq(part.node, old.node));
            match part {
                Some(part) if part.op.kind() == new.op.kind() => part.op = new.op.clone(),
                _ => return invalid(),
            }
        }
        update(state, exec, &mut inner, flat)
    }

    fn exec_update(exec: Handle, graph: Handle, node: *mut Handle, result: *mut u32) {
        let (state, exec) = exec_of(exec)?;
        let Some(graph) = Graph::find(graph) else {
            return invalid();
        };
        match update_whole(state, exec, graph)? {
            Ok(()) => put(result, UPDATED),
            Err((why, at)) => {
                put_opt(node, at);
                put_opt(result, why);
                Err(CuResult::GraphExecUpdateFailure.into())
            }
        }
    }

    fn exec_update_v2(exec: Handle, graph: Handle, info: *mut UpdateInfo) {
        let (state, exec) = exec_of(exec)?;
        let Some(graph) = Graph::find(graph) else {
            return invalid();
        };
        let from = std::ptr::null_mut();
        match update_whole(state, exec, graph)? {
            Ok(()) => put(info, UpdateInfo { result: UPDATED, node: from, from }),
            Err((result, node)) => {
                put_opt(info, UpdateInfo { result, node, from });
                Err(CuResult::GraphExecUpdateFailure.into())
            }
        }
    }

    fn node_set_enabled(exec: Handle, node: Handle, is_enabled: u32) {
        let ((state, exec), node) = (exec_of(exec)?, node_of(node)?);
        let mut inner = lock(&exec.inner);
        let mut flat = inner.flat.clone();
        let Some(part) = flat.iter_mut().find(|part| std::ptr::eq(part.node, node)) else {
            return invalid();
        };
        part.is_enabled = is_enabled != 0;
        update(state, exec, &mut inner, flat)
    }

    fn node_get_enabled(exec: Handle, node: Handle, out: *mut u32) {
        let ((_, exec), node) = (exec_of(exec)?, node_of(node)?);
        let inner = lock(&exec.inner);
        match inner.flat.iter().find(|part| std::ptr::eq(part.node, node)) {
            Some(part) => put(out, u32::from(part.is_enabled)),
            None => invalid(),
        }
    }
}

entries! {
    cuGraphInstantiate = graph_instantiate;
    cuGraphInstantiate_v2 = graph_instantiate;
    cuGraphInstantiateWithFlags = graph_instantiate_with_flags;
    cuGraphExecDestroy = exec_destroy;
    cuGraphExecGetFlags = exec_flags;
    cuGraphExecGetId = exec_id;
    cuGraphExecKernelNodeSetParams = exec_kernel;
    cuGraphExecKernelNodeSetParams_v2 = exec_kernel_v2;
    cuGraphExecMemcpyNodeSetParams = exec_memcpy;
    cuGraphExecMemsetNodeSetParams = exec_memset;
    cuGraphExecHostNodeSetParams = exec_host;
    cuGraphExecEventRecordNodeSetEvent = exec_event_record;
    cuGraphExecEventWaitNodeSetEvent = exec_event_wait;
    cuGraphExecNodeSetParams = exec_node;
    cuGraphExecChildGraphNodeSetParams = exec_child;
    cuGraphExecUpdate = exec_update;
    cuGraphExecUpdate_v2 = exec_update_v2;
    cuGraphNodeSetEnabled = node_set_enabled;
    cuGraphNodeGetEnabled = node_get_enabled;
}

stream_entries! {
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz = graph_instantiate_with_params;
    cuGraphLaunch, cuGraphLaunch_ptsz = graph_launch;
    cuGraphUpload, cuGraphUpload_ptsz = graph_upload;
}
