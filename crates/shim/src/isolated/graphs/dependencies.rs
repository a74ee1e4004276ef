//! Entry points for whole graphs and how their nodes depend on each other.

use std::ffi::c_void;

use mica_cuda_abi::{GraphMemAttribute, Handle};

use super::memory::BYTES;
use super::{Graph, Node, graph_of, node_of};
use crate::isolated::check::objects::{self, ObjectKind};
use crate::isolated::state::state;
use crate::isolated::support::{Answer, driver, entries, get, invalid, lock, put};

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

/// Lists the edges of a graph; how many there was room for.
unsafe fn put_edges(
    graph: Handle,
    from: *mut Handle,
    to: *mut Handle,
    count: *mut usize,
) -> Answer<usize> {
    // SAFETY: the program's handle, and lists with as much room as it says.
    unsafe {
        let (before, after) = edges(graph_of(graph)?);
        let room = get(count)?;
        put_list(from, count, &before)?;
        if !to.is_null() {
            put(count, room)?;
            put_list(to, count, &after)?;
        }
        Ok(room.min(before.len()))
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

driver! {
    fn graph_create(out: *mut Handle, flags: u32) {
        let state = state()?;
        if flags != 0 || out.is_null() {
            return invalid();
        }
        let graph = Graph::new(state).handle();
        objects::made(ObjectKind::Graph, graph as u64, 0, 0);
        put(out, graph)
    }

    fn graph_destroy(graph: Handle) {
        state()?;
        graph_of(graph)?.end();
        objects::gone(ObjectKind::Graph, graph as u64);
        Ok(())
    }

    fn graph_clone(out: *mut Handle, graph: Handle) {
        let state = state()?;
        let copy = graph_of(graph)?.copy(state)?.handle();
        objects::made(ObjectKind::Graph, copy as u64, 0, 0);
        put(out, copy)
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

    fn get_nodes(graph: Handle, out: *mut Handle, count: *mut usize) {
        put_list(out, count, &handles(&graph_of(graph)?.nodes()))
    }

    fn get_root_nodes(graph: Handle, out: *mut Handle, count: *mut usize) {
        let mut nodes = graph_of(graph)?.nodes();
        nodes.retain(|node| node.after().is_empty());
        put_list(out, count, &handles(&nodes))
    }

    fn get_edges(graph: Handle, from: *mut Handle, to: *mut Handle, count: *mut usize) {
        put_edges(graph, from, to, count).map(drop)
    }

    fn get_edges_v2(graph: Handle, from: *mut Handle, to: *mut Handle, data: *mut u64, count: *mut usize) {
        let told = put_edges(graph, from, to, count)?;
        zero_edges(data, from, told)
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

    fn node_local_id(node: Handle, out: *mut u32) {
        put(out, node_of(node)?.id as u32)
    }

    fn node_graph(node: Handle, out: *mut Handle) {
        put(out, node_of(node)?.graph.handle())
    }

    fn graph_memory_attribute(device: i32, attribute: u32, out: *mut u64) {
        crate::isolated::context::check_device(device)?;
        // Used and reserved are the same here: nothing is kept for later.
        use GraphMemAttribute::*;
        match GraphMemAttribute::from_number(attribute) {
            Some(UsedMemCurrent | ReservedMemCurrent) => put(out, BYTES.now()),
            Some(UsedMemHigh | ReservedMemHigh) => put(out, BYTES.most()),
            None => invalid(),
        }
    }

    fn graph_memory_set(device: i32, attribute: u32, value: *const u64) {
        crate::isolated::context::check_device(device)?;
        // Only the high marks can be set, and only back.
        use GraphMemAttribute::*;
        match (GraphMemAttribute::from_number(attribute), get(value)?) {
            (Some(UsedMemHigh | ReservedMemHigh), 0) => {
                BYTES.forget_most();
                Ok(())
            }
            _ => invalid(),
        }
    }

    fn graph_memory_trim(device: i32) {
        crate::isolated::context::check_device(device).map(drop)
    }
}

entries! {
    cuDeviceGetGraphMemAttribute = graph_memory_attribute;
    cuDeviceSetGraphMemAttribute = graph_memory_set;
    cuDeviceGraphMemTrim = graph_memory_trim;
    cuGraphCreate = graph_create;
    cuGraphDestroy = graph_destroy;
    cuGraphClone = graph_clone;
    cuGraphNodeFindInClone = find_in_clone;
    cuGraphGetId = graph_id;
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
    cuGraphNodeGetLocalId = node_local_id;
    cuGraphNodeGetContainingGraph = node_graph;
}
