//! What a node of a graph does, and the form in which it travels.

use std::ffi::c_void;
use std::sync::Arc;

use mica_wire::session::{
    Copy, EventRecord, Fill, GraphNode, Launch, LaunchAttribute, LaunchWith, Node,
    SharedHostMemory, StreamCallback, StreamWaitEvent,
};

use super::conditionals::Conditional;
use crate::isolated::context::Context;
use crate::isolated::copies::{CopyOp, End, Place, copy_on_host};
use crate::isolated::launch::Shape;
use crate::isolated::launch::attributes;
use crate::isolated::modules::Function;
use crate::isolated::state::State;
use crate::isolated::streams::callbacks;
use crate::isolated::streams::events::Event;
use crate::isolated::support::{Answer, invalid};

/// A kernel with its parameters.
#[derive(Clone)]
pub(crate) struct KernelOp {
    pub(crate) function: &'static Function,
    pub(crate) shape: Shape,
    pub(crate) params: Vec<u8>,
    pub(crate) attributes: Vec<LaunchAttribute>,
}

/// A function of the program.
#[derive(Clone, Copy)]
pub(crate) struct HostOp {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: usize,
}

impl HostOp {
    pub(crate) fn call(&self) {
        // SAFETY: the program gave this function to be called with this pointer.
        unsafe { (self.function)(self.data as *mut c_void) }
    }
}

/// What a node does.
#[derive(Clone)]
pub(crate) enum Op {
    Empty,
    Kernel(KernelOp),
    Copy(CopyOp),
    Fill(Fill),
    Host(HostOp),
    EventRecord(&'static Event),
    EventWait(&'static Event),
    /// Nodes of another graph, with what each comes after.
    Child(&'static super::Graph),
    /// Memory that the graph holds as long as it lives: address and bytes.
    MemAlloc(u64, u64),
    MemFree(u64),
    /// Graphs that run as the value of a handle says.
    Conditional(Arc<Conditional>),
}

impl Op {
    /// `CUgraphNodeType`.
    pub(crate) fn kind(&self) -> u32 {
        match self {
            Self::Kernel(_) => 0,
            Self::Copy(_) => 1,
            Self::Fill(_) => 2,
            Self::Host(_) => 3,
            Self::Child(_) => 4,
            Self::Empty => 5,
            Self::EventWait(_) => 6,
            Self::EventRecord(_) => 7,
            Self::MemAlloc(..) => 10,
            Self::MemFree(_) => 11,
            Self::Conditional(_) => 13,
        }
    }
}

/// What an executable graph must keep while it may run.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) callbacks: Vec<u64>,
    pub(crate) bounces: Vec<Arc<Bounce>>,
}

/// Shared memory that stands for pageable memory in a graph.
pub(crate) struct Bounce(pub(crate) SharedHostMemory);

// SAFETY: plain memory that the graph's own nodes use one after the other.
unsafe impl Send for Bounce {}
// SAFETY: as for `Send`.
unsafe impl Sync for Bounce {}

fn node<R: Node>(after: Vec<u32>, request: &R, tail: &[u8]) -> GraphNode {
    let mut body = request.encode().as_slice().to_vec();
    body.extend_from_slice(tail);
    GraphNode {
        after,
        call: R::NUMBER,
        body,
    }
}

/// Adds the wire's nodes for an operation; answers the index of the last.
pub(crate) fn lower(
    state: &'static State,
    context: &'static Context,
    op: &Op,
    after: Vec<u32>,
    nodes: &mut Vec<GraphNode>,
    kept: &mut Kept,
) -> Answer<u32> {
    let callback = |work: Arc<dyn Fn() + Send + Sync>, kept: &mut Kept| {
        let callback = callbacks::register(state, work, true);
        kept.callbacks.push(callback);
        StreamCallback {
            stream: 0,
            callback,
        }
    };
    let new = match op {
        Op::Empty | Op::MemAlloc(..) | Op::MemFree(_) => GraphNode {
            after,
            call: 0,
            body: Vec::new(),
        },
        Op::Kernel(kernel) => {
            let resolved = kernel.function.resolve(state, context)?;
            if !kernel.attributes.is_empty() {
                let request = LaunchWith {
                    stream: 0,
                    module: resolved.module,
                    kernel: resolved.kernel,
                    grid: kernel.shape.grid,
                    block: kernel.shape.block,
                    dynamic_shared: kernel.shape.shared,
                    attributes: kernel.attributes.len() as u32,
                };
                let tail = attributes::encode(&kernel.attributes, &kernel.params);
                nodes.push(node(after, &request, &tail));
                return Ok(nodes.len() as u32 - 1);
            }
            let request = Launch {
                stream: 0,
                module: resolved.module,
                kernel: resolved.kernel,
                grid: kernel.shape.grid,
                block: kernel.shape.block,
                dynamic_shared: kernel.shape.shared,
                cooperative: kernel.shape.is_cooperative,
            };
            node(after, &request, &kernel.params)
        }
        Op::Fill(fill) => node(after, fill, &[]),
        Op::EventRecord(event) => {
            event.note_in_graph();
            let (event, stream) = (event.wire(), 0);
            node(after, &EventRecord { event, stream }, &[])
        }
        Op::EventWait(event) => {
            event.note_in_graph();
            let (event, stream) = (event.wire(), 0);
            node(after, &StreamWaitEvent { stream, event }, &[])
        }
        Op::Host(host) => {
            let host = *host;
            node(after, &callback(Arc::new(move || host.call()), kept), &[])
        }
        Op::Copy(copy) => return lower_copy(state, context, copy, after, nodes, kept),
        // Children are laid open before, conditional nodes made with their bodies.
        Op::Child(_) | Op::Conditional(_) => return invalid(),
    };
    nodes.push(new);
    Ok(nodes.len() as u32 - 1)
}

/// A copy; one with a pageable end goes through memory that both sides map, and a host function
/// moves the bytes when the graph comes to it, as late as a real driver would.
fn lower_copy(
    state: &'static State,
    context: &'static Context,
    copy: &CopyOp,
    after: Vec<u32>,
    nodes: &mut Vec<GraphNode>,
    kept: &mut Kept,
) -> Answer<u32> {
    if let Some(area) = copy.wire() {
        nodes.push(node(after, &Copy { stream: 0, area }, &[]));
        return Ok(nodes.len() as u32 - 1);
    }
    let push_host = |copy: CopyOp, after, kept: &mut Kept, nodes: &mut Vec<GraphNode>| {
        let callback = callbacks::register(state, Arc::new(move || copy_on_host(&copy)), true);
        kept.callbacks.push(callback);
        nodes.push(node(
            after,
            &StreamCallback {
                stream: 0,
                callback,
            },
            &[],
        ));
        nodes.len() as u32 - 1
    };
    let is_pageable = |end: &End| matches!(end.place, Place::Pageable(_));
    if is_pageable(&copy.src) && is_pageable(&copy.dst) {
        return Ok(push_host(*copy, after, kept, nodes));
    }
    let (width, height, depth) = copy.extent;
    let bytes = width * height * depth;
    let memory = state
        .client
        .host_alloc(context.wire(), bytes.next_multiple_of(4096), false);
    let memory = context.checked(memory)?;
    let (host, device) = (memory.as_ptr() as u64, memory.device());
    kept.bounces.push(Arc::new(Bounce(memory)));
    let packed = |place| End {
        place,
        pitch: (width, width * height),
        offset: [0; 3],
    };
    let (on_host, on_device) = (packed(Place::Pageable(host)), packed(Place::Device(device)));
    let extent = copy.extent;
    if is_pageable(&copy.src) {
        let staged = CopyOp {
            src: copy.src,
            dst: on_host,
            extent,
        };
        let first = push_host(staged, after, kept, nodes);
        let Some(area) = (CopyOp {
            src: on_device,
            dst: copy.dst,
            extent,
        })
        .wire() else {
            return invalid();
        };
        nodes.push(node(vec![first], &Copy { stream: 0, area }, &[]));
        return Ok(nodes.len() as u32 - 1);
    }
    let Some(area) = (CopyOp {
        src: copy.src,
        dst: on_device,
        extent,
    })
    .wire() else {
        return invalid();
    };
    nodes.push(node(after, &Copy { stream: 0, area }, &[]));
    let first = nodes.len() as u32 - 1;
    let fetched = CopyOp {
        src: on_host,
        dst: copy.dst,
        extent,
    };
    Ok(push_host(fetched, vec![first], kept, nodes))
}
