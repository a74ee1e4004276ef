//! Launches and graphs.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mica_gpu::budget::OBJECT_BYTES;
use mica_gpu::{ClusterQuestion, Launch, LaunchAttribute, Share};

use super::{Graph, Session, Tables, table_full};
use crate::graph::{GraphNode, GraphOp, OwnedLaunch, RawAttribute, ordered};
use crate::handle::ObjectKind;
use crate::{Result, VgpuError};

impl Session {
    /// Launches a kernel; `launch.module` is overridden by the session's handle `module`.
    #[expect(clippy::too_many_arguments, reason = "they are a launch's own")]
    pub fn launch(
        &self,
        stream: u64,
        module: u64,
        kernel: u32,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared: u32,
        cooperative: bool,
        params: &[u8],
    ) -> Result<()> {
        self.check()?;
        self.make_room(stream, params.len() as u64)?;
        let tables = self.read();
        let stream = tables.streams.get(stream)?;
        let launch = Launch {
            module: tables.modules.get(module)?.id,
            kernel,
            grid,
            block,
            dynamic_shared,
            cooperative,
            params,
        };
        self.watch(stream.context, self.gpu.launch(stream.id, &launch))?;
        self.vgpu.counters().launches.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Launches a kernel with attributes.
    ///
    /// # Errors
    /// As a plain launch; also for an attribute that is not known, or an event that is not the session's.
    pub fn launch_with(&self, stream: u64, launch: &OwnedLaunch) -> Result<()> {
        self.check()?;
        self.make_room(stream, launch.params.len() as u64)?;
        let tables = self.read();
        let stream = tables.streams.get(stream)?;
        let attributes = known_attributes(&tables, &launch.attributes)?;
        let launch = Launch {
            module: tables.modules.get(launch.module)?.id,
            kernel: launch.kernel,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            cooperative: launch.cooperative,
            params: &launch.params,
        };
        let launched = self.gpu.launch_with(stream.id, &launch, &attributes);
        self.watch(stream.context, launched)?;
        self.vgpu.counters().launches.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Clusters of a kernel's blocks that run at once, or the largest that fits.
    pub fn clusters(&self, launch: &OwnedLaunch, largest: bool) -> Result<u32> {
        self.check()?;
        let tables = self.read();
        let attributes = known_attributes(&tables, &launch.attributes)?;
        Ok(self.gpu.clusters(&ClusterQuestion {
            module: tables.modules.get(launch.module)?.id,
            kernel: launch.kernel,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            attributes: &attributes,
            largest,
        })?)
    }

    /// Makes a graph ready.
    pub fn graph_instantiate(&self, context: u64, nodes: Vec<GraphNode>) -> Result<u64> {
        self.check()?;
        let (ops, share) = self.graph_ops(nodes)?;
        let mut tables = self.write();
        tables.contexts.get(context)?;
        tables
            .graphs
            .insert(Graph {
                context,
                ops,
                share,
            })
            .map_err(|_| table_full(ObjectKind::Graph))
    }

    /// Replaces a graph's nodes; launches under way keep the old ones.
    pub fn graph_update(&self, graph: u64, nodes: Vec<GraphNode>) -> Result<()> {
        self.check()?;
        let (ops, share) = self.graph_ops(nodes)?;
        let mut tables = self.write();
        let graph = tables.graphs.get_mut(graph)?;
        let old = (
            std::mem::replace(&mut graph.ops, ops),
            std::mem::replace(&mut graph.share, share),
        );
        drop(tables);
        drop(old);
        Ok(())
    }

    /// A graph's nodes in order, with the host bytes they are.
    fn graph_ops(&self, nodes: Vec<GraphNode>) -> Result<(Arc<[GraphOp]>, Share)> {
        let bytes = nodes.iter().map(|node| node.op.host_bytes()).sum::<u64>();
        let share = (self.budget).take(bytes.saturating_add(OBJECT_BYTES), "a graph")?;
        Ok((ordered(nodes)?, share))
    }

    /// Forgets a graph.
    pub fn graph_destroy(&self, graph: u64) -> Result<()> {
        self.check()?;
        self.write().graphs.remove(graph).map(drop)
    }

    /// The context of a graph.
    pub fn context_of_graph(&self, graph: u64) -> Option<u64> {
        Some(self.read().graphs.get(graph).ok()?.context)
    }

    /// Replays a graph in a stream, one node after the other.
    pub fn graph_launch(&self, graph: u64, stream: u64) -> Result<()> {
        self.check()?;
        let ops = Arc::clone(&self.read().graphs.get(graph)?.ops);
        for op in ops.iter() {
            self.replay(stream, op)?;
        }
        Ok(())
    }

    fn replay(&self, stream: u64, op: &GraphOp) -> Result<()> {
        match op {
            GraphOp::Nothing => Ok(()),
            GraphOp::Launch(launch) => self.launch_with(stream, launch),
            GraphOp::Copy(copy) => self.copy(stream, copy),
            GraphOp::Fill(fill) => self.fill(stream, fill),
            GraphOp::Write(address, bytes) => self.write_shared(stream, *address, bytes),
            GraphOp::EventRecord(event) => self.event_record(*event, stream),
            GraphOp::WaitEvent(event) => self.stream_wait_event(stream, *event),
            GraphOp::Callback(make) => self.stream_callback(stream, make()),
        }
    }
}

/// Launch attributes with the device's own events in place of the session's handles.
pub(super) fn known_attributes(
    tables: &Tables,
    attributes: &[RawAttribute],
) -> Result<Vec<LaunchAttribute>> {
    let known = |&RawAttribute { id, value }: &RawAttribute| {
        if id == LaunchAttribute::DEVICE_UPDATABLE_KERNEL_NODE || id > LaunchAttribute::LAST {
            let what = format!("launch attribute {id} is not served");
            return Err(VgpuError::Argument(what));
        }
        let event = match LaunchAttribute::records_event(id) {
            true => {
                let handle = u64::from(value[0]) | u64::from(value[1]) << 32;
                Some(tables.events.get(handle)?.id)
            }
            false => None,
        };
        Ok(LaunchAttribute { id, value, event })
    };
    attributes.iter().map(known).collect()
}
