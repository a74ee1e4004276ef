//! Graphs: work described once and launched often.
//!
//! Nodes are put in an order that respects their dependencies when the graph is made, so replaying
//! is a walk down a list.

use std::sync::Arc;

use mica_gpu::{ConditionalKind, Copy3d, Fill2d, GraphCallback, Launch, ModuleId};

use crate::{Result, VgpuError};

/// Most nodes of a graph.
const MOST_NODES: usize = 1 << 20;
/// Conditional nodes inside each other, at most.
pub const CONDITIONAL_DEPTH: usize = 16;

/// A kernel launch that owns its parameters; the module is named by its session handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedLaunch {
    /// Module's handle.
    pub module: u64,
    /// Kernel's index.
    pub kernel: u32,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub dynamic_shared: u32,
    /// Grid-wide barriers are used.
    pub cooperative: bool,
    /// Packed parameters.
    pub params: Vec<u8>,
    /// Launch attributes.
    pub attributes: Vec<RawAttribute>,
}

impl OwnedLaunch {
    /// The launch as the device takes it, of the device's own module.
    pub(crate) fn of(&self, module: ModuleId) -> Launch<'_> {
        Launch {
            module,
            kernel: self.kernel,
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.dynamic_shared,
            cooperative: self.cooperative,
            params: &self.params,
        }
    }
}

/// A launch attribute as a program gives it: an event in it is named by its session handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawAttribute {
    /// `CUlaunchAttributeID`.
    pub id: u32,
    /// `CUlaunchAttributeValue`.
    pub value: [u32; 16],
}

/// What a node does. Handles are the session's.
#[derive(Clone)]
pub enum GraphOp {
    /// Nothing: a point to join.
    Nothing,
    /// A kernel.
    Launch(OwnedLaunch),
    /// A copy; arrays are named by session handle.
    Copy(Copy3d),
    /// A fill.
    Fill(Fill2d),
    /// Bytes to write.
    Write(mica_gpu::DevicePtr, Arc<[u8]>),
    /// Records an event.
    EventRecord(u64),
    /// Waits for an event.
    WaitEvent(u64),
    /// A host function, made anew for each replay.
    Callback(GraphCallback),
    /// Graphs that run or not, as the value of a handle says: only on a device that has such nodes.
    Conditional(OwnedConditional),
}

/// A node whose bodies run as the value of a handle says.
#[derive(Clone)]
pub struct OwnedConditional {
    /// From [`crate::Session::conditional_create`].
    pub handle: u64,
    /// How the value chooses.
    pub kind: ConditionalKind,
    /// The graphs to choose from.
    pub bodies: Vec<Vec<GraphNode>>,
}

/// How a graph is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphOptions {
    /// Template with the handles of conditional nodes; 0 for none.
    pub template: u64,
    /// Nodes run with the priorities of their own launches instead of the stream's.
    pub node_priorities: bool,
}

impl GraphOp {
    /// Host bytes that it is.
    pub(crate) fn host_bytes(&self) -> u64 {
        let beside = match self {
            Self::Launch(launch) => launch.params.len() + size_of_val(launch.attributes.as_slice()),
            Self::Write(_, bytes) => bytes.len(),
            // What the function holds.
            Self::Callback(_) => 128,
            Self::Conditional(conditional) => {
                let nodes = conditional.bodies.iter().flatten();
                nodes.map(GraphNode::host_bytes).sum::<u64>() as usize
            }
            Self::Nothing
            | Self::Copy(_)
            | Self::Fill(_)
            | Self::EventRecord(_)
            | Self::WaitEvent(_) => 0,
        };
        (size_of::<Self>() + beside) as u64
    }
}

/// A node and the nodes it comes after, by index.
#[derive(Clone)]
pub struct GraphNode {
    /// Indices of nodes that come first.
    pub after: Vec<u32>,
    /// What it does.
    pub op: GraphOp,
}

impl GraphNode {
    /// Host bytes that it is.
    pub(crate) fn host_bytes(&self) -> u64 {
        size_of_val(self.after.as_slice()) as u64 + self.op.host_bytes()
    }
}

/// Whether a device must have graphs of its own to run these.
pub(crate) fn is_conditional(nodes: &[GraphNode]) -> bool {
    let is = |node: &GraphNode| matches!(node.op, GraphOp::Conditional(_));
    nodes.iter().any(is)
}

/// Puts nodes in order: each comes after those it names.
///
/// # Errors
/// If they wait for each other in a circle, or for a node that does not exist.
pub(crate) fn ordered(nodes: Vec<GraphNode>) -> Result<Vec<GraphNode>> {
    ordered_within(nodes, CONDITIONAL_DEPTH)
}

fn ordered_within(nodes: Vec<GraphNode>, depth: usize) -> Result<Vec<GraphNode>> {
    let order = order_of(&nodes)?;
    let mut place = vec![0_u32; order.len()];
    for (new, old) in (0_u32..).zip(&order) {
        place[*old] = new;
    }
    let mut nodes: Vec<Option<GraphNode>> = nodes.into_iter().map(Some).collect();
    let mut sorted = Vec::with_capacity(order.len());
    for mut node in order.into_iter().filter_map(|index| nodes[index].take()) {
        for before in &mut node.after {
            *before = place[*before as usize];
        }
        if let GraphOp::Conditional(conditional) = &mut node.op {
            let Some(depth) = depth.checked_sub(1) else {
                let what =
                    format!("more than {CONDITIONAL_DEPTH} conditional nodes inside each other");
                return Err(VgpuError::Argument(what));
            };
            let bodies = std::mem::take(&mut conditional.bodies).into_iter();
            let bodies: Result<_> = bodies.map(|body| ordered_within(body, depth)).collect();
            conditional.bodies = bodies?;
        }
        sorted.push(node);
    }
    Ok(sorted)
}

/// The indices of nodes in an order that they can run in.
fn order_of(nodes: &[GraphNode]) -> Result<Vec<usize>> {
    let count = nodes.len();
    if count > MOST_NODES {
        return Err(VgpuError::Argument(format!(
            "a graph of {count} nodes is larger than {MOST_NODES}"
        )));
    }
    let mut waits = vec![0_usize; count];
    let mut followers = vec![Vec::new(); count];
    for (index, node) in nodes.iter().enumerate() {
        for &before in &node.after {
            let Some(list) = followers.get_mut(before as usize) else {
                return Err(VgpuError::Argument(format!(
                    "node {index} waits for node {before} of {count}"
                )));
            };
            list.push(index);
            waits[index] += 1;
        }
    }
    let mut ready: std::collections::VecDeque<usize> =
        (0..count).filter(|&i| waits[i] == 0).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(index) = ready.pop_front() {
        order.push(index);
        for &next in &followers[index] {
            waits[next] -= 1;
            if waits[next] == 0 {
                ready.push_back(next);
            }
        }
    }
    if order.len() != count {
        return Err(VgpuError::Argument(
            "the graph's nodes wait for each other in a circle".into(),
        ));
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(after: &[u32], event: u64) -> GraphNode {
        GraphNode {
            after: after.to_vec(),
            op: GraphOp::EventRecord(event),
        }
    }

    fn events(nodes: &[GraphNode]) -> Vec<(u64, Vec<u32>)> {
        let event = |node: &GraphNode| match node.op {
            GraphOp::EventRecord(event) => (event, node.after.clone()),
            _ => (99, node.after.clone()),
        };
        nodes.iter().map(event).collect()
    }

    fn conditional(bodies: Vec<Vec<GraphNode>>) -> GraphNode {
        let op = GraphOp::Conditional(OwnedConditional {
            handle: 1,
            kind: ConditionalKind::Switch,
            bodies,
        });
        let after = Vec::new();
        GraphNode { after, op }
    }

    #[test]
    fn later_nodes_come_later_and_name_where_the_others_are_now() {
        let nodes = ordered(vec![node(&[2], 0), node(&[0], 1), node(&[], 2)]).unwrap();
        assert_eq!(events(&nodes), [(2, vec![]), (0, vec![0]), (1, vec![1])]);
    }

    #[test]
    fn bodies_of_conditional_nodes_are_put_in_order_too() {
        let body = vec![node(&[1], 0), node(&[], 1)];
        let nodes = ordered(vec![conditional(vec![body])]).unwrap();
        let GraphOp::Conditional(inner) = &nodes[0].op else {
            panic!("it stays what it is")
        };
        assert_eq!(events(&inner.bodies[0]), [(1, vec![]), (0, vec![0])]);
        assert!(is_conditional(&nodes));
        let bad = vec![node(&[0], 0)];
        assert!(ordered(vec![conditional(vec![bad])]).is_err());
    }

    #[test]
    fn conditional_nodes_inside_each_other_have_an_end() {
        let nested = |depth| {
            let wrap = |nodes, _| vec![conditional(vec![nodes])];
            (0..depth).fold(Vec::new(), wrap)
        };
        assert!(ordered(nested(CONDITIONAL_DEPTH)).is_ok());
        assert!(ordered(nested(CONDITIONAL_DEPTH + 1)).is_err());
    }

    #[test]
    fn circles_and_missing_nodes_are_refused() {
        assert!(ordered(vec![node(&[1], 0), node(&[0], 1)]).is_err());
        assert!(ordered(vec![node(&[0], 0)]).is_err());
        assert!(ordered(vec![node(&[7], 0)]).is_err());
    }
}
