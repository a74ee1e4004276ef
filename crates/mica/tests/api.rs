//! The same programs on an embedded virtual GPU and on one behind a worker's session.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{PTX, device, on_both};
use mica::{CuResult, Error, Grid, Priority, Vgpu};

#[test]
fn a_kernel_adds_vectors() {
    on_both(64 << 20, |vgpu| {
        let kernel = vgpu.load_ptx(PTX).unwrap().kernel("vadd").unwrap();
        let a: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
        let (x, y) = (vgpu.upload(&a).unwrap(), vgpu.upload(&a).unwrap());
        let mut z = vgpu.alloc::<f32>(a.len()).unwrap();
        let grid = Grid::covering(a.len(), 256);
        let count = a.len() as u32;
        let stream = vgpu.default_stream();
        stream
            .launch(&kernel, grid, (&x, &y, &mut z, count))
            .unwrap();
        let sum = z.to_vec().unwrap();
        assert!(sum.iter().enumerate().all(|(i, v)| *v == 2.0 * i as f32));
        assert_eq!(vgpu.statistics().unwrap().launches, 1);
    });
}

#[test]
fn wrong_names_and_parameters_are_explained() {
    on_both(64 << 20, |vgpu| {
        let module = vgpu.load_ptx(PTX).unwrap();
        let missing = module.kernel("vsub").unwrap_err().to_string();
        assert!(
            missing.contains("vsub") && missing.contains("vadd"),
            "{missing}"
        );
        let kernel = module.kernel("vadd").unwrap();
        let stream = vgpu.default_stream();
        assert!(stream.launch(&kernel, Grid::new(1, 1), (1_u32,)).is_err());
        let wrong = vgpu
            .load_ptx(".version 7.0\n.target sm_75\nnonsense")
            .unwrap_err();
        assert!(matches!(wrong, Error::Gpu { .. }), "{wrong}");
    });
}

#[test]
fn the_limit_holds_at_the_byte() {
    on_both(1 << 20, |vgpu| {
        let all = vgpu.alloc::<u8>(1 << 20).unwrap();
        assert_eq!(vgpu.memory().unwrap().free_bytes, 0);
        assert!(vgpu.alloc::<u8>(1).unwrap_err().is_out_of_memory());
        drop(all);
        assert_eq!(vgpu.memory().unwrap().used_bytes, 0);
        assert!(vgpu.alloc::<u8>((1 << 20) + 1).is_err());
    });
}

#[test]
fn streams_events_and_host_functions_keep_their_order() {
    on_both(64 << 20, |vgpu| {
        let (one, two) = (vgpu.stream().unwrap(), vgpu.independent_stream(-1).unwrap());
        let mut buffer = vgpu.alloc::<u32>(1000).unwrap();
        let order = Arc::new(AtomicU32::new(0));
        let (start, done) = (vgpu.event().unwrap(), vgpu.event().unwrap());
        start.record(&one).unwrap();
        let seen = Arc::clone(&order);
        one.call(move || {
            let _ = seen.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
        })
        .unwrap();
        buffer.copy_from_in(&one, &[5; 1000]).unwrap();
        done.record(&one).unwrap();
        two.wait_for(&done).unwrap();
        let download = buffer.download(&two).unwrap();
        let seen = Arc::clone(&order);
        two.call(move || {
            let _ = seen.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst);
        })
        .unwrap();
        assert_eq!(download.wait().unwrap(), [5; 1000]);
        two.synchronize().unwrap();
        assert_eq!(order.load(Ordering::SeqCst), 2);
        assert!(done.is_reached().unwrap() && two.is_idle().unwrap());
        assert!(done.elapsed_since_ms(&start).unwrap() >= 0.0);
        one.fill(&mut buffer, 9_u32).unwrap();
        let mut copy = vgpu.alloc::<u32>(1000).unwrap();
        copy.copy_from_buffer(&one, &buffer).unwrap();
        one.synchronize().unwrap();
        assert_eq!(copy.to_vec().unwrap(), [9; 1000]);
    });
}

#[test]
fn a_wild_kernel_is_contained_and_the_virtual_gpu_begins_anew() {
    on_both(64 << 20, |vgpu| {
        let kernel = vgpu.load_ptx(PTX).unwrap().kernel("wild").unwrap();
        vgpu.default_stream()
            .launch(&kernel, Grid::new(1, 1), (0xDEAD_0000_0000_u64,))
            .unwrap();
        let error = vgpu.synchronize().unwrap_err();
        assert_eq!(error.code(), Some(CuResult::IllegalAddress), "{error}");
        assert!(vgpu.alloc::<u8>(16).is_err());
        drop(kernel);
        vgpu.reset().unwrap();
        assert_eq!(
            vgpu.upload(&[1_u8, 2, 3]).unwrap().to_vec().unwrap(),
            [1, 2, 3]
        );
        assert_eq!(vgpu.statistics().unwrap().faults, 1);
    });
}

#[test]
fn an_endless_kernel_can_be_cancelled() {
    on_both(64 << 20, |vgpu| {
        let kernel = vgpu.load_ptx(PTX).unwrap().kernel("spin").unwrap();
        let stream = vgpu.stream().unwrap();
        stream.launch(&kernel, Grid::new(1, 1), ()).unwrap();
        assert!(!stream.is_idle().unwrap());
        assert_eq!(stream.cancel().unwrap(), 1);
        stream.synchronize().unwrap();
        assert_eq!(vgpu.upload(&[4_u8]).unwrap().to_vec().unwrap(), [4]);
    });
}

#[test]
fn virtual_gpus_of_a_device_share_its_memory_and_resize_within_it() {
    let device = device();
    let one = Vgpu::builder()
        .memory(100 << 20)
        .share(50.0)
        .build(&device)
        .unwrap();
    let refused = Vgpu::builder()
        .memory(200 << 20)
        .build(&device)
        .unwrap_err();
    assert!(matches!(refused, Error::Admission { .. }), "{refused}");
    let two = Vgpu::builder().share(50.0).build(&device).unwrap();
    assert_eq!(two.memory().unwrap().limit_bytes, 156 << 20);
    let held = one.alloc::<u8>(60 << 20).unwrap();
    assert!(one.resize(50 << 20).unwrap_err().is_out_of_memory());
    assert!(one.resize(101 << 20).is_err());
    one.resize(60 << 20).unwrap();
    two.resize(196 << 20).unwrap();
    assert!(one.resize(61 << 20).is_err());
    assert_eq!(one.info().total_memory, 60 << 20);
    drop((held, two));
    one.resize(256 << 20).unwrap();
    assert!(one.set_share(0.0).is_err());
    one.set_share(80.0).unwrap();
    drop(one);
    Vgpu::builder().memory(256 << 20).build(&device).unwrap();
}

#[test]
fn limits_on_streams_and_code_hold() {
    let device = device();
    let vgpu = Vgpu::builder()
        .memory(16 << 20)
        .max_streams(1)
        .tensor_cores(false)
        .priority(Priority::High)
        .build(&device)
        .unwrap();
    let stream = vgpu.stream().unwrap();
    assert!(vgpu.stream().is_err());
    drop(stream);
    vgpu.stream().unwrap();
    let text = ".version 8.0 .target sm_80 .entry k() { .reg .b32 %r; .reg .pred %p; \
        @ %p movmatrix .sync.aligned.m8n8.trans.b16 %r, %r; ret; }";
    let refused = vgpu.load_ptx(text).unwrap_err();
    assert_eq!(refused.code(), Some(CuResult::NotPermitted), "{refused}");
    assert!(
        refused.to_string().contains("uses tensor cores"),
        "{refused}"
    );
    let allowed = text.replace("@ %p movmatrix .sync.aligned.m8n8.trans.b16 %r, %r;", "");
    vgpu.load_ptx(&allowed).unwrap();
}

#[test]
fn saturating_tenants_all_make_progress_and_idle_ones_cost_nothing() {
    let device = device();
    let stop = AtomicBool::new(false);
    let finished = [0; 3].map(AtomicU64::new);
    std::thread::scope(|scope| {
        for (share, finished) in [50.0, 30.0, 20.0].into_iter().zip(&finished) {
            let (device, stop) = (&device, &stop);
            scope.spawn(move || {
                let vgpu = Vgpu::builder()
                    .memory(16 << 20)
                    .share(share)
                    .build(device)
                    .unwrap();
                let kernel = vgpu.load_ptx(PTX).unwrap().kernel("work").unwrap();
                let mut out = vgpu.alloc::<u32>(64).unwrap();
                let stream = vgpu.default_stream();
                while !stop.load(Ordering::Relaxed) {
                    let params = (&mut out, 2000_u32);
                    stream.launch(&kernel, Grid::new(64, 32), params).unwrap();
                    stream.synchronize().unwrap();
                    let launches = vgpu.statistics().unwrap().launches;
                    finished.store(launches, Ordering::Relaxed);
                }
            });
        }
        // Whoever is starved while the others go on is seen, however slow all of them are.
        let began = Instant::now();
        let least = || finished.iter().map(|n| n.load(Ordering::Relaxed)).min();
        while least() < Some(20) && began.elapsed() < Duration::from_secs(120) {
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let finished = finished.map(AtomicU64::into_inner);
    assert!(finished.iter().all(|n| *n >= 20), "{finished:?}");
}
