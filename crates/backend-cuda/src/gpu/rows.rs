//! Several launches at once, as a graph of kernels in a row.
//!
//! The driver takes 2.8 to 3.3 µs for a launch, and so does a thread that carries out a program's. A kernel of a graph that is
//! there takes 0.5 µs, and to give it another kernel, shape and parameters 0.1 µs (H200). So where that many launches for
//! one stream wait to be carried out, they are put into the nodes of one graph, which is launched.
//!
//! What a graph does is what the launches would do: each kernel begins when the one before it has ended. Launches under way
//! keep the parameters they had. Whatever the driver cannot do so is left to be launched one by one.

use mica_gpu::{Launch, Result, StreamId};

use super::{Address, Context, CudaGpu, Stream, lock};
use crate::driver::Raw;
use crate::graph_abi::{GraphFunctions, KernelNode};

/// Kernels of a row.
const ROW: usize = 16;
/// Rows that could not be launched before no more are tried in a context.
const MOST_REFUSALS: u32 = 8;

/// A context's graph for launches in a row.
#[derive(Debug, Default)]
pub(super) struct RowState {
    row: Option<Row>,
    /// How often the driver could not do what was wanted.
    refusals: u32,
}

#[derive(Debug)]
struct Row {
    graph: Address,
    exec: Address,
    nodes: [Address; ROW],
}

type SetKernel = unsafe extern "C" fn(Raw, Raw, *const KernelNode) -> u32;

impl CudaGpu {
    fn row_functions(&self) -> Option<(&GraphFunctions, SetKernel)> {
        let functions = self.driver.graphs.as_ref()?;
        Some((functions, functions.exec_set_kernel?))
    }

    pub(super) fn row_capacity(&self) -> usize {
        match self.row_functions() {
            Some(_) => ROW,
            None => 0,
        }
    }

    pub(super) fn start_row(&self, id: StreamId, launches: &[Launch<'_>]) -> bool {
        let Some((functions, set)) = self.row_functions() else {
            return false;
        };
        let is_plain = |launch: &Launch<'_>| !launch.cooperative;
        if launches.len() != ROW || self.is_recording() || !launches.iter().all(is_plain) {
            return false;
        }
        let Ok(stream) = self.stream(id) else {
            return false;
        };
        let context = &stream.context;
        let Ok(mut state) = context.row.try_lock() else {
            return false;
        };
        if state.refusals >= MOST_REFUSALS || self.enter(context).is_err() {
            return false;
        }
        let is_ready = match &state.row {
            Some(row) => self.set_row(row, set, context, launches),
            None => match self.make_row(functions, context, launches) {
                Ok(row) => {
                    state.row = Some(row);
                    true
                }
                Err(_) => false,
            },
        };
        let is_started = is_ready
            && state.row.as_ref().is_some_and(|row| {
                context.submitted.note_kernel(id);
                self.launch_row_on(functions, row, &stream)
            });
        if !is_started {
            state.refusals += 1;
        }
        is_started
    }

    fn launch_row_on(&self, functions: &GraphFunctions, row: &Row, stream: &Stream) -> bool {
        // SAFETY: the driver's own handles; the state's lock keeps others from the graph. Refused, none of its kernels runs, and
        // the launches one by one tell why.
        unsafe { (functions.launch)(row.exec as Raw, stream.raw as Raw) == 0 }
    }

    /// Puts launches into the nodes of a row; whether the driver could.
    fn set_row(
        &self,
        row: &Row,
        set: SetKernel,
        context: &Context,
        launches: &[Launch<'_>],
    ) -> bool {
        let nodes = row.nodes.iter().zip(launches);
        nodes.into_iter().all(|(node, launch)| {
            let done = self.with_node(context, launch, |params| {
                // SAFETY: the driver's own handles, and parameters as the kernel has them, which the driver copies.
                Ok(unsafe { set(row.exec as Raw, *node as Raw, params) } == 0)
            });
            done.unwrap_or(false)
        })
    }

    fn make_row(
        &self,
        functions: &GraphFunctions,
        context: &Context,
        launches: &[Launch<'_>],
    ) -> Result<Row> {
        let mut graph: Raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        self.call(context, "cuGraphCreate", || unsafe {
            (functions.create)(&mut graph, 0)
        })?;
        let made = self.fill_row(functions, context, graph, launches);
        if made.is_err() {
            // SAFETY: made above and known to nobody.
            unsafe { (functions.destroy)(graph) };
        }
        made
    }

    fn fill_row(
        &self,
        functions: &GraphFunctions,
        context: &Context,
        graph: Raw,
        launches: &[Launch<'_>],
    ) -> Result<Row> {
        let mut nodes = [0; ROW];
        let mut last: Raw = std::ptr::null_mut();
        for (place, launch) in nodes.iter_mut().zip(launches) {
            let before = last;
            let (after, count) = match before.is_null() {
                true => (std::ptr::null(), 0),
                false => (&raw const before, 1),
            };
            self.with_node(context, launch, |params| {
                // SAFETY: writes one handle; the list of nodes before it has `count` entries.
                self.call(context, "cuGraphAddKernelNode", || unsafe {
                    (functions.add_kernel)(&mut last, graph, after, count, params)
                })
            })?;
            *place = last as Address;
        }
        let mut exec: Raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        self.call(context, "cuGraphInstantiateWithFlags", || unsafe {
            (functions.instantiate)(&mut exec, graph, 0)
        })?;
        Ok(Row {
            graph: graph as Address,
            exec: exec as Address,
            nodes,
        })
    }

    /// Calls `then` with a launch as a node of a graph has it.
    pub(super) fn with_node<T>(
        &self,
        context: &Context,
        launch: &Launch<'_>,
        then: impl FnOnce(&KernelNode) -> Result<T>,
    ) -> Result<T> {
        self.with_kernel(context, launch, |function, params| {
            then(&KernelNode {
                function,
                grid: launch.grid,
                block: launch.block,
                dynamic_shared: launch.dynamic_shared,
                params,
                extra: std::ptr::null_mut(),
                unused: [std::ptr::null_mut(); 2],
            })
        })
    }

    /// Ends a context's row: a module whose kernels it names is about to go. Launches under way are not affected.
    pub(super) fn end_row(&self, context: &Context) {
        let mut state = lock(&context.row);
        let (Some(row), Some((functions, _))) = (state.row.take(), self.row_functions()) else {
            return;
        };
        if self.enter(context).is_ok() {
            // SAFETY: made by us, and nobody finds them any more.
            unsafe {
                (functions.exec_destroy)(row.exec as Raw);
                (functions.destroy)(row.graph as Raw);
            }
        }
    }
}
