//! Graphs laid open: children's nodes among their parents', in an order that they can run in.

use mica_wire::session::{CONDITIONAL_NODE, ConditionalNode, Field, GraphNode, HostUnregister};

use super::conditionals::Conditional;
use super::operations::{Kept, Lowering, Op};
use super::{Graph, Node};
use crate::isolated::context::Context;
use crate::isolated::state::State;
use crate::isolated::streams::callbacks;
use crate::isolated::support::{Answer, invalid};

/// A node with its children laid open, after nodes by index.
#[derive(Clone)]
pub(crate) struct Flat {
    pub(crate) node: &'static Node,
    pub(crate) op: Op,
    pub(crate) after: Vec<u32>,
    pub(crate) is_enabled: bool,
    /// The graphs of a conditional node, laid open each by itself.
    pub(crate) bodies: Vec<Vec<Flat>>,
}

/// The part of a node, in the bodies of conditional nodes too.
pub(crate) fn find<'a>(flat: &'a mut [Flat], node: &Node) -> Option<&'a mut Flat> {
    for part in flat {
        if std::ptr::eq(part.node, node) {
            return Some(part);
        }
        for body in &mut part.bodies {
            if let Some(found) = find(body, node) {
                return Some(found);
            }
        }
    }
    None
}

// SAFETY: the pointers inside are the program's, used when it says so.
unsafe impl Send for Flat {}

/// The nodes of a graph, each after those it waits for.
fn sorted(graph: &Graph) -> Answer<Vec<&'static Node>> {
    let nodes = graph.nodes();
    let place = |node: &'static Node| nodes.iter().position(|known| std::ptr::eq(*known, node));
    let mut waits = Vec::with_capacity(nodes.len());
    let mut followers = vec![Vec::new(); nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        let before: Vec<usize> = node.after().into_iter().filter_map(place).collect();
        for earlier in &before {
            followers[*earlier].push(index);
        }
        waits.push(before.len());
    }
    let mut ready: std::collections::BTreeSet<usize> = (0..nodes.len())
        .filter(|index| waits[*index] == 0)
        .collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(index) = ready.pop_first() {
        order.push(nodes[index]);
        for next in &followers[index] {
            waits[*next] -= 1;
            if waits[*next] == 0 {
                ready.insert(*next);
            }
        }
    }
    match order.len() == nodes.len() {
        true => Ok(order),
        false => invalid(),
    }
}

/// Adds a graph's nodes; answers the indices of its last ones.
pub(crate) fn flatten(graph: &Graph, roots: &[u32], flat: &mut Vec<Flat>) -> Answer<Vec<u32>> {
    let mut ends: Vec<(&'static Node, Vec<u32>)> = Vec::new();
    let mut is_last: Vec<bool> = Vec::new();
    for node in sorted(graph)? {
        let before = node.after();
        let mut after: Vec<u32> = Vec::new();
        for earlier in &before {
            if let Some(at) = ends
                .iter()
                .position(|(known, _)| std::ptr::eq(*known, *earlier))
            {
                after.extend(&ends[at].1);
                is_last[at] = false;
            }
        }
        if before.is_empty() {
            after.extend(roots);
        }
        let end = match node.op() {
            Op::Child(child) => {
                let mut inner = flatten(child, &after, flat)?;
                if inner.is_empty() {
                    inner = after;
                }
                inner
            }
            op => {
                let mut bodies = Vec::new();
                if let Op::Conditional(conditional) = &op {
                    for graph in conditional.graphs() {
                        let mut body = Vec::new();
                        flatten(graph, &[], &mut body)?;
                        bodies.push(body);
                    }
                }
                flat.push(Flat {
                    node,
                    op,
                    after,
                    is_enabled: true,
                    bodies,
                });
                vec![flat.len() as u32 - 1]
            }
        };
        ends.push((node, end));
        is_last.push(true);
    }
    let last = ends.into_iter().zip(is_last).filter(|(_, last)| *last);
    Ok(last.flat_map(|((_, end), _)| end).collect())
}

/// The wire's nodes for laid-open ones, and what must be kept while they may run.
pub(crate) fn build(
    state: &'static State,
    context: &'static Context,
    flat: &[Flat],
) -> Answer<(Vec<GraphNode>, Kept)> {
    let mut kept = Kept::default();
    let mut lowering = Lowering {
        state,
        context,
        nodes: Vec::with_capacity(flat.len()),
        kept: &mut kept,
    };
    let mut ends: Vec<u32> = Vec::with_capacity(flat.len());
    for part in flat {
        let after = part
            .after
            .iter()
            .filter_map(|index| ends.get(*index as usize).copied())
            .collect();
        let op = if part.is_enabled {
            &part.op
        } else {
            &Op::Empty
        };
        let end = match op {
            Op::Conditional(conditional) => {
                let bodies = build_bodies(state, context, &part.bodies, lowering.kept);
                bodies.map(|bodies| lowering.push(conditional_node(after, conditional, bodies)))
            }
            op => lowering.add(op, after),
        };
        match end {
            Ok(end) => ends.push(end),
            Err(error) => {
                drop_kept(state, context, kept);
                return Err(error);
            }
        }
    }
    let nodes = lowering.nodes;
    Ok((nodes, kept))
}

/// The encoded nodes of each body of a conditional node.
fn build_bodies(
    state: &'static State,
    context: &'static Context,
    bodies: &[Vec<Flat>],
    kept: &mut Kept,
) -> Answer<Vec<Vec<u8>>> {
    let mut encoded = Vec::with_capacity(bodies.len());
    for body in bodies {
        let (nodes, mut inner) = build(state, context, body)?;
        kept.callbacks.append(&mut inner.callbacks);
        kept.bounces.append(&mut inner.bounces);
        let mut bytes = Vec::new();
        nodes.put(&mut bytes);
        encoded.push(bytes);
    }
    Ok(encoded)
}

fn conditional_node(after: Vec<u32>, conditional: &Conditional, bodies: Vec<Vec<u8>>) -> GraphNode {
    let node = ConditionalNode {
        handle: conditional.handle,
        kind: conditional.kind,
        bodies,
    };
    let mut body = Vec::new();
    node.put(&mut body);
    GraphNode {
        after,
        call: CONDITIONAL_NODE,
        body,
    }
}

/// Gives back what was kept for nodes that run no more.
pub(crate) fn drop_kept(state: &'static State, context: &'static Context, kept: Kept) {
    for callback in kept.callbacks {
        callbacks::forget(callback);
    }
    for bounce in kept.bounces {
        let address = bounce.0.device();
        let request = HostUnregister {
            context: context.wire(),
            address,
        };
        let _ = state.client.call(&request);
    }
}
