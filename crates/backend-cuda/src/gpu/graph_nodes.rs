//! The nodes of a graph, each in the driver's form.

use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use mica_cuda_abi::CuResult;
use mica_gpu::{
    Copy3d, DeviceConditional, DeviceNode, DeviceOp, DevicePtr, EventId, Fill2d, GpuError,
    GraphCallback, HostSpan, Launch, LaunchAttribute, Place, Result,
};

use super::copies::parts;
use super::{Address, Context, CudaGpu, invalid, lock};
use crate::driver::{Raw, answer};
use crate::graph_abi::{
    AttributeValue, CONDITIONAL, COOPERATIVE, ConditionalNode, GraphFunctions, HostNode, MemsetNode,
};

/// Host functions by the number that the driver passes: one that comes late finds nothing instead of freed memory.
static CALLBACKS: Mutex<Option<HashMap<usize, GraphCallback>>> = Mutex::new(None);

/// Host memory that nodes read, and host functions that they call.
#[derive(Default)]
pub(super) struct HostSide {
    bytes: Vec<Arc<[u8]>>,
    callbacks: Vec<usize>,
}

impl HostSide {
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.callbacks.is_empty()
    }

    fn add_callback(&mut self, callback: &GraphCallback) -> usize {
        static NUMBERS: AtomicUsize = AtomicUsize::new(1);
        let number = NUMBERS.fetch_add(1, Relaxed);
        let mut callbacks = lock(&CALLBACKS);
        let callbacks = callbacks.get_or_insert_default();
        callbacks.insert(number, Arc::clone(callback));
        self.callbacks.push(number);
        number
    }
}

impl Drop for HostSide {
    fn drop(&mut self) {
        let mut callbacks = lock(&CALLBACKS);
        let gone: Vec<_> = (self.callbacks.iter())
            .filter_map(|number| callbacks.as_mut()?.remove(number))
            .collect();
        drop(callbacks);
        drop(gone);
    }
}

unsafe extern "C" fn run_callback(number: *mut c_void) {
    let found = |callbacks: &HashMap<_, GraphCallback>| callbacks.get(&(number as usize)).cloned();
    let make = lock(&CALLBACKS).as_ref().and_then(found);
    if let Some(make) = make {
        // A panic must not unwind into the driver.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| make()()));
    }
}

/// Adds nodes to graphs of the driver.
pub(super) struct Builder<'a> {
    gpu: &'a CudaGpu,
    functions: &'a GraphFunctions,
    context: &'a Context,
    host: HostSide,
}

/// `cuGraphAddEventRecordNode` and `cuGraphAddEventWaitNode`.
type AddEvent = unsafe extern "C" fn(*mut Raw, Raw, *const Raw, usize, Raw) -> u32;

/// Where a node is added: the graph, and the nodes it comes after.
struct At<'a> {
    graph: Raw,
    after: &'a [Raw],
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        gpu: &'a CudaGpu,
        functions: &'a GraphFunctions,
        context: &'a Context,
    ) -> Self {
        let host = HostSide::default();
        Self {
            gpu,
            functions,
            context,
            host,
        }
    }

    /// What the added nodes use on the host.
    pub(super) fn finish(self) -> HostSide {
        self.host
    }

    /// Adds nodes to a graph, and to `made` what was added, also where not all could be.
    pub(super) fn build(
        &mut self,
        graph: Raw,
        nodes: &[DeviceNode<'_>],
        made: &mut Vec<Address>,
    ) -> Result<()> {
        let mut ends: Vec<Raw> = Vec::with_capacity(nodes.len());
        for node in nodes {
            // The driver takes no node twice.
            let mut earlier = node.after.to_vec();
            earlier.sort_unstable();
            earlier.dedup();
            let mut after = Vec::with_capacity(earlier.len());
            for index in earlier {
                let end = ends.get(index as usize);
                after.push(*end.ok_or_else(|| invalid("a node comes after a later one"))?);
            }
            let at = At {
                graph,
                after: &after,
            };
            ends.push(self.add(&at, &node.op, made)?);
        }
        Ok(())
    }

    /// Adds a node; where it takes several of the driver's, the last of them.
    fn add(&mut self, at: &At<'_>, op: &DeviceOp<'_>, made: &mut Vec<Address>) -> Result<Raw> {
        let functions = self.functions;
        let node = match op {
            DeviceOp::Launch(launch) => self.add_kernel(at, launch, &[])?,
            DeviceOp::LaunchWith(launch, attributes) => self.add_kernel(at, launch, attributes)?,
            DeviceOp::Copy(copy) => return self.add_copy(at, copy, made),
            DeviceOp::Write(to, bytes) if !bytes.is_empty() => self.add_write(at, *to, bytes)?,
            DeviceOp::Fill(fill) if fill.width > 0 && fill.height > 0 => self.add_fill(at, fill)?,
            DeviceOp::EventRecord(id) => self.add_event(
                "cuGraphAddEventRecordNode",
                at,
                *id,
                functions.add_event_record,
            )?,
            DeviceOp::WaitEvent(id) => {
                self.add_event("cuGraphAddEventWaitNode", at, *id, functions.add_event_wait)?
            }
            DeviceOp::Callback(callback) => self.add_callback(at, callback)?,
            DeviceOp::Conditional(conditional) => {
                return self.add_conditional(at, conditional, made);
            }
            DeviceOp::Nothing | DeviceOp::Write(..) | DeviceOp::Fill(_) => self.add_empty(at)?,
        };
        made.push(node as Address);
        Ok(node)
    }

    /// Calls one of the driver's functions that add a node.
    fn added(
        &self,
        name: &'static str,
        at: &At<'_>,
        add: impl FnOnce(*mut Raw, Raw, *const Raw, usize) -> u32,
    ) -> Result<Raw> {
        let mut node: Raw = std::ptr::null_mut();
        let after = match at.after.is_empty() {
            true => std::ptr::null(),
            false => at.after.as_ptr(),
        };
        self.gpu.call(self.context, name, || {
            add(&mut node, at.graph, after, at.after.len())
        })?;
        Ok(node)
    }

    fn add_empty(&self, at: &At<'_>) -> Result<Raw> {
        // SAFETY: writes one handle, reads as many as there are.
        self.added(
            "cuGraphAddEmptyNode",
            at,
            |out, graph, after, count| unsafe {
                (self.functions.add_empty)(out, graph, after, count)
            },
        )
    }

    fn add_event(
        &self,
        name: &'static str,
        at: &At<'_>,
        event: EventId,
        add: AddEvent,
    ) -> Result<Raw> {
        let event = self.gpu.event(event)?.raw as Raw;
        // SAFETY: the driver's own handles, as many as said.
        let add = |out, graph, after, count| unsafe { add(out, graph, after, count, event) };
        self.added(name, at, add)
    }

    fn add_kernel(
        &self,
        at: &At<'_>,
        launch: &Launch<'_>,
        attributes: &[LaunchAttribute],
    ) -> Result<Raw> {
        let functions = self.functions;
        let node = self.gpu.with_node(self.context, launch, |node| {
            // SAFETY: each pointer leads to as many bytes as its parameter has; the driver copies them.
            let add = |out, graph, after, count| unsafe {
                (functions.add_kernel)(out, graph, after, count, node)
            };
            self.added("cuGraphAddKernelNode", at, add)
        })?;
        let set = |id: u32, value: &AttributeValue| {
            // SAFETY: reads one value.
            answer("cuGraphKernelNodeSetAttribute", unsafe {
                (functions.kernel_set_attribute)(node, id, value)
            })
        };
        if launch.cooperative {
            set(COOPERATIVE, &[1, 0, 0, 0, 0, 0, 0, 0])?;
        }
        for attribute in attributes {
            if LaunchAttribute::records_event(attribute.id) {
                let sentence = "a node of a graph that records an event when its kernel begins";
                return Err(GpuError::new(CuResult::NotSupported, sentence));
            }
            // What comes after such a kernel comes after its end: edges of a graph are whole.
            if attribute.id == LaunchAttribute::PROGRAMMATIC_STREAM_SERIALIZATION {
                continue;
            }
            let word = |at: usize| u64::from(attribute.value[at]);
            let value = std::array::from_fn(|at| word(2 * at) | word(2 * at + 1) << 32);
            set(attribute.id, &value)?;
        }
        Ok(node)
    }

    fn add_copy(&self, at: &At<'_>, copy: &Copy3d, made: &mut Vec<Address>) -> Result<Raw> {
        if matches!(copy.src, Place::Host(_)) || matches!(copy.dst, Place::Host(_)) {
            let sentence = "a graph copies host memory only where it is registered";
            return Err(GpuError::new(CuResult::NotSupported, sentence));
        }
        if copy.width_bytes == 0 || copy.height == 0 || copy.depth == 0 {
            let node = self.add_empty(at)?;
            made.push(node as Address);
            return Ok(node);
        }
        self.gpu.check_copy(self.context, copy)?;
        let mut end: Raw = std::ptr::null_mut();
        let mut after = at.after.to_vec();
        for part in parts(copy)? {
            let at = At {
                graph: at.graph,
                after: &after,
            };
            end = self.add_box(&at, &part)?;
            made.push(end as Address);
            after = vec![end];
        }
        Ok(end)
    }

    /// A copy that the driver takes at once.
    fn add_box(&self, at: &At<'_>, part: &Copy3d) -> Result<Raw> {
        let request = self.gpu.box_request(part)?;
        let context = self.context.raw as Raw;
        // SAFETY: device memory was checked, and host memory stays as long as launches use it.
        self.added(
            "cuGraphAddMemcpyNode",
            at,
            |out, graph, after, count| unsafe {
                (self.functions.add_memcpy)(out, graph, after, count, &request, context)
            },
        )
    }

    fn add_write(&mut self, at: &At<'_>, to: DevicePtr, bytes: &Arc<[u8]>) -> Result<Raw> {
        // SAFETY: a copy's source is only read; `host` keeps the bytes as long as launches use them.
        let span = unsafe { HostSpan::new(bytes.as_ptr().cast_mut(), bytes.len() as u64) };
        let copy = Copy3d::linear(Place::Device(to), Place::Host(span), span.len());
        self.gpu.check_copy(self.context, &copy)?;
        self.host.bytes.push(Arc::clone(bytes));
        self.add_box(at, &copy)
    }

    fn add_fill(&self, at: &At<'_>, fill: &Fill2d) -> Result<Raw> {
        self.gpu.check_fill(self.context, fill)?;
        let row = fill.width * u64::from(fill.element_bytes);
        let node = MemsetNode {
            dst: fill.dst.0,
            pitch: fill.pitch.max(row) as usize,
            value: fill.value,
            element_bytes: fill.element_bytes,
            width: fill.width as usize,
            height: fill.height as usize,
        };
        let context = self.context.raw as Raw;
        // SAFETY: the memory was checked; the driver checks its alignment.
        self.added(
            "cuGraphAddMemsetNode",
            at,
            |out, graph, after, count| unsafe {
                (self.functions.add_memset)(out, graph, after, count, &node, context)
            },
        )
    }

    fn add_callback(&mut self, at: &At<'_>, callback: &GraphCallback) -> Result<Raw> {
        let node = HostNode {
            function: run_callback,
            data: self.host.add_callback(callback) as *mut c_void,
        };
        // SAFETY: the function takes any number.
        self.added(
            "cuGraphAddHostNode",
            at,
            |out, graph, after, count| unsafe {
                (self.functions.add_host)(out, graph, after, count, &node)
            },
        )
    }

    fn add_conditional(
        &mut self,
        at: &At<'_>,
        conditional: &DeviceConditional<'_>,
        made: &mut Vec<Address>,
    ) -> Result<Raw> {
        let bodies = &conditional.bodies;
        let (Some(add), true) = (
            self.functions.add_node,
            conditional.kind.allows(bodies.len()),
        ) else {
            let kind = conditional.kind;
            return Err(invalid(format!(
                "a node {kind:?} with {} bodies",
                bodies.len()
            )));
        };
        let mut node = ConditionalNode {
            node_kind: CONDITIONAL,
            reserved0: [0; 3],
            handle: conditional.handle,
            kind: conditional.kind.number(),
            size: bodies.len() as u32,
            bodies: std::ptr::null_mut(),
            context: self.context.raw as Raw,
            rest: [0; 25],
            reserved2: 0,
        };
        // SAFETY: the whole structure is there; the driver checks the handle and writes where the bodies are.
        let raw = self.added("cuGraphAddNode", at, |out, graph, after, count| unsafe {
            add(out, graph, after, std::ptr::null(), count, &mut node)
        })?;
        made.push(raw as Address);
        if node.bodies.is_null() {
            return Err(invalid("the driver made no bodies for a conditional node"));
        }
        for (index, nodes) in bodies.iter().enumerate() {
            // SAFETY: the driver's list has as many graphs as the node has bodies, and lives as long as the node.
            let body = unsafe { node.bodies.add(index).read() };
            self.build(body, nodes, &mut Vec::new())?;
        }
        Ok(raw)
    }
}
