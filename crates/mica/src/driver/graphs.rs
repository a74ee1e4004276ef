//! Graphs, made by the driver of nodes one by one.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mica_gpu::{Copy3d, Fill2d, GraphCallback, HostSpan, Place};
use mica_vgpu::{GraphNode, GraphOp, OwnedLaunch};

use super::functions::{Functions, Raw};
use super::structs::{BoxCopy, FillNode, HostNode, KernelNode};
use super::{Driven, cannot};
use crate::Result;
use crate::backend::Backend as _;

/// What the driver holds pointers to while a graph can run.
enum Pinned {
    Bytes(#[expect(dead_code, reason = "the driver reads them")] Arc<[u8]>),
    Function(*mut GraphCallback),
}

// SAFETY: the function is `Send` and `Sync`, and so is what owns it.
unsafe impl Send for Pinned {}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Self::Function(function) = *self {
            // SAFETY: made by `Box::into_raw` in `node`, dropped here alone.
            drop(unsafe { Box::from_raw(function) });
        }
    }
}

/// A graph that is ready: the driver's handle, and what it points to.
struct Ready {
    exec: usize,
    pinned: Vec<Pinned>,
}

/// Graphs by numbers of this process: an update may replace the driver's handle.
#[derive(Default)]
pub(super) struct Graphs {
    table: Mutex<(u64, HashMap<u64, Ready>)>,
}

impl Graphs {
    fn lock(&self) -> MutexGuard<'_, (u64, HashMap<u64, Ready>)> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

unsafe extern "C" fn run(function: *mut c_void) {
    // SAFETY: the pointer of `Pinned::Function`, which lives until no launch of the graph can come here.
    let function = unsafe { &*function.cast::<GraphCallback>() };
    // A panic must not unwind into the driver.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| function()()));
}

impl Driven {
    fn add(
        &self,
        name: &'static str,
        add: impl FnOnce(&Functions, *mut Raw) -> u32,
    ) -> Result<Raw> {
        let mut node: Raw = std::ptr::null_mut();
        self.call(name, |f| add(f, &mut node))?;
        Ok(node)
    }

    fn kernel_node(&self, graph: Raw, after: &[Raw], launch: &OwnedLaunch) -> Result<Raw> {
        let shared = launch.dynamic_shared;
        let (function, mut params) =
            self.prepared(launch.module, launch.kernel, shared, &launch.params)?;
        let node = KernelNode {
            function,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: shared,
            params: params.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kernel: std::ptr::null_mut(),
            context: std::ptr::null_mut(),
        };
        // SAFETY: live handles; the driver copies the parameters, which `prepared` laid out after the function's own layout.
        let made = self.add("cuGraphAddKernelNode", |f, out| unsafe {
            (f.graph_kernel)(out, graph, after.as_ptr(), after.len(), &node)
        })?;
        let mut attributes = launch.attributes.clone();
        if launch.cooperative {
            attributes.push(super::cooperative());
        }
        for attribute in &attributes {
            // SAFETY: the node was just made; the driver reads 64 bytes.
            self.call("cuGraphKernelNodeSetAttribute", |f| unsafe {
                (f.graph_kernel_attribute)(made, attribute.id, &attribute.value)
            })?;
        }
        Ok(made)
    }

    fn copy_node(&self, graph: Raw, after: &[Raw], copy: &Copy3d) -> Result<Raw> {
        let (copy, context) = (BoxCopy::of(copy), self.context as Raw);
        // SAFETY: live handles; host memory in the copy is pinned by the graph.
        self.add("cuGraphAddMemcpyNode", |f, out| unsafe {
            (f.graph_copy)(out, graph, after.as_ptr(), after.len(), &copy, context)
        })
    }

    fn fill_node(&self, graph: Raw, after: &[Raw], fill: &Fill2d) -> Result<Raw> {
        let node = FillNode {
            address: fill.dst.0,
            pitch: fill.pitch as usize,
            value: fill.value,
            element_bytes: fill.element_bytes,
            width: fill.width as usize,
            height: fill.height as usize,
        };
        let context = self.context as Raw;
        // SAFETY: live handles.
        self.add("cuGraphAddMemsetNode", |f, out| unsafe {
            (f.graph_fill)(out, graph, after.as_ptr(), after.len(), &node, context)
        })
    }

    fn node(
        &self,
        graph: Raw,
        after: &[Raw],
        op: &GraphOp,
        pinned: &mut Vec<Pinned>,
    ) -> Result<Raw> {
        let (before, count) = (after.as_ptr(), after.len());
        match op {
            // SAFETY: live handles.
            GraphOp::Nothing => self.add("cuGraphAddEmptyNode", |f, out| unsafe {
                (f.graph_nothing)(out, graph, before, count)
            }),
            GraphOp::Launch(launch) => self.kernel_node(graph, after, launch),
            GraphOp::Copy(copy) => self.copy_node(graph, after, copy),
            GraphOp::Fill(fill) => self.fill_node(graph, after, fill),
            GraphOp::Write(address, bytes) => {
                pinned.push(Pinned::Bytes(Arc::clone(bytes)));
                let len = bytes.len() as u64;
                // SAFETY: the driver only reads a copy's source, which `pinned` keeps as long as the graph can run.
                let span = unsafe { HostSpan::new(bytes.as_ptr().cast_mut(), len) };
                let copy = Copy3d::linear(Place::Device(*address), Place::Host(span), len);
                self.copy_node(graph, after, &copy)
            }
            GraphOp::EventRecord(event) => {
                // SAFETY: live handles.
                self.add("cuGraphAddEventRecordNode", |f, out| unsafe {
                    (f.graph_record)(out, graph, before, count, *event as Raw)
                })
            }
            GraphOp::WaitEvent(event) => {
                // SAFETY: live handles.
                self.add("cuGraphAddEventWaitNode", |f, out| unsafe {
                    (f.graph_wait)(out, graph, before, count, *event as Raw)
                })
            }
            GraphOp::Callback(function) => {
                let function = Box::into_raw(Box::new(Arc::clone(function)));
                pinned.push(Pinned::Function(function));
                let node = HostNode {
                    function: run,
                    data: function.cast(),
                };
                // SAFETY: live handles; `pinned` keeps the function as long as the graph can run.
                self.add("cuGraphAddHostNode", |f, out| unsafe {
                    (f.graph_call)(out, graph, before, count, &node)
                })
            }
            GraphOp::Conditional(_) => cannot("make conditional nodes"),
        }
    }

    /// Adds nodes to the driver's graph, each after those that it names.
    fn add_nodes(&self, graph: Raw, nodes: &[GraphNode]) -> Result<Vec<Pinned>> {
        let (mut made, mut pinned) = (Vec::<Raw>::with_capacity(nodes.len()), Vec::new());
        for node in nodes {
            let after = node.after.iter().map(|before| made.get(*before as usize));
            let Some(after) = after
                .map(Option::<&Raw>::copied)
                .collect::<Option<Vec<_>>>()
            else {
                return cannot("have a node wait for a later one");
            };
            made.push(self.node(graph, &after, &node.op, &mut pinned)?);
        }
        Ok(pinned)
    }

    fn ready(&self, nodes: &[GraphNode]) -> Result<Ready> {
        let graph = self.add("cuGraphCreate", |f, out| {
            // SAFETY: writes one handle.
            unsafe { (f.graph_create)(out, 0) }
        })?;
        let ready = self.add_nodes(graph, nodes).and_then(|pinned| {
            let exec = self.add("cuGraphInstantiateWithFlags", |f, out| {
                // SAFETY: writes one handle; the graph was just made.
                unsafe { (f.graph_instantiate)(out, graph, 0) }
            })?;
            Ok(Ready {
                exec: exec as usize,
                pinned,
            })
        });
        // SAFETY: made above; what is ready does not need it.
        let _ = self.call("cuGraphDestroy", |f| unsafe { (f.graph_destroy)(graph) });
        ready
    }

    pub(super) fn make_graph(&self, nodes: &[GraphNode]) -> Result<u64> {
        let ready = self.ready(nodes)?;
        let mut table = self.graphs.lock();
        table.0 += 1;
        let number = table.0;
        table.1.insert(number, ready);
        Ok(number)
    }

    /// Makes the graph anew: the driver would change one in place only if its nodes are the same.
    pub(super) fn change_graph(&self, number: u64, nodes: &[GraphNode]) -> Result<()> {
        let ready = self.ready(nodes)?;
        let old = self.graphs.lock().1.insert(number, ready);
        old.map_or(Ok(()), |old| self.end_ready(old))
    }

    pub(super) fn end_graph(&self, number: u64) -> Result<()> {
        let gone = self.graphs.lock().1.remove(&number);
        gone.map_or(Ok(()), |gone| self.end_ready(gone))
    }

    fn end_ready(&self, ready: Ready) -> Result<()> {
        // Launches under way may still use what is pinned.
        if !ready.pinned.is_empty() && self.synchronize().is_err() {
            // Of a context that has failed nothing is known.
            std::mem::forget(ready.pinned);
        }
        // SAFETY: made by `ready`, and known to nobody any more.
        self.call("cuGraphExecDestroy", |f| unsafe {
            (f.graph_exec_destroy)(ready.exec as Raw)
        })
    }

    pub(super) fn with_graph(
        &self,
        number: u64,
        name: &'static str,
        call: impl FnOnce(&Functions, Raw) -> u32,
    ) -> Result<()> {
        let found = self.graphs.lock().1.get(&number).map(|ready| ready.exec);
        match found {
            Some(exec) => self.call(name, |f| call(f, exec as Raw)),
            None => cannot("use a graph that is gone"),
        }
    }
}
