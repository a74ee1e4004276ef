//! Graphs: launched by the device as a whole where it can, else replayed node by node.
//!
//! ```text
//!   nodes ─► in order, counted against the budget ─► the device has graphs? ─┬─ yes ─► its handles ─► its graph
//!                                                                            └─ no, or it refuses ─► replayed
//! ```
//!
//! Handles and addresses of a graph of the device are checked once, when the graph is made or changed. Its modules and
//! events then live as long as the graph, whatever the program does with its own handles. Memory does not: a copy to
//! memory that was freed is the program's own fault, as one by a kernel is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::CuResult;
use mica_gpu::budget::OBJECT_BYTES;
use mica_gpu::{
    DeviceConditional, DeviceNode, DeviceOp, Gpu, GpuError, GraphId, GraphPlan, Launch, Place,
    Share, TemplateId,
};

use super::extents::{checked_copy, copy_bytes, fill_bytes};
use super::launches::known_attributes;
use super::{Event, Module, Session, Tables, table_full};
use crate::graph::{
    GraphNode, GraphOp, GraphOptions, OwnedConditional, OwnedLaunch, is_conditional, ordered,
};
use crate::handle::ObjectKind;
use crate::vgpu::Counters;
use crate::{Result, VgpuError};

/// Host bytes that a driver takes for a node of a graph.
const DEVICE_NODE_BYTES: u64 = 1024;

/// A graph of the program.
pub(super) struct Graph {
    pub(super) context: u64,
    node_priorities: bool,
    made: Made,
}

/// What a graph is made of.
struct Made {
    nodes: Arc<[GraphNode]>,
    share: Arc<Share>,
    device: Option<DeviceGraph>,
}

/// A graph that the device launches.
struct DeviceGraph {
    id: GraphId,
    kept: Kept,
    totals: Totals,
}

/// Modules and events of a graph of the device, by their handles.
#[derive(Default)]
struct Kept {
    modules: BTreeMap<u64, Arc<Module>>,
    events: BTreeMap<u64, Arc<Event>>,
}

/// What a launch counts as.
#[derive(Clone, Copy, Default)]
struct Totals {
    launches: u64,
    bytes_from_host: u64,
    bytes_on_device: u64,
}

/// Handles for conditional nodes.
pub(super) struct Template {
    pub(super) context: u64,
    id: TemplateId,
    handles: Vec<(u64, Share)>,
    #[expect(dead_code, reason = "held until the object is destroyed")]
    share: Share,
}

impl Kept {
    /// Gives back what nobody else uses.
    fn release(self, gpu: &dyn Gpu) {
        let modules = self.modules.into_values().filter_map(Arc::into_inner);
        let unloaded = modules.map(|module| gpu.module_unload(module.id));
        let events = self.events.into_values().filter_map(Arc::into_inner);
        let destroyed = events.map(|event| gpu.event_destroy(event.id));
        for result in unloaded.chain(destroyed) {
            if let Err(error) = result {
                tracing::warn!(%error, "what a graph used could not be destroyed");
            }
        }
    }
}

impl Totals {
    fn of(nodes: &[GraphNode]) -> Self {
        let mut totals = Self::default();
        for node in nodes {
            match &node.op {
                GraphOp::Launch(_) => totals.launches += 1,
                GraphOp::Write(_, bytes) => totals.bytes_from_host += bytes.len() as u64,
                GraphOp::Copy(copy) if !matches!(copy.src, Place::Host(_)) => {
                    totals.bytes_on_device += copy_bytes(copy);
                }
                _ => {}
            }
        }
        totals
    }

    fn count(&self, counters: &Counters) {
        counters.launches.fetch_add(self.launches, Relaxed);
        let bytes = [
            (&counters.bytes_from_host, self.bytes_from_host),
            (&counters.bytes_on_device, self.bytes_on_device),
        ];
        for (counter, bytes) in bytes.into_iter().filter(|(_, bytes)| *bytes > 0) {
            counter.fetch_add(bytes, Relaxed);
        }
    }
}

/// Turns nodes with the session's handles into nodes with the device's.
struct Translation<'t> {
    tables: &'t Tables,
    template: Option<&'t Template>,
    kept: Kept,
}

impl Translation<'_> {
    fn nodes<'a>(&mut self, nodes: &'a [GraphNode]) -> Result<Vec<DeviceNode<'a>>> {
        let node = |node: &'a GraphNode| {
            let after = node.after.as_slice();
            let op = self.op(&node.op)?;
            Ok(DeviceNode { after, op })
        };
        nodes.iter().map(node).collect()
    }

    fn op<'a>(&mut self, op: &'a GraphOp) -> Result<DeviceOp<'a>> {
        Ok(match op {
            GraphOp::Nothing => DeviceOp::Nothing,
            GraphOp::Launch(launch) if launch.attributes.is_empty() => {
                DeviceOp::Launch(self.launch(launch)?)
            }
            GraphOp::Launch(launch) => {
                let attributes = known_attributes(self.tables, &launch.attributes)?;
                DeviceOp::LaunchWith(self.launch(launch)?, attributes)
            }
            GraphOp::Copy(copy) => {
                let copy = checked_copy(self.tables, copy)?;
                copy.map_or(DeviceOp::Nothing, DeviceOp::Copy)
            }
            GraphOp::Fill(fill) => match fill_bytes(fill)? {
                0 => DeviceOp::Nothing,
                bytes => {
                    self.tables.ranges.check(fill.dst.0, bytes)?;
                    DeviceOp::Fill(*fill)
                }
            },
            GraphOp::Write(_, bytes) if bytes.is_empty() => DeviceOp::Nothing,
            GraphOp::Write(to, bytes) => {
                self.tables.ranges.check(to.0, bytes.len() as u64)?;
                DeviceOp::Write(*to, bytes)
            }
            GraphOp::EventRecord(event) => DeviceOp::EventRecord(self.event(*event)?.id),
            GraphOp::WaitEvent(event) => DeviceOp::WaitEvent(self.event(*event)?.id),
            GraphOp::Callback(make) => DeviceOp::Callback(make),
            GraphOp::Conditional(conditional) => {
                DeviceOp::Conditional(self.conditional(conditional)?)
            }
        })
    }

    fn launch<'a>(&mut self, launch: &'a OwnedLaunch) -> Result<Launch<'a>> {
        let module = self.tables.modules.get(launch.module)?;
        let kept = self.kept.modules.entry(launch.module);
        kept.or_insert_with(|| Arc::clone(module));
        Ok(launch.of(module.id))
    }

    fn event(&mut self, handle: u64) -> Result<&Event> {
        let event = self.tables.events.get(handle)?;
        let kept = self.kept.events.entry(handle);
        Ok(kept.or_insert_with(|| Arc::clone(event)))
    }

    fn conditional<'a>(
        &mut self,
        conditional: &'a OwnedConditional,
    ) -> Result<DeviceConditional<'a>> {
        let handle = conditional.handle;
        let known = |template: &Template| template.handles.iter().any(|(own, _)| *own == handle);
        if !self.template.is_some_and(known) {
            let what = format!("{handle:#x} is not a handle of a conditional node of this graph");
            return Err(VgpuError::Argument(what));
        }
        let bodies = conditional.bodies.iter();
        let bodies: Result<_> = bodies.map(|body| self.nodes(body)).collect();
        Ok(DeviceConditional {
            handle,
            kind: conditional.kind,
            bodies: bodies?,
        })
    }
}

impl Session {
    /// Makes a graph ready.
    pub fn graph_instantiate(
        &self,
        context: u64,
        nodes: Vec<GraphNode>,
        options: &GraphOptions,
    ) -> Result<u64> {
        self.check()?;
        let mut made = self.graph_of(nodes)?;
        made.device = self.device_graph(context, &made, options, None)?;
        let graph = Graph {
            context,
            node_priorities: options.node_priorities,
            made,
        };
        let mut tables = self.write();
        let inserted = match tables.contexts.get(context) {
            Ok(_) => (tables.graphs.insert(graph)).map_err(|g| (g, table_full(ObjectKind::Graph))),
            Err(error) => Err((graph, error)),
        };
        drop(tables);
        inserted.map_err(|(graph, error)| {
            let _ = self.end_made(graph.made);
            error
        })
    }

    /// Replaces a graph's nodes; launches under way keep the old ones.
    pub fn graph_update(&self, graph: u64, nodes: Vec<GraphNode>, template: u64) -> Result<()> {
        self.check()?;
        let (context, options, old) = {
            let tables = self.read();
            let found = tables.graphs.get(graph)?;
            let options = GraphOptions {
                template,
                node_priorities: found.node_priorities,
            };
            let old = found.made.device.as_ref().map(|device| device.id);
            (found.context, options, old)
        };
        let mut made = self.graph_of(nodes)?;
        made.device = self.device_graph(context, &made, &options, old)?;
        let same = made.device.as_ref().map(|device| device.id) == old;
        let mut tables = self.write();
        let Ok(found) = tables.graphs.get_mut(graph) else {
            drop(tables);
            // It was destroyed meanwhile, with its graph of the device.
            if same && let Some(device) = made.device.take() {
                device.kept.release(&*self.gpu);
            }
            self.end_made(made)?;
            let (kind, handle) = (ObjectKind::Graph, graph);
            return Err(VgpuError::Handle { kind, handle });
        };
        let mut old = std::mem::replace(&mut found.made, made);
        drop(tables);
        if same && let Some(device) = old.device.take() {
            device.kept.release(&*self.gpu);
        }
        self.end_made(old)
    }

    /// A graph's nodes in order, with the host bytes they are.
    fn graph_of(&self, nodes: Vec<GraphNode>) -> Result<Made> {
        let mut bytes = nodes.iter().map(GraphNode::host_bytes).sum::<u64>();
        if self.gpu.offers_graphs() {
            bytes = bytes.saturating_add(nodes.len() as u64 * DEVICE_NODE_BYTES);
        }
        let share = (self.budget).take(bytes.saturating_add(OBJECT_BYTES), "a graph")?;
        Ok(Made {
            nodes: ordered(nodes)?.into(),
            share: Arc::new(share),
            device: None,
        })
    }

    /// The device's graph for these nodes: a new one, or `old` changed. `None` if the nodes have to be replayed.
    fn device_graph(
        &self,
        context: u64,
        made: &Made,
        options: &GraphOptions,
        old: Option<GraphId>,
    ) -> Result<Option<DeviceGraph>> {
        let must = is_conditional(&made.nodes);
        if !self.gpu.offers_graphs() {
            let what = "this device has no conditional nodes in graphs";
            return match must {
                true => Err(GpuError::new(CuResult::NotSupported, what).into()),
                false => Ok(None),
            };
        }
        match self.try_device_graph(context, made, options, old) {
            Ok(device) => Ok(Some(device)),
            Err(VgpuError::Device(error)) if error.code.is_sticky() => {
                self.watch(context, Err(error))
            }
            Err(error) if must => Err(error),
            Err(error) => {
                if !self.replay_logged.swap(true, Relaxed) {
                    tracing::warn!(%error, "a graph is replayed node by node");
                }
                Ok(None)
            }
        }
    }

    fn try_device_graph(
        &self,
        context: u64,
        made: &Made,
        options: &GraphOptions,
        old: Option<GraphId>,
    ) -> Result<DeviceGraph> {
        // Held until the device has the graph: no memory that was found to be the session's goes meanwhile.
        let tables = self.read();
        let owner = tables.contexts.get(context)?.id;
        let template = match options.template {
            0 => None,
            handle => Some(tables.templates.get(handle)?),
        };
        let mut translation = Translation {
            tables: &tables,
            template,
            kept: Kept::default(),
        };
        let result = translation.nodes(&made.nodes).and_then(|nodes| {
            let plan = GraphPlan {
                nodes: &nodes,
                template: template.map(|template| template.id),
                node_priorities: options.node_priorities,
            };
            let keeper = Box::new(Arc::clone(&made.share));
            Ok(match old {
                Some(old) => self.gpu.graph_update(old, &plan, keeper).map(|()| old)?,
                None => self.gpu.graph_instantiate(owner, &plan, keeper)?,
            })
        });
        let kept = translation.kept;
        drop(tables);
        match result {
            Ok(id) => Ok(DeviceGraph {
                id,
                kept,
                totals: Totals::of(&made.nodes),
            }),
            Err(error) => {
                kept.release(&*self.gpu);
                Err(error)
            }
        }
    }

    /// Destroys a graph.
    pub fn graph_destroy(&self, graph: u64) -> Result<()> {
        self.check()?;
        let gone = self.write().graphs.remove(graph)?;
        self.end_made(gone.made)
    }

    fn end_made(&self, made: Made) -> Result<()> {
        let Some(device) = made.device else {
            return Ok(());
        };
        let destroyed = self.gpu.graph_destroy(device.id);
        device.kept.release(&*self.gpu);
        Ok(destroyed?)
    }

    /// Launches a graph in a stream.
    pub fn graph_launch(&self, graph: u64, stream: u64) -> Result<()> {
        self.check()?;
        let nodes = {
            let tables = self.read();
            let made = &tables.graphs.get(graph)?.made;
            if let Some(device) = &made.device {
                let stream = tables.streams.get(stream)?;
                let launched = self.gpu.graph_launch(device.id, stream.id);
                self.watch(stream.context, launched)?;
                device.totals.count(self.vgpu.counters());
                return Ok(());
            }
            Arc::clone(&made.nodes)
        };
        nodes
            .iter()
            .try_for_each(|node| self.replay(stream, &node.op))
    }

    /// Brings to the device what the next launch of a graph needs there.
    pub fn graph_upload(&self, graph: u64, stream: u64) -> Result<()> {
        self.check()?;
        let tables = self.read();
        let made = &tables.graphs.get(graph)?.made;
        let stream = tables.streams.get(stream)?;
        match &made.device {
            Some(device) => {
                let uploaded = self.gpu.graph_upload(device.id, stream.id);
                self.watch(stream.context, uploaded)
            }
            None => Ok(()),
        }
    }

    /// Makes a template: what handles of conditional nodes belong to.
    pub fn template_create(&self, context: u64) -> Result<u64> {
        self.check()?;
        let share = self.object_share()?;
        let mut tables = self.write();
        let owner = tables.contexts.get(context)?.id;
        let id = self.watch(context, self.gpu.template_create(owner))?;
        let handles = Vec::new();
        let template = Template {
            context,
            id,
            handles,
            share,
        };
        tables.templates.insert(template).map_err(|template| {
            let _ = self.gpu.template_destroy(template.id);
            table_full(ObjectKind::Template)
        })
    }

    /// Destroys a template; graphs that were made with it stay.
    pub fn template_destroy(&self, template: u64) -> Result<()> {
        self.check()?;
        let gone = self.write().templates.remove(template)?;
        Ok(self.gpu.template_destroy(gone.id)?)
    }

    /// A handle for a conditional node of a graph that is made with this template. With a `default` each launch begins
    /// with this value.
    pub fn conditional_create(&self, template: u64, default: Option<u32>) -> Result<u64> {
        self.check()?;
        let share = self.object_share()?;
        let mut tables = self.write();
        let found = tables.templates.get_mut(template)?;
        let made = self.gpu.conditional_create(found.id, default);
        let handle = self.watch(found.context, made)?;
        found.handles.push((handle, share));
        Ok(handle)
    }
}
