//! Graphs that are ready to be launched.

use super::{Graph, Kept, Nodes};
use crate::Result;
use crate::profile::Activity;
use crate::stream::Stream;
use crate::vgpu::Vgpu;

/// A [`Graph`] that is ready to be launched, any number of times. Its launches run one after the other.
///
/// To drop it waits for the virtual GPU's work if it has host functions.
///
/// ```
/// # const PTX: &str = include_str!("../../tests/kernels.ptx");
/// # fn main() -> Result<(), mica::Error> {
/// use mica::{Device, Grid, Vgpu};
///
/// let vgpu = Vgpu::builder().memory(16 << 20).build(&Device::software()?)?;
/// let vadd = vgpu.load_ptx(PTX)?.kernel("vadd")?;
/// let (x, mut sum) = (vgpu.upload(&[1.0_f32; 64])?, vgpu.alloc::<f32>(64)?);
/// let stream = vgpu.stream()?;
/// let add = |count: u32, sum: &mut mica::DeviceBuffer<f32>| {
///     stream.capture(|| stream.launch(&vadd, Grid::new(1, 64), (&x, &*sum, &*sum, count)))
/// };
/// let mut ready = add(64, &mut sum)?.instantiate()?;
/// ready.launch(&stream)?;
/// // The same kernel for the first half only.
/// ready.update(&add(32, &mut sum)?)?;
/// ready.launch(&stream)?;
/// stream.synchronize()?;
/// let sums = sum.to_vec()?;
/// assert_eq!((sums[0], sums[63]), (2.0, 1.0));
/// # Ok(())
/// # }
/// ```
pub struct GraphExec {
    vgpu: Vgpu,
    handle: u64,
    kept: Vec<Kept>,
    len: usize,
}

impl std::fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphExec")
            .field("nodes", &self.len)
            .finish_non_exhaustive()
    }
}

impl GraphExec {
    pub(super) fn new(vgpu: &Vgpu, nodes: &Nodes) -> Result<Self> {
        Ok(Self {
            vgpu: vgpu.clone(),
            handle: vgpu.backend.graph_instantiate(nodes.nodes.clone())?,
            kept: nodes.kept.clone(),
            len: nodes.nodes.len(),
        })
    }

    /// How many nodes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Launches it in the order of a stream.
    ///
    /// # Errors
    /// At once if the stream is of another virtual GPU or is being captured; what happens while the graph runs is told by
    /// later calls.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        self.check(stream, "the launch of a graph")?;
        let (backend, stream) = (&*self.vgpu.backend, stream.handle());
        let what = (Activity::Kernel, "graph", 0);
        self.vgpu.timings.around(backend, what, stream, || {
            backend.graph_launch(self.handle, stream)
        })
    }

    /// Brings to the device what the next launch needs there, so that the first launch takes no longer than others.
    ///
    /// # Errors
    /// As [`GraphExec::launch`].
    pub fn upload(&self, stream: &Stream) -> Result<()> {
        self.check(stream, "the upload of a graph")?;
        self.vgpu.backend.graph_upload(self.handle, stream.handle())
    }

    fn check(&self, stream: &Stream, what: &str) -> Result<()> {
        self.vgpu.must_own(stream.vgpu(), "the stream")?;
        stream.refuse_in_capture(what)
    }

    /// Takes over the nodes of a graph; launches under way are not changed.
    ///
    /// # Errors
    /// If the graph is of another virtual GPU, or the device refuses a node. Then nothing has changed.
    pub fn update(&mut self, graph: &Graph) -> Result<()> {
        self.vgpu.must_own(&graph.vgpu, "the graph")?;
        let nodes = graph.nodes.nodes.clone();
        self.vgpu.backend.graph_update(self.handle, nodes)?;
        self.kept.clone_from(&graph.nodes.kept);
        self.len = graph.len();
        Ok(())
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // Fails only if the context is gone, and the graph with it.
        let _ = self.vgpu.backend.graph_destroy(self.handle);
    }
}
