//! Graphs that a device launches as a whole.
//!
//! The engine owns graphs: it checks their nodes, keeps them, and replays them one by one on a device without graphs of
//! its own. What it hands to a device that has them is borrowed, and names the device's own handles.

use std::any::Any;
use std::sync::Arc;

use crate::{
    Copy3d, DevicePtr, EventId, Fill2d, HostCallback, Launch, LaunchAttribute, TemplateId,
};

/// Makes the host function of a node anew for each launch of its graph.
pub type GraphCallback = Arc<dyn Fn() -> HostCallback + Send + Sync>;

/// Dropped when a graph's nodes are gone and no launch uses them.
pub type GraphKeeper = Box<dyn Any + Send + Sync>;

/// What a node does.
#[derive(Clone)]
pub enum DeviceOp<'a> {
    /// Nothing: a point to join.
    Nothing,
    /// A kernel.
    Launch(Launch<'a>),
    /// A kernel with launch attributes.
    LaunchWith(Launch<'a>, Vec<LaunchAttribute>),
    /// A copy between device memory and arrays; host memory only as far as it is registered.
    Copy(Copy3d),
    /// A fill.
    Fill(Fill2d),
    /// Bytes to write.
    Write(DevicePtr, &'a Arc<[u8]>),
    /// Records an event.
    EventRecord(EventId),
    /// Waits for an event.
    WaitEvent(EventId),
    /// A host function.
    Callback(&'a GraphCallback),
    /// Graphs that run or not, as a value says.
    Conditional(DeviceConditional<'a>),
}

/// A node and the earlier nodes it comes after, by index.
#[derive(Clone)]
pub struct DeviceNode<'a> {
    /// Indices of nodes before this one in the list.
    pub after: &'a [u32],
    /// What it does.
    pub op: DeviceOp<'a>,
}

/// A node whose bodies run as the value of a handle says.
#[derive(Clone)]
pub struct DeviceConditional<'a> {
    /// From [`crate::Gpu::conditional_create`].
    pub handle: u64,
    /// How the value chooses.
    pub kind: ConditionalKind,
    /// The graphs to choose from.
    pub bodies: Vec<Vec<DeviceNode<'a>>>,
}

/// How a value chooses among the bodies of a conditional node (`CUgraphConditionalNodeType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionalKind {
    /// The first body if the value is not zero, the second, if there is one, if it is.
    If,
    /// The body again and again while the value is not zero.
    While,
    /// The body of this index, if there is one.
    Switch,
}

impl ConditionalKind {
    /// By the driver's number.
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::If),
            1 => Some(Self::While),
            2 => Some(Self::Switch),
            _ => None,
        }
    }

    /// The driver's number.
    pub fn number(self) -> u32 {
        match self {
            Self::If => 0,
            Self::While => 1,
            Self::Switch => 2,
        }
    }

    /// Whether a node of this kind may have so many bodies.
    pub fn allows(self, bodies: usize) -> bool {
        match self {
            Self::If => matches!(bodies, 1 | 2),
            Self::While => bodies == 1,
            Self::Switch => bodies > 0,
        }
    }
}

/// What a graph is made of.
#[derive(Clone, Copy)]
pub struct GraphPlan<'a> {
    /// Its nodes; each comes after those it names.
    pub nodes: &'a [DeviceNode<'a>],
    /// Where the handles of its conditional nodes were made.
    pub template: Option<TemplateId>,
    /// Nodes run with the priorities of their own launches instead of the stream's.
    pub node_priorities: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_conditions_have_the_drivers_numbers() {
        for kind in [
            ConditionalKind::If,
            ConditionalKind::While,
            ConditionalKind::Switch,
        ] {
            assert_eq!(ConditionalKind::from_number(kind.number()), Some(kind));
        }
        assert_eq!(ConditionalKind::from_number(3), None);
    }

    #[test]
    fn only_a_switch_has_any_number_of_bodies() {
        let allowed = |kind: ConditionalKind| {
            let counts = (0..5).filter(|count| kind.allows(*count));
            counts.collect::<Vec<_>>()
        };
        assert_eq!(allowed(ConditionalKind::If), [1, 2]);
        assert_eq!(allowed(ConditionalKind::While), [1]);
        assert_eq!(allowed(ConditionalKind::Switch), [1, 2, 3, 4]);
    }
}
