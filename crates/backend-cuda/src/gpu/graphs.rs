//! Graphs that the driver launches as a whole.
//!
//! ```text
//!   plan ─► CUgraph, node by node (`graph_nodes`) ─┬─► cuGraphInstantiate ─► CUgraphExec ─► cuGraphLaunch …
//!                                                  └─► cuGraphExecUpdate of one there is; if the driver cannot, a new one
//! ```
//!
//! The CUgraph is gone when the call is over, except a template: handles of conditional nodes belong to one CUgraph, so
//! that one is emptied and filled again. The driver does not synchronize the use of one graph; each has a lock here.
//!
//! The driver lets launches under way end when a CUgraphExec is destroyed or updated. Host memory that they read and
//! host functions that they call stay as long: each launch of such a graph holds them until its stream has passed it.

use std::sync::{Arc, Mutex};

use mica_cuda_abi::CuResult;
use mica_gpu::{
    ContextId, GpuError, GraphId, GraphKeeper, GraphPlan, Result, StreamId, TemplateId,
};

use super::graph_nodes::{Builder, HostSide};
use super::{Address, Context, CudaGpu, invalid, lock, stale};
use crate::driver::{Raw, answer};
use crate::graph_abi::{ASSIGN_DEFAULT, GraphFunctions, USE_NODE_PRIORITY, UpdateResult};

/// A graph that is ready to be launched.
pub(super) struct Graph {
    context: Arc<Context>,
    state: Mutex<GraphState>,
}

struct GraphState {
    /// `CUgraphExec`, 0 when it was destroyed.
    exec: Address,
    flags: u64,
    kept: Arc<Kept>,
}

/// What launches use besides the device.
struct Kept {
    host: HostSide,
    #[expect(dead_code, reason = "held until no launch uses the nodes")]
    keeper: GraphKeeper,
}

/// A CUgraph for the handles of conditional nodes.
pub(super) struct Template {
    context: Arc<Context>,
    state: Mutex<TemplateState>,
}

struct TemplateState {
    /// `CUgraph`, 0 when it was destroyed.
    raw: Address,
    /// The nodes it has now.
    nodes: Vec<Address>,
}

impl CudaGpu {
    pub(super) fn graph_functions(&self) -> Result<&GraphFunctions> {
        self.driver.graphs.as_ref().ok_or_else(|| {
            let sentence = "the driver lacks functions for graphs";
            GpuError::new(CuResult::NotSupported, sentence)
        })
    }

    fn graph(&self, id: GraphId) -> Result<Arc<Graph>> {
        self.graphs.get(id.0).ok_or_else(|| stale("graph", id.0))
    }

    fn template(&self, id: TemplateId) -> Result<Arc<Template>> {
        let found = self.templates.get(id.0);
        found.ok_or_else(|| stale("template of graphs", id.0))
    }

    pub(super) fn make_graph(
        &self,
        context: ContextId,
        plan: &GraphPlan<'_>,
        keeper: GraphKeeper,
    ) -> Result<GraphId> {
        let context = self.context(context)?;
        let flags = if plan.node_priorities {
            USE_NODE_PRIORITY
        } else {
            0
        };
        let made = self.with_graph(&context, plan, |raw| self.instantiate(&context, raw, flags));
        let (exec, host) = made?;
        let kept = Arc::new(Kept { host, keeper });
        let state = Mutex::new(GraphState { exec, flags, kept });
        Ok(GraphId(self.graphs.add(Arc::new(Graph { context, state }))))
    }

    pub(super) fn change_graph(
        &self,
        id: GraphId,
        plan: &GraphPlan<'_>,
        keeper: GraphKeeper,
    ) -> Result<()> {
        let functions = self.graph_functions()?;
        let graph = self.graph(id)?;
        let context = &graph.context;
        let mut state = lock(&graph.state);
        if state.exec == 0 {
            return Err(stale("graph", id.0));
        }
        let change = |raw: Raw| {
            let mut result = UpdateResult {
                result: 0,
                node: std::ptr::null_mut(),
                from: std::ptr::null_mut(),
            };
            // SAFETY: the driver's own handles; writes one description.
            let updated = self.call(context, "cuGraphExecUpdate", || unsafe {
                (functions.update)(state.exec as Raw, raw, &mut result)
            });
            match updated {
                Ok(()) => Ok(None),
                Err(error) if error.code.is_sticky() => Err(error),
                // A change that this graph cannot take: another kind of kernel, more memory to fill.
                Err(_) => self.instantiate(context, raw, state.flags).map(Some),
            }
        };
        let (new, host) = self.with_graph(context, plan, change)?;
        let kept = std::mem::replace(&mut state.kept, Arc::new(Kept { host, keeper }));
        let exec = new.map(|new| std::mem::replace(&mut state.exec, new));
        drop(state);
        drop(kept);
        let Some(exec) = exec else {
            return Ok(());
        };
        // SAFETY: made by us, and nobody finds it any more.
        self.call(context, "cuGraphExecDestroy", || unsafe {
            (functions.exec_destroy)(exec as Raw)
        })
    }

    pub(super) fn start_graph(&self, id: GraphId, on: StreamId) -> Result<()> {
        let functions = self.graph_functions()?;
        let (graph, stream) = (self.graph(id)?, self.stream(on)?);
        let state = lock(&graph.state);
        if state.exec == 0 {
            return Err(stale("graph", id.0));
        }
        stream.context.submitted.note_kernel(on);
        // SAFETY: the driver's own handles, and nobody else uses this graph meanwhile.
        self.call(&stream.context, "cuGraphLaunch", || unsafe {
            (functions.launch)(state.exec as Raw, stream.raw as Raw)
        })?;
        if state.kept.host.is_empty() {
            return Ok(());
        }
        let kept = Arc::clone(&state.kept);
        drop(state);
        let held = Arc::clone(&kept);
        if let Err(error) = self.add_release(on, Box::new(move || drop(held)), false) {
            // Without a release the end of the launch must be waited for.
            let wait = self.driver.functions.stream_synchronize;
            self.on_stream(on, "cuStreamSynchronize", wait)?;
            return Err(error);
        }
        Ok(())
    }

    pub(super) fn upload_graph(&self, id: GraphId, on: StreamId) -> Result<()> {
        let functions = self.graph_functions()?;
        let (graph, stream) = (self.graph(id)?, self.stream(on)?);
        let state = lock(&graph.state);
        if state.exec == 0 {
            return Err(stale("graph", id.0));
        }
        // SAFETY: as in `start_graph`.
        self.call(&stream.context, "cuGraphUpload", || unsafe {
            (functions.upload)(state.exec as Raw, stream.raw as Raw)
        })
    }

    pub(super) fn end_graph(&self, id: GraphId) -> Result<()> {
        let removed = self.graphs.remove(id.0);
        let graph = removed.ok_or_else(|| stale("graph", id.0))?;
        self.destroy_exec(&graph)
    }

    fn destroy_exec(&self, graph: &Graph) -> Result<()> {
        let functions = self.graph_functions()?;
        let exec = std::mem::take(&mut lock(&graph.state).exec);
        if exec == 0 {
            return Ok(());
        }
        // SAFETY: made by us; whoever finds the graph from now on finds no address in it.
        self.call(&graph.context, "cuGraphExecDestroy", || unsafe {
            (functions.exec_destroy)(exec as Raw)
        })
    }

    /// Destroys the graphs and templates of a context that is about to end. What the graphs keep on the host must
    /// stay until it has.
    pub(super) fn end_graphs(&self, context: &Arc<Context>) -> Vec<Arc<Graph>> {
        let same = |other: &Arc<Context>| Arc::ptr_eq(other, context);
        let graphs = self.graphs.remove_where(|graph| same(&graph.context));
        for graph in &graphs {
            // A context that ended in a fault refuses, and is destroyed all the same.
            let _ = self.destroy_exec(graph);
        }
        let templates = self.templates.remove_where(|other| same(&other.context));
        for template in &templates {
            let _ = self.destroy_template(template);
        }
        graphs
    }

    fn instantiate(&self, context: &Context, graph: Raw, flags: u64) -> Result<Address> {
        let functions = self.graph_functions()?;
        let mut exec: Raw = std::ptr::null_mut();
        // SAFETY: writes one handle; the graph is the driver's own.
        self.call(context, "cuGraphInstantiateWithFlags", || unsafe {
            (functions.instantiate)(&mut exec, graph, flags)
        })?;
        Ok(exec as Address)
    }

    /// Makes a CUgraph of a plan, uses it, and destroys it unless it is a template.
    fn with_graph<T>(
        &self,
        context: &Arc<Context>,
        plan: &GraphPlan<'_>,
        use_it: impl FnOnce(Raw) -> Result<T>,
    ) -> Result<(T, HostSide)> {
        let functions = self.graph_functions()?;
        let mut builder = Builder::new(self, functions, context);
        let Some(template) = plan.template else {
            let raw = self.make_raw(context)?;
            let made = (builder.build(raw, plan.nodes, &mut Vec::new())).and_then(|()| use_it(raw));
            // SAFETY: made above and known to nobody; graphs made of it are the driver's copies.
            let destroyed = unsafe { (functions.destroy)(raw) };
            let made = made?;
            answer("cuGraphDestroy", destroyed)?;
            return Ok((made, builder.finish()));
        };
        let template = self.template(template)?;
        if !Arc::ptr_eq(&template.context, context) {
            return Err(invalid("a template of another context's graphs"));
        }
        let mut state = lock(&template.state);
        let raw = state.raw as Raw;
        if raw.is_null() {
            return Err(invalid("a template that was destroyed"));
        }
        self.enter(context)?;
        while let Some(node) = state.nodes.pop() {
            // SAFETY: a node of this graph, out of the list.
            answer("cuGraphDestroyNode", unsafe {
                (functions.destroy_node)(node as Raw)
            })?;
        }
        builder.build(raw, plan.nodes, &mut state.nodes)?;
        Ok((use_it(raw)?, builder.finish()))
    }

    fn make_raw(&self, context: &Context) -> Result<Raw> {
        let functions = self.graph_functions()?;
        let mut raw: Raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        self.call(context, "cuGraphCreate", || unsafe {
            (functions.create)(&mut raw, 0)
        })?;
        Ok(raw)
    }

    pub(super) fn make_template(&self, context: ContextId) -> Result<TemplateId> {
        let functions = self.graph_functions()?;
        if functions.conditional_create.is_none() || functions.add_node.is_none() {
            let sentence = "conditional nodes need a driver for CUDA 12.3 or newer";
            return Err(GpuError::new(CuResult::NotSupported, sentence));
        }
        let context = self.context(context)?;
        let state = TemplateState {
            raw: self.make_raw(&context)? as Address,
            nodes: Vec::new(),
        };
        let state = Mutex::new(state);
        let template = Arc::new(Template { context, state });
        Ok(TemplateId(self.templates.add(template)))
    }

    pub(super) fn end_template(&self, id: TemplateId) -> Result<()> {
        let removed = self.templates.remove(id.0);
        let template = removed.ok_or_else(|| stale("template of graphs", id.0))?;
        self.destroy_template(&template)
    }

    fn destroy_template(&self, template: &Template) -> Result<()> {
        let functions = self.graph_functions()?;
        let raw = std::mem::take(&mut lock(&template.state).raw);
        // SAFETY: made by us; whoever finds the template from now on finds no address in it.
        self.call(&template.context, "cuGraphDestroy", || unsafe {
            (functions.destroy)(raw as Raw)
        })
    }

    pub(super) fn make_conditional(&self, id: TemplateId, default: Option<u32>) -> Result<u64> {
        let template = self.template(id)?;
        let create = self.graph_functions()?.conditional_create;
        let create = create.ok_or_else(|| stale("template of graphs", id.0))?;
        let state = lock(&template.state);
        if state.raw == 0 {
            return Err(stale("template of graphs", id.0));
        }
        let (value, flags) = default.map_or((0, 0), |value| (value, ASSIGN_DEFAULT));
        let context = template.context.raw as Raw;
        let mut handle = 0;
        // SAFETY: writes one number; the driver's own handles.
        let make = || unsafe { create(&mut handle, state.raw as Raw, context, value, flags) };
        self.call(&template.context, "cuGraphConditionalHandleCreate", make)?;
        Ok(handle)
    }
}
