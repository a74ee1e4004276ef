//! Graphs of a session: their nodes as they travel, and their host functions.

use mica_gpu::DevicePtr;
use mica_vgpu::{GraphNode, GraphOp, OwnedLaunch};
use mica_wire::session as wire;
use mica_wire::session::{GraphOptions, Node};

use super::callbacks::Callbacks;
use super::{Connected, convert, lock};
use crate::backend::Backend as _;
use crate::{Error, Result};

/// A launch with attributes, and the bytes that follow it.
pub(super) fn launch_with(launch: &OwnedLaunch, stream: u64) -> (wire::LaunchWith, Vec<u8>) {
    let mut attributes = launch.attributes.clone();
    if launch.cooperative {
        let mut value = [0; 16];
        value[0] = 1;
        let id = mica_gpu::LaunchAttribute::COOPERATIVE;
        attributes.push(mica_vgpu::RawAttribute { id, value });
    }
    let request = wire::LaunchWith {
        stream,
        module: launch.module,
        kernel: launch.kernel,
        grid: launch.grid,
        block: launch.block,
        dynamic_shared: launch.dynamic_shared,
        attributes: attributes.len() as u32,
    };
    let tail = convert::attributes(&attributes, &launch.params);
    (request, tail)
}

fn launch(after: Vec<u32>, launch: &OwnedLaunch) -> wire::GraphNode {
    if !launch.attributes.is_empty() {
        let (request, tail) = launch_with(launch, 0);
        return node(after, &request, &tail);
    }
    let request = wire::Launch {
        stream: 0,
        module: launch.module,
        kernel: launch.kernel,
        grid: launch.grid,
        block: launch.block,
        dynamic_shared: launch.dynamic_shared,
        cooperative: launch.cooperative,
    };
    node(after, &request, &launch.params)
}

fn node<R: Node>(after: Vec<u32>, request: &R, tail: &[u8]) -> wire::GraphNode {
    let mut body = request.encode().as_slice().to_vec();
    body.extend_from_slice(tail);
    wire::GraphNode {
        after,
        call: R::NUMBER,
        body,
    }
}

impl Connected {
    /// A node as it travels; the number of its host function is added to the list.
    fn encoded(&self, from: &GraphNode, functions: &mut Vec<u64>) -> Result<wire::GraphNode> {
        let (stream, after) = (0, from.after.clone());
        Ok(match &from.op {
            GraphOp::Nothing => wire::GraphNode {
                after,
                call: 0,
                body: Vec::new(),
            },
            GraphOp::Launch(op) => launch(after, op),
            GraphOp::Copy(copy) => {
                let area = convert::copy_box(copy)?;
                node(after, &wire::Copy { stream, area }, &[])
            }
            GraphOp::Fill(fill) => {
                let request = wire::Fill {
                    stream,
                    address: fill.dst.0,
                    pitch: fill.pitch,
                    value: fill.value,
                    element_bytes: fill.element_bytes,
                    width: fill.width,
                    height: fill.height,
                };
                node(after, &request, &[])
            }
            GraphOp::Write(DevicePtr(address), bytes) => {
                let address = *address;
                node(after, &wire::Write { stream, address }, bytes)
            }
            GraphOp::EventRecord(event) => {
                let event = *event;
                node(after, &wire::EventRecord { event, stream }, &[])
            }
            GraphOp::WaitEvent(event) => {
                let event = *event;
                node(after, &wire::StreamWaitEvent { stream, event }, &[])
            }
            GraphOp::Callback(function) => {
                let callbacks = &self.callbacks;
                let callback = Callbacks::keep_for_often(callbacks, &self.client, function)?;
                functions.push(callback);
                node(after, &wire::StreamCallback { stream, callback }, &[])
            }
            GraphOp::Conditional(_) => {
                let message = "conditional nodes are not made by this crate";
                return Err(Error::Argument(message.into()));
            }
        })
    }

    /// Encodes nodes, has them sent, and keeps their host functions if they were taken.
    fn send_nodes<T>(
        &self,
        nodes: &[GraphNode],
        send: impl FnOnce(&Vec<wire::GraphNode>) -> Result<T>,
    ) -> Result<(T, Vec<u64>)> {
        let mut functions = Vec::new();
        let nodes: Result<_> = (nodes.iter())
            .map(|node| self.encoded(node, &mut functions))
            .collect();
        match nodes.and_then(|nodes| send(&nodes)) {
            Ok(done) => Ok((done, functions)),
            Err(error) => {
                self.forget_functions(functions);
                Err(error)
            }
        }
    }

    fn forget_functions(&self, functions: Vec<u64>) {
        for function in functions {
            self.callbacks.forget(function);
        }
    }

    pub(super) fn make_graph(&self, nodes: &[GraphNode]) -> Result<u64> {
        let context = self.context();
        let options = GraphOptions::default();
        let (graph, functions) = self.send_nodes(nodes, |nodes| {
            Ok(self.client.graph_instantiate(context, nodes, options)?)
        })?;
        lock(&self.graphs).insert(graph, functions);
        Ok(graph)
    }

    pub(super) fn change_graph(&self, graph: u64, nodes: &[GraphNode]) -> Result<()> {
        let (_, functions) = self.send_nodes(nodes, |nodes| {
            Ok(self.client.graph_update(graph, nodes, 0)?)
        })?;
        let old = lock(&self.graphs).insert(graph, functions);
        self.end_functions(old.unwrap_or_default());
        Ok(())
    }

    pub(super) fn end_graph(&self, graph: u64) -> Result<()> {
        let functions = lock(&self.graphs).remove(&graph);
        self.end_functions(functions.unwrap_or_default());
        Ok(self.client.post(&wire::GraphDestroy { graph }, &[])?)
    }

    /// Drops host functions of a graph once no launch can call them.
    fn end_functions(&self, functions: Vec<u64>) {
        if !functions.is_empty() {
            let _ = self.synchronize();
            self.forget_functions(functions);
        }
    }
}
