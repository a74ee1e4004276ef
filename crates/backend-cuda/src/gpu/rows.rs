//! Several launches at once, as a graph of kernels in a row.
//!
//! The driver takes 2.8 to 3.3 µs for a launch, and so does a thread that carries out a program's. A kernel of a graph that is
//! there takes 0.5 µs, and to give it another kernel, shape and parameters 0.1 µs (H200). So where that many launches for
//! one stream wait to be carried out, they are put into the nodes of one graph, which is launched.
//!
//! What a graph does is what the launches would do: each kernel begins when the one before it has ended. Launches under way
//! keep the parameters they had. Whatever the driver cannot do so is left to be launched one by one.
//!
//! A driver launches one graph only after its launch before has ended, on whatever stream that was. So a graph belongs to one
//! stream until the stream has nothing to do: launches of another one that waited for it could be those which the first
//! waits for.

use mica_gpu::{Launch, Result, StreamId};

use super::{Address, Context, CudaGpu, Stream, lock};
use crate::driver::Raw;
use crate::graph_abi::{GraphFunctions, KernelNode};

/// Kernels of a row.
const ROW: usize = 16;
/// Rows that could not be launched before no more are tried in a context.
const MOST_REFUSALS: u32 = 8;
/// Graphs of a context, each for a stream of its own.
const MOST_ROWS: usize = 8;

/// A context's graphs for launches in a row.
#[derive(Debug, Default)]
pub(super) struct RowState {
    rows: Vec<Row>,
    /// How often the driver could not do what was wanted.
    refusals: u32,
    launches: u64,
}

#[derive(Debug)]
struct Row {
    /// Whose launches may be under way in it.
    owner: Option<StreamId>,
    /// Which launch of a row of the context was its last one.
    used: u64,
    graph: Address,
    exec: Address,
    nodes: [Address; ROW],
}

/// A graph for the launches of a stream.
enum Place {
    /// One that is there.
    At(usize),
    /// One that is to be made.
    New,
    /// None: all belong to streams that have work.
    Taken,
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
        let Ok(mut state) = context.rows.try_lock() else {
            return false;
        };
        if state.refusals >= MOST_REFUSALS || self.enter(context).is_err() {
            return false;
        }
        let at = match self.place_of(&state, id) {
            Place::Taken => return false,
            Place::At(at) => self
                .set_row(&state.rows[at], set, context, launches)
                .then_some(at),
            Place::New => self.make_row(functions, context, launches).ok().map(|row| {
                state.rows.push(row);
                state.rows.len() - 1
            }),
        };
        let is_started = at.is_some_and(|at| {
            state.launches += 1;
            (state.rows[at].owner, state.rows[at].used) = (Some(id), state.launches);
            context.submitted.note_kernel(id);
            self.launch_row_on(functions, &state.rows[at], &stream)
        });
        if !is_started {
            state.refusals += 1;
        }
        is_started
    }

    /// Which graph launches of a stream may use, and wait for no other stream.
    fn place_of(&self, state: &RowState, stream: StreamId) -> Place {
        let own = (state.rows.iter()).position(|row| row.owner.is_none_or(|owner| owner == stream));
        if let Some(at) = own {
            return Place::At(at);
        }
        if state.rows.len() < MOST_ROWS {
            return Place::New;
        }
        let oldest = (state.rows.iter().enumerate()).min_by_key(|(_, row)| row.used);
        match oldest {
            Some((at, row)) if row.owner.is_none_or(|owner| self.stream_is_done(owner)) => {
                Place::At(at)
            }
            _ => Place::Taken,
        }
    }

    /// Whether all work of a stream of the current context has ended. One that was destroyed may have some.
    fn stream_is_done(&self, id: StreamId) -> bool {
        let query = self.driver.functions.stream_query;
        // SAFETY: the driver's own handle.
        self.stream(id)
            .is_ok_and(|stream| unsafe { query(stream.raw as Raw) } == 0)
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
            owner: None,
            used: 0,
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

    /// Ends a context's graphs: a module whose kernels they name is about to go. Launches under way are not affected.
    pub(super) fn end_rows(&self, context: &Context) {
        let rows = std::mem::take(&mut lock(&context.rows).rows);
        let Some((functions, _)) = self.row_functions() else {
            return;
        };
        if rows.is_empty() || self.enter(context).is_err() {
            return;
        }
        for row in rows {
            // SAFETY: made by us, and nobody finds them any more.
            unsafe {
                (functions.exec_destroy)(row.exec as Raw);
                (functions.destroy)(row.graph as Raw);
            }
        }
    }
}

impl Context {
    /// A stream has gone, and its work has ended: its graph may be another one's.
    pub(super) fn leave_row(&self, stream: StreamId) {
        let mut state = lock(&self.rows);
        let own = (state.rows.iter_mut()).filter(|row| row.owner == Some(stream));
        own.for_each(|row| row.owner = None);
    }
}
