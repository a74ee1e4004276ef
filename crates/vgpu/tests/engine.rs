//! The engine's promises, on a device made of vectors.

use std::sync::Arc;
use std::time::Duration;

use mica_cuda_abi::CuResult;
use mica_gpu::*;
use mica_limits::{LocalQuota, Quota};
use mica_vgpu::test_gpu::TestGpu;
use mica_vgpu::{Result, *};

const MODULE: &[u8] = b"fill 8 4 4\nadd 8 4 4\nfault\nblock\nglobal counter 64\n";

struct Bench {
    gpu: Arc<TestGpu>,
    quota: Arc<LocalQuota>,
    vgpu: Arc<Vgpu>,
}

fn bench(limit: u64, change: impl FnOnce(&mut VgpuSpec)) -> Bench {
    let gpu = Arc::new(TestGpu::new(1 << 30));
    let quota = Arc::new(LocalQuota::new(limit));
    let mut spec = VgpuSpec::new("test", limit);
    change(&mut spec);
    let vgpu = Vgpu::new(gpu.clone(), quota.clone(), spec);
    Bench { gpu, quota, vgpu }
}

impl Bench {
    fn used(&self) -> u64 {
        self.quota.view().used_bytes
    }
}

fn params(address: DevicePtr, count: u32, value: u32) -> Vec<u8> {
    let mut bytes = address.0.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend(value.to_le_bytes());
    bytes
}

fn launch(session: &Session, stream: u64, module: u64, kernel: u32, params: &[u8]) -> Result<()> {
    session.launch(
        stream,
        module,
        kernel,
        [1, 1, 1],
        [32, 1, 1],
        0,
        false,
        params,
    )
}

fn read(session: &Session, stream: u64, address: DevicePtr, count: usize) -> Vec<u32> {
    let mut data = vec![0_u32; count];
    // SAFETY: `data` outlives the synchronization below.
    let span = unsafe { HostSpan::new(data.as_mut_ptr().cast(), count as u64 * 4) };
    let copy = Copy3d::linear(Place::Host(span), Place::Device(address), span.len());
    session.copy(stream, &copy).unwrap();
    session.stream_synchronize(stream).unwrap();
    data
}

#[test]
fn memory_is_granted_to_the_last_byte_and_refused_at_the_next() {
    let b = bench(1 << 20, |_| {});
    let session = b.vgpu.open_session().unwrap();
    let context = session.context_create().unwrap().context;
    let whole = session.memory_alloc(context, 1 << 20).unwrap();
    let refused = session.memory_alloc(context, 1).unwrap_err();
    assert_eq!(refused.code(), CuResult::OutOfMemory);
    assert_eq!(b.vgpu.statistics().denials, 1);
    session.memory_free(context, whole).unwrap();
    assert_eq!((b.used(), b.gpu.in_use()), (0, 0));
    let over = session.memory_alloc(context, (1 << 20) + 1).unwrap_err();
    assert_eq!(over.code(), CuResult::OutOfMemory);
    assert!(session.memory_alloc(context, u64::MAX).is_err());
    assert!(session.memory_alloc(context, 1 << 20).is_ok());
}

#[test]
fn freeing_twice_or_what_is_not_yours_is_refused() {
    let b = bench(1 << 20, |_| {});
    let (mine, theirs) = (
        b.vgpu.open_session().unwrap(),
        b.vgpu.open_session().unwrap(),
    );
    let my_context = mine.context_create().unwrap().context;
    let their_context = theirs.context_create().unwrap().context;
    let memory = theirs.memory_alloc(their_context, 4096).unwrap();
    assert!(mine.memory_free(my_context, memory).is_err());
    assert!(mine.memory_free(their_context, memory).is_err());
    assert!(mine.memory_range(memory).is_err());
    assert!(
        theirs
            .memory_free(their_context, memory.offset(256))
            .is_err()
    );
    theirs.memory_free(their_context, memory).unwrap();
    assert!(theirs.memory_free(their_context, memory).is_err());
}

#[test]
fn handles_mean_nothing_in_another_session() {
    let b = bench(1 << 20, |_| {});
    let (mine, theirs) = (
        b.vgpu.open_session().unwrap(),
        b.vgpu.open_session().unwrap(),
    );
    let NewContext {
        context,
        default_stream,
    } = theirs.context_create().unwrap();
    let event = theirs.event_create(context, EventFlags::default()).unwrap();
    let module = theirs
        .module_load(context, MODULE, &ModuleOptions::default())
        .unwrap()
        .module;
    let own = mine.context_create().unwrap();
    assert_eq!(
        mine.stream_synchronize(default_stream).unwrap_err().code(),
        CuResult::InvalidHandle
    );
    assert_eq!(
        mine.context_synchronize(context).unwrap_err().code(),
        CuResult::InvalidContext
    );
    assert!(mine.event_record(event, own.default_stream).is_err());
    assert!(mine.module_unload(module).is_err());
    assert!(launch(&mine, own.default_stream, module, 0, &[]).is_err());
    // Nor is a handle of one kind good as another.
    assert!(theirs.event_query(context).is_err());
    assert!(theirs.stream_query(event).is_err());
    let memory = theirs.memory_alloc(context, 4096).unwrap();
    let fill = Fill2d {
        dst: memory,
        pitch: 0,
        value: 1,
        element_bytes: 4,
        width: 4,
        height: 1,
    };
    assert_eq!(
        mine.fill(own.default_stream, &fill).unwrap_err().code(),
        CuResult::InvalidValue
    );
}

#[test]
fn the_end_of_a_session_frees_everything_even_under_running_work() {
    let b = bench(64 << 20, |_| {});
    let session = b.vgpu.open_session().unwrap();
    let NewContext {
        context,
        default_stream,
    } = session.context_create().unwrap();
    let module = session
        .module_load(context, MODULE, &ModuleOptions::default())
        .unwrap()
        .module;
    let memory = session.memory_alloc(context, 1 << 20).unwrap();
    session
        .stream_create(context, StreamFlags::default(), 0)
        .unwrap();
    session
        .event_create(context, EventFlags::default())
        .unwrap();
    let shape = ArrayDescriptor {
        width: 16,
        height: 16,
        depth: 0,
        format: 32,
        channels: 4,
        flags: 0,
    };
    let array = session.array_create(context, &shape).unwrap();
    session.surface_create(context, array).unwrap();
    let reserved = session.address_reserve(8 << 20, 0).unwrap();
    let frame = session.frame_create(2 << 20).unwrap();
    session.frame_map(reserved, frame).unwrap();
    launch(&session, default_stream, module, 3, &[]).unwrap();
    session.memory_free_async(default_stream, memory).unwrap();
    let waiter = {
        let session = Arc::clone(&session);
        std::thread::spawn(move || session.stream_synchronize(default_stream))
    };
    session.close();
    assert!(waiter.join().unwrap().is_err());
    assert_eq!((b.gpu.leftovers(), b.used()), (0, 0));
    let statistics = b.vgpu.statistics();
    assert_eq!(
        (
            statistics.streams,
            statistics.modules,
            statistics.used_bytes
        ),
        (0, 0, 0)
    );
    assert_eq!(session.context_create().unwrap_err(), VgpuError::Closed);
    assert_eq!(b.vgpu.state(), State::Ready);
}

#[test]
fn a_context_that_is_destroyed_takes_its_own_things_only() {
    let b = bench(64 << 20, |_| {});
    let session = b.vgpu.open_session().unwrap();
    let first = session.context_create().unwrap();
    let second = session.context_create().unwrap();
    session.memory_alloc(first.context, 1 << 20).unwrap();
    let kept = session.memory_alloc(second.context, 1 << 20).unwrap();
    session.context_destroy(first.context).unwrap();
    assert_eq!(b.used(), 1 << 20);
    assert!(session.stream_query(first.default_stream).is_err());
    assert_eq!(session.memory_range(kept).unwrap().1, 1 << 20);
    session.context_destroy(second.context).unwrap();
    assert_eq!((b.used(), b.gpu.leftovers()), (0, 0));
}

#[test]
fn kernels_copies_and_fills_compute() {
    let b = bench(64 << 20, |_| {});
    let session = b.vgpu.open_session().unwrap();
    let NewContext {
        context,
        default_stream: stream,
    } = session.context_create().unwrap();
    let loaded = session
        .module_load(context, MODULE, &ModuleOptions::default())
        .unwrap();
    let memory = session.memory_alloc(context, 4096).unwrap();
    launch(&session, stream, loaded.module, 0, &params(memory, 8, 5)).unwrap();
    launch(&session, stream, loaded.module, 1, &params(memory, 4, 2)).unwrap();
    assert_eq!(read(&session, stream, memory, 8), [7, 7, 7, 7, 5, 5, 5, 5]);
    let global = loaded.info.globals[0].address;
    let copy = Copy3d::linear(Place::Device(global), Place::Device(memory), 32);
    session.copy(stream, &copy).unwrap();
    assert_eq!(read(&session, stream, global, 2), [7, 7]);
    session.module_unload(loaded.module).unwrap();
    assert!(session.copy(stream, &copy).is_err());
    assert_eq!(b.vgpu.statistics().launches, 2);
}

#[test]
fn copies_beyond_memory_or_with_overlapping_rows_are_refused() {
    let b = bench(64 << 20, |_| {});
    let session = b.vgpu.open_session().unwrap();
    let NewContext {
        context,
        default_stream: stream,
    } = session.context_create().unwrap();
    let a = session.memory_alloc(context, 4096).unwrap();
    let c = session.memory_alloc(context, 4096).unwrap();
    let good = Copy3d::linear(Place::Device(a), Place::Device(c), 4096);
    session.copy(stream, &good).unwrap();
    let bad = [
        Copy3d::linear(Place::Device(a), Place::Device(c), 4097),
        Copy3d::linear(Place::Device(a.offset(1)), Place::Device(c), 4096),
        Copy3d::linear(Place::Device(DevicePtr(0)), Place::Device(c), 1),
        Copy3d::linear(Place::Device(DevicePtr(u64::MAX)), Place::Device(c), 16),
        Copy3d {
            height: 2,
            depth: 1,
            ..good
        },
        Copy3d {
            height: u64::MAX,
            depth: u64::MAX,
            ..good
        },
        Copy3d {
            height: 3,
            width_bytes: 64,
            src_pitch: (32, 0),
            ..good
        },
    ];
    for copy in bad {
        let error = session.copy(stream, &copy).unwrap_err();
        assert_eq!(error.code(), CuResult::InvalidValue, "{copy:?}");
    }
}

#[test]
fn a_fault_stays_in_its_context() {
    let b = bench(64 << 20, |_| {});
    let (one, two) = (
        b.vgpu.open_session().unwrap(),
        b.vgpu.open_session().unwrap(),
    );
    let (c1, c2) = (one.context_create().unwrap(), two.context_create().unwrap());
    let options = ModuleOptions::default();
    let module = one
        .module_load(c1.context, MODULE, &options)
        .unwrap()
        .module;
    launch(&one, c1.default_stream, module, 2, &[]).unwrap();
    for _ in 0..2 {
        let error = one.context_synchronize(c1.context).unwrap_err();
        assert_eq!(error.code(), CuResult::IllegalAddress);
    }
    assert_eq!(b.vgpu.statistics().faults, 1);
    two.context_synchronize(c2.context).unwrap();
    one.context_destroy(c1.context).unwrap();
    let again = one.context_create().unwrap();
    one.context_synchronize(again.context).unwrap();
}

#[test]
fn frees_in_stream_order_give_memory_back_to_whoever_needs_it() {
    let b = bench(1 << 20, |_| {});
    let session = b.vgpu.open_session().unwrap();
    let NewContext {
        context,
        default_stream: stream,
    } = session.context_create().unwrap();
    for _ in 0..20 {
        let memory = session.memory_alloc_async(stream, 1 << 20).unwrap();
        session.memory_free_async(stream, memory).unwrap();
        let again = session.memory_free_async(stream, memory);
        assert!(again.is_err());
    }
    session.context_synchronize(context).unwrap();
    // The last free is collected by whoever looks.
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    while b.vgpu.memory().used_bytes > 0 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn a_full_virtual_gpu_waits_if_asked_to() {
    let b = bench(1 << 20, |spec| {
        spec.memory_full = MemoryFull::Wait(Duration::from_secs(60));
    });
    let session = b.vgpu.open_session().unwrap();
    let context = session.context_create().unwrap().context;
    let first = session.memory_alloc(context, 1 << 20).unwrap();
    let waiter = {
        let session = Arc::clone(&session);
        std::thread::spawn(move || session.memory_alloc(context, 4096))
    };
    session.memory_free(context, first).unwrap();
    assert!(waiter.join().unwrap().is_ok());
    b.vgpu
        .update_spec(|spec| spec.memory_full = MemoryFull::Wait(Duration::from_millis(1)));
    assert!(session.memory_alloc(context, 1 << 20).is_err());
}

#[test]
fn streams_are_limited_across_sessions_and_come_back() {
    let b = bench(1 << 20, |spec| spec.max_streams = 2);
    let (one, two) = (
        b.vgpu.open_session().unwrap(),
        b.vgpu.open_session().unwrap(),
    );
    let (c1, c2) = (one.context_create().unwrap(), two.context_create().unwrap());
    let flags = StreamFlags::default();
    let first = one.stream_create(c1.context, flags, 0).unwrap();
    two.stream_create(c2.context, flags, -100).unwrap();
    let refused = one.stream_create(c1.context, flags, 0).unwrap_err();
    assert_eq!(refused, VgpuError::Streams { limit: 2 });
    one.stream_destroy(first).unwrap();
    assert!(one.stream_destroy(c1.default_stream).is_err());
    one.stream_create(c1.context, flags, 0).unwrap();
    two.close();
    one.stream_create(c1.context, flags, 0).unwrap();
}

#[test]
fn policy_refuses_code_with_the_reason() {
    let b = bench(1 << 20, |spec| spec.tensor_cores = false);
    let session = b.vgpu.open_session().unwrap();
    let context = session.context_create().unwrap().context;
    let options = ModuleOptions::default();
    let load = |image: &[u8]| session.module_load(context, image, &options);
    let text = |body: &str| {
        format!(
            ".version 8.0\n.target sm_80\n.entry k() {{ .reg .b32 %r; .reg .pred %p; {body} ret; }}"
        )
    };
    let mma = text("@ %p movmatrix.sync.aligned.m8n8.trans.b16 %r, %r;");
    let refused = load(mma.as_bytes()).unwrap_err();
    assert_eq!(refused.code(), CuResult::NotPermitted);
    assert!(
        refused
            .to_string()
            .contains("line 3 of k uses tensor cores"),
        "{refused}"
    );
    for unknown in [
        &b"\x7fELF\0\0\xff"[..],
        text("future.op;").as_bytes(),
        b"fill 8 4 4",
    ] {
        let refused = load(unknown).unwrap_err();
        assert_eq!(refused.code(), CuResult::NotPermitted, "{refused}");
    }
    let loaded = load(text("").as_bytes()).unwrap();
    assert_eq!(loaded.info.kernels[0].name, "k");
    // Without a policy the device alone decides what it can load.
    let free = bench(1 << 20, |_| {});
    let other = free.vgpu.open_session().unwrap();
    let context = other.context_create().unwrap().context;
    other.module_load(context, b"fill 8 4 4", &options).unwrap();
    assert_eq!(b.vgpu.statistics().modules, 1);
}

#[test]
fn suspension_pauses_work_old_and_new() {
    let b = bench(64 << 20, |_| {});
    let session = b.vgpu.open_session().unwrap();
    let early = session.context_create().unwrap();
    assert_eq!(b.vgpu.state(), State::Active);
    b.vgpu.suspend().unwrap();
    assert_eq!(b.vgpu.state(), State::Suspended);
    let late = session.context_create().unwrap();
    assert!(!session.stream_query(early.default_stream).unwrap());
    assert!(!session.stream_query(late.default_stream).unwrap());
    b.vgpu.resume().unwrap();
    assert!(session.stream_query(early.default_stream).unwrap());
    assert!(session.stream_query(late.default_stream).unwrap());
}

#[test]
fn a_lost_virtual_gpu_says_why() {
    let b = bench(1 << 20, |_| {});
    let session = b.vgpu.open_session().unwrap();
    b.vgpu.set_degraded(Some("no slices".into()));
    assert_eq!(b.vgpu.state(), State::Degraded("no slices".into()));
    b.vgpu.set_lost("it fell off the bus");
    let error = session.context_create().unwrap_err();
    assert_eq!(error.code(), CuResult::DeviceUnavailable);
    assert!(error.to_string().contains("fell off the bus"));
    assert!(b.vgpu.open_session().is_err());
}

#[test]
fn frames_are_charged_until_the_last_mapping_goes() {
    let b = bench(8 << 20, |_| {});
    let session = b.vgpu.open_session().unwrap();
    let NewContext { default_stream, .. } = session.context_create().unwrap();
    let at = session.address_reserve(8 << 20, 0).unwrap();
    let (one, two) = (
        session.frame_create(2 << 20).unwrap(),
        session.frame_create(2 << 20).unwrap(),
    );
    session.frame_map(at, one).unwrap();
    session.frame_map(at.offset(2 << 20), two).unwrap();
    assert!(session.frame_map(at.offset(1 << 20), one).is_err());
    assert!(session.frame_map(at.offset(7 << 20), one).is_err());
    session
        .frame_access(at, 4 << 20, Access::ReadWrite)
        .unwrap();
    // A fill may cross neighbouring mappings, in engine's view.
    let fill = Fill2d {
        dst: at,
        pitch: 0,
        value: 1,
        element_bytes: 1,
        width: 2 << 20,
        height: 1,
    };
    session.fill(default_stream, &fill).unwrap();
    assert!(session.address_free(at, 8 << 20).is_err());
    session.frame_release(one).unwrap();
    assert_eq!(b.used(), 4 << 20);
    assert!(session.frame_unmap(at, 3 << 20).is_err());
    session.frame_unmap(at, 2 << 20).unwrap();
    assert_eq!(b.used(), 2 << 20);
    session.close();
    assert_eq!((b.used(), b.gpu.leftovers()), (0, 0));
}

#[test]
fn graphs_replay_in_order() {
    let b = bench(64 << 20, |_| {});
    let session = b.vgpu.open_session().unwrap();
    let NewContext {
        context,
        default_stream: stream,
    } = session.context_create().unwrap();
    let options = ModuleOptions::default();
    let module = session
        .module_load(context, MODULE, &options)
        .unwrap()
        .module;
    let memory = session.memory_alloc(context, 4096).unwrap();
    let kernel = |after: &[u32], kernel, value| GraphNode {
        after: after.to_vec(),
        op: GraphOp::Launch(OwnedLaunch {
            attributes: Vec::new(),
            module,
            kernel,
            grid: [1; 3],
            block: [1; 3],
            dynamic_shared: 0,
            cooperative: false,
            params: params(memory, 2, value),
        }),
    };
    let write = GraphNode {
        after: vec![],
        op: GraphOp::Write(memory, vec![1_u8; 16].into()),
    };
    let nodes = vec![kernel(&[2], 1, 10), write, kernel(&[1], 0, 3)];
    let graph = session
        .graph_instantiate(context, nodes, &GraphOptions::default())
        .unwrap();
    session.graph_launch(graph, stream).unwrap();
    let ones = u32::from_le_bytes([1; 4]);
    assert_eq!(read(&session, stream, memory, 3), [13, 13, ones]);
    session
        .graph_update(graph, vec![kernel(&[], 1, 1)], 0)
        .unwrap();
    session.graph_launch(graph, stream).unwrap();
    assert_eq!(read(&session, stream, memory, 1), [14]);
    session.graph_destroy(graph).unwrap();
    assert!(session.graph_launch(graph, stream).is_err());
}

#[test]
fn random_operations_leave_nothing_behind() {
    let b = bench(16 << 20, |_| {});
    std::thread::scope(|scope| {
        for seed in 1..=4_u64 {
            let b = &b;
            scope.spawn(move || random_session(b, seed * 7919));
        }
    });
    assert_eq!((b.used(), b.gpu.leftovers()), (0, 0));
}

fn random_session(b: &Bench, mut state: u64) {
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let session = b.vgpu.open_session().unwrap();
    let mut handles = vec![0, 1, u64::MAX];
    let options = ModuleOptions::default();
    for _ in 0..1500 {
        let pick = |n: u64| handles[(n % handles.len() as u64) as usize];
        let (x, y, bytes) = (pick(random()), pick(random()), random() % 100_000);
        let made = match random() % 18 {
            0 => session.context_create().map(|c| c.context).ok(),
            1 => session.stream_create(x, StreamFlags::default(), 0).ok(),
            2 => session.event_create(x, EventFlags::default()).ok(),
            3 | 4 => session.memory_alloc(x, bytes).map(|p| p.0).ok(),
            5 => session.memory_free(x, DevicePtr(y)).map(|()| 0).ok(),
            6 => session.memory_free_async(x, DevicePtr(y)).map(|()| 0).ok(),
            7 => session
                .module_load(x, MODULE, &options)
                .map(|m| m.module)
                .ok(),
            8 => session.module_unload(x).map(|()| 0).ok(),
            9 => session.event_record(x, y).map(|()| 0).ok(),
            10 => session.stream_destroy(x).map(|()| 0).ok(),
            11 if bytes < 5000 => session.context_destroy(x).map(|()| 0).ok(),
            12 => session.frame_create(2 << 20).ok(),
            13 => session.address_reserve(4 << 20, 0).map(|p| p.0).ok(),
            14 => session.frame_map(DevicePtr(x), y).map(|()| 0).ok(),
            15 => launch(&session, x, y, (bytes % 3) as u32, &[])
                .map(|()| 0)
                .ok(),
            16 => session.frame_unmap(DevicePtr(x), 2 << 20).map(|()| 0).ok(),
            _ => session.context_synchronize(x).map(|()| 0).ok(),
        };
        if let Some(handle) = made.filter(|handle| *handle != 0) {
            handles.push(handle);
        }
        if handles.len() > 60 {
            handles.remove((bytes % 60) as usize);
        }
    }
    if random() % 2 == 0 {
        session.close();
    }
}
