//! The calls that make, run and end graphs.

use std::ffi::{c_char, c_void};

use mica_cuda_abi::{CuResult, CuStatus, Device, Handle, MemAllocNodeParams, Symbol, function};

use super::{Exec, Records, compare, in_use, paid, with_memory};
use crate::direct::reconcile;
use crate::direct::state::state;
use crate::direct::submission::submit;

/// `cuGraphAddMemAllocNode`.
pub(crate) unsafe fn add_alloc_node(
    _: Symbol,
    real: function::cuGraphAddMemAllocNode,
    out: *mut Handle,
    graph: Handle,
    needs: *const Handle,
    count: usize,
    params: *mut MemAllocNodeParams,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, graph, needs, count, params) };
    // SAFETY: null, or what the driver has just read.
    let params = unsafe { params.as_ref() };
    if let (Some(direct), Some(params), 0) = (state(), params, status) {
        direct.graphs.expect(graph, params.bytes as u64);
    }
    status
}

/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC` and `CU_GRAPH_NODE_TYPE_GRAPH`.
const NODE_ALLOC: i32 = 10;
const NODE_CHILD: i32 = 4;
/// `CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE`: the parent takes the child, and ends it.
const MOVED: i32 = 1;

/// `CUgraphNodeParams`, as far as nodes that take memory go.
#[repr(C)]
struct NodeParams {
    kind: i32,
    reserved: [i32; 3],
    of_kind: OfKind,
}

#[repr(C)]
union OfKind {
    alloc: MemAllocNodeParams,
    child: Child,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Child {
    graph: Handle,
    ownership: i32,
}

/// Records a node added through the general call if it allocates, or is a graph that does.
///
/// # Safety
/// `params` is the program's `CUgraphNodeParams`, which the driver has just accepted.
unsafe fn expect_node(status: CuStatus, graph: Handle, params: *const c_void) {
    let Some(direct) = state().filter(|_| status == 0 && !params.is_null()) else {
        return;
    };
    // SAFETY: our contract; the structure is larger than what is known of it here.
    let params = unsafe { &*params.cast::<NodeParams>() };
    match params.kind {
        NODE_ALLOC => {
            // SAFETY: what a node of this kind has.
            let bytes = unsafe { params.of_kind.alloc.bytes };
            direct.graphs.expect(graph, bytes as u64);
        }
        NODE_CHILD => {
            // SAFETY: what a node of this kind has.
            let child = unsafe { params.of_kind.child };
            has_child(graph, child.graph, child.ownership == MOVED);
        }
        _ => {}
    }
}

/// What a child graph allocates, its parent does. One that was moved ends with its parent, unseen.
fn has_child(graph: Handle, child: Handle, moved: bool) {
    if let Some(direct) = in_use() {
        let mut records = direct.graphs.records();
        let bytes = records.of(child);
        records.add(graph, bytes);
        if moved {
            records.graphs.remove(&(child as usize));
        }
    }
}

/// `cuGraphAddNode`.
pub(crate) unsafe fn add_node(
    _: Symbol,
    real: function::cuGraphAddNode,
    out: *mut Handle,
    graph: Handle,
    needs: *const Handle,
    count: usize,
    params: *mut c_void,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, graph, needs, count, params) };
    // SAFETY: the program's parameters.
    unsafe { expect_node(status, graph, params) };
    status
}

/// `cuGraphAddNode_v2`.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn add_node_v2(
    _: Symbol,
    real: function::cuGraphAddNode_v2,
    out: *mut Handle,
    graph: Handle,
    needs: *const Handle,
    data: *const c_void,
    count: usize,
    params: *mut c_void,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, graph, needs, data, count, params) };
    // SAFETY: the program's parameters.
    unsafe { expect_node(status, graph, params) };
    status
}

/// `cuGraphAddChildGraphNode`.
pub(crate) unsafe fn add_child(
    _: Symbol,
    real: function::cuGraphAddChildGraphNode,
    out: *mut Handle,
    graph: Handle,
    needs: *const Handle,
    count: usize,
    child: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, graph, needs, count, child) };
    if status == 0 {
        has_child(graph, child, false);
    }
    status
}

/// `cuGraphClone`.
pub(crate) unsafe fn clone(
    _: Symbol,
    real: function::cuGraphClone,
    out: *mut Handle,
    graph: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, graph) };
    if let (Some(direct), false, 0) = (in_use(), out.is_null(), status) {
        let mut records = direct.graphs.records();
        let bytes = records.of(graph);
        // SAFETY: the driver has just written `out`.
        records.graphs.insert(unsafe { out.read() } as usize, bytes);
    }
    status
}

/// `cuGraphDestroy`.
pub(crate) unsafe fn destroy(_: Symbol, real: function::cuGraphDestroy, graph: Handle) -> CuStatus {
    // SAFETY: the program's argument.
    let call = || unsafe { real(graph) };
    let Some(direct) = in_use() else {
        return call();
    };
    // Out of the records first: the driver may give its number to the next graph at once.
    let needed = direct.graphs.records().graphs.remove(&(graph as usize));
    let status = call();
    if let (Some(bytes), 1..) = (needed, status) {
        direct.graphs.records().add(graph, bytes);
    }
    status
}

/// `cuGraphInstantiateWithFlags`.
pub(crate) unsafe fn instantiate(
    _: Symbol,
    real: function::cuGraphInstantiateWithFlags,
    out: *mut Handle,
    graph: Handle,
    flags: u64,
) -> CuStatus {
    // SAFETY: the program's arguments.
    unsafe { instantiated(out, graph, flags, || real(out, graph, flags)) }
}

/// `cuGraphInstantiate` and `cuGraphInstantiate_v2`.
pub(crate) unsafe fn instantiate_logging(
    _: Symbol,
    real: function::cuGraphInstantiate,
    out: *mut Handle,
    graph: Handle,
    culprit: *mut Handle,
    text: *mut c_char,
    room: usize,
) -> CuStatus {
    // SAFETY: the program's arguments.
    unsafe { instantiated(out, graph, 0, || real(out, graph, culprit, text, room)) }
}

/// `cuGraphInstantiateWithParams`.
pub(crate) unsafe fn instantiate_with_params(
    _: Symbol,
    real: function::cuGraphInstantiateWithParams,
    out: *mut Handle,
    graph: Handle,
    params: *mut c_void,
) -> CuStatus {
    // SAFETY: null, or the program's parameters, which begin with the flags.
    let flags = unsafe { params.cast::<u64>().as_ref() }.map_or(0, |flags| *flags);
    // SAFETY: the program's arguments.
    unsafe { instantiated(out, graph, flags, || real(out, graph, params)) }
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`: memory is reserved at once.
const FLAG_UPLOAD: u64 = 2;

/// # Safety
/// `call` writes an executable graph to `out` when it succeeds.
unsafe fn instantiated(
    out: *mut Handle,
    graph: Handle,
    flags: u64,
    call: impl FnOnce() -> CuStatus,
) -> CuStatus {
    let Some(direct) = in_use().filter(|_| !out.is_null()) else {
        return call();
    };
    let needs = |records: &Records| records.of(graph);
    let ahead = |records: &Records| match flags & FLAG_UPLOAD != 0 {
        true => needs(records),
        false => 0,
    };
    let Some((mut records, reserved)) = paid(direct, ahead) else {
        return CuResult::OutOfMemory as CuStatus;
    };
    let (bytes, at_once) = (needs(&records), reserved > 0);
    let status = call();
    if at_once {
        compare(direct, &mut records, reserved);
    }
    if status == 0 {
        let made = Exec {
            bytes,
            ready: at_once || bytes == 0,
        };
        // SAFETY: our contract.
        records.execs.insert(unsafe { out.read() } as usize, made);
    }
    status
}

/// `cuGraphLaunch` and `cuGraphUpload`.
pub(crate) unsafe fn launch(
    symbol: Symbol,
    real: function::cuGraphLaunch,
    exec: Handle,
    stream: Handle,
) -> CuStatus {
    submit(symbol, stream);
    // SAFETY: the program's arguments.
    with_memory(exec, || unsafe { real(exec, stream) })
}

/// `cuGraphExecDestroy`.
pub(crate) unsafe fn exec_destroy(
    _: Symbol,
    real: function::cuGraphExecDestroy,
    exec: Handle,
) -> CuStatus {
    // SAFETY: the program's argument.
    let call = || unsafe { real(exec) };
    let Some(direct) = in_use() else {
        return call();
    };
    // As with graphs.
    let known = direct.graphs.records().execs.remove(&(exec as usize));
    let status = call();
    if let (Some(known), 1..) = (known, status) {
        direct.graphs.records().execs.insert(exec as usize, known);
    }
    reconcile::stale();
    status
}

/// `cuDeviceGraphMemTrim`.
pub(crate) unsafe fn trim(
    _: Symbol,
    real: function::cuDeviceGraphMemTrim,
    device: Device,
) -> CuStatus {
    // SAFETY: the program's argument.
    let status = unsafe { real(device) };
    if let Some(direct) = in_use() {
        let mut records = direct.graphs.records();
        // Which graphs lost their memory is not told: each is expected to need it again.
        for exec in records.execs.values_mut() {
            exec.ready = exec.bytes == 0;
        }
        compare(direct, &mut records, 0);
    }
    status
}
