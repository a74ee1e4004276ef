//! Graphs and their nodes. The entry points are in [`nodes`]; running graphs is in
//! [`exec`].

pub(crate) mod conditionals;
pub(crate) mod dependencies;
pub(crate) mod dot;
pub(crate) mod exec;
pub(crate) mod exec_update;
pub(crate) mod flatten;
pub(crate) mod memory;
pub(crate) mod nodes;
pub(crate) mod operations;
pub(crate) mod params;
pub(crate) mod user_objects;

use std::any::Any;
use std::sync::{Arc, Mutex};

use mica_cuda_abi::{CuResult, Handle};

use crate::isolated::handles::{Kind, Object};
use crate::isolated::state::State;
use crate::isolated::support::{Answer, Code, invalid, lock, not_supported};
use conditionals::Template;
use operations::Op;

/// A graph.
pub(crate) type Graph = Object<GraphState>;
/// A node of a graph.
pub(crate) type Node = Object<NodeState>;

/// What lives as long as a graph or anything made of it.
pub(crate) type Held = Vec<Arc<dyn Any + Send + Sync>>;

pub(crate) struct GraphState {
    pub(crate) id: u64,
    pub(crate) nodes: Mutex<Vec<&'static Node>>,
    pub(crate) held: Mutex<Held>,
    /// The graph of the conditional node that this is a body of.
    pub(crate) outer: Option<&'static Graph>,
    /// What the handles of its conditional nodes belong to.
    pub(crate) template: Mutex<Option<Template>>,
}

pub(crate) struct NodeState {
    pub(crate) graph: &'static Graph,
    pub(crate) id: u64,
    pub(crate) inner: Mutex<Inner>,
    /// The node it was cloned from.
    pub(crate) original: Option<&'static Node>,
}

pub(crate) struct Inner {
    pub(crate) op: Op,
    pub(crate) after: Vec<&'static Node>,
    /// What `kernelParams` of the last answer pointed at.
    pub(crate) pointers: Vec<usize>,
}

// SAFETY: the pointers inside are the program's, handed back to it or used when it says so.
unsafe impl Send for Inner {}

impl Kind for GraphState {
    const MAGIC: u64 = 0x4d49_4341_4752_4131;
}
impl Kind for NodeState {
    const MAGIC: u64 = 0x4d49_4341_4e4f_4431;
}

impl Graph {
    pub(crate) fn new(state: &State) -> &'static Self {
        Self::within(state, None)
    }

    /// A graph, or the body of a conditional node of another one.
    pub(crate) fn within(state: &State, outer: Option<&'static Self>) -> &'static Self {
        Object::leak(GraphState {
            id: state.number(),
            nodes: Mutex::default(),
            held: Mutex::default(),
            outer,
            template: Mutex::default(),
        })
    }

    /// Adds a node.
    pub(crate) fn add(&'static self, op: Op, after: &[&'static Node]) -> &'static Node {
        self.add_clone(op, after.to_vec(), None)
    }

    fn add_clone(
        &'static self,
        op: Op,
        after: Vec<&'static Node>,
        original: Option<&'static Node>,
    ) -> &'static Node {
        let mut nodes = lock(&self.nodes);
        let id = nodes.last().map_or(0, |last| last.id + 1);
        let inner = Inner {
            op,
            after,
            pointers: Vec::new(),
        };
        let node = Object::leak(NodeState {
            graph: self,
            id,
            inner: Mutex::new(inner),
            original,
        });
        nodes.push(node);
        node
    }

    /// Its nodes in the order they were added.
    pub(crate) fn nodes(&self) -> Vec<&'static Node> {
        lock(&self.nodes).clone()
    }

    pub(crate) fn held(&self) -> Held {
        lock(&self.held).clone()
    }

    /// Keeps something as long as the graph lives.
    pub(crate) fn hold(&self, what: Arc<dyn Any + Send + Sync>) {
        lock(&self.held).push(what);
    }

    /// A graph with the same nodes. As with the driver, there is none of a graph with conditional nodes.
    pub(crate) fn copy(&'static self, state: &State) -> Answer<&'static Self> {
        let copy = Self::new(state);
        *lock(&copy.held) = self.held();
        let mut pairs: Vec<(&'static Node, &'static Node)> = Vec::new();
        for node in self.nodes() {
            let op = match node.op() {
                Op::Child(child) => Op::Child(child.copy(state)?),
                Op::Conditional(_) => {
                    copy.end();
                    return not_supported("a copy of a graph with conditional nodes");
                }
                op => op,
            };
            pairs.push((node, copy.add_clone(op, Vec::new(), Some(node))));
        }
        for (from, to) in &pairs {
            let of = |old: &'static Node| {
                let pair = pairs.iter().find(|(known, _)| std::ptr::eq(*known, old));
                pair.map(|(_, new)| *new)
            };
            lock(&to.inner).after = from.after().into_iter().filter_map(of).collect();
        }
        Ok(copy)
    }

    /// Ends it and its nodes.
    pub(crate) fn end(&self) {
        self.retire();
        for node in lock(&self.nodes).drain(..) {
            node.retire();
            let mut inner = lock(&node.inner);
            match &inner.op {
                Op::Child(child) => child.end(),
                Op::Conditional(conditional) => {
                    conditional.graphs().iter().for_each(|body| body.end())
                }
                _ => {}
            }
            inner.op = Op::Empty;
            inner.after = Vec::new();
        }
        let held = std::mem::take(&mut *lock(&self.held));
        let template = lock(&self.template).take();
        drop((held, template));
    }
}

impl Node {
    pub(crate) fn op(&self) -> Op {
        lock(&self.inner).op.clone()
    }

    /// Nodes it comes after.
    pub(crate) fn after(&self) -> Vec<&'static Node> {
        lock(&self.inner).after.clone()
    }

    pub(crate) fn set_op(&self, op: Op) -> Answer {
        let mut inner = lock(&self.inner);
        if inner.op.kind() != op.kind() || matches!(op, Op::Conditional(_)) {
            return invalid();
        }
        inner.op = op;
        Ok(())
    }
}

/// The graph of a handle.
pub(crate) unsafe fn graph_of(handle: Handle) -> Answer<&'static Graph> {
    // SAFETY: the program's handle.
    unsafe { Graph::find(handle) }.ok_or(Code(CuResult::InvalidValue as u32))
}

/// The node of a handle.
pub(crate) unsafe fn node_of(handle: Handle) -> Answer<&'static Node> {
    // SAFETY: the program's handle.
    unsafe { Node::find(handle) }.ok_or(Code(CuResult::InvalidValue as u32))
}
