//! Conditional nodes: graphs that run as a value says, which kernels set.
//!
//! Kernels name the value by a handle that only the device can make, so it is asked for one. Handles belong to a
//! *template*, the worker's counterpart of the program's graph; nodes inside bodies use that of the outermost graph.

use mica_cuda_abi::Handle;
use mica_wire::session::{ConditionalCreate, TemplateCreate, TemplateDestroy};

use super::operations::Op;
use super::{Graph, graph_of};
use crate::isolated::context::{Context, current};
use crate::isolated::state::State;
use crate::isolated::support::{Answer, driver, entries, get, invalid, lock, put, room_for};

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: u32 = 1;
/// Most bodies of a node: what a switch has is the program's to say.
const MOST_BODIES: u32 = 1 << 16;

/// What a conditional node does.
pub(crate) struct Conditional {
    pub(crate) handle: u64,
    /// `CUgraphConditionalNodeType`.
    pub(crate) kind: u32,
    graphs: Vec<&'static Graph>,
    /// The same as the program sees them, at an address that stays.
    handles: Vec<Handle>,
}

// SAFETY: the handles are addresses that only the program looks behind.
unsafe impl Send for Conditional {}
// SAFETY: as for `Send`; nothing changes them.
unsafe impl Sync for Conditional {}

impl Conditional {
    /// Its bodies.
    pub(crate) fn graphs(&self) -> &[&'static Graph] {
        &self.graphs
    }
}

/// A template in the worker, as long as its graph lives.
pub(crate) struct Template {
    state: &'static State,
    context: &'static Context,
    epoch: u64,
    wire: u64,
}

impl Drop for Template {
    fn drop(&mut self) {
        if self.context.epoch() == self.epoch {
            let template = self.wire;
            let _ = (self.state.client).post(&TemplateDestroy { template }, &[]);
        }
    }
}

/// `CUDA_CONDITIONAL_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConditionalParams {
    handle: u64,
    kind: u32,
    size: u32,
    bodies: *const Handle,
    context: Handle,
}

const _: () = assert!(size_of::<ConditionalParams>() == 32);

impl Graph {
    fn outermost(&'static self) -> &'static Self {
        let mut graph = self;
        while let Some(outer) = graph.outer {
            graph = outer;
        }
        graph
    }

    /// The worker's handle of its template; 0 if it has none.
    pub(crate) fn template(&self) -> u64 {
        lock(&self.template).as_ref().map_or(0, |known| known.wire)
    }

    fn needed_template(&self, state: &'static State, context: &'static Context) -> Answer<u64> {
        let mut slot = lock(&self.template);
        let epoch = context.epoch();
        if let Some(known) = slot.as_ref().filter(|known| known.epoch == epoch) {
            return Ok(known.wire);
        }
        let request = TemplateCreate {
            context: context.wire(),
        };
        let wire = context.checked(state.client.call(&request))?.value;
        *slot = Some(Template {
            state,
            context,
            epoch,
            wire,
        });
        Ok(wire)
    }
}

/// A conditional node with its bodies, still empty; tells the program where they are.
///
/// # Safety
/// The program's parameters of a conditional node.
pub(crate) unsafe fn op(
    state: &'static State,
    graph: &'static Graph,
    params: *mut ConditionalParams,
) -> Answer<Op> {
    // SAFETY: our contract.
    let asked = unsafe { get(params)? };
    let fits = match asked.kind {
        0 => matches!(asked.size, 1 | 2),
        1 => asked.size == 1,
        2 => (1..=MOST_BODIES).contains(&asked.size),
        _ => false,
    };
    if !fits || graph.outermost().template() == 0 {
        return invalid();
    }
    let body = |_| Graph::within(state, Some(graph));
    let graphs: Vec<&'static Graph> = (0..asked.size).map(body).collect();
    let conditional = std::sync::Arc::new(Conditional {
        handle: asked.handle,
        kind: asked.kind,
        handles: graphs.iter().map(|graph| graph.handle()).collect(),
        graphs,
    });
    // SAFETY: our contract; the list lives as long as the node.
    unsafe { (*params).bodies = conditional.handles.as_ptr() };
    Ok(Op::Conditional(conditional))
}

driver! {
    fn handle_create(out: *mut u64, graph: Handle, _context: Handle, value: u32, flags: u32) {
        let (state, context) = current()?;
        room_for(out)?;
        if flags & !ASSIGN_DEFAULT != 0 {
            return invalid();
        }
        let template = graph_of(graph)?.outermost().needed_template(state, context)?;
        let is_default = flags & ASSIGN_DEFAULT != 0;
        let request = ConditionalCreate { template, value, is_default };
        put(out, context.checked(state.client.call(&request))?.value)
    }
}

entries! {
    cuGraphConditionalHandleCreate = handle_create;
}
