//! The device itself: threads, faults, pauses. What any GPU must do is in the conformance suite.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use common::{Bench, config, word};
use mica_backend_software::{Config, ExecutionGate, OutputKind, SoftwareGpu};
use mica_cuda_abi::{CuResult, Limit};
use mica_gpu::{DevicePtr, Gpu, StreamFlags};

fn until(mut condition: impl FnMut() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed().as_secs() < 60, "it never happened");
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn every_block_runs_once() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let out = bench.alloc(4 * 24_000);
    bench
        .try_launch(
            bench.stream,
            "store",
            1,
            |l| l.grid = [100, 80, 3],
            &[out.0, 7],
        )
        .unwrap();
    let expected: Vec<u32> = (7..24_007).collect();
    assert_eq!(bench.read(out, 24_000), expected);
    let total = bench.alloc(4);
    for _ in 0..500 {
        bench.launch("count", 3, &[total.0]);
    }
    assert_eq!(bench.read(total, 1), [1500]);
}

#[test]
fn a_wild_pointer_breaks_its_context_and_no_other() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let (bad, good) = (Bench::new(&gpu), Bench::new(&gpu));
    let freed = bad.alloc(1 << 20);
    gpu.memory_free(bad.context, freed).unwrap();
    bad.launch("count", 4, &[freed.0]);
    let error = gpu.context_synchronize(bad.context).unwrap_err();
    assert_eq!(error.code, CuResult::IllegalAddress);
    for part in [
        "count",
        &format!("{:#x}", freed.0),
        "write",
        "block (",
        "thread (",
    ] {
        assert!(error.message.contains(part), "{part} in {}", error.message);
    }
    assert_eq!(gpu.memory_alloc(bad.context, 4).unwrap_err(), error);
    assert_eq!(gpu.stream_synchronize(bad.stream).unwrap_err(), error);
    assert_eq!(gpu.context_fault(bad.context), Some(error));
    let total = good.alloc(4);
    good.launch("count", 9, &[total.0]);
    assert_eq!(good.read(total, 1), [9]);
    gpu.context_destroy(bad.context).unwrap();
    let again = Bench::new(&gpu);
    again.launch("empty", 1, &[]);
    again.sync();
}

#[test]
fn faults_by_the_hundred_leave_the_device_usable() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let hole = gpu.arena().0 + gpu.arena().1 - 4096;
    for _ in 0..200 {
        let bench = Bench::new(&gpu);
        bench.launch("count", 64, &[hole]);
        let error = gpu.context_synchronize(bench.context).unwrap_err();
        assert_eq!(error.code, CuResult::IllegalAddress);
        gpu.context_destroy(bench.context).unwrap();
    }
}

#[test]
fn an_engine_that_panics_is_a_failed_launch() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    bench.launch("panicking", 1, &[]);
    let error = gpu.context_synchronize(bench.context).unwrap_err();
    assert_eq!(error.code, CuResult::LaunchFailed);
}

#[test]
fn shared_and_local_memory_are_all_there_and_clean_for_the_next_context() {
    let gpu = SoftwareGpu::new(Config {
        workers: Some(1),
        ..config()
    })
    .unwrap();
    let (a, b) = (Bench::new(&gpu), Bench::new(&gpu));
    let out = a.alloc(4);
    let most = gpu.properties().max_shared_per_block;
    let ask = |l: &mut mica_gpu::Launch<'_>| {
        l.dynamic_shared = most;
        l.block = [1024, 1, 1];
    };
    a.try_launch(a.stream, "own_memory", 1, ask, &[out.0])
        .unwrap();
    assert_eq!(a.read(out, 1), [most + 64 * 1024]);
    let out = b.alloc(4);
    b.try_launch(b.stream, "find_old_shared", 1, ask, &[out.0])
        .unwrap();
    assert_eq!(b.read(out, 1), [0]);
}

#[test]
fn a_suspended_context_holds_still_while_others_run() {
    let gpu = SoftwareGpu::new(Config {
        workers: Some(1),
        ..config()
    })
    .unwrap();
    let (held, free) = (Bench::new(&gpu), Bench::new(&gpu));
    let (counter, flag) = (held.alloc(4), held.alloc(4));
    held.write(flag, &[0]);
    held.launch("spin", 1, &[counter.0, flag.0]);
    until(|| word(counter.0).load(Ordering::Relaxed) > 0);
    gpu.context_suspend(held.context).unwrap();
    let seen = word(counter.0).load(Ordering::Relaxed);
    let total = free.alloc(4);
    free.launch("count", 5, &[total.0]);
    assert_eq!(free.read(total, 1), [5]);
    assert_eq!(word(counter.0).load(Ordering::Relaxed), seen);
    gpu.context_resume(held.context).unwrap();
    until(|| word(counter.0).load(Ordering::Relaxed) > seen);
    word(flag.0).store(1, Ordering::Release);
    held.sync();
}

#[test]
fn kernels_that_wait_for_each_other_across_streams_both_run() {
    let gpu = SoftwareGpu::new(Config {
        workers: Some(1),
        ..config()
    })
    .unwrap();
    let bench = Bench::new(&gpu);
    let own = StreamFlags { non_blocking: true };
    let first = gpu.stream_create(bench.context, own, 0).unwrap();
    let second = gpu.stream_create(bench.context, own, 0).unwrap();
    let (counter, flag) = (bench.alloc(4), bench.alloc(4));
    bench.launch_on(first, "spin", 1, &[counter.0, flag.0]);
    bench.launch_on(second, "count", 1, &[flag.0]);
    bench.sync();
}

#[test]
fn cancel_ends_running_and_queued_kernels_only() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let (counter, flag, total) = (bench.alloc(4), bench.alloc(4), bench.alloc(4));
    let stream = gpu
        .stream_create(bench.context, StreamFlags { non_blocking: true }, 0)
        .unwrap();
    bench.launch_on(stream, "spin", 100, &[counter.0, flag.0]);
    bench.launch_on(stream, "count", 1, &[total.0]);
    until(|| word(counter.0).load(Ordering::Relaxed) > 0);
    assert_eq!(gpu.cancel(bench.context, Some(stream)).unwrap(), 2);
    gpu.stream_synchronize(stream).unwrap();
    bench.launch_on(stream, "count", 1, &[total.0]);
    gpu.stream_synchronize(stream).unwrap();
    assert_eq!(bench.read(total, 1), [1]);
}

#[test]
fn destroying_a_context_ends_its_endless_kernel() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let (counter, flag) = (bench.alloc(4), bench.alloc(4));
    bench.launch("spin", 8, &[counter.0, flag.0]);
    bench.launch("spin", 8, &[counter.0, flag.0]);
    gpu.context_destroy(bench.context).unwrap();
    assert_eq!(gpu.memory_info().unwrap().0, 256 << 20);
}

#[test]
fn cooperative_blocks_are_all_resident() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let out = bench.alloc(4 * 64);
    let blocks = 2 * gpu
        .occupancy(bench.module, bench.kernel("meet"), 32, 0)
        .unwrap();
    for _ in 0..5 {
        let coop = |l: &mut mica_gpu::Launch<'_>| l.cooperative = true;
        bench
            .try_launch(bench.stream, "meet", blocks, coop, &[0, out.0])
            .unwrap();
        assert_eq!(
            bench.read(out, blocks as usize),
            vec![blocks; blocks as usize]
        );
    }
    let coop = |l: &mut mica_gpu::Launch<'_>| l.cooperative = true;
    let error = bench
        .try_launch(bench.stream, "meet", blocks + 1, coop, &[0, out.0])
        .unwrap_err();
    assert_eq!(error.code, CuResult::CooperativeLaunchTooLarge);
}

#[derive(Default)]
struct Switch {
    open: AtomicBool,
    asked: AtomicU64,
    idle: AtomicU64,
    /// Workers see it open by themselves, and the thread that waits for that sleeps through the first time.
    sleeps_through: bool,
}

impl ExecutionGate for Switch {
    fn may_run(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }
    fn can_watch(&self, _open: bool) -> bool {
        self.sleeps_through
    }
    fn wait(&self, is_over: &dyn Fn() -> bool) {
        let is_first = self.asked.fetch_add(1, Ordering::SeqCst) == 0;
        let sleeps_through = self.sleeps_through && is_first;
        while (sleeps_through || !self.may_run()) && !is_over() {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    fn idle(&self) {
        self.idle.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_closed_gate_holds_running_and_new_blocks() {
    closes_and_opens(Switch::default());
}

#[test]
fn a_gate_that_opens_and_closes_while_its_waiter_sleeps_holds_blocks() {
    closes_and_opens(Switch {
        sleeps_through: true,
        ..Switch::default()
    });
}

fn closes_and_opens(gate: Switch) {
    let gate = Arc::new(gate);
    let gpu = SoftwareGpu::new(Config {
        gate: Some(gate.clone()),
        ..config()
    })
    .unwrap();
    let bench = Bench::new(&gpu);
    let (counter, flag, total) = (bench.alloc(4), bench.alloc(4), bench.alloc(4));
    bench.launch("spin", 1, &[counter.0, flag.0]);
    bench.launch("count", 1, &[total.0]);
    until(|| gate.asked.load(Ordering::SeqCst) > 0);
    assert_eq!(word(counter.0).load(Ordering::Relaxed), 0);
    gate.open.store(true, Ordering::SeqCst);
    until(|| word(counter.0).load(Ordering::Relaxed) > 0);
    let asked = gate.asked.load(Ordering::SeqCst);
    gate.open.store(false, Ordering::SeqCst);
    until(|| gate.asked.load(Ordering::SeqCst) > asked);
    // The device asks only once its blocks hold still: whoever hears it takes the lease for drained.
    let look = || (word(counter.0).load(Ordering::Relaxed), gpu.busy_time_ns());
    let seen = look();
    assert!(seen.1 > 0);
    assert_eq!(gpu.context_gpu_time_ns(bench.context), Some(seen.1));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(look(), seen, "a paused block neither runs nor is charged");
    word(flag.0).store(1, Ordering::Release);
    gate.open.store(true, Ordering::SeqCst);
    bench.sync();
    assert_eq!(bench.read(total, 1), [1]);
    until(|| gate.idle.load(Ordering::SeqCst) > 0);
}

#[test]
fn urgent_streams_go_first() {
    let gpu = SoftwareGpu::new(Config {
        workers: Some(1),
        ..config()
    })
    .unwrap();
    let bench = Bench::new(&gpu);
    let own = StreamFlags { non_blocking: true };
    let low = gpu.stream_create(bench.context, own, 0).unwrap();
    let high = gpu.stream_create(bench.context, own, -5).unwrap();
    let (counter, flag, total) = (bench.alloc(4), bench.alloc(4), bench.alloc(4));
    gpu.context_suspend(bench.context).unwrap();
    bench.launch_on(low, "spin", 1, &[counter.0, flag.0]);
    bench.launch_on(high, "count", 1, &[total.0]);
    gpu.context_resume(bench.context).unwrap();
    // With one worker, the low kernel only starts after the high one.
    until(|| word(counter.0).load(Ordering::Relaxed) > 0);
    assert_eq!(word(total.0).load(Ordering::Relaxed), 1);
    word(flag.0).store(1, Ordering::Release);
    bench.sync();
}

#[test]
fn a_suspended_urgent_kernel_does_not_stop_others() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let (held, free) = (Bench::new(&gpu), Bench::new(&gpu));
    let own = StreamFlags { non_blocking: true };
    let urgent = gpu.stream_create(held.context, own, -5).unwrap();
    let (waiting, total) = (held.alloc(4), free.alloc(4));
    gpu.context_suspend(held.context).unwrap();
    held.launch_on(urgent, "count", 50, &[waiting.0]);
    free.launch("count", 50, &[total.0]);
    assert_eq!(free.read(total, 1), [50]);
    gpu.context_resume(held.context).unwrap();
    held.sync();
    assert_eq!(held.read(waiting, 1), [50]);
}

#[test]
fn tens_of_thousands_of_allocations() {
    let gpu = SoftwareGpu::new(Config {
        memory_bytes: Some(4 << 30),
        arena_bytes: Some(64 << 30),
        ..config()
    })
    .unwrap();
    let bench = Bench::new(&gpu);
    let before = gpu.memory_info().unwrap().0;
    let all: Vec<DevicePtr> = (0..24_000)
        .map(|i| bench.alloc(if i % 4 == 0 { 100 } else { 40_000 }))
        .collect();
    // Every other one first: the worst pattern of holes.
    for half in [0, 1] {
        for at in all.iter().skip(half).step_by(2) {
            gpu.memory_free(bench.context, *at).unwrap();
        }
    }
    assert_eq!(gpu.memory_info().unwrap().0, before);
    let again = bench.alloc(1 << 20);
    bench.launch("count", 2, &[again.0]);
    assert_eq!(bench.read(again, 1), [2]);
}

#[test]
fn printed_text_comes_out_at_synchronization() {
    let text = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&text);
    let output: mica_backend_software::OutputSink = Arc::new(move |kind, bytes: &[u8]| {
        sink.lock().unwrap().push((kind, bytes.to_vec()));
    });
    let gpu = SoftwareGpu::new(Config {
        output: Some(output),
        ..config()
    })
    .unwrap();
    let bench = Bench::new(&gpu);
    let at = bench.alloc(64);
    bench.write(
        at,
        &[
            u32::from_le_bytes(*b"n=%d"),
            u32::from_le_bytes(*b"\n\0\0\0"),
            42,
        ],
    );
    bench.launch("print", 2, &[at.0, at.0 + 8]);
    bench.sync();
    assert_eq!(
        *text.lock().unwrap(),
        [(OutputKind::Print, b"n=42\nn=42\n".to_vec())]
    );
    text.lock().unwrap().clear();
    bench.launch("failing", 1, &[at.0]);
    let error = gpu.context_synchronize(bench.context).unwrap_err();
    assert_eq!(error.code, CuResult::Assert);
    let (kind, line) = text.lock().unwrap()[0].clone();
    assert_eq!(kind, OutputKind::Assert);
    let line = String::from_utf8(line).unwrap();
    assert!(line.contains(":12: "), "{line}");
    assert!(
        line.contains("block: [0,0,0], thread: [3,0,0] Assertion `"),
        "{line}"
    );
}

#[test]
fn the_device_heap_and_exact_checks() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    gpu.context_set_limit(bench.context, Limit::MallocHeapSize, 4096)
        .unwrap();
    let out = bench.alloc(10);
    let pointer = bench.alloc(8);
    bench.launch("allocate", 1, &[pointer.0, 100]);
    let got = bench.read(pointer, 2);
    let got = u64::from(got[0]) | u64::from(got[1]) << 32;
    assert_ne!(got, 0);
    let ok = |at: u64, bytes: u64| {
        bench.launch("check", 1, &[at, bytes, pointer.0]);
        bench.read(pointer, 1) == [1]
    };
    assert!(ok(got, 100));
    assert!(!ok(got, 101));
    assert!(ok(out.0 + 2, 8));
    assert!(!ok(out.0 + 2, 9));
    bench.launch("allocate", 1, &[pointer.0, 8000]);
    assert_eq!(bench.read(pointer, 2), [0, 0]);
}

#[test]
fn variables_are_placed_filled_and_linked() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let info = gpu.module_info(bench.module).unwrap();
    let table = &info.globals[0];
    assert_eq!((table.name.as_str(), table.bytes), ("table", 16));
    let words = bench.read(table.address, 4);
    assert_eq!(words[..2], [0x0003_0201, 0]);
    let link = u64::from(words[2]) | u64::from(words[3]) << 32;
    assert_eq!(link, table.address.0 + 4);
    assert!(gpu.memory_free(bench.context, table.address).is_err());
    gpu.module_unload(bench.module).unwrap();
    assert!(gpu.memory_range(bench.context, table.address).is_err());
}

#[test]
fn registered_shared_memory_is_seen_by_kernels() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    // SAFETY: a new shared mapping, unmapped at the end of the test by the process.
    let host = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(host, libc::MAP_FAILED);
    // SAFETY: mapped for the whole test.
    let span = unsafe { mica_gpu::HostSpan::new(host.cast::<u8>().wrapping_add(16), 4096) };
    // SAFETY: as above.
    let at = unsafe { gpu.host_register(bench.context, span, None, 0) }.unwrap();
    bench.launch("count", 3, &[at.0]);
    bench.sync();
    // SAFETY: inside the mapping.
    assert_eq!(unsafe { *host.cast::<u32>().add(4) }, 3);
    gpu.host_unregister(bench.context, at).unwrap();
    assert_eq!(
        gpu.host_unregister(bench.context, at).unwrap_err().code,
        CuResult::HostMemoryNotRegistered
    );
    let mut private = vec![0_u8; 100];
    // SAFETY: alive for the call, which refuses it.
    let refused = unsafe {
        let span = mica_gpu::HostSpan::new(private.as_mut_ptr(), 100);
        gpu.host_register(bench.context, span, None, 0)
    };
    assert_eq!(refused.unwrap_err().code, CuResult::NotSupported);
}

#[test]
fn launches_that_cannot_be_are_refused_at_once() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    type Change = fn(&mut mica_gpu::Launch<'_>);
    let cases: [(&str, Change, CuResult); 7] = [
        ("empty", |l| l.grid = [0, 1, 1], CuResult::InvalidValue),
        ("empty", |l| l.grid = [1, 65_536, 1], CuResult::InvalidValue),
        ("empty", |l| l.block = [1025, 1, 1], CuResult::InvalidValue),
        ("empty", |l| l.block = [1, 1, 65], CuResult::InvalidValue),
        (
            "empty",
            |l| l.dynamic_shared = 200 << 10,
            CuResult::InvalidValue,
        ),
        (
            "count",
            |l| l.block = [512, 1, 1],
            CuResult::LaunchOutOfResources,
        ),
        ("count", |l| l.params = &[], CuResult::InvalidValue),
    ];
    for (index, (name, change, code)) in cases.into_iter().enumerate() {
        let error = bench
            .try_launch(bench.stream, name, 1, change, &[0; 1])
            .unwrap_err();
        assert_eq!(error.code, code, "case {index}: {error}");
    }
    bench.launch("empty", 1, &[]);
    bench.sync();
}

#[test]
fn many_threads_use_one_device() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    std::thread::scope(|s| {
        for _ in 0..6 {
            s.spawn(|| {
                let bench = Bench::new(&gpu);
                let total = bench.alloc(4);
                let stream = gpu
                    .stream_create(bench.context, StreamFlags::default(), 0)
                    .unwrap();
                for _ in 0..200 {
                    bench.launch_on(stream, "count", 2, &[total.0]);
                    bench.launch("count", 1, &[total.0]);
                }
                assert_eq!(bench.read(total, 1), [600]);
                gpu.context_destroy(bench.context).unwrap();
            });
        }
    });
}

#[test]
fn a_free_while_a_copy_waits_is_an_error_not_a_crash() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let at = bench.alloc(1 << 20);
    let (tx, rx) = mpsc::channel::<()>();
    gpu.stream_callback(bench.stream, Box::new(move || rx.recv().unwrap()))
        .unwrap();
    let mut host = vec![0_u8; 1 << 20];
    // SAFETY: the buffer outlives the synchronization below.
    let span = unsafe { mica_gpu::HostSpan::new(host.as_mut_ptr(), 1 << 20) };
    let copy = mica_gpu::Copy3d::linear(
        mica_gpu::Place::Host(span),
        mica_gpu::Place::Device(DevicePtr(at.0)),
        1 << 20,
    );
    gpu.copy(bench.stream, &copy).unwrap();
    gpu.memory_free(bench.context, at).unwrap();
    tx.send(()).unwrap();
    let error = gpu.context_synchronize(bench.context).unwrap_err();
    assert_eq!(error.code, CuResult::IllegalAddress);
    assert_eq!(
        gpu.copy(bench.stream, &copy).unwrap_err().code,
        CuResult::IllegalAddress
    );
}
