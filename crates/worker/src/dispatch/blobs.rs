//! Bytes that are sent ahead of their calls: images and graphs.

use std::collections::HashMap;
use std::sync::Arc;

use mica_gpu::DevicePtr;
use mica_vgpu::{GraphNode, GraphOp, OwnedLaunch, VgpuError};
use mica_wire::session as wire;
use mica_wire::session::{Call, Field, Reader, Violation};

use super::{Desk, Failure, Outcome, done, lock};
use crate::convert;

/// Most bytes of blobs that wait for their calls.
const BLOB_BYTES: usize = 2 << 30;
/// Most blobs that wait for their calls.
const BLOBS: usize = 4096;

/// Blobs that wait for their calls.
#[derive(Default)]
pub(super) struct Blobs {
    bytes: usize,
    by_number: HashMap<u64, Vec<u8>>,
}

impl Desk {
    pub(super) fn add_blob(&self, blob: u64, bytes: &[u8]) -> Outcome {
        let mut blobs = lock(&self.blobs);
        blobs.bytes += bytes.len();
        if blobs.bytes > BLOB_BYTES {
            return Err(Failure::Violation(Violation::Excess {
                what: "bytes sent ahead of their calls",
                limit: BLOB_BYTES as u64,
            }));
        }
        blobs
            .by_number
            .entry(blob)
            .or_default()
            .extend_from_slice(bytes);
        if blobs.by_number.len() > BLOBS {
            return Err(Failure::Violation(Violation::Excess {
                what: "blobs sent ahead of their calls",
                limit: BLOBS as u64,
            }));
        }
        done(())
    }

    pub(super) fn take_blob(&self, blob: u64) -> Result<Vec<u8>, Failure> {
        let mut blobs = lock(&self.blobs);
        let bytes = blobs.by_number.remove(&blob);
        let bytes =
            bytes.ok_or_else(|| VgpuError::Argument(format!("blob {blob} was not sent")))?;
        blobs.bytes -= bytes.len();
        Ok(bytes)
    }

    pub(super) fn graph_nodes(&self, blob: u64) -> Result<Vec<GraphNode>, Failure> {
        let bytes = self.take_blob(blob)?;
        let malformed = |source| Failure::Violation(Violation::Body { number: 51, source });
        let mut reader = Reader::new(&bytes);
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
