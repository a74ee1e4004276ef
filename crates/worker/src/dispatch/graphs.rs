//! Calls about graphs.

use mica_gpu::ConditionalKind;
use mica_vgpu::{CONDITIONAL_DEPTH, GraphNode, GraphOp, GraphOptions, OwnedConditional, VgpuError};
use mica_wire::session as wire;
use mica_wire::session::{
    CONDITIONAL_NODE, Call, ConditionalNode, Field, GraphInstantiate, Malformed, Reader, Request,
    Violation,
};

use super::{Dispatcher, Failure, done, handlers, number};

/// Most nodes of a graph.
const NODES: u32 = 1 << 20;
/// Host bytes of a node while a graph is read and put in order, at most.
const NODE_BYTES: u64 = 768;
/// Times its bytes that a graph takes while it is read: bodies and edges are copied.
const COPIES: u64 = 8;

handlers! { dispatcher, session, tail;
    GraphInstantiate(call) => {
        let nodes = dispatcher.graph_nodes(call.blob)?;
        let options = GraphOptions {
            template: call.template,
            node_priorities: call.node_priorities,
        };
        number(session.graph_instantiate(call.context, nodes, &options)?)
    };
    GraphUpdate(call) => {
        let nodes = dispatcher.graph_nodes(call.blob)?;
        done(session.graph_update(call.graph, nodes, call.template)?)
    };
    GraphLaunch(call) => done(session.graph_launch(call.graph, call.stream)?);
    GraphUpload(call) => done(session.graph_upload(call.graph, call.stream)?);
    GraphDestroy(call) => done(session.graph_destroy(call.graph)?);
    TemplateCreate(call) => number(session.template_create(call.context)?);
    TemplateDestroy(call) => done(session.template_destroy(call.template)?);
    ConditionalCreate(call) => {
        let default = call.is_default.then_some(call.value);
        number(session.conditional_create(call.template, default)?)
    };
}

fn malformed(source: Malformed) -> Failure {
    let number = GraphInstantiate::NUMBER;
    Failure::Violation(Violation::Body { number, source })
}

fn refused(what: String) -> Failure {
    VgpuError::Argument(what).into()
}

impl Dispatcher {
    /// The nodes of a graph that was sent ahead.
    fn graph_nodes(&self, blob: u64) -> Result<Vec<GraphNode>, Failure> {
        let blob = self.take_blob(blob)?;
        self.nodes_in(&blob.bytes, CONDITIONAL_DEPTH)
    }

    /// The nodes that bytes describe, conditional ones so many deep.
    fn nodes_in(&self, bytes: &[u8], depth: usize) -> Result<Vec<GraphNode>, Failure> {
        let count = u32::take(&mut Reader::new(bytes)).map_err(malformed)?;
        if count > NODES {
            let what = format!("a graph of {count} nodes is larger than {NODES}");
            return Err(refused(what));
        }
        let reading = COPIES * bytes.len() as u64 + NODE_BYTES * u64::from(count);
        let _share = self.session.budget().take(reading, "reading a graph")?;
        let mut reader = Reader::new(bytes);
        let nodes = Vec::<wire::GraphNode>::take(&mut reader).map_err(malformed)?;
        reader.finish().map_err(malformed)?;
        let node = |node: wire::GraphNode| -> Result<GraphNode, Failure> {
            let op = match node.call {
                0 => GraphOp::Nothing,
                CONDITIONAL_NODE => GraphOp::Conditional(self.conditional(&node.body, depth)?),
                number => {
                    let (call, tail) = Call::decode(number, &node.body).map_err(malformed)?;
                    self.graph_op(call, tail)?
                }
            };
            Ok(GraphNode {
                after: node.after,
                op,
            })
        };
        nodes.into_iter().map(node).collect()
    }

    fn conditional(&self, body: &[u8], depth: usize) -> Result<OwnedConditional, Failure> {
        let Some(depth) = depth.checked_sub(1) else {
            let what = format!("more than {CONDITIONAL_DEPTH} conditional nodes inside each other");
            return Err(refused(what));
        };
        let mut reader = Reader::new(body);
        let node = ConditionalNode::take(&mut reader).map_err(malformed)?;
        reader.finish().map_err(malformed)?;
        let (kind, count) = (node.kind, node.bodies.len());
        let known = ConditionalKind::from_number(kind).filter(|known| known.allows(count));
        let Some(known) = known else {
            let what = format!("a conditional node of kind {kind} with {count} bodies");
            return Err(refused(what));
        };
        let bodies = node.bodies.iter();
        let bodies: Result<_, _> = bodies.map(|body| self.nodes_in(body, depth)).collect();
        Ok(OwnedConditional {
            handle: node.handle,
            kind: known,
            bodies: bodies?,
        })
    }
}
