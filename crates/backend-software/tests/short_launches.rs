//! Short launches that wait in a stream together, which one thread may run in a row: order, faults, cancels, suspensions
//! and blocks that wait for each other are as without that.

mod common;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Bench, config, word};
use mica_backend_software::{Config, SoftwareGpu};
use mica_cuda_abi::CuResult;
use mica_gpu::{DevicePtr, Gpu, StreamFlags, StreamId};

const PATIENCE: Duration = Duration::from_secs(60);

fn gpu(workers: usize) -> SoftwareGpu {
    SoftwareGpu::new(Config {
        workers: Some(workers),
        ..config()
    })
    .unwrap()
}

fn until(condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "it did not happen");
        std::thread::yield_now();
    }
}

/// Holds a stream up, so that launches wait behind it.
struct Plug {
    flag: DevicePtr,
}

impl Plug {
    fn new(bench: &Bench<'_>, stream: StreamId) -> Self {
        let (spins, flag) = (bench.alloc(4), bench.alloc(4));
        word(flag.0).store(0, Ordering::SeqCst);
        bench.launch_on(stream, "spin", 1, &[spins.0, flag.0]);
        Self { flag }
    }

    fn pull(self) {
        word(self.flag.0).store(1, Ordering::Release);
    }
}

/// Runs kernels once, after which it is known that they are short.
fn learn(bench: &Bench<'_>) {
    let words = bench.alloc(64);
    word(words.0 + 4).store(1, Ordering::SeqCst);
    for _ in 0..2 {
        bench.launch("store", 3, &[words.0 + 8, 0]);
        bench.launch("count", 3, &[words.0 + 32]);
        bench.launch("spin", 1, &[words.0, words.0 + 4]);
        bench.sync();
    }
    word(words.0 + 36).store(0, Ordering::SeqCst);
    bench.launch("gather", 1, &[words.0 + 36]);
    bench.sync();
}

#[test]
fn launches_of_a_stream_stay_in_order() {
    for workers in [1, 2] {
        let gpu = gpu(workers);
        let bench = Bench::new(&gpu);
        learn(&bench);
        let out = bench.alloc(16);
        for round in 0..20 {
            let plug = Plug::new(&bench, bench.stream);
            for i in 0..300 {
                bench.launch("store", 3, &[out.0, 1000 * round + i]);
            }
            plug.pull();
            let last = (1000 * round + 299) as u32;
            assert_eq!(bench.read(out, 3), [last, last + 1, last + 2]);
        }
    }
}

#[test]
fn the_default_stream_stays_in_order_with_another() {
    let gpu = gpu(2);
    let bench = Bench::new(&gpu);
    learn(&bench);
    let other = gpu
        .stream_create(bench.context, StreamFlags::default(), 0)
        .unwrap();
    let out = bench.alloc(4);
    for round in 0..20 {
        let plug = Plug::new(&bench, bench.stream);
        for i in 0..100 {
            let stream = [bench.stream, bench.stream, other][i % 3];
            bench.launch_on(stream, "store", 1, &[out.0, (1000 * round + i) as u64]);
        }
        plug.pull();
        bench.sync();
        assert_eq!(bench.read(out, 1), [(1000 * round + 99) as u32]);
    }
}

#[test]
fn nothing_runs_after_a_fault_among_them() {
    for _ in 0..10 {
        let gpu = gpu(2);
        let (bench, watcher) = (Bench::new(&gpu), Bench::new(&gpu));
        learn(&bench);
        let (before, after) = (watcher.alloc(4), watcher.alloc(4));
        let (start, len) = gpu.arena();
        let plug = Plug::new(&bench, bench.stream);
        for _ in 0..20 {
            bench.launch("count", 1, &[before.0]);
        }
        bench.launch("store", 1, &[start + len - 4096, 1]);
        for _ in 0..20 {
            bench.launch("count", 1, &[after.0]);
        }
        plug.pull();
        let error = gpu.stream_synchronize(bench.stream).unwrap_err();
        assert_eq!(error.code, CuResult::IllegalAddress);
        assert_eq!(watcher.read(before, 1), [20]);
        assert_eq!(watcher.read(after, 1), [0]);
    }
}

#[test]
fn a_suspension_and_a_cancel_among_them_count() {
    for workers in [1, 2] {
        let gpu = gpu(workers);
        let bench = Bench::new(&gpu);
        learn(&bench);
        let (spins, flag) = (bench.alloc(4), bench.alloc(4));
        let (before, after) = (bench.alloc(4), bench.alloc(4));
        let plug = Plug::new(&bench, bench.stream);
        for _ in 0..20 {
            bench.launch("count", 1, &[before.0]);
        }
        bench.launch("spin", 1, &[spins.0, flag.0]);
        for _ in 0..20 {
            bench.launch("count", 1, &[after.0]);
        }
        plug.pull();
        let spun = || word(spins.0).load(Ordering::Relaxed);
        until(|| spun() > 0);
        assert_eq!(word(before.0).load(Ordering::SeqCst), 20);
        gpu.context_suspend(bench.context).unwrap();
        let seen = spun();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(spun(), seen, "it ran while it was suspended");
        gpu.context_resume(bench.context).unwrap();
        until(|| spun() > seen);
        let count = gpu.cancel(bench.context, None).unwrap();
        assert!(count >= 21, "{count} were cancelled");
        bench.sync();
        assert_eq!(bench.read(after, 1), [0]);
        // What comes later runs.
        bench.launch("count", 1, &[after.0]);
        assert_eq!(bench.read(after, 1), [1]);
    }
}

#[test]
fn a_suspended_stream_of_them_goes_on_after_the_resumption() {
    let gpu = gpu(2);
    let bench = Bench::new(&gpu);
    learn(&bench);
    let total = bench.alloc(4);
    for round in 1..50 {
        for _ in 0..100 {
            bench.launch("count", 3, &[total.0]);
        }
        gpu.context_suspend(bench.context).unwrap();
        gpu.context_resume(bench.context).unwrap();
        bench.sync();
        assert_eq!(bench.read(total, 1), [300 * round]);
    }
}

#[test]
fn a_cancel_while_they_are_suspended_ends_them() {
    let gpu = gpu(2);
    let bench = Bench::new(&gpu);
    learn(&bench);
    let total = bench.alloc(4);
    for _ in 0..50 {
        for _ in 0..100 {
            bench.launch("count", 3, &[total.0]);
        }
        gpu.context_suspend(bench.context).unwrap();
        gpu.cancel(bench.context, None).unwrap();
        // Nothing is left that a resumption would have to bring to its end.
        bench.sync();
        gpu.context_resume(bench.context).unwrap();
        word(total.0).store(0, Ordering::SeqCst);
        bench.launch("count", 3, &[total.0]);
        assert_eq!(bench.read(total, 1), [3]);
    }
}

#[test]
fn a_block_that_waits_for_one_behind_it_gets_it() {
    for workers in [1, 2] {
        let gpu = gpu(workers);
        let bench = Bench::new(&gpu);
        learn(&bench);
        let (all, total) = (bench.alloc(16), bench.alloc(4));
        let plug = Plug::new(&bench, bench.stream);
        bench.launch("count", 1, &[total.0]);
        // As short as its last launch, for all that is known.
        bench.launch("gather", 5, &[all.0]);
        bench.launch("count", 1, &[total.0]);
        plug.pull();
        assert_eq!(bench.read(all, 1), [5]);
        assert_eq!(bench.read(total, 1), [2]);
    }
}
