//! What a node of a graph does, and the form in which it travels.

use std::ffi::c_void;
use std::sync::Arc;

use mica_wire::session::{
    Copy, EventRecord, Fill, GraphNode, LaunchAttribute, Node, SharedHostMemory, StreamCallback,
    StreamWaitEvent,
};

use super::conditionals::Conditional;
use crate::isolated::context::Context;
use crate::isolated::copies::{CopyOp, End, Place, copy_on_host};
use crate::isolated::launch::{self, Shape};
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

/// The wire's nodes of a graph that is being built.
pub(crate) struct Lowering<'k> {
    pub(crate) state: &'static State,
    pub(crate) context: &'static Context,
    pub(crate) nodes: Vec<GraphNode>,
    pub(crate) kept: &'k mut Kept,
}

impl Lowering<'_> {
    /// Adds a node; its index.
    pub(crate) fn push(&mut self, node: GraphNode) -> u32 {
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    /// Adds the nodes for an operation; the index of the last.
    pub(crate) fn add(&mut self, op: &Op, after: Vec<u32>) -> Answer<u32> {
        let new = match op {
            Op::Empty | Op::MemAlloc(..) | Op::MemFree(_) => GraphNode {
                after,
                call: 0,
                body: Vec::new(),
            },
            Op::Kernel(kernel) => self.kernel(kernel, after)?,
            Op::Fill(fill) => node(after, fill, &[]),
            Op::EventRecord(event) => {
                event.note_in_graph();
                let event = event.wire();
                node(after, &EventRecord { event, stream: 0 }, &[])
            }
            Op::EventWait(event) => {
                event.note_in_graph();
                let event = event.wire();
                node(after, &StreamWaitEvent { stream: 0, event }, &[])
            }
            Op::Host(host) => {
                let host = *host;
                return Ok(self.call_back(Arc::new(move || host.call()), after));
            }
            Op::Copy(copy) => return self.copy(copy, after),
            // Children are laid open before, conditional nodes made with their bodies.
            Op::Child(_) | Op::Conditional(_) => return invalid(),
        };
        Ok(self.push(new))
    }

    fn kernel(&self, kernel: &KernelOp, after: Vec<u32>) -> Answer<GraphNode> {
        let resolved = kernel.function.resolve(self.state, self.context)?;
        let request = launch::request(0, resolved, &kernel.shape);
        if kernel.attributes.is_empty() {
            return Ok(node(after, &request, &kernel.params));
        }
        let (request, tail) = launch::with_attributes(&request, &kernel.attributes, &kernel.params);
        Ok(node(after, &request, &tail))
    }

    /// Adds a node that has the program do something.
    fn call_back(&mut self, work: Arc<dyn Fn() + Send + Sync>, after: Vec<u32>) -> u32 {
        let callback = callbacks::register(self.state, work, true);
        self.kept.callbacks.push(callback);
        let request = StreamCallback {
            stream: 0,
            callback,
        };
        self.push(node(after, &request, &[]))
    }

    /// Adds a copy that the program makes.
    fn copy_on_host(&mut self, copy: CopyOp, after: Vec<u32>) -> u32 {
        self.call_back(Arc::new(move || copy_on_host(&copy)), after)
    }

    /// Adds a copy that the device makes.
    fn copy_on_device(&mut self, copy: CopyOp, after: Vec<u32>) -> Answer<u32> {
        match copy.wire() {
            Some(area) => Ok(self.push(node(after, &Copy { stream: 0, area }, &[]))),
            None => invalid(),
        }
    }

    /// A copy; one with a pageable end goes through memory that both sides map, and a host function
    /// moves the bytes when the graph comes to it, as late as a real driver would.
    fn copy(&mut self, copy: &CopyOp, after: Vec<u32>) -> Answer<u32> {
        if copy.wire().is_some() {
            return self.copy_on_device(*copy, after);
        }
        let is_pageable = |end: &End| matches!(end.place, Place::Pageable(_));
        if is_pageable(&copy.src) && is_pageable(&copy.dst) {
            return Ok(self.copy_on_host(*copy, after));
        }
        let (on_host, on_device) = self.bounce(copy.extent)?;
        let CopyOp { src, dst, extent } = *copy;
        let between = |src, dst| CopyOp { src, dst, extent };
        if is_pageable(&src) {
            let first = self.copy_on_host(between(src, on_host), after);
            return self.copy_on_device(between(on_device, dst), vec![first]);
        }
        let first = self.copy_on_device(between(src, on_device), after)?;
        Ok(self.copy_on_host(between(on_host, dst), vec![first]))
    }

    /// Makes memory that both sides map, for a box of bytes: as the program and as the device sees it.
    fn bounce(&mut self, (width, height, depth): (u64, u64, u64)) -> Answer<(End, End)> {
        let bytes = (width * height * depth).next_multiple_of(4096);
        let memory = self
            .state
            .client
            .host_alloc(self.context.wire(), bytes, false);
        let memory = self.context.checked(memory)?;
        let (host, device) = (memory.as_ptr() as u64, memory.device());
        self.kept.bounces.push(Arc::new(Bounce(memory)));
        let packed = |place| End {
            place,
            pitch: (width, width * height),
            offset: [0; 3],
        };
        Ok((packed(Place::Pageable(host)), packed(Place::Device(device))))
    }
}
