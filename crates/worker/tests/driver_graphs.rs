//! Graphs that the driver launches as a whole, from the program's calls to a stand-in for the driver.

mod common;

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use common::host::until;
use common::nvidia::{PTX, Program};
use common::stand_in::StandIn;
use mica_backend_cuda::CudaGpu;
use mica_limits::LocalQuota;
use mica_vgpu::{Vgpu, VgpuSpec};
use mica_wire::session::*;
use mica_worker::{OutputBuffer, serve_session};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const LIMIT: u64 = 256 << 20;
/// `CUgraphNodeType` of a fill.
const MEMSET: c_int = 2;

struct Bench {
    stand_in: StandIn,
    vgpu: Arc<Vgpu>,
    gpu: Arc<CudaGpu>,
}

impl Bench {
    fn new() -> Self {
        let (stand_in, gpu) = StandIn::open();
        let gpu = Arc::new(gpu);
        let quota = Arc::new(LocalQuota::new(LIMIT));
        let vgpu = Vgpu::new(gpu.clone(), quota, VgpuSpec::new("test", LIMIT));
        Self {
            stand_in,
            vgpu,
            gpu,
        }
    }

    fn program(&self) -> Program {
        let (ours, theirs): (OwnedFd, OwnedFd) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let (vgpu, gpu) = (self.vgpu.clone(), self.gpu.clone());
        let output = Arc::new(OutputBuffer::default());
        std::thread::spawn(move || serve_session(&vgpu, gpu, output, theirs, None));
        Program::begin(ours)
    }

    fn get(&self, name: &str) -> c_int {
        self.stand_in.get(name)
    }

    fn set(&self, name: &str, value: c_int) {
        self.stand_in.set(name, value);
    }
}

fn node<R: Node>(after: &[u32], request: &R, tail: &[u8]) -> GraphNode {
    let mut body = request.encode().as_slice().to_vec();
    body.extend_from_slice(tail);
    GraphNode {
        after: after.to_vec(),
        call: R::NUMBER,
        body,
    }
}

fn kernel(program: &Program, after: &[u32]) -> GraphNode {
    node(after, &program.kernel(0), &[0; 12])
}

fn fill(after: &[u32], address: u64, value: u32) -> GraphNode {
    let fill = Fill {
        stream: 0,
        address,
        pitch: 0,
        value,
        element_bytes: 4,
        width: 4,
        height: 1,
    };
    node(after, &fill, &[])
}

fn instantiate(program: &Program, nodes: Vec<GraphNode>) -> u64 {
    let options = GraphOptions::default();
    let made = program
        .client
        .graph_instantiate(program.context, &nodes, options);
    made.unwrap()
}

fn launch(program: &Program, graph: u64) {
    let stream = program.stream;
    let launch = GraphLaunch { graph, stream };
    program.client.post(&launch, &[]).unwrap();
    program.synchronize();
}

fn read(program: &Program, address: u64) -> u32 {
    let (stream, bytes) = (program.stream, 4);
    let read = Read {
        stream,
        address,
        bytes,
    };
    let bytes = program.client.call(&read).unwrap().bytes;
    u32::from_le_bytes(bytes.try_into().unwrap())
}

fn launches(program: &Program) -> u64 {
    program.client.call(&Counters {}).unwrap().launches
}

#[test]
fn a_graph_is_one_launch_of_the_driver_and_each_kernel_counts() {
    let bench = Bench::new();
    let program = bench.program();
    let memory = program.alloc(4096);
    let nodes = |value| {
        vec![
            fill(&[], memory, value),
            kernel(&program, &[0]),
            kernel(&program, &[0]),
            kernel(&program, &[1, 2]),
        ]
    };
    let graph = instantiate(&program, nodes(7));
    let before = launches(&program);
    launch(&program, graph);
    assert_eq!(bench.get("fake_graph_launches"), 1);
    assert_eq!(bench.get("fake_launches"), 3);
    assert_eq!(launches(&program) - before, 3);
    assert_eq!(read(&program, memory), 7);
    program.client.graph_update(graph, &nodes(8), 0).unwrap();
    assert_eq!(bench.get("fake_updates"), 1);
    let stream = program.stream;
    let upload = GraphUpload { graph, stream };
    program.client.post(&upload, &[]).unwrap();
    launch(&program, graph);
    assert_eq!((read(&program, memory), bench.get("fake_uploads")), (8, 1));
    program.client.post(&GraphDestroy { graph }, &[]).unwrap();
    program.synchronize();
    assert_eq!(bench.get("fake_execs"), 0);
}

#[test]
fn a_graph_that_the_driver_refuses_is_replayed() {
    let bench = Bench::new();
    let program = bench.program();
    let memory = program.alloc(4096);
    bench.set("fake_refused_kind", MEMSET);
    let graph = instantiate(&program, vec![fill(&[], memory, 5), kernel(&program, &[0])]);
    launch(&program, graph);
    assert_eq!(bench.get("fake_graph_launches"), 0);
    assert_eq!((read(&program, memory), bench.get("fake_launches")), (5, 1));
    // One that it takes later is the driver's from then on, and one that it refuses again is not.
    for (refused, graph_launches) in [(-1, 1), (MEMSET, 1)] {
        bench.set("fake_refused_kind", refused);
        let nodes = vec![fill(&[], memory, 6), kernel(&program, &[])];
        program.client.graph_update(graph, &nodes, 0).unwrap();
        launch(&program, graph);
        assert_eq!(bench.get("fake_graph_launches"), graph_launches);
    }
    assert_eq!((read(&program, memory), bench.get("fake_execs")), (6, 0));
}

#[test]
fn modules_and_events_live_as_long_as_the_graphs_that_use_them() {
    let bench = Bench::new();
    let program = bench.program();
    let (client, context) = (&program.client, program.context);
    let module = client.module_load(context, PTX, false).unwrap().module;
    let event = EventCreate {
        context,
        disable_timing: true,
    };
    let event = client.call(&event).unwrap().value;
    let events = bench.get("fake_events");
    let modules = bench.get("fake_modules");
    let mut own = program.kernel(0);
    own.module = module;
    let record = EventRecord { event, stream: 0 };
    let nodes = vec![node(&[], &own, &[0; 12]), node(&[0], &record, &[])];
    let graph = instantiate(&program, nodes);
    client.call(&ModuleUnload { module }).unwrap();
    client.post(&EventDestroy { event }, &[]).unwrap();
    launch(&program, graph);
    assert_eq!(bench.get("fake_launches"), 1);
    assert_eq!(
        (bench.get("fake_modules"), bench.get("fake_events")),
        (modules, events)
    );
    // The program's own handles are gone.
    assert!(client.call(&ModuleUnload { module }).is_err());
    assert!(client.call(&EventQuery { event }).is_err());
    client.post(&GraphDestroy { graph }, &[]).unwrap();
    program.synchronize();
    assert_eq!(
        (bench.get("fake_modules"), bench.get("fake_events")),
        (modules - 1, events - 1)
    );
}

#[test]
fn host_functions_of_a_graph_hold_what_comes_after_them() {
    let bench = Bench::new();
    // As the driver does, on a thread of its own.
    bench.set("fake_one_thread", 1);
    let program = bench.program();
    let called = StreamCallback {
        stream: 0,
        callback: 77,
    };
    let nodes = vec![node(&[], &called, &[]), kernel(&program, &[0])];
    let graph = instantiate(&program, nodes);
    let client = Arc::clone(&program.client);
    let kernels = bench.stand_in.variable("fake_launches") as usize;
    let answered = std::thread::spawn(move || {
        for round in 0..2 {
            while client.next_notice(Duration::from_millis(100)).unwrap() != Some(77) {}
            // SAFETY: an integer of the stand-in, as above.
            let seen = unsafe { (kernels as *const c_int).read_volatile() };
            assert_eq!(seen, round, "the kernel waits for the function");
            client.post(&CallbackDone { callback: 77 }, &[]).unwrap();
        }
    });
    launch(&program, graph);
    launch(&program, graph);
    answered.join().unwrap();
    until(|| bench.get("fake_launches") == 2);
    drop(program);
    // The stand-in's thread runs code of the library for ever.
    std::mem::forget(bench);
}

fn conditional(handle: u64, kind: u32, bodies: &[Vec<GraphNode>]) -> GraphNode {
    let encoded = |nodes: &Vec<GraphNode>| {
        let mut bytes = Vec::new();
        nodes.put(&mut bytes);
        bytes
    };
    let node = ConditionalNode {
        handle,
        kind,
        bodies: bodies.iter().map(encoded).collect(),
    };
    let mut body = Vec::new();
    node.put(&mut body);
    GraphNode {
        after: Vec::new(),
        call: CONDITIONAL_NODE,
        body,
    }
}

#[test]
fn conditional_nodes_reach_the_driver_with_their_bodies() {
    let bench = Bench::new();
    let program = bench.program();
    let (client, context) = (&program.client, program.context);
    let template = client.call(&TemplateCreate { context }).unwrap().value;
    let create = ConditionalCreate {
        template,
        value: 4,
        is_default: true,
    };
    let handle = client.call(&create).unwrap().value;
    let options = GraphOptions {
        template,
        node_priorities: false,
    };
    let instantiate = |nodes| client.graph_instantiate(context, &nodes, options);
    let body = vec![kernel(&program, &[]), kernel(&program, &[0])];
    let graph = instantiate(vec![conditional(handle, 1, from_ref(&body))]).unwrap();
    launch(&program, graph);
    assert_eq!(bench.get("fake_launches"), 8);
    client.post(&GraphDestroy { graph }, &[]).unwrap();
    // Forged handles and wrong numbers of bodies never reach the driver.
    let wrong = [
        conditional(handle + 1, 1, from_ref(&body)),
        conditional(handle, 1, &[body.clone(), body.clone()]),
        conditional(handle, 3, from_ref(&body)),
    ];
    for node in wrong {
        assert!(instantiate(vec![node]).is_err());
    }
    let nested = (0..40).fold(body, |body, _| vec![conditional(handle, 0, &[body])]);
    assert!(instantiate(nested).is_err());
    client.post(&TemplateDestroy { template }, &[]).unwrap();
    assert!(instantiate(vec![conditional(handle, 1, &[vec![]])]).is_err());
    assert!(client.call(&create).is_err());
    program.synchronize();
    assert_eq!((bench.get("fake_graphs"), bench.get("fake_execs")), (0, 0));
}
