//! Bytes that are sent ahead of their calls: images and graphs.

use std::collections::HashMap;
use std::sync::Arc;

use mica_gpu::{DevicePtr, GpuError, Share};
use mica_vgpu::{GraphNode, GraphOp, OwnedLaunch, VgpuError};
use mica_wire::session as wire;
use mica_wire::session::{Call, Field, Reader, Violation};

use super::{Desk, Failure, Outcome, done, lock};
use crate::convert;

/// Most blobs that wait for their calls.
const BLOBS: usize = 4096;
/// Most nodes of a graph.
const NODES: u32 = 1 << 20;
/// Host bytes of a node while a graph is read and put in order, at most.
const NODE_BYTES: u64 = 768;
/// Times its bytes that a graph takes while it is read: bodies and edges are copied.
const COPIES: u64 = 8;

/// Blobs that wait for their calls.
#[derive(Default)]
pub(super) struct Blobs {
    by_number: HashMap<u64, Arrived>,
}

/// A blob, or why it is not kept: its call is told.
type Arrived = Result<Blob, GpuError>;

/// Bytes that were sent, charged to the session.
pub(super) struct Blob {
    pub(super) bytes: Vec<u8>,
    share: Share,
}

impl Blob {
    /// Adds bytes, growing by a quarter where there is no room.
    fn add(&mut self, bytes: &[u8]) -> Result<(), GpuError> {
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            let room = needed + needed / 4;
            self.share.resize(room as u64, CHARGED_AS)?;
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

/// What blobs are called where they are refused.
const CHARGED_AS: &str = "bytes sent ahead of their calls";

impl Desk {
    pub(super) fn add_blob(&self, blob: u64, bytes: &[u8]) -> Outcome {
        let mut blobs = lock(&self.blobs);
        if blobs.by_number.len() >= BLOBS && !blobs.by_number.contains_key(&blob) {
            return Err(Failure::Violation(Violation::Excess {
                what: "blobs sent ahead of their calls",
                limit: BLOBS as u64,
            }));
        }
        let new = || {
            let share = self.session.budget().take(0, CHARGED_AS)?;
            let bytes = Vec::new();
            Ok(Blob { bytes, share })
        };
        let arrived = blobs.by_number.entry(blob).or_insert_with(new);
        if let Ok(kept) = arrived
            && let Err(refused) = kept.add(bytes)
        {
            *arrived = Err(refused);
        }
        done(())
    }

    pub(super) fn take_blob(&self, blob: u64) -> Result<Blob, Failure> {
        let arrived = lock(&self.blobs).by_number.remove(&blob);
        let arrived =
            arrived.ok_or_else(|| VgpuError::Argument(format!("blob {blob} was not sent")))?;
        Ok(arrived?)
    }

    pub(super) fn graph_nodes(&self, blob: u64) -> Result<Vec<GraphNode>, Failure> {
        let blob = self.take_blob(blob)?;
        let bytes = &blob.bytes;
        let malformed = |source| Failure::Violation(Violation::Body { number: 51, source });
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

    fn graph_op(&self, call: Call, tail: &[u8]) -> Result<GraphOp, Failure> {
        Ok(match call {
            Call::Launch(c) => GraphOp::Launch(OwnedLaunch {
                module: c.module,
                kernel: c.kernel,
                grid: c.grid,
                block: c.block,
                dynamic_shared: c.dynamic_shared,
                cooperative: c.cooperative,
                params: tail.to_vec(),
            }),
            Call::Copy(c) => {
                let staged =
                    convert::copy(self.port.area(), &c.area).map_err(Failure::Violation)?;
                if staged.reads.is_some() || staged.writes.is_some() {
                    let what = "a graph cannot use staging chunks: they are there for one copy";
                    return Err(VgpuError::Argument(what.into()).into());
                }
                GraphOp::Copy(staged.copy)
            }
            Call::Fill(c) => GraphOp::Fill(convert::fill(&c)),
            Call::Write(c) => GraphOp::Write(DevicePtr(c.address), tail.into()),
            Call::EventRecord(c) => GraphOp::EventRecord(c.event),
            Call::StreamWaitEvent(c) => GraphOp::WaitEvent(c.event),
            Call::StreamCallback(c) => {
                let (callbacks, port) = (Arc::clone(&self.callbacks), Arc::clone(&self.port));
                GraphOp::Callback(Arc::new(move || callbacks.make(&port, c.callback)))
            }
            other => {
                let what = format!("{} cannot be a node of a graph", other.name());
                return Err(VgpuError::Argument(what).into());
            }
        })
    }
}
