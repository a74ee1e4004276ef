//! Graphs: work described once and launched often.
//!
//! Owns what a graph is before it is made ready: its nodes, and what they keep alive. [`capture`] makes nodes of
//! calls on streams, [`exec`] makes a graph ready and launches it.

mod capture;
mod exec;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mica_gpu::{Copy3d, DevicePtr, HostCallback, Place};
use mica_vgpu::{GraphNode, GraphOp, OwnedLaunch};
use zerocopy::IntoBytes;

use crate::buffer::Plain;
use crate::launch::{Grid, KernelParams};
use crate::module::Kernel;
use crate::slice::{DeviceSlice, DeviceSliceMut, fill_of};
use crate::stream::{Event, OwnedEvent};
use crate::vgpu::Vgpu;
use crate::{Error, Result};
pub(crate) use capture::{Captures, capture};
pub use exec::GraphExec;

/// What a node uses and must not go before the graph does.
#[derive(Clone, Debug)]
pub(crate) enum Kept {
    Nothing,
    Kernel(#[expect(dead_code, reason = "held until the graph is gone")] Kernel),
    Event(#[expect(dead_code, reason = "held until the graph is gone")] Arc<OwnedEvent>),
}

/// Nodes, and what each of them keeps.
#[derive(Clone, Default)]
pub(crate) struct Nodes {
    pub(crate) nodes: Vec<GraphNode>,
    pub(crate) kept: Vec<Kept>,
}

impl Nodes {
    pub(crate) fn push(&mut self, after: Vec<u32>, op: GraphOp, kept: Kept) -> u32 {
        self.nodes.push(GraphNode { after, op });
        self.kept.push(kept);
        self.nodes.len() as u32 - 1
    }

    /// The nodes that no other comes after.
    pub(crate) fn last(&self) -> Vec<u32> {
        let mut is_last = vec![true; self.nodes.len()];
        for before in self.nodes.iter().flat_map(|node| &node.after) {
            is_last[*before as usize] = false;
        }
        let all = 0..self.nodes.len() as u32;
        all.filter(|index| is_last[*index as usize]).collect()
    }
}

/// A node of a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    graph: u64,
    index: u32,
}

/// Work described once: kernels, copies, fills, host functions and events, and what each of them comes after. A graph is
/// recorded from a stream ([`Stream::capture`](crate::Stream::capture)) or built node by node; [`Graph::instantiate`]
/// makes it ready to be launched. It keeps its modules and events alive, its buffers not: a launch after a buffer was
/// dropped fails as a kernel with a wild address does.
///
/// ```
/// # const PTX: &str = include_str!("../../tests/kernels.ptx");
/// # fn main() -> Result<(), mica::Error> {
/// use mica::{Device, Graph, Grid, Vgpu};
///
/// let vgpu = Vgpu::builder().memory(16 << 20).build(&Device::software()?)?;
/// let vadd = vgpu.load_ptx(PTX)?.kernel("vadd")?;
/// let x = vgpu.upload(&[1.0_f32; 100])?;
/// let (mut y, mut z) = (vgpu.alloc::<f32>(100)?, vgpu.alloc::<f32>(100)?);
///
/// // Two nodes that may run at the same time, and one that waits for both.
/// let mut graph = Graph::new(&vgpu);
/// let copied = graph.copy(&[], &mut y, &x)?;
/// let filled = graph.fill(&[], &mut z, 0.0_f32)?;
/// graph.launch(&[copied, filled], &vadd, Grid::new(1, 128), (&x, &y, &mut z, 100_u32))?;
///
/// let ready = graph.instantiate()?;
/// ready.launch(&vgpu.default_stream())?;
/// assert_eq!(z.to_vec()?, [2.0; 100]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Graph {
    vgpu: Vgpu,
    id: u64,
    nodes: Nodes,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph")
            .field("nodes", &self.len())
            .finish_non_exhaustive()
    }
}

impl Graph {
    /// A graph without nodes.
    pub fn new(vgpu: &Vgpu) -> Self {
        Self::with(vgpu, Nodes::default())
    }

    pub(crate) fn with(vgpu: &Vgpu, nodes: Nodes) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            vgpu: vgpu.clone(),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            nodes,
        }
    }

    /// How many nodes.
    pub fn len(&self) -> usize {
        self.nodes.nodes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The nodes, in the order in which they were added.
    pub fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        let graph = self.id;
        (0..self.len() as u32).map(move |index| Node { graph, index })
    }

    fn index(&self, node: Node) -> Result<u32> {
        match node.graph == self.id {
            true => Ok(node.index),
            false => Err(Error::Argument(format!(
                "node {} belongs to another graph",
                node.index
            ))),
        }
    }

    fn add(&mut self, after: &[Node], op: GraphOp, kept: Kept) -> Result<Node> {
        let after: Result<_> = after.iter().map(|node| self.index(*node)).collect();
        let index = self.nodes.push(after?, op, kept);
        let graph = self.id;
        Ok(Node { graph, index })
    }

    fn packed(
        &self,
        kernel: &Kernel,
        grid: Grid,
        params: &impl KernelParams,
    ) -> Result<OwnedLaunch> {
        self.vgpu.must_own(kernel.vgpu(), "the kernel")?;
        let packed = kernel.pack(params)?;
        let attributes = grid.attributes();
        Ok(kernel.call(0, grid, &attributes, &packed).owned())
    }

    /// Adds a kernel.
    ///
    /// # Errors
    /// If the parameters do not fit the kernel, the kernel or a buffer is of another virtual GPU, or a node of another
    /// graph.
    pub fn launch(
        &mut self,
        after: &[Node],
        kernel: &Kernel,
        grid: Grid,
        params: impl KernelParams,
    ) -> Result<Node> {
        let launch = self.packed(kernel, grid, &params)?;
        self.add(after, GraphOp::Launch(launch), Kept::Kernel(kernel.clone()))
    }

    /// Gives a kernel node another shape and other parameters. Graphs that are ready already take it over with
    /// [`GraphExec::update`].
    ///
    /// # Errors
    /// As [`Graph::launch`]; also if the node is no kernel.
    pub fn set_launch(
        &mut self,
        node: Node,
        kernel: &Kernel,
        grid: Grid,
        params: impl KernelParams,
    ) -> Result<()> {
        let launch = self.packed(kernel, grid, &params)?;
        let index = self.index(node)? as usize;
        match &mut self.nodes.nodes[index].op {
            GraphOp::Launch(old) => *old = launch,
            _ => return Err(Error::Argument(format!("node {index} is not a kernel"))),
        }
        self.nodes.kept[index] = Kept::Kernel(kernel.clone());
        Ok(())
    }

    /// Adds a copy between buffers or parts of them.
    ///
    /// # Errors
    /// If they have different lengths, or one is of another virtual GPU.
    pub fn copy<'t, 's, T: Plain>(
        &mut self,
        after: &[Node],
        to: impl Into<DeviceSliceMut<'t, T>>,
        from: impl Into<DeviceSlice<'s, T>>,
    ) -> Result<Node> {
        let (to, from) = (to.into(), from.into());
        self.vgpu.must_own(to.vgpu(), "the destination")?;
        to.check_source(&from)?;
        let op = copy_op(to.address(), from.address(), from.size_bytes());
        self.add(after, op, Kept::Nothing)
    }

    /// Adds a fill with 1-, 2- or 4-byte values.
    ///
    /// # Errors
    /// If values are larger, or the buffer is of another virtual GPU.
    pub fn fill<'t, T: Plain>(
        &mut self,
        after: &[Node],
        to: impl Into<DeviceSliceMut<'t, T>>,
        value: T,
    ) -> Result<Node> {
        let to = to.into();
        self.vgpu.must_own(to.vgpu(), "the buffer")?;
        let fill = fill_of(to.address(), to.len(), value)?;
        self.add(after, GraphOp::Fill(fill), Kept::Nothing)
    }

    /// Adds values to be written; the graph keeps a copy of them.
    ///
    /// # Errors
    /// If there are more or fewer than the buffer has room for, or the buffer is of another virtual GPU.
    pub fn write<'t, T: Plain>(
        &mut self,
        after: &[Node],
        to: impl Into<DeviceSliceMut<'t, T>>,
        values: &[T],
    ) -> Result<Node> {
        let to = to.into();
        self.vgpu.must_own(to.vgpu(), "the buffer")?;
        to.check_len("the source", values.len())?;
        let bytes = values.as_bytes().into();
        let op = GraphOp::Write(DevicePtr(to.address()), bytes);
        self.add(after, op, Kept::Nothing)
    }

    /// Adds a function of this process. It may wait, but not use the virtual GPU.
    ///
    /// # Errors
    /// If a node is of another graph.
    pub fn call(
        &mut self,
        after: &[Node],
        function: impl Fn() + Send + Sync + 'static,
    ) -> Result<Node> {
        self.add(after, call_op(function), Kept::Nothing)
    }

    /// Adds the record of an event: [`Event::elapsed_since_ms`] then tells times within the graph.
    ///
    /// # Errors
    /// If the event is of another virtual GPU.
    pub fn record(&mut self, after: &[Node], event: &Event) -> Result<Node> {
        self.vgpu.must_own(event.vgpu(), "the event")?;
        let op = GraphOp::EventRecord(event.handle());
        self.add(after, op, Kept::Event(event.owned()))
    }

    /// Adds a wait for an event that is recorded outside of the graph.
    ///
    /// # Errors
    /// If the event is of another virtual GPU.
    pub fn wait(&mut self, after: &[Node], event: &Event) -> Result<Node> {
        self.vgpu.must_own(event.vgpu(), "the event")?;
        let op = GraphOp::WaitEvent(event.handle());
        self.add(after, op, Kept::Event(event.owned()))
    }

    /// Adds a node that does nothing: a point to join several nodes.
    ///
    /// # Errors
    /// If a node is of another graph.
    pub fn join(&mut self, after: &[Node]) -> Result<Node> {
        self.add(after, GraphOp::Nothing, Kept::Nothing)
    }

    /// Adds all nodes of another graph of the same virtual GPU; the node ends when all of them have.
    ///
    /// # Errors
    /// If the other graph is of another virtual GPU.
    pub fn child(&mut self, after: &[Node], child: &Graph) -> Result<Node> {
        self.vgpu.must_own(&child.vgpu, "the graph")?;
        let start = self.join(after)?.index;
        let first = start + 1;
        for (node, kept) in child.nodes.nodes.iter().zip(&child.nodes.kept) {
            let after = match node.after.is_empty() {
                true => vec![start],
                false => node.after.iter().map(|before| before + first).collect(),
            };
            self.nodes.push(after, node.op.clone(), kept.clone());
        }
        let mut ends = child.nodes.last();
        ends.iter_mut().for_each(|index| *index += first);
        if ends.is_empty() {
            ends.push(start);
        }
        let index = self.nodes.push(ends, GraphOp::Nothing, Kept::Nothing);
        let graph = self.id;
        Ok(Node { graph, index })
    }

    /// Makes it ready to be launched; changes of this graph do not change what is ready.
    ///
    /// # Errors
    /// If the device refuses a node.
    pub fn instantiate(&self) -> Result<GraphExec> {
        GraphExec::new(&self.vgpu, &self.nodes)
    }
}

pub(crate) fn copy_op(to: u64, from: u64, bytes: u64) -> GraphOp {
    let (to, from) = (Place::Device(DevicePtr(to)), Place::Device(DevicePtr(from)));
    GraphOp::Copy(Copy3d::linear(to, from, bytes))
}

pub(crate) fn call_op(function: impl Fn() + Send + Sync + 'static) -> GraphOp {
    let function = Arc::new(function);
    GraphOp::Callback(Arc::new(move || {
        let function = Arc::clone(&function);
        Box::new(move || function()) as HostCallback
    }))
}
