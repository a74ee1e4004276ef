//! Graphs, on devices that launch them as a whole.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use super::session::Args;
use super::{Check, Problem, Session, case_list, ensure, refused};
use crate::{
    Copy3d, DeviceNode, DeviceOp, DevicePtr, Fill2d, GraphCallback, GraphId, GraphPlan, HostSpan,
    Launch, Place, StreamFlags,
};
use mica_cuda_abi::CuResult;

case_list![
    a_chain_of_nodes_runs_in_order,
    branches_of_a_graph_meet_again,
    copies_fills_and_kernels_make_one_graph,
    graphs_copy_registered_host_memory,
    a_graph_runs_in_the_order_of_its_stream,
    an_updated_graph_does_the_new_work,
    an_update_with_other_nodes_does_the_new_work,
    graphs_record_and_wait_for_events,
    host_functions_of_graphs_hold_what_comes_after,
    a_graph_destroyed_while_it_runs_ends_as_usual,
    graphs_are_launched_again_and_again,
    templates_give_handles_for_conditional_nodes,
    handles_of_destroyed_graphs_are_refused,
];

/// Skips the case on a device without graphs.
fn needs_graphs(s: &Session<'_>) -> Check {
    match s.gpu.offers_graphs() {
        true => Ok(()),
        false => Err(Problem::Skipped("the device has no graphs".into())),
    }
}

fn plan<'a>(nodes: &'a [DeviceNode<'a>]) -> GraphPlan<'a> {
    GraphPlan {
        nodes,
        template: None,
        node_priorities: false,
    }
}

fn node<'a>(after: &'a [u32], op: DeviceOp<'a>) -> DeviceNode<'a> {
    DeviceNode { after, op }
}

fn instantiate(s: &Session<'_>, nodes: &[DeviceNode<'_>]) -> crate::Result<GraphId> {
    s.gpu
        .graph_instantiate(s.context, &plan(nodes), Box::new(()))
}

fn kernel<'a>(
    s: &Session<'_>,
    name: &str,
    args: &'a Args,
) -> std::result::Result<DeviceOp<'a>, Problem> {
    Ok(DeviceOp::Launch(Launch {
        module: s.module,
        kernel: s.kernel(name)?,
        grid: [1; 3],
        block: [1; 3],
        dynamic_shared: 0,
        cooperative: false,
        params: &args.0,
    }))
}

fn fill(dst: DevicePtr, words: u64, value: u32) -> DeviceOp<'static> {
    DeviceOp::Fill(Fill2d {
        dst,
        pitch: words * 4,
        value,
        element_bytes: 4,
        width: words,
        height: 1,
    })
}

fn append(log: DevicePtr, cursor: DevicePtr, value: u32) -> Args {
    Args::default().ptr(log).ptr(cursor).u32(value)
}

fn a_chain_of_nodes_runs_in_order(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let (log, cursor) = (s.zeros(300)?, s.zeros(1)?);
    let args: Vec<Args> = (0..300).map(|value| append(log, cursor, value)).collect();
    let before: Vec<[u32; 1]> = (0..300).map(|index: u32| [index.wrapping_sub(1)]).collect();
    let mut nodes = Vec::new();
    for (index, args) in args.iter().enumerate() {
        let after: &[u32] = if index == 0 { &[] } else { &before[index] };
        nodes.push(node(after, kernel(s, "append", args)?));
    }
    let graph = instantiate(s, &nodes)?;
    s.gpu.graph_upload(graph, s.stream)?;
    s.gpu.graph_launch(graph, s.stream)?;
    let seen = s.read(log, 300)?;
    ensure!(seen == (0..300).collect::<Vec<_>>(), "{seen:?}");
    Ok(s.gpu.graph_destroy(graph)?)
}

fn branches_of_a_graph_meet_again(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let (log, cursor) = (s.zeros(8)?, s.zeros(1)?);
    let args: Vec<Args> = (0..4).map(|value| append(log, cursor, value)).collect();
    let nodes = [
        node(&[], kernel(s, "append", &args[0])?),
        node(&[0], kernel(s, "append", &args[1])?),
        node(&[0], kernel(s, "append", &args[2])?),
        // An edge that is named twice is one edge.
        node(&[1, 2, 1], DeviceOp::Nothing),
        node(&[3], kernel(s, "append", &args[3])?),
    ];
    let graph = instantiate(s, &nodes)?;
    s.gpu.graph_launch(graph, s.stream)?;
    let mut seen = s.read(log, 4)?;
    ensure!(seen[0] == 0 && seen[3] == 3, "{seen:?}");
    seen.sort_unstable();
    ensure!(seen == [0, 1, 2, 3], "{seen:?}");
    Ok(())
}

fn copies_fills_and_kernels_make_one_graph(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let (from, to) = (s.zeros(16)?, s.zeros(16)?);
    let bytes: Arc<[u8]> = 7_u32.to_le_bytes().into();
    let count = Args::default().ptr(to);
    let copy = Copy3d::linear(Place::Device(to), Place::Device(from), 64);
    let nodes = [
        node(&[], fill(from, 16, 5)),
        node(&[0], DeviceOp::Write(from.offset(4), &bytes)),
        node(&[1], DeviceOp::Copy(copy)),
        node(&[2], kernel(s, "count", &count)?),
    ];
    let graph = instantiate(s, &nodes)?;
    drop(nodes);
    drop(bytes);
    for _ in 0..2 {
        s.gpu.graph_launch(graph, s.stream)?;
        let seen = s.read(to, 4)?;
        ensure!(seen == [6, 7, 5, 5], "{seen:?}");
    }
    Ok(())
}

fn graphs_copy_registered_host_memory(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    #[repr(align(4096))]
    struct Page([u32; 1024]);
    let mut page = Box::new(Page([0; 1024]));
    page.0[..4].copy_from_slice(&[1, 2, 3, 4]);
    // SAFETY: the page lives until after `host_unregister`.
    let span = unsafe { HostSpan::new(page.0.as_mut_ptr().cast(), 4096) };
    // SAFETY: as above.
    let registered = unsafe { s.gpu.host_register(s.context, span, None, 0) };
    let shared = super::possible(registered, "registering host memory")?;
    let memory = s.zeros(4)?;
    let back = shared.offset(64);
    let linear = |to, from| Copy3d::linear(Place::Device(to), Place::Device(from), 16);
    let nodes = [
        node(&[], DeviceOp::Copy(linear(memory, shared))),
        node(&[0], DeviceOp::Copy(linear(back, memory))),
    ];
    let ran = instantiate(s, &nodes).and_then(|graph| {
        s.gpu.graph_launch(graph, s.stream)?;
        s.gpu.stream_synchronize(s.stream)?;
        s.gpu.graph_destroy(graph)
    });
    s.gpu.host_unregister(s.context, shared)?;
    ran?;
    ensure!(page.0[16..20] == [1, 2, 3, 4], "{:?}", &page.0[16..20]);
    Ok(())
}

fn a_graph_runs_in_the_order_of_its_stream(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let (log, cursor) = (s.zeros(4)?, s.zeros(1)?);
    let stream = s.own_stream()?;
    let args = append(log, cursor, 2);
    let graph = instantiate(s, &[node(&[], kernel(s, "append", &args)?)])?;
    let hold = s.hold(stream)?;
    s.launch_on(stream, "append", 1, 1, &append(log, cursor, 1))?;
    s.gpu.graph_launch(graph, stream)?;
    s.launch_on(stream, "append", 1, 1, &append(log, cursor, 3))?;
    ensure!(s.peek(cursor, 1)? == [0], "a graph ran on a held stream");
    drop(hold);
    let seen = s.read_on(stream, log, 3)?;
    ensure!(seen == [1, 2, 3], "{seen:?}");
    Ok(())
}

fn an_updated_graph_does_the_new_work(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let at = s.zeros(2)?;
    let store = |value| Args::default().ptr(at).u32(value);
    let (one, two) = (store(1), store(2));
    let graph = instantiate(s, &[node(&[], kernel(s, "store_at", &one)?)])?;
    let stream = s.own_stream()?;
    // A launch that has not begun keeps what it was launched with.
    let hold = s.hold(stream)?;
    s.gpu.graph_launch(graph, stream)?;
    let nodes = [node(&[], kernel(s, "store_at", &two)?)];
    s.gpu.graph_update(graph, &plan(&nodes), Box::new(()))?;
    drop(hold);
    s.gpu.stream_synchronize(stream)?;
    ensure!(s.peek(at, 1)? == [1], "{:?}", s.peek(at, 1)?);
    s.gpu.graph_launch(graph, stream)?;
    s.gpu.stream_synchronize(stream)?;
    ensure!(s.peek(at, 1)? == [2], "{:?}", s.peek(at, 1)?);
    Ok(())
}

fn an_update_with_other_nodes_does_the_new_work(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let at = s.zeros(4)?;
    let store = Args::default().ptr(at).u32(1);
    let graph = instantiate(s, &[node(&[], kernel(s, "store_at", &store)?)])?;
    let nodes = [node(&[], fill(at, 4, 9)), node(&[0], fill(at, 1, 8))];
    s.gpu.graph_update(graph, &plan(&nodes), Box::new(()))?;
    s.gpu.graph_launch(graph, s.stream)?;
    let seen = s.read(at, 4)?;
    ensure!(seen == [8, 9, 9, 9], "{seen:?}");
    Ok(())
}

fn graphs_record_and_wait_for_events(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let total = s.zeros(1)?;
    let (first, second) = (s.own_stream()?, s.own_stream()?);
    let (begun, done) = (s.event()?, s.event()?);
    let count = Args::default().ptr(total);
    let nodes = [
        node(&[], DeviceOp::WaitEvent(begun)),
        node(&[0], kernel(s, "count", &count)?),
        node(&[1], DeviceOp::EventRecord(done)),
    ];
    let graph = instantiate(s, &nodes)?;
    let hold = s.hold(first)?;
    s.gpu.event_record(begun, first)?;
    s.gpu.graph_launch(graph, second)?;
    ensure!(s.peek(total, 1)? == [0], "the graph did not wait");
    ensure!(!s.gpu.event_query(done)?, "the event was reached early");
    drop(hold);
    s.gpu.event_synchronize(done)?;
    ensure!(s.peek(total, 1)? == [1], "the event was reached early");
    Ok(())
}

fn host_functions_of_graphs_hold_what_comes_after(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let total = s.zeros(1)?;
    let stream = s.own_stream()?;
    let called = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&called);
    let (release, held) = mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let callback: GraphCallback = Arc::new(move || {
        let (counts, held) = (Arc::clone(&counts), Arc::clone(&held));
        Box::new(move || {
            counts.fetch_add(1, Ordering::SeqCst);
            // Ends at a message, or when the sender is dropped.
            let _released = held.lock().map(|held| held.recv());
        })
    });
    let count = Args::default().ptr(total);
    let nodes = [
        node(&[], DeviceOp::Callback(&callback)),
        node(&[0], kernel(s, "count", &count)?),
    ];
    let graph = instantiate(s, &nodes)?;
    for launches in 1..=2 {
        s.gpu.graph_launch(graph, stream)?;
        ensure!(
            s.peek(total, 1)? == [launches - 1],
            "the kernel did not wait for the function"
        );
        let _ = release.send(());
        s.gpu.stream_synchronize(stream)?;
        ensure!(called.load(Ordering::SeqCst) == launches, "{called:?}");
        ensure!(s.peek(total, 1)? == [launches], "the kernel was lost");
    }
    Ok(())
}

fn a_graph_destroyed_while_it_runs_ends_as_usual(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let to = s.zeros(4)?;
    let stream = s
        .gpu
        .stream_create(s.context, StreamFlags { non_blocking: true }, 0)?;
    let bytes: Arc<[u8]> = vec![3; 16].into();
    let (tell, told) = mpsc::channel::<()>();
    let nodes = [node(&[], DeviceOp::Write(to, &bytes))];
    let graph = s
        .gpu
        .graph_instantiate(s.context, &plan(&nodes), Box::new(tell))?;
    let hold = s.hold(stream)?;
    s.gpu.graph_launch(graph, stream)?;
    s.gpu.graph_destroy(graph)?;
    ensure!(
        told.try_recv() == Err(mpsc::TryRecvError::Empty),
        "what the launch reads was let go of before it ran"
    );
    drop(hold);
    s.gpu.stream_synchronize(stream)?;
    let seen = s.peek(to, 4)?;
    ensure!(seen == [0x0303_0303; 4], "{seen:x?}");
    ensure!(
        told.recv() == Err(mpsc::RecvError),
        "what the launch read was kept"
    );
    Ok(())
}

fn graphs_are_launched_again_and_again(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let total = s.zeros(1)?;
    let count = Args::default().ptr(total);
    let nodes = [
        node(&[], kernel(s, "count", &count)?),
        node(&[0], kernel(s, "count", &count)?),
    ];
    let graph = instantiate(s, &nodes)?;
    let streams = [s.own_stream()?, s.own_stream()?, s.stream];
    for round in 0..300 {
        s.gpu.graph_launch(graph, streams[round % 3])?;
    }
    s.gpu.context_synchronize(s.context)?;
    let seen = s.peek(total, 1)?;
    ensure!(seen == [600], "{seen:?}");
    Ok(())
}

fn templates_give_handles_for_conditional_nodes(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let template = super::possible(s.gpu.template_create(s.context), "conditional nodes")?;
    let handle = s.gpu.conditional_create(template, Some(1))?;
    let total = s.zeros(1)?;
    let count = Args::default().ptr(total);
    // The value is 1 at first and nobody changes it: the first body runs, and no other.
    let conditional = crate::DeviceConditional {
        handle,
        kind: crate::ConditionalKind::If,
        bodies: vec![vec![node(&[], kernel(s, "count", &count)?)]],
    };
    let nodes = [node(&[], DeviceOp::Conditional(conditional))];
    let plan = GraphPlan {
        template: Some(template),
        ..plan(&nodes)
    };
    // Twice, as a program that instantiates a graph again does.
    for launches in 1..=2 {
        let graph = s.gpu.graph_instantiate(s.context, &plan, Box::new(()))?;
        s.gpu.graph_launch(graph, s.stream)?;
        let seen = s.read(total, 1)?;
        ensure!(seen == [launches], "{seen:?}");
        s.gpu.graph_destroy(graph)?;
    }
    Ok(s.gpu.template_destroy(template)?)
}

fn handles_of_destroyed_graphs_are_refused(s: &Session<'_>) -> Check {
    needs_graphs(s)?;
    let graph = instantiate(s, &[node(&[], DeviceOp::Nothing)])?;
    s.gpu.graph_launch(graph, s.stream)?;
    s.gpu.graph_destroy(graph)?;
    let gone = &[CuResult::InvalidHandle];
    refused(s.gpu.graph_launch(graph, s.stream), gone, "a launch")?;
    refused(s.gpu.graph_destroy(graph), gone, "a second end")?;
    refused(s.gpu.graph_launch(GraphId(77), s.stream), gone, "forged")
}
