//! `cuGraphDebugDotPrint`: a graph as text for Graphviz.

use std::ffi::{CStr, c_char};
use std::fmt::Write;

use mica_cuda_abi::{CuResult, Handle};

use super::operations::Op;
use super::{Graph, Node, graph_of};
use crate::isolated::support::{driver, entries, invalid};

/// `CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE`: everything that is known of each node.
const VERBOSE: u32 = 1;

/// What a node is called, and what is known of it besides.
fn describe(op: &Op) -> (String, String) {
    match op {
        Op::Empty => ("EMPTY".into(), String::new()),
        Op::Kernel(kernel) => {
            let shape = kernel.shape;
            (
                format!("KERNEL\\n{}", kernel.function.name.to_string_lossy()),
                format!(
                    "grid {:?}\\nblock {:?}\\nshared memory {} bytes\\nparameters {} bytes",
                    shape.grid,
                    shape.block,
                    shape.shared,
                    kernel.params.len()
                ),
            )
        }
        Op::Copy(copy) => {
            let (width, rows, slices) = copy.extent;
            let more = format!("{width} bytes × {rows} × {slices}");
            ("MEMCPY".into(), more)
        }
        Op::Fill(fill) => {
            let more = format!("{} elements × {}", fill.width, fill.height);
            ("MEMSET".into(), more)
        }
        Op::Host(host) => ("HOST".into(), format!("{:#x}", host.function as usize)),
        Op::EventRecord(_) => ("EVENT RECORD".into(), String::new()),
        Op::EventWait(_) => ("EVENT WAIT".into(), String::new()),
        Op::Child(_) => ("GRAPH".into(), String::new()),
        Op::MemAlloc(address, bytes) => {
            let more = format!("{address:#x}\\n{bytes} bytes");
            ("MEM ALLOC".into(), more)
        }
        Op::MemFree(address) => ("MEM FREE".into(), format!("{address:#x}")),
        Op::Conditional(_) => ("CONDITIONAL".into(), String::new()),
    }
}

/// Text within quotation marks.
fn quoted(text: &str) -> String {
    text.replace('"', "\\\"")
}

fn write_graph(out: &mut String, graph: &Graph, flags: u32) {
    let name = |node: &Node| format!("\"graph_{}_node_{}\"", node.graph.id, node.id);
    let _ = writeln!(out, "subgraph cluster_{} {{", graph.id);
    let _ = writeln!(out, "label=\"graph_{}\" graph[style=\"dashed\"];", graph.id);
    let mut children = Vec::new();
    for node in graph.nodes() {
        let op = node.op();
        let (kind, more) = describe(&op);
        let more = match flags & VERBOSE != 0 && !more.is_empty() {
            true => format!("\\n{more}"),
            false => String::new(),
        };
        let label = quoted(&format!("{}\\n{kind}{more}", node.id));
        let _ = writeln!(
            out,
            "{} [shape=\"rectangle\" label=\"{label}\"];",
            name(node)
        );
        for before in node.after() {
            let _ = writeln!(out, "{} -> {};", name(before), name(node));
        }
        if let Op::Child(child) = op {
            children.push(child);
        }
    }
    let _ = writeln!(out, "}}");
    for child in children {
        write_graph(out, child, flags);
    }
}

driver! {
    fn debug_dot(graph: Handle, path: *const c_char, flags: u32) {
        let graph = graph_of(graph)?;
        if path.is_null() {
            return invalid();
        }
        let mut text = String::from("digraph dot {\n");
        write_graph(&mut text, graph, flags);
        text.push_str("}\n");
        let path = CStr::from_ptr(path).to_string_lossy().into_owned();
        std::fs::write(path, text).map_err(|_| CuResult::OperatingSystem.into())
    }
}

entries! {
    cuGraphDebugDotPrint = debug_dot;
}
