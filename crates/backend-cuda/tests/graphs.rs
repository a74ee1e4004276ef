//! Graphs before the stand-in driver, which carries a launch out at once.

mod common;

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::{ALONE, fixture, started};
use mica_cuda_abi::CuResult;
use mica_gpu::{
    ConditionalKind, ContextId, Copy3d, DeviceConditional, DeviceNode, DeviceOp, DevicePtr,
    EventFlags, Fill2d, Gpu, GraphCallback, GraphId, GraphKeeper, GraphPlan, HostSpan, Launch,
    ModuleId, ModuleOptions, Place, Result, StreamFlags, StreamId, TemplateId,
};

const PTX: &[u8] = b".version 8.0\n.target sm_90\n.global .u32 counter;\n";
/// Long enough for any thread to run.
const LONG: Duration = Duration::from_secs(5);
/// Long enough for what must not happen to happen all the same.
const SHORT: Duration = Duration::from_millis(50);

fn nothing_kept() -> GraphKeeper {
    Box::new(())
}

fn node<'a>(after: &'a [u32], op: DeviceOp<'a>) -> DeviceNode<'a> {
    DeviceNode { after, op }
}

fn plan<'a>(nodes: &'a [DeviceNode<'a>], template: Option<TemplateId>) -> GraphPlan<'a> {
    GraphPlan {
        nodes,
        template,
        node_priorities: false,
    }
}

fn kernel(module: ModuleId, params: &[u8]) -> DeviceOp<'_> {
    DeviceOp::Launch(Launch {
        module,
        kernel: 0,
        grid: [3, 1, 1],
        block: [1, 1, 5],
        dynamic_shared: 0,
        cooperative: false,
        params,
    })
}

/// The stand-in's kernel takes an address and a number.
fn params(first: u64, second: u32) -> Vec<u8> {
    let mut bytes = first.to_le_bytes().to_vec();
    bytes.extend(second.to_le_bytes());
    bytes
}

fn fill(dst: DevicePtr, words: u64, value: u32) -> Fill2d {
    Fill2d {
        dst,
        pitch: 0,
        value,
        element_bytes: 4,
        width: words,
        height: 1,
    }
}

fn read(gpu: &dyn Gpu, stream: StreamId, from: DevicePtr, words: usize) -> Vec<u32> {
    let mut out = vec![0_u32; words];
    // SAFETY: the buffer outlives the stand-in's copy, which happens at once.
    let span = unsafe { HostSpan::new(out.as_mut_ptr().cast(), words as u64 * 4) };
    let copy = Copy3d::linear(Place::Host(span), Place::Device(from), span.len());
    gpu.copy(stream, &copy).expect("it is memory");
    out
}

fn instantiate(gpu: &dyn Gpu, context: ContextId, nodes: &[DeviceNode<'_>]) -> Result<GraphId> {
    gpu.graph_instantiate(context, &plan(nodes, None), nothing_kept())
}

#[test]
fn a_launch_carries_out_every_kind_of_node() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    assert!(gpu.offers_graphs());
    let (context, stream) = started(&gpu);
    let module = gpu.module_load(context, PTX, &ModuleOptions::default());
    let module = module.expect("a module");
    let event = gpu.event_create(context, EventFlags::default());
    let event = event.expect("an event");
    let memory = gpu.memory_alloc(context, 4096).expect("memory");
    let bytes: Arc<[u8]> = 7_u32.to_le_bytes().into();
    let called = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&called);
    let callback: GraphCallback = Arc::new(move || {
        let counts = Arc::clone(&counts);
        Box::new(move || {
            counts.fetch_add(1, SeqCst);
        })
    });
    let block = params(0xabcd, 42);
    let mut cooperative = kernel(module, &block);
    if let DeviceOp::Launch(launch) = &mut cooperative {
        launch.cooperative = true;
    }
    let at = |word: u64| Place::Device(memory.offset(word * 4));
    let nodes = [
        node(&[], DeviceOp::Fill(fill(memory, 4, 1))),
        node(&[0], DeviceOp::Write(memory.offset(4), &bytes)),
        // The same node twice: edges of graphs that were one inside the other.
        node(&[1, 0, 1], DeviceOp::Copy(Copy3d::linear(at(8), at(0), 16))),
        node(&[2], DeviceOp::Nothing),
        node(&[3], DeviceOp::WaitEvent(event)),
        node(&[4], DeviceOp::Callback(&callback)),
        node(&[5], DeviceOp::EventRecord(event)),
        node(&[5, 6], cooperative),
    ];
    let graph = instantiate(&gpu, context, &nodes).expect("a graph");
    assert_eq!(
        (fixture.get("fake_graphs"), fixture.get("fake_execs")),
        (0, 1)
    );
    assert_eq!(called.load(SeqCst), 0);
    gpu.graph_upload(graph, stream).expect("it is uploaded");
    assert_eq!(fixture.get("fake_uploads"), 1);
    for launches in 1..=2 {
        gpu.graph_launch(graph, stream).expect("it is launched");
        assert_eq!(called.load(SeqCst), launches);
    }
    assert_eq!(
        read(&gpu, stream, memory, 12),
        [1, 7, 1, 1, 0, 0, 0, 0, 1, 7, 1, 1]
    );
    let launch = "cooperative node grid.x 3 block.z 5 shared 0: abcd 42";
    assert_eq!(fixture.text("fake_launch"), launch);
    assert_eq!(fixture.get("fake_graph_launches"), 2);
    gpu.graph_destroy(graph).expect("it is there");
    assert_eq!(fixture.get("fake_execs"), 0);
    for refused in [gpu.graph_launch(graph, stream), gpu.graph_destroy(graph)] {
        assert_eq!(
            refused.expect_err("it is gone").code,
            CuResult::InvalidHandle
        );
    }
}

#[test]
fn slices_that_are_no_whole_rows_apart_become_several_nodes() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, stream) = started(&gpu);
    let memory = gpu.memory_alloc(context, 4096).expect("memory");
    gpu.fill(stream, &fill(memory, 64, 0)).expect("filled");
    gpu.fill(stream, &fill(memory, 16, 9)).expect("filled");
    let mut copy = Copy3d::linear(Place::Device(memory.offset(128)), Place::Device(memory), 4);
    (copy.src_pitch, copy.dst_pitch) = ((8, 20), (8, 20));
    (copy.height, copy.depth) = (2, 2);
    let nodes = [
        node(&[], DeviceOp::Copy(copy)),
        node(&[0], DeviceOp::Nothing),
    ];
    let graph = instantiate(&gpu, context, &nodes).expect("a graph");
    gpu.graph_launch(graph, stream).expect("it is launched");
    let seen = read(&gpu, stream, memory.offset(128), 9);
    assert_eq!(seen, [9, 0, 9, 0, 0, 9, 0, 9, 0]);
}

#[test]
fn an_update_changes_a_graph_or_makes_it_anew() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, stream) = started(&gpu);
    let memory = gpu.memory_alloc(context, 4096).expect("memory");
    let filled = |value| [node(&[], DeviceOp::Fill(fill(memory, 1, value)))];
    let graph = instantiate(&gpu, context, &filled(1)).expect("a graph");
    let update = |nodes: &[DeviceNode<'_>]| {
        gpu.graph_update(graph, &plan(nodes, None), nothing_kept())
            .expect("it is changed");
        gpu.graph_launch(graph, stream).expect("it is launched");
        read(&gpu, stream, memory, 2)[0]
    };
    assert_eq!(update(&filled(2)), 2);
    assert_eq!(fixture.get("fake_updates"), 1);
    // The driver refuses the change.
    fixture.set("fake_update_fails", 1);
    assert_eq!(update(&filled(3)), 3);
    fixture.set("fake_update_fails", 0);
    // Other nodes than before.
    let longer = [
        node(&[], DeviceOp::Fill(fill(memory, 1, 4))),
        node(&[0], DeviceOp::Fill(fill(memory, 1, 5))),
    ];
    assert_eq!(update(&longer), 5);
    assert_eq!(fixture.get("fake_updates"), 1);
    assert_eq!(
        (fixture.get("fake_graphs"), fixture.get("fake_execs")),
        (0, 1)
    );
    // One that cannot be: the graph is as before.
    let outside = [node(&[], DeviceOp::Fill(fill(DevicePtr(64), 1, 6)))];
    let refused = gpu.graph_update(graph, &plan(&outside, None), nothing_kept());
    assert_eq!(refused.expect_err("no memory").code, CuResult::InvalidValue);
    gpu.graph_launch(graph, stream).expect("it is launched");
    assert_eq!(read(&gpu, stream, memory, 1), [5]);
}

#[test]
fn what_cannot_be_a_node_leaves_nothing_behind() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, _) = started(&gpu);
    let memory = gpu.memory_alloc(context, 4096).expect("memory");
    let mut buffer = [0_u8; 16];
    // SAFETY: never used.
    let span = unsafe { HostSpan::new(buffer.as_mut_ptr(), 16) };
    let host = Copy3d::linear(Place::Device(memory), Place::Host(span), 16);
    let module = gpu.module_load(context, PTX, &ModuleOptions::default());
    let module = module.expect("a module");
    let short = [0_u8; 4];
    let cases = [
        (node(&[], DeviceOp::Copy(host)), CuResult::NotSupported),
        (node(&[], kernel(module, &short)), CuResult::InvalidValue),
        (
            node(&[], kernel(ModuleId(99), &short)),
            CuResult::InvalidHandle,
        ),
        (node(&[1], DeviceOp::Nothing), CuResult::InvalidValue),
        (
            node(&[], DeviceOp::EventRecord(mica_gpu::EventId(99))),
            CuResult::InvalidHandle,
        ),
    ];
    for (bad, code) in cases {
        let nodes = [node(&[], DeviceOp::Nothing), bad];
        let (tell, told) = mpsc::channel::<()>();
        let refused = gpu.graph_instantiate(context, &plan(&nodes, None), Box::new(tell));
        assert_eq!(refused.expect_err("it is refused").code, code);
        // What was to be kept is not.
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }
    assert_eq!(
        (fixture.get("fake_graphs"), fixture.get("fake_execs")),
        (0, 0)
    );
}

#[test]
fn host_memory_and_functions_stay_while_a_launch_uses_them() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, idle) = started(&gpu);
    let busy = gpu.stream_create(context, StreamFlags::default(), 7);
    let busy = busy.expect("a stream");
    let memory = gpu.memory_alloc(context, 4096).expect("memory");
    let bytes: Arc<[u8]> = vec![1; 16].into();
    let nodes = [node(&[], DeviceOp::Write(memory, &bytes))];
    let kept = || {
        let (tell, told) = mpsc::channel::<()>();
        (Box::new(tell), told)
    };
    let is_gone = |told: &mpsc::Receiver<()>, within| {
        told.recv_timeout(within) == Err(mpsc::RecvTimeoutError::Disconnected)
    };
    let (first, first_gone) = kept();
    let graph = gpu.graph_instantiate(context, &plan(&nodes, None), first);
    let graph = graph.expect("a graph");
    gpu.graph_launch(graph, busy).expect("it is launched");
    let (second, second_gone) = kept();
    gpu.graph_update(graph, &plan(&nodes, None), second)
        .expect("it is changed");
    gpu.graph_launch(graph, idle).expect("it is launched");
    gpu.graph_destroy(graph).expect("it is there");
    // The second launch was done at once; the first one's stream is busy.
    assert!(is_gone(&second_gone, LONG));
    assert!(!is_gone(&first_gone, SHORT), "a launch uses it");
    assert!(Arc::strong_count(&bytes) > 1);
    fixture.set("fake_done", 1);
    assert!(is_gone(&first_gone, LONG));
    assert_eq!(Arc::strong_count(&bytes), 1);
}

#[test]
fn the_end_of_a_context_ends_its_graphs() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, stream) = started(&gpu);
    let (tell, told) = mpsc::channel::<()>();
    let nodes = [node(&[], DeviceOp::Nothing)];
    let graph = gpu.graph_instantiate(context, &plan(&nodes, None), Box::new(tell));
    let graph = graph.expect("a graph");
    gpu.template_create(context).expect("a template");
    gpu.graph_launch(graph, stream).expect("it is launched");
    gpu.context_destroy(context).expect("it ends");
    assert_eq!(
        (fixture.get("fake_graphs"), fixture.get("fake_execs")),
        (0, 0)
    );
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Disconnected));
}

#[test]
fn conditional_nodes_choose_among_their_bodies() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, stream) = started(&gpu);
    let module = gpu.module_load(context, PTX, &ModuleOptions::default());
    let module = module.expect("a module");
    let template = gpu.template_create(context).expect("a template");
    let handle = gpu.conditional_create(template, Some(3)).expect("a handle");
    let launched = |kind, values: &[u32]| {
        let blocks: Vec<Vec<u8>> = values.iter().map(|value| params(1, *value)).collect();
        let body = |block| vec![node(&[], kernel(module, block))];
        let conditional = DeviceConditional {
            handle,
            kind,
            bodies: blocks.iter().map(|block| body(block)).collect(),
        };
        let nodes = [
            node(&[], DeviceOp::Nothing),
            node(&[0], DeviceOp::Conditional(conditional)),
        ];
        let before = fixture.get("fake_launches");
        let plan = plan(&nodes, Some(template));
        let graph = gpu.graph_instantiate(context, &plan, nothing_kept())?;
        gpu.graph_launch(graph, stream)?;
        gpu.graph_destroy(graph)?;
        let last = fixture
            .text("fake_launch")
            .rsplit(' ')
            .next()
            .map(str::to_owned);
        Ok((fixture.get("fake_launches") - before, last))
    };
    let last = |text: &str| Some(text.to_owned());
    let launched: &dyn Fn(_, &[u32]) -> Result<_> = &launched;
    assert_eq!(launched(ConditionalKind::While, &[11]), Ok((3, last("11"))));
    assert_eq!(
        launched(ConditionalKind::If, &[21, 22]),
        Ok((1, last("21")))
    );
    let cases = [31, 32, 33, 34];
    assert_eq!(
        launched(ConditionalKind::Switch, &cases),
        Ok((1, last("34")))
    );
    fixture.set("fake_condition", 0);
    assert_eq!(
        launched(ConditionalKind::If, &[41, 42]),
        Ok((1, last("42")))
    );
    assert_eq!(launched(ConditionalKind::If, &[41]), Ok((0, last("42"))));
    let refused = launched(ConditionalKind::While, &[1, 2]);
    assert_eq!(
        refused.expect_err("two bodies").code,
        CuResult::InvalidValue
    );
    gpu.template_destroy(template).expect("it is there");
    assert_eq!(
        (fixture.get("fake_graphs"), fixture.get("fake_execs")),
        (0, 0)
    );
    let refused = gpu.conditional_create(template, None);
    assert_eq!(
        refused.expect_err("it is gone").code,
        CuResult::InvalidHandle
    );
}

#[test]
fn priorities_of_nodes_are_asked_for() {
    let _alone = ALONE.lock();
    let fixture = fixture();
    let gpu = fixture.gpu();
    let (context, _) = started(&gpu);
    let nodes = [node(&[], DeviceOp::Nothing)];
    for (node_priorities, flags) in [(true, 8), (false, 0)] {
        let plan = GraphPlan {
            node_priorities,
            ..plan(&nodes, None)
        };
        let made = gpu.graph_instantiate(context, &plan, nothing_kept());
        made.expect("a graph");
        assert_eq!(fixture.get("fake_flags"), flags);
    }
}
