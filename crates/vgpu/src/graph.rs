//! Graphs: work described once and replayed.
//!
//! Nodes are put in an order that respects their dependencies when the graph is made, so replaying
//! is a walk down a list.

use std::sync::Arc;

use mica_gpu::{Copy3d, Fill2d, HostCallback};

use crate::{Result, VgpuError};

/// Most nodes of a graph.
const MOST_NODES: usize = 1 << 20;

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
    Callback(Arc<dyn Fn() -> HostCallback + Send + Sync>),
}

impl GraphOp {
    /// Host bytes that it is.
    pub(crate) fn host_bytes(&self) -> u64 {
        let beside = match self {
            Self::Launch(launch) => launch.params.len() + size_of_val(launch.attributes.as_slice()),
            Self::Write(_, bytes) => bytes.len(),
            // What the function holds.
            Self::Callback(_) => 128,
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

/// Puts nodes in order.
///
/// # Errors
/// If they wait for each other in a circle, or for a node that does not exist.
pub(crate) fn ordered(nodes: Vec<GraphNode>) -> Result<Arc<[GraphOp]>> {
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
    let mut ops: Vec<Option<GraphOp>> = nodes.into_iter().map(|node| Some(node.op)).collect();
    Ok(order
        .into_iter()
        .filter_map(|index| ops[index].take())
        .collect())
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

    #[test]
    fn later_nodes_come_later() {
        let ops = ordered(vec![node(&[2], 0), node(&[0], 1), node(&[], 2)]).unwrap();
        let order: Vec<u64> = ops
            .iter()
            .map(|op| match op {
                GraphOp::EventRecord(event) => *event,
                _ => 99,
            })
            .collect();
        assert_eq!(order, [2, 0, 1]);
    }

    #[test]
    fn circles_and_missing_nodes_are_refused() {
        assert!(ordered(vec![node(&[1], 0), node(&[0], 1)]).is_err());
        assert!(ordered(vec![node(&[0], 0)]).is_err());
        assert!(ordered(vec![node(&[7], 0)]).is_err());
    }
}
