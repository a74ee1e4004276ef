//! A session may hold no more than its limits, and no request is worth more work than it moves bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mica_cuda_abi::CuResult;
use mica_gpu::*;
use mica_limits::LocalQuota;
use mica_vgpu::test_gpu::TestGpu;
use mica_vgpu::{GraphNode, GraphOp, GraphOptions, NewContext, Session, Vgpu, VgpuSpec};

fn session(change: impl FnOnce(&mut VgpuSpec)) -> (Arc<Session>, NewContext) {
    let limit = 64 << 20;
    let gpu = Arc::new(TestGpu::new(1 << 30));
    let mut spec = VgpuSpec::new("test", limit);
    change(&mut spec);
    let vgpu = Vgpu::new(gpu, Arc::new(LocalQuota::new(limit)), spec);
    let session = vgpu.open_session().unwrap();
    let new = session.context_create().unwrap();
    (session, new)
}

/// Runs something that must end at once; a hang is found by the test, not by whoever runs it.
fn at_once(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    ended.expect("it takes longer than the bytes it moves");
}

#[test]
fn rows_of_no_bytes_cost_nothing_however_many_there_are() {
    let (session, new) = session(|_| {});
    let stream = new.default_stream;
    let at = session.memory_alloc(new.context, 4096).unwrap();
    at_once(move || {
        let huge = 1 << 62;
        for (width, height, depth) in [(0, huge, 1), (0, huge, huge), (16, huge, 0), (16, 0, huge)]
        {
            let mut copy = Copy3d::linear(Place::Device(at), Place::Device(at), width);
            (copy.height, copy.depth) = (height, depth);
            (copy.src_pitch, copy.dst_pitch) = ((0, 0), (0, 0));
            let answer = session.copy(stream, &copy);
            assert!(
                answer.is_ok() || answer.unwrap_err().code() == CuResult::InvalidValue,
                "{width}×{height}×{depth}"
            );
        }
        for (width, height) in [(0, huge), (0, u64::MAX), (4, 0)] {
            let fill = Fill2d {
                dst: at,
                pitch: 0,
                value: 7,
                element_bytes: 1,
                width,
                height,
            };
            let answer = session.fill(stream, &fill);
            assert!(answer.is_ok() || answer.unwrap_err().code() == CuResult::InvalidValue);
        }
        session.stream_synchronize(stream).unwrap();
    });
}

#[test]
fn extents_that_overflow_and_offsets_beyond_host_memory_are_refused() {
    let (session, new) = session(|_| {});
    let at = session.memory_alloc(new.context, 4096).unwrap();
    let mut host = vec![0_u8; 4096];
    // SAFETY: `host` lives to the end of the test, behind the synchronization.
    let span = unsafe { HostSpan::new(host.as_mut_ptr(), 4096) };
    let whole = Copy3d::linear(Place::Host(span), Place::Device(at), 4096);
    session.copy(new.default_stream, &whole).unwrap();
    let behind = Copy3d {
        dst_offset: (1, 0, 0),
        ..whole
    };
    let far = Copy3d {
        dst_offset: (0, 1 << 40, 1 << 40),
        dst_pitch: (1 << 40, 1 << 40),
        ..whole
    };
    let tall = Copy3d {
        height: 1 << 62,
        src_pitch: (4096, 0),
        dst_pitch: (4096, 0),
        ..whole
    };
    for copy in [behind, far, tall] {
        let refused = session.copy(new.default_stream, &copy).unwrap_err();
        assert_eq!(refused.code(), CuResult::InvalidValue, "{copy:?}");
    }
    session.stream_synchronize(new.default_stream).unwrap();
    let stale = session.stream_create(new.context, StreamFlags::default(), 0);
    let stale = stale.unwrap();
    session.stream_destroy(stale).unwrap();
    let empty = Copy3d::linear(Place::Device(at), Place::Device(at), 0);
    let refused = session.copy(stale, &empty).unwrap_err();
    assert_eq!(
        refused.code(),
        CuResult::InvalidHandle,
        "although it is empty"
    );
}

#[test]
fn graphs_count_against_the_sessions_budget_and_come_back() {
    let (session, new) = session(|spec| spec.host_bytes = 4 << 20);
    let before = session.budget().used_bytes();
    let write = || GraphNode {
        after: Vec::new(),
        op: GraphOp::Write(DevicePtr(0), vec![0; 1 << 20].into()),
    };
    let mut graphs = Vec::new();
    let refused = loop {
        match session.graph_instantiate(new.context, vec![write()], &GraphOptions::default()) {
            Ok(graph) => graphs.push(graph),
            Err(refused) => break refused,
        }
        assert!(graphs.len() < 10, "nobody counts them");
    };
    assert_eq!(refused.code(), CuResult::OutOfMemory);
    assert_eq!(graphs.len(), 3);
    assert!(
        session
            .graph_update(graphs[0], vec![write(), write(), write()], 0)
            .is_err()
    );
    session.graph_update(graphs[0], Vec::new(), 0).unwrap();
    session
        .graph_instantiate(new.context, vec![write()], &GraphOptions::default())
        .unwrap();
    for graph in graphs {
        session.graph_destroy(graph).unwrap();
    }
    session.context_destroy(new.context).unwrap();
    assert!(session.budget().used_bytes() <= before);
}

#[test]
fn objects_count_against_the_sessions_budget() {
    let (session, new) = session(|spec| spec.host_bytes = 1 << 20);
    let mut events = Vec::new();
    let refused = loop {
        match session.event_create(new.context, EventFlags::default()) {
            Ok(event) => events.push(event),
            Err(refused) => break refused,
        }
        assert!(events.len() < 10_000, "nobody counts them");
    };
    assert_eq!(refused.code(), CuResult::OutOfMemory);
    assert!(session.memory_alloc(new.context, 4096).is_err());
    session.event_destroy(events[0]).unwrap();
    session.memory_alloc(new.context, 4096).unwrap();
}

#[test]
fn a_session_has_so_many_streams() {
    let (session, new) = session(|_| {});
    let mut streams = 0;
    let refused = loop {
        match session.stream_create(new.context, StreamFlags::default(), 0) {
            Ok(_) => streams += 1,
            Err(refused) => break refused,
        }
        assert!(streams < 100_000, "nobody counts them");
    };
    assert_eq!(refused.code(), CuResult::OutOfMemory);
    assert!(
        refused.to_string().contains("of the kind stream"),
        "{refused}"
    );
    session
        .event_create(new.context, EventFlags::default())
        .unwrap();
}

#[test]
fn a_session_has_so_many_contexts() {
    let (session, _) = session(|_| {});
    let mut last = None;
    let refused = loop {
        match session.context_create() {
            Ok(new) => last = Some(new.context),
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.code(), CuResult::OutOfMemory);
    session.context_destroy(last.unwrap()).unwrap();
    session.context_create().unwrap();
}

#[test]
fn all_sessions_of_a_virtual_gpu_together_have_a_budget_too() {
    let (first, new) = session(|spec| spec.host_bytes = 2 << 20);
    let vgpu = first.vgpu();
    let nodes = || {
        let op = GraphOp::Write(DevicePtr(0), vec![0; 3 << 19].into());
        vec![GraphNode {
            after: Vec::new(),
            op,
        }]
    };
    first
        .graph_instantiate(new.context, nodes(), &GraphOptions::default())
        .unwrap();
    let others: Vec<_> = (0..4).map(|_| vgpu.open_session().unwrap()).collect();
    let refused = others.iter().filter(|session| {
        let new = session.context_create().unwrap();
        session
            .graph_instantiate(new.context, nodes(), &GraphOptions::default())
            .is_err()
    });
    assert_eq!(refused.count(), 3, "two fit");
}

#[test]
fn all_workers_of_a_virtual_gpu_share_its_host_memory() {
    let limit = 64 << 20;
    let host = Arc::new(LocalQuota::new(4 << 20));
    let worker = || {
        let (gpu, quota) = (TestGpu::new(1 << 30), LocalQuota::new(limit));
        let spec = VgpuSpec::new("test", limit);
        let vgpu = Vgpu::of_worker(Arc::new(gpu), Arc::new(quota), host.clone(), spec);
        vgpu.open_session().unwrap()
    };
    let load = |session: &Session| {
        let new = session.context_create().unwrap();
        let op = GraphOp::Write(DevicePtr(0), vec![0; 3 << 19].into());
        let after = Vec::new();
        session.graph_instantiate(
            new.context,
            vec![GraphNode { after, op }],
            &GraphOptions::default(),
        )
    };
    let workers: Vec<_> = (0..3).map(|_| worker()).collect();
    load(&workers[0]).unwrap();
    load(&workers[1]).unwrap();
    let refused = load(&workers[2]).unwrap_err();
    assert_eq!(refused.code(), CuResult::OutOfMemory);
    workers[0].close();
    load(&workers[2]).unwrap();
}

#[test]
#[expect(unsafe_code, reason = "host memory is registered")]
fn registered_host_memory_has_a_limit() {
    let (session, new) = session(|spec| spec.registered_bytes = 6000);
    let mut memory = vec![0_u8; 8192];
    let mut register = |bytes: u64| {
        // SAFETY: `memory` outlives the session's context, which ends the registration.
        unsafe {
            let span = HostSpan::new(memory.as_mut_ptr(), bytes);
            session.host_register(new.context, span, None, false, Box::new(()))
        }
    };
    let held = register(4096).unwrap();
    assert_eq!(register(4096).unwrap_err().code(), CuResult::OutOfMemory);
    session.host_unregister(new.context, held).unwrap();
    register(4096).unwrap();
    session.context_destroy(new.context).unwrap();
}

/// Windows of a program that does not let go.
struct Held;

impl mica_vgpu::Windows for Held {
    fn set_open(&self, _: bool) {}

    fn close_within(&self, patience: Duration) -> bool {
        std::thread::sleep(patience);
        false
    }

    fn copied_bytes(&self) -> (u64, u64) {
        (0, 0)
    }
}

#[test]
fn programs_that_hold_their_windows_do_not_add_up_when_all_are_suspended() {
    let (first, _) = session(|_| {});
    let vgpu = first.vgpu();
    let others: Vec<_> = (0..30).map(|_| vgpu.open_session().unwrap()).collect();
    for session in &others {
        session.attach_windows(Box::new(Held));
    }
    let began = Instant::now();
    vgpu.suspend().unwrap();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    vgpu.resume().unwrap();
}

#[test]
fn a_small_image_with_the_same_text_thousands_of_times_is_refused_soon() {
    let (session, new) = session(|spec| spec.tensor_cores = false);
    let began = Instant::now();
    let refused = session
        .module_load(new.context, &many_texts(), &ModuleOptions::default())
        .unwrap_err();
    assert_eq!(refused.code(), CuResult::NotPermitted);
    assert!(began.elapsed() < Duration::from_secs(30));
}

/// A fatbin with one compressed megabyte that 4096 entries of a group show whole.
fn many_texts() -> Vec<u8> {
    let text = vec![b' '; 1 << 20];
    // An LZ4 block of one literal and one long match.
    let mut block = vec![0x1f, b' ', 1, 0];
    let mut left = text.len() - 1 - 4 - 15 - 5;
    while left >= 255 {
        block.push(255);
        left -= 255;
    }
    block.push(left as u8);
    block.extend([0x50, b' ', b' ', b' ', b' ', b' ']);
    let entries = 4096_u32;
    let mut header = vec![0; 64];
    header[..2].copy_from_slice(&0x100_u16.to_le_bytes());
    header[20..24].copy_from_slice(&64_u32.to_le_bytes());
    header[40..48].copy_from_slice(&0x2000_u64.to_le_bytes());
    header[56..64].copy_from_slice(&(text.len() as u64).to_le_bytes());
    header.extend(entries.to_le_bytes());
    header.extend(0_u32.to_le_bytes());
    for _ in 0..entries {
        let mut entry = [0; 64];
        entry[..2].copy_from_slice(&1_u16.to_le_bytes());
        entry[8..12].copy_from_slice(&(text.len() as u32).to_le_bytes());
        entry[28..32].copy_from_slice(&80_u32.to_le_bytes());
        header.extend(entry);
    }
    let length = header.len() as u32;
    header[4..8].copy_from_slice(&length.to_le_bytes());
    header[8..12].copy_from_slice(&(block.len() as u32).to_le_bytes());
    header[16..20].copy_from_slice(&(block.len() as u32).to_le_bytes());
    let body = [header, block].concat();
    let mut image = Vec::new();
    image.extend(0xba55_ed50_u32.to_le_bytes());
    image.extend([1, 0, 16, 0]);
    image.extend((body.len() as u64).to_le_bytes());
    image.extend(body);
    image
}
