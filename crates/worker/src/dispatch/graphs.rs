//! Calls about graphs.

use mica_vgpu::{GraphNode, GraphOp, VgpuError};
use mica_wire::session as wire;
use mica_wire::session::{Call, Field, GraphInstantiate, Reader, Request, Violation};

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
        number(session.graph_instantiate(call.context, nodes)?)
    };
    GraphUpdate(call) => {
        let nodes = dispatcher.graph_nodes(call.blob)?;
        done(session.graph_update(call.graph, nodes)?)
    };
    GraphLaunch(call) => done(session.graph_launch(call.graph, call.stream)?);
    GraphDestroy(call) => done(session.graph_destroy(call.graph)?);
}

impl Dispatcher {
    /// The nodes of a graph that was sent ahead.
    fn graph_nodes(&self, blob: u64) -> Result<Vec<GraphNode>, Failure> {
        let blob = self.take_blob(blob)?;
        let bytes = &blob.bytes;
        let malformed = |source| {
            let number = GraphInstantiate::NUMBER;
            Failure::Violation(Violation::Body { number, source })
        };
        let count = u32::take(&mut Reader::new(bytes)).map_err(malformed)?;
        if count > NODES {
            let what = format!("a graph of {count} nodes is larger than {NODES}");
            return Err(VgpuError::Argument(what).into());
        }
        let reading = COPIES * bytes.len() as u64 + NODE_BYTES * u64::from(count);
        let _share = self.session.budget().take(reading, "reading a graph")?;
        let mut reader = Reader::new(bytes);
        let nodes = Vec::<wire::GraphNode>::take(&mut reader).map_err(malformed)?;
        reader.finish().map_err(malformed)?;
        let node = |node: wire::GraphNode| -> Result<GraphNode, Failure> {
            let op = match node.call {
                0 => GraphOp::Nothing,
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
}
