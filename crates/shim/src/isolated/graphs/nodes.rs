//! Entry points that add nodes to graphs, and read and change what a node does.

use std::ffi::c_void;

use mica_cuda_abi::{Handle, MemAllocNodeParams};

use super::operations::Op;
use super::params::{
    HostParams, KernelParams, KernelParams2, MemsetParams, kernel_params, node_params_op,
};
use super::{graph_of, node_of};
use crate::isolated::context::current;
use crate::isolated::copies::boxes::Memcpy3d;
use crate::isolated::launch::attributes;
use crate::isolated::memory::AllocationKind;
use crate::isolated::state::state;
use crate::isolated::streams::events::Event;
use crate::isolated::support::{Answer, bad_handle, driver, entries, get, invalid, put, room_for};

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

driver! {
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
        let child = graph_of(child)?.copy(state()?)?;
        add(out, graph, after, count, Op::Child(child))
    }

    fn add_empty(out: *mut Handle, graph: Handle, after: *const Handle, count: usize) {
        add(out, graph, after, count, Op::Empty)
    }

    fn add_event_record(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, event: Handle) {
        graph_of(graph)?;
        room_for(out)?;
        match Event::find(event) {
            Some(event) => add(out, graph, after, count, Op::EventRecord(event)),
            None => bad_handle(),
        }
    }

    fn add_event_wait(out: *mut Handle, graph: Handle, after: *const Handle, count: usize, event: Handle) {
        graph_of(graph)?;
        room_for(out)?;
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

    fn kernel_get_params(node: Handle, out: *mut KernelParams) {
        put(out, kernel_params(node_of(node)?)?)
    }

    fn kernel_get_params_v2(node: Handle, out: *mut KernelParams2) {
        put(out, KernelParams2::of(kernel_params(node_of(node)?)?)?)
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
        let set = kernel.attributes.iter().find(|set| set.id == attribute);
        let mut value = set.map_or([0; 16], |set| set.value);
        if attribute == attributes::COOPERATIVE {
            value[0] = u32::from(kernel.shape.is_cooperative);
        }
        put(out, value)
    }

    fn kernel_set_attribute(node: Handle, attribute: u32, value: *const [u32; 16]) {
        let node = node_of(node)?;
        let value = get(value)?;
        let Op::Kernel(mut kernel) = node.op() else {
            return invalid();
        };
        if attribute == attributes::COOPERATIVE {
            kernel.shape.is_cooperative = value[0] != 0;
        }
        if let Some(travelling) = attributes::translated(state()?, attribute, value)? {
            kernel.attributes.retain(|set| set.id != attribute);
            kernel.attributes.push(travelling);
        }
        node.set_op(Op::Kernel(kernel))
    }

    fn kernel_copy_attributes(to: Handle, from: Handle) {
        let (to, from) = (node_of(to)?, node_of(from)?);
        let (Op::Kernel(mut copy), Op::Kernel(kernel)) = (to.op(), from.op()) else {
            return invalid();
        };
        copy.shape.is_cooperative = kernel.shape.is_cooperative;
        copy.attributes.clone_from(&kernel.attributes);
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
}

entries! {
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
}
