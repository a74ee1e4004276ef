//! Entry points that build graphs, ask about their nodes and change them.

use std::ffi::c_void;

use mica_cuda_abi::{Handle, MemAllocNodeParams};

use super::context::current;
use super::copy_calls::Memcpy3d;
use super::events::Event;
use super::fills::fill_op;
use super::functions::function_of;
use super::graph_ops::{HostOp, KernelOp, Op};
use super::graphs::{Graph, Node, graph_of, node_of};
use super::launch::{self, LaunchAttribute, Shape};
use super::memory::AllocationKind;
use super::state::{State, state};
use super::support::{Answer, bad_handle, driver, entries, get, invalid, lock, not_supported, put};

unsafe fn add(
    out: *mut Handle,
    graph: Handle,
    after: *const Handle,
    count: usize,
    op: Op,
) -> Answer {
    // SAFETY: the program's pointers and handles.
    unsafe {
        let graph = graph_of(graph)?;
        if out.is_null() || (after.is_null() && count > 0) {
            return invalid();
        }
        let after: Vec<_> = (0..count)
            .map(|index| node_of(after.add(index).read()))
            .collect::<Answer<_>>()?;
        if after.iter().any(|node| !std::ptr::eq(node.graph, graph)) {
            return invalid();
        }
        put(out, graph.add(op, &after).handle())
    }
}

/// `CUDA_KERNEL_NODE_PARAMS` as far as all versions have it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelParams {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: *const *const c_void,
    extra: *const *const c_void,
}

/// What version 2 adds.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelParams2 {
    first: KernelParams,
    kernel: Handle,
    context: Handle,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemsetParams {
    dst: u64,
    pitch: usize,
    value: u32,
    element_bytes: u32,
    width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct HostParams {
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
}

const _: () = {
    assert!(size_of::<KernelParams>() == 56);
    assert!(size_of::<KernelParams2>() == 72);
    assert!(size_of::<MemsetParams>() == 40);
};

impl KernelParams {
    /// # Safety
    /// The program's parameters for this kernel.
    pub(super) unsafe fn op(&self, state: &State) -> Answer<Op> {
        // SAFETY: our contract.
        let function = unsafe { function_of(self.function)? };
        let shape = Shape {
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            is_cooperative: false,
        };
        launch::check(state, function, &shape)?;
        let keep = |block: &[u8]| Ok(block.to_vec());
        // SAFETY: our contract.
        let params =
            unsafe { launch::with_params(function.layout()?, self.params, self.extra, keep)? };
        Ok(Op::Kernel(KernelOp {
            function,
            shape,
            params,
        }))
    }
}

impl KernelParams2 {
    /// # Safety
    /// As [`KernelParams::op`].
    pub(super) unsafe fn op(&self, state: &State) -> Answer<Op> {
        let mut first = self.first;
        if first.function.is_null() {
            first.function = self.kernel;
        }
        // SAFETY: our contract.
        unsafe { first.op(state) }
    }
}

impl MemsetParams {
    pub(super) fn op(&self, state: &State) -> Answer<Op> {
        let fill = fill_op(
            state,
            self.dst,
            self.pitch as u64,
            self.value,
            self.element_bytes,
            self.width as u64,
            self.height as u64,
        )?;
        Ok(Op::Fill(fill))
    }
}

impl HostParams {
    pub(super) fn op(&self) -> Answer<Op> {
        match self.function {
            Some(function) => Ok(Op::Host(HostOp {
                function,
                data: self.data as usize,
            })),
            None => invalid(),
        }
    }
}

/// `CUgraphNodeParams`: the operation it describes.
///
/// # Safety
/// The program's parameters, of the kind they say.
pub(super) unsafe fn node_params_op(graph: Option<&'static Graph>, params: *mut u8) -> Answer<Op> {
    let (state, context) = current()?;
    if params.is_null() {
        return invalid();
    }
    // SAFETY: our contract; the kind is first, the rest is 16 bytes in.
    unsafe {
        let kind = params.cast::<u32>().read_unaligned();
        let rest = params.add(16);
        match kind {
            0 => get(rest.cast::<KernelParams2>())?.op(state),
            1 => Ok(Op::Copy(get(rest.add(16).cast::<Memcpy3d>())?.op(state)?)),
            2 => get(rest.cast::<MemsetParams>())?.op(state),
            3 => get(rest.cast::<HostParams>())?.op(),
            4 => Ok(Op::Child(
                graph_of(get(rest.cast::<Handle>())?)?.copy(state),
            )),
            5 => Ok(Op::Empty),
            6 | 7 => {
                let Some(event) = Event::find(get(rest.cast::<Handle>())?) else {
                    return invalid();
                };
                Ok(if kind == 6 {
                    Op::EventWait(event)
                } else {
                    Op::EventRecord(event)
                })
            }
            10 => {
                let Some(graph) = graph else {
                    return invalid();
                };
                let params = rest.cast::<MemAllocNodeParams>();
                let bytes = (*params).bytes as u64;
                let address = graph.memory(state, context, bytes)?;
                (*params).address = address;
                Ok(Op::MemAlloc(address, bytes))
            }
            11 => Ok(Op::MemFree(get(rest.cast::<u64>())?)),
            _ => not_supported(&format!("a graph node of kind {kind}")),
        }
    }
}

/// Writes a list of handles as the driver's queries do: without room, only how many there are.
unsafe fn put_list(out: *mut Handle, count: *mut usize, list: &[Handle]) -> Answer {
    // SAFETY: the program's pointers; `count` says how much room there is.
    unsafe {
        let room = get(count)?;
        if out.is_null() {
            return put(count, list.len());
        }
        for index in 0..room {
            out.add(index)
                .write(list.get(index).copied().unwrap_or(std::ptr::null_mut()));
        }
        put(count, room.min(list.len()))
    }
}

fn dependents(node: &'static Node) -> Vec<&'static Node> {
    let waits = |other: &&'static Node| {
        other
            .after()
            .iter()
            .any(|before| std::ptr::eq(*before, node))
    };
    node.graph.nodes().into_iter().filter(waits).collect()
}

fn handles(nodes: &[&'static Node]) -> Vec<Handle> {
    nodes.iter().map(|node| node.handle()).collect()
}

fn edges(graph: &'static Graph) -> (Vec<Handle>, Vec<Handle>) {
    let mut pairs = (Vec::new(), Vec::new());
    for node in graph.nodes() {
        for before in node.after() {
            pairs.0.push(before.handle());
            pairs.1.push(node.handle());
        }
    }
    pairs
}

unsafe fn change_edges(
    graph: Handle,
    from: *const Handle,
    to: *const Handle,
    count: usize,
    adds: bool,
) -> Answer {
    // SAFETY: the program's handles, `count` of each.
    unsafe {
        let graph = graph_of(graph)?;
        if count > 0 && (from.is_null() || to.is_null()) {
            return invalid();
        }
        for index in 0..count {
            let (from, to) = (
                node_of(from.add(index).read())?,
                node_of(to.add(index).read())?,
            );
            if !std::ptr::eq(from.graph, graph)
                || !std::ptr::eq(to.graph, graph)
                || std::ptr::eq(from, to)
            {
                return invalid();
            }
            let mut inner = lock(&to.inner);
            let before = inner.after.len();
            inner.after.retain(|known| !std::ptr::eq(*known, from));
            let existed = inner.after.len() != before;
            if adds {
                inner.after.push(from);
            }
            if existed == adds {
                return invalid();
            }
        }
    }
    Ok(())
}

driver! {
    fn graph_create(out: *mut Handle, flags: u32) {
        let state = state()?;
        if flags != 0 || out.is_null() {
            return invalid();
        }
        put(out, Graph::new(state).handle())
    }

    fn graph_destroy(graph: Handle) {
        state()?;
        graph_of(graph)?.end();
        Ok(())
    }

    fn graph_clone(out: *mut Handle, graph: Handle) {
        let state = state()?;
        put(out, graph_of(graph)?.copy(state).handle())
    }

    fn find_in_clone(out: *mut Handle, node: Handle, clone: Handle) {
        let (node, clone) = (node_of(node)?, graph_of(clone)?);
        let of = |copy: &&'static Node| copy.original.is_some_and(|from| std::ptr::eq(from, node));
        match clone.nodes().into_iter().find(of) {
            Some(found) => put(out, found.handle()),
            None => invalid(),
        }
    }

    fn graph_id(graph: Handle, out: *mut u32) {
        put(out, graph_of(graph)?.id as u32)
    }

    fn add_kernel(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *const KernelParams) {
        let op = get(params)?.op(state()?)?;
        add(out, graph, after, count, op)
    }

    fn add_kernel_v2(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *const KernelParams2) {
        let op = get(params)?.op(state()?)?;
        add(out, graph, after, count, op)
    }

    fn add_memcpy(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *const Memcpy3d, _context: Handle) {
        let op = get(params)?.op(state()?)?;
        add(out, graph, after, count, Op::Copy(op))
    }

    fn add_memset(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *const MemsetParams, _context: Handle) {
        let op = get(params)?.op(state()?)?;
        add(out, graph, after, count, op)
    }

    fn add_host(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *const HostParams) {
        let op = get(params)?.op()?;
        add(out, graph, after, count, op)
    }

    fn add_child(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, child: Handle) {
        let child = graph_of(child)?.copy(state()?);
        add(out, graph, after, count, Op::Child(child))
    }

    fn add_empty(out: *mut Handle, graph: Handle, after: *const Handle, count: usize) {
        add(out, graph, after, count, Op::Empty)
    }

    fn add_event_record(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, event: Handle) {
        match Event::find(event) {
            Some(event) => add(out, graph, after, count, Op::EventRecord(event)),
            None => bad_handle(),
        }
    }

    fn add_event_wait(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, event: Handle) {
        match Event::find(event) {
            Some(event) => add(out, graph, after, count, Op::EventWait(event)),
            None => bad_handle(),
        }
    }

    fn add_mem_alloc(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *mut MemAllocNodeParams) {
        let (state, context) = current()?;
        if params.is_null() {
            return invalid();
        }
        let bytes = (*params).bytes as u64;
        let address = graph_of(graph)?.memory(state, context, bytes)?;
        (*params).address = address;
        add(out, graph, after, count, Op::MemAlloc(address, bytes))
    }

    fn add_mem_free(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, address: u64) {
        let state = state()?;
        let held = state.memory.find_device(address);
        if !held.is_some_and(|found| found.kind == AllocationKind::Graph && found.device == address) {
            return invalid();
        }
        add(out, graph, after, count, Op::MemFree(address))
    }

    fn add_node(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, params: *mut u8) {
        let op = node_params_op(Some(graph_of(graph)?), params)?;
        add(out, graph, after, count, op)
    }

    fn add_node_v2(out: *mut Handle, graph: Handle, after: *const Handle, _edges: *const c_void, count: usize, params: *mut u8) {
        let op = node_params_op(Some(graph_of(graph)?), params)?;
        add(out, graph, after, count, op)
    }

    fn node_set_params(node: Handle, params: *mut u8) {
        let node = node_of(node)?;
        node.set_op(node_params_op(Some(node.graph), params)?)
    }

    fn get_nodes(graph: Handle, out: *mut Handle, count: *mut usize) {
        put_list(out, count, &handles(&graph_of(graph)?.nodes()))
    }

    fn get_root_nodes(graph: Handle, out: *mut Handle, count: *mut usize) {
        let mut nodes = graph_of(graph)?.nodes();
        nodes.retain(|node| node.after().is_empty());
        put_list(out, count, &handles(&nodes))
    }

    fn get_edges(graph: Handle, from: *mut Handle, to: *mut Handle, count: *mut usize) {
        let (before, after) = edges(graph_of(graph)?);
        let room = get(count)?;
        put_list(from, count, &before)?;
        if !to.is_null() {
            put(count, room)?;
            put_list(to, count, &after)?;
        }
        Ok(())
    }

    fn get_edges_v2(graph: Handle, from: *mut Handle, to: *mut Handle, data: *mut u64, count: *mut usize) {
        let (before, after) = edges(graph_of(graph)?);
        let room = get(count)?;
        put_list(from, count, &before)?;
        if !to.is_null() {
            put(count, room)?;
            put_list(to, count, &after)?;
        }
        if !data.is_null() {
            for index in 0..room.min(before.len()) {
                data.add(index).write(0);
            }
        }
        Ok(())
    }

    fn node_type(node: Handle, out: *mut u32) {
        put(out, node_of(node)?.op().kind())
    }

    fn node_dependencies(node: Handle, out: *mut Handle, count: *mut usize) {
        put_list(out, count, &handles(&node_of(node)?.after()))
    }

    fn node_dependencies_v2(node: Handle, out: *mut Handle, data: *mut u64, count: *mut usize) {
        put_list(out, count, &handles(&node_of(node)?.after()))?;
        zero_edges(data, out, get(count)?)
    }

    fn node_dependents(node: Handle, out: *mut Handle, count: *mut usize) {
        put_list(out, count, &handles(&dependents(node_of(node)?)))
    }

    fn node_dependents_v2(node: Handle, out: *mut Handle, data: *mut u64, count: *mut usize) {
        put_list(out, count, &handles(&dependents(node_of(node)?)))?;
        zero_edges(data, out, get(count)?)
    }

    fn add_dependencies(graph: Handle, from: *const Handle, to: *const Handle, count: usize) {
        change_edges(graph, from, to, count, true)
    }

    fn add_dependencies_v2(graph: Handle, from: *const Handle, to: *const Handle, _data: *const c_void, count: usize) {
        change_edges(graph, from, to, count, true)
    }

    fn remove_dependencies(graph: Handle, from: *const Handle, to: *const Handle, count: usize) {
        change_edges(graph, from, to, count, false)
    }

    fn remove_dependencies_v2(graph: Handle, from: *const Handle, to: *const Handle, _data: *const c_void, count: usize) {
        change_edges(graph, from, to, count, false)
    }

    fn destroy_node(node: Handle) {
        let node = node_of(node)?;
        for other in node.graph.nodes() {
            lock(&other.inner).after.retain(|known| !std::ptr::eq(*known, node));
        }
        lock(&node.graph.nodes).retain(|known| !std::ptr::eq(*known, node));
        node.retire();
        Ok(())
    }

    fn kernel_get_params(node: Handle, out: *mut KernelParams) {
        put(out, kernel_params(node_of(node)?)?)
    }

    fn kernel_get_params_v2(node: Handle, out: *mut KernelParams2) {
        let first = kernel_params(node_of(node)?)?;
        put(out, KernelParams2 { first, kernel: std::ptr::null_mut(), context: std::ptr::null_mut() })
    }

    fn kernel_set_params(node: Handle, params: *const KernelParams) {
        node_of(node)?.set_op(get(params)?.op(state()?)?)
    }

    fn kernel_set_params_v2(node: Handle, params: *const KernelParams2) {
        node_of(node)?.set_op(get(params)?.op(state()?)?)
    }

    fn kernel_get_attribute(node: Handle, attribute: u32, out: *mut [u32; 16]) {
        let Op::Kernel(kernel) = node_of(node)?.op() else {
            return invalid();
        };
        let mut value = [0; 16];
        if attribute == 2 {
            value[0] = u32::from(kernel.shape.is_cooperative);
        }
        put(out, value)
    }

    fn kernel_set_attribute(node: Handle, attribute: u32, value: *const [u32; 16]) {
        let node = node_of(node)?;
        let attribute = LaunchAttribute { id: attribute, pad: 0, value: get(value)? };
        let Op::Kernel(mut kernel) = node.op() else {
            return invalid();
        };
        if attribute.id == 2 {
            kernel.shape.is_cooperative = attribute.value[0] != 0;
        }
        node.set_op(Op::Kernel(kernel))
    }

    fn kernel_copy_attributes(to: Handle, from: Handle) {
        let (to, from) = (node_of(to)?, node_of(from)?);
        let (Op::Kernel(mut copy), Op::Kernel(kernel)) = (to.op(), from.op()) else {
            return invalid();
        };
        copy.shape.is_cooperative = kernel.shape.is_cooperative;
        to.set_op(Op::Kernel(copy))
    }

    fn memcpy_get_params(node: Handle, out: *mut Memcpy3d) {
        match node_of(node)?.op() {
            Op::Copy(copy) => put(out, Memcpy3d::of(&copy)),
            _ => invalid(),
        }
    }

    fn memcpy_set_params(node: Handle, params: *const Memcpy3d) {
        node_of(node)?.set_op(Op::Copy(get(params)?.op(state()?)?))
    }

    fn memset_get_params(node: Handle, out: *mut MemsetParams) {
        match node_of(node)?.op() {
            Op::Fill(fill) => put(out, MemsetParams {
                dst: fill.address,
                pitch: fill.pitch as usize,
                value: fill.value,
                element_bytes: fill.element_bytes,
                width: fill.width as usize,
                height: fill.height as usize,
            }),
            _ => invalid(),
        }
    }

    fn memset_set_params(node: Handle, params: *const MemsetParams) {
        node_of(node)?.set_op(get(params)?.op(state()?)?)
    }

    fn host_get_params(node: Handle, out: *mut HostParams) {
        match node_of(node)?.op() {
            Op::Host(host) => put(out, HostParams { function: Some(host.function), data: host.data as *mut c_void }),
            _ => invalid(),
        }
    }

    fn host_set_params(node: Handle, params: *const HostParams) {
        node_of(node)?.set_op(get(params)?.op()?)
    }

    fn child_get_graph(node: Handle, out: *mut Handle) {
        match node_of(node)?.op() {
            Op::Child(child) => put(out, child.handle()),
            _ => invalid(),
        }
    }

    fn event_get(node: Handle, out: *mut Handle) {
        match node_of(node)?.op() {
            Op::EventRecord(event) | Op::EventWait(event) => put(out, event.handle()),
            _ => invalid(),
        }
    }

    fn event_set(node: Handle, event: Handle) {
        let node = node_of(node)?;
        let Some(event) = Event::find(event) else {
            return bad_handle();
        };
        match node.op() {
            Op::EventRecord(_) => node.set_op(Op::EventRecord(event)),
            _ => node.set_op(Op::EventWait(event)),
        }
    }

    fn mem_alloc_get_params(node: Handle, out: *mut MemAllocNodeParams) {
        match node_of(node)?.op() {
            Op::MemAlloc(address, bytes) => put(out, MemAllocNodeParams {
                // Pinned, no handle types, device 0.
                pool_props: [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                access: std::ptr::null(),
                access_count: 0,
                bytes: bytes as usize,
                address,
            }),
            _ => invalid(),
        }
    }

    fn mem_free_get_params(node: Handle, out: *mut u64) {
        match node_of(node)?.op() {
            Op::MemFree(address) => put(out, address),
            _ => invalid(),
        }
    }

    fn node_local_id(node: Handle, out: *mut u32) {
        put(out, node_of(node)?.id as u32)
    }

    fn node_graph(node: Handle, out: *mut Handle) {
        put(out, node_of(node)?.graph.handle())
    }
}

unsafe fn zero_edges(data: *mut u64, out: *mut Handle, count: usize) -> Answer {
    if !data.is_null() && !out.is_null() {
        for index in 0..count {
            // SAFETY: the program says that there is room.
            unsafe { data.add(index).write(0) };
        }
    }
    Ok(())
}

fn kernel_params(node: &'static Node) -> Answer<KernelParams> {
    let mut inner = lock(&node.inner);
    let Op::Kernel(kernel) = &inner.op else {
        return invalid();
    };
    let (shape, function) = (kernel.shape, kernel.function);
    let block = kernel.params.as_ptr() as usize;
    let offsets = function.layout()?.params.iter();
    let pointers: Vec<usize> = offsets.map(|(at, _)| block + *at as usize).collect();
    inner.pointers = pointers;
    Ok(KernelParams {
        function: function.handle(),
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        params: inner.pointers.as_ptr().cast(),
        extra: std::ptr::null(),
    })
}

entries! {
    cuGraphCreate = graph_create;
    cuGraphDestroy = graph_destroy;
    cuGraphClone = graph_clone;
    cuGraphNodeFindInClone = find_in_clone;
    cuGraphGetId = graph_id;
    cuGraphAddKernelNode = add_kernel;
    cuGraphAddKernelNode_v2 = add_kernel_v2;
    cuGraphAddMemcpyNode = add_memcpy;
    cuGraphAddMemsetNode = add_memset;
    cuGraphAddHostNode = add_host;
    cuGraphAddChildGraphNode = add_child;
    cuGraphAddEmptyNode = add_empty;
    cuGraphAddEventRecordNode = add_event_record;
    cuGraphAddEventWaitNode = add_event_wait;
    cuGraphAddMemAllocNode = add_mem_alloc;
    cuGraphAddMemFreeNode = add_mem_free;
    cuGraphAddNode = add_node;
    cuGraphAddNode_v2 = add_node_v2;
    cuGraphNodeSetParams = node_set_params;
    cuGraphGetNodes = get_nodes;
    cuGraphGetRootNodes = get_root_nodes;
    cuGraphGetEdges = get_edges;
    cuGraphGetEdges_v2 = get_edges_v2;
    cuGraphNodeGetType = node_type;
    cuGraphNodeGetDependencies = node_dependencies;
    cuGraphNodeGetDependencies_v2 = node_dependencies_v2;
    cuGraphNodeGetDependentNodes = node_dependents;
    cuGraphNodeGetDependentNodes_v2 = node_dependents_v2;
    cuGraphAddDependencies = add_dependencies;
    cuGraphAddDependencies_v2 = add_dependencies_v2;
    cuGraphRemoveDependencies = remove_dependencies;
    cuGraphRemoveDependencies_v2 = remove_dependencies_v2;
    cuGraphDestroyNode = destroy_node;
    cuGraphKernelNodeGetParams = kernel_get_params;
    cuGraphKernelNodeGetParams_v2 = kernel_get_params_v2;
    cuGraphKernelNodeSetParams = kernel_set_params;
    cuGraphKernelNodeSetParams_v2 = kernel_set_params_v2;
    cuGraphKernelNodeGetAttribute = kernel_get_attribute;
    cuGraphKernelNodeSetAttribute = kernel_set_attribute;
    cuGraphKernelNodeCopyAttributes = kernel_copy_attributes;
    cuGraphMemcpyNodeGetParams = memcpy_get_params;
    cuGraphMemcpyNodeSetParams = memcpy_set_params;
    cuGraphMemsetNodeGetParams = memset_get_params;
    cuGraphMemsetNodeSetParams = memset_set_params;
    cuGraphHostNodeGetParams = host_get_params;
    cuGraphHostNodeSetParams = host_set_params;
    cuGraphChildGraphNodeGetGraph = child_get_graph;
    cuGraphEventRecordNodeGetEvent = event_get;
    cuGraphEventRecordNodeSetEvent = event_set;
    cuGraphEventWaitNodeGetEvent = event_get;
    cuGraphEventWaitNodeSetEvent = event_set;
    cuGraphMemAllocNodeGetParams = mem_alloc_get_params;
    cuGraphMemFreeNodeGetParams = mem_free_get_params;
    cuGraphNodeGetLocalId = node_local_id;
    cuGraphNodeGetContainingGraph = node_graph;
}
