//! Changes to executable graphs: one node, or all of them.

use mica_cuda_abi::{CuResult, Handle};

use super::exec::{Exec, Inner, exec_of, records};
use super::flatten::{Flat, build, drop_kept, find, flatten};
use super::operations::Op;
use super::params::{HostParams, KernelParams, KernelParams2, MemsetParams, node_params_op};
use super::{Graph, node_of};
use crate::isolated::copies::boxes::Memcpy3d;
use crate::isolated::state::State;
use crate::isolated::streams::events::Event;
use crate::isolated::support::{Answer, Code, driver, entries, get, invalid, lock, put, put_opt};

/// Sends changed nodes to the worker.
fn update(
    state: &'static State,
    exec: &Exec,
    inner: &mut Inner,
    flat: Vec<Flat>,
    template: u64,
) -> Answer {
    let (nodes, mut kept) = build(state, exec.context, &flat)?;
    let updated = state.client.graph_update(inner.wire, &nodes, template);
    if let Err(error) = exec.context.checked(updated) {
        drop_kept(state, exec.context, kept);
        return Err(error);
    }
    // Launches that are under way still use the old ones.
    inner.kept.callbacks.append(&mut kept.callbacks);
    inner.kept.bounces.append(&mut kept.bounces);
    inner.records = records(&flat);
    inner.flat = flat;
    inner.template = template;
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
    let Some(part) = find(&mut flat, node) else {
        return invalid();
    };
    let mut op = make(state)?;
    if op.kind() != part.op.kind() || matches!(op, Op::Conditional(_)) {
        return invalid();
    }
    if let (Op::Kernel(new), Op::Kernel(old)) = (&mut op, &part.op) {
        new.shape.is_cooperative = old.shape.is_cooperative;
    }
    part.op = op;
    let template = inner.template;
    update(state, exec, &mut inner, flat, template)
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

/// What keeps new nodes from taking the place of old ones; else they get what is the old ones' own.
fn mismatch(old: &[Flat], new: &mut [Flat]) -> Option<(u32, Handle)> {
    if new.len() != old.len() {
        return Some((TOPOLOGY_CHANGED, std::ptr::null_mut()));
    }
    for (old, new) in old.iter().zip(new) {
        let handle = new.node.handle();
        if old.op.kind() != new.op.kind() {
            return Some((KIND_CHANGED, handle));
        }
        if old.after != new.after || old.bodies.len() != new.bodies.len() {
            return Some((TOPOLOGY_CHANGED, handle));
        }
        // Nodes of the graph it was made of go on naming its nodes.
        new.node = old.node;
        new.is_enabled = old.is_enabled;
        for (old, new) in old.bodies.iter().zip(&mut new.bodies) {
            let found = mismatch(old, new);
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

fn update_whole(
    state: &'static State,
    exec: &Exec,
    graph: &Graph,
) -> Answer<Result<(), (u32, Handle)>> {
    let mut inner = lock(&exec.inner);
    let mut new = Vec::new();
    flatten(graph, &[], &mut new)?;
    if let Some(mismatch) = mismatch(&inner.flat, &mut new) {
        return Ok(Err(mismatch));
    }
    inner.held.extend(graph.all_held());
    update(state, exec, &mut inner, new, graph.template())?;
    Ok(Ok(()))
}

driver! {
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
            match find(&mut flat, old.node) {
                Some(part) if part.op.kind() == new.op.kind() => part.op = new.op.clone(),
                _ => return invalid(),
            }
        }
        let template = inner.template;
        update(state, exec, &mut inner, flat, template)
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
        let Some(part) = find(&mut flat, node) else {
            return invalid();
        };
        part.is_enabled = is_enabled != 0;
        let template = inner.template;
        update(state, exec, &mut inner, flat, template)
    }

    fn node_get_enabled(exec: Handle, node: Handle, out: *mut u32) {
        let ((_, exec), node) = (exec_of(exec)?, node_of(node)?);
        let mut inner = lock(&exec.inner);
        match find(&mut inner.flat, node) {
            Some(part) => put(out, u32::from(part.is_enabled)),
            None => invalid(),
        }
    }
}

entries! {
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
