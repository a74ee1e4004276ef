//! The calls that make, run and end graphs.

use std::ffi::{c_char, c_void};

use mica_cuda_abi::{CuResult, CuStatus, Device, Handle, MemAllocNodeParams, Symbol};

use super::{Books, Exec, compare, in_use, paid, with_memory};
use crate::direct::books;
use crate::direct::launch::submit;
use crate::direct::state::state;

/// `cuGraphAddMemAllocNode`.
pub(crate) unsafe fn add_alloc_node(
    _: Symbol,
    real: unsafe extern "C" fn(
        *mut Handle,
        Handle,
        *const Handle,
        usize,
        *mut MemAllocNodeParams,
    ) -> CuStatus,
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
        direct.graphs.expect(graph as usize, params.bytes as u64);
    }
    status
}

/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`, and where `CUgraphNodeParams` holds such a node's size.
const NODE_ALLOC: i32 = 10;
const NODE_ALLOC_BYTES: usize = 16 + std::mem::offset_of!(MemAllocNodeParams, bytes);

/// Books a node added through the general call if it allocates.
///
/// # Safety
/// `params` is the program's `CUgraphNodeParams`, which the driver has just accepted.
unsafe fn expect_node(status: CuStatus, graph: Handle, params: *const c_void) {
    let Some(direct) = state().filter(|_| status == 0 && !params.is_null()) else {
        return;
    };
    // SAFETY: the first word of the parameters is the node's type.
    if unsafe { params.cast::<i32>().read() } == NODE_ALLOC {
        // SAFETY: parameters of this type have their size there.
        let bytes = unsafe { params.byte_add(NODE_ALLOC_BYTES).cast::<usize>().read() };
        direct.graphs.expect(graph as usize, bytes as u64);
    }
}

/// `cuGraphAddNode`.
pub(crate) unsafe fn add_node(
    _: Symbol,
    real: unsafe extern "C" fn(*mut Handle, Handle, *const Handle, usize, *mut c_void) -> CuStatus,
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
    real: unsafe extern "C" fn(
        *mut Handle,
        Handle,
        *const Handle,
        *const c_void,
        usize,
        *mut c_void,
    ) -> CuStatus,
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

/// `cuGraphAddChildGraphNode`: the child's allocations become the parent's.
pub(crate) unsafe fn add_child(
    _: Symbol,
    real: unsafe extern "C" fn(*mut Handle, Handle, *const Handle, usize, Handle) -> CuStatus,
    out: *mut Handle,
    graph: Handle,
    needs: *const Handle,
    count: usize,
    child: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, graph, needs, count, child) };
    if let (Some(direct), 0) = (in_use(), status) {
        let mut books = direct.graphs.books();
        let bytes = books.graphs.get(&(child as usize)).copied().unwrap_or(0);
        *books.graphs.entry(graph as usize).or_default() += bytes;
    }
    status
}

/// `cuGraphClone`.
pub(crate) unsafe fn clone(
    _: Symbol,
    real: unsafe extern "C" fn(*mut Handle, Handle) -> CuStatus,
    out: *mut Handle,
    graph: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, graph) };
    if let (Some(direct), false, 0) = (in_use(), out.is_null(), status) {
        let mut books = direct.graphs.books();
        let bytes = books.graphs.get(&(graph as usize)).copied().unwrap_or(0);
        // SAFETY: the driver has just written `out`.
        books.graphs.insert(unsafe { out.read() } as usize, bytes);
    }
    status
}

/// `cuGraphDestroy`.
pub(crate) unsafe fn destroy(
    _: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    graph: Handle,
) -> CuStatus {
    if let Some(direct) = in_use() {
        direct.graphs.books().graphs.remove(&(graph as usize));
    }
    // SAFETY: the program's argument.
    unsafe { real(graph) }
}

/// `cuGraphInstantiateWithFlags`.
pub(crate) unsafe fn instantiate(
    _: Symbol,
    real: unsafe extern "C" fn(*mut Handle, Handle, u64) -> CuStatus,
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
    real: unsafe extern "C" fn(*mut Handle, Handle, *mut Handle, *mut c_char, usize) -> CuStatus,
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
    real: unsafe extern "C" fn(*mut Handle, Handle, *mut c_void) -> CuStatus,
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
    let needs = |books: &Books| books.graphs.get(&(graph as usize)).copied().unwrap_or(0);
    let ahead = |books: &Books| match flags & FLAG_UPLOAD != 0 {
        true => needs(books),
        false => 0,
    };
    let Some((mut books, reserved)) = paid(direct, ahead) else {
        return CuResult::OutOfMemory as CuStatus;
    };
    let (bytes, at_once) = (needs(&books), reserved > 0);
    let status = call();
    if at_once {
        compare(direct, &mut books, reserved);
    }
    if status == 0 {
        let made = Exec {
            bytes,
            ready: at_once || bytes == 0,
        };
        // SAFETY: our contract.
        books.execs.insert(unsafe { out.read() } as usize, made);
    }
    status
}

/// `cuGraphLaunch`.
pub(crate) unsafe fn launch(
    symbol: Symbol,
    real: unsafe extern "C" fn(Handle, Handle) -> CuStatus,
    exec: Handle,
    stream: Handle,
) -> CuStatus {
    submit(symbol, stream);
    // SAFETY: the program's arguments.
    with_memory(exec, || unsafe { real(exec, stream) })
}

/// `cuGraphUpload`.
pub(crate) unsafe fn upload(
    symbol: Symbol,
    real: unsafe extern "C" fn(Handle, Handle) -> CuStatus,
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
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    exec: Handle,
) -> CuStatus {
    if let Some(direct) = in_use() {
        direct.graphs.books().execs.remove(&(exec as usize));
        books::stale();
    }
    // SAFETY: the program's argument.
    unsafe { real(exec) }
}

/// `cuDeviceGraphMemTrim`.
pub(crate) unsafe fn trim(
    _: Symbol,
    real: unsafe extern "C" fn(Device) -> CuStatus,
    device: Device,
) -> CuStatus {
    // SAFETY: the program's argument.
    let status = unsafe { real(device) };
    if let Some(direct) = in_use() {
        let mut books = direct.graphs.books();
        // Which graphs lost their memory is not told: each is expected to need it again.
        for exec in books.execs.values_mut() {
            exec.ready = exec.bytes == 0;
        }
        compare(direct, &mut books, 0);
    }
    status
}
