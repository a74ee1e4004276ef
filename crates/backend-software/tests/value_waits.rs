//! Streams that wait for a word, where the device itself must see to it: memory that goes, pauses, ends.

mod common;

use std::time::Duration;

use common::{Bench, config, word};
use mica_backend_software::SoftwareGpu;
use mica_cuda_abi::CuResult;
use mica_gpu::{DevicePtr, Gpu, StreamFlags, StreamId, ValueWait};

fn wait_for(gpu: &SoftwareGpu, stream: StreamId, at: DevicePtr, value: u64) {
    let wait = ValueWait::new(at, false, value, 1).unwrap();
    gpu.stream_wait_value(stream, &wait).unwrap();
}

#[test]
fn a_word_in_no_allocation_is_refused() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let freed = bench.alloc(1 << 20);
    gpu.memory_free(bench.context, freed).unwrap();
    let wait = ValueWait::new(freed, false, 0, 1).unwrap();
    let refused = gpu.stream_wait_value(bench.stream, &wait).unwrap_err();
    assert_eq!(refused.code, CuResult::InvalidValue);
    bench.launch("empty", 1, &[]);
    bench.sync();
}

#[test]
fn a_word_that_is_freed_under_its_wait_breaks_the_context_and_no_other() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let (bad, good) = (Bench::new(&gpu), Bench::new(&gpu));
    let (freed, kept) = (bad.alloc(1 << 20), good.alloc(4));
    good.write(kept, &[0]);
    wait_for(&gpu, bad.stream, freed, 77);
    wait_for(&gpu, good.stream, kept, 77);
    std::thread::sleep(Duration::from_millis(5));
    gpu.memory_free(bad.context, freed).unwrap();
    let error = gpu.stream_synchronize(bad.stream).unwrap_err();
    assert_eq!(error.code, CuResult::IllegalAddress);
    assert!(!gpu.stream_query(good.stream).unwrap(), "it still waits");
    word(kept.0).store(77, std::sync::atomic::Ordering::SeqCst);
    good.sync();
}

#[test]
fn a_context_with_a_wait_that_never_ends_can_be_destroyed() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    for _ in 0..20 {
        let bench = Bench::new(&gpu);
        let at = bench.alloc(4);
        bench.write(at, &[0]);
        for _ in 0..8 {
            let stream = gpu.stream_create(bench.context, StreamFlags::default(), 0);
            wait_for(&gpu, stream.unwrap(), at, 77);
        }
        gpu.context_destroy(bench.context).unwrap();
    }
    let bench = Bench::new(&gpu);
    bench.launch("empty", 1, &[]);
    bench.sync();
}

#[test]
fn a_suspended_context_goes_on_waiting_and_sees_the_word_afterwards() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let bench = Bench::new(&gpu);
    let (at, total) = (bench.alloc(4), bench.alloc(4));
    bench.write(at, &[0]);
    wait_for(&gpu, bench.stream, at, 5);
    bench.launch("count", 3, &[total.0]);
    gpu.context_suspend(bench.context).unwrap();
    word(at.0).store(5, std::sync::atomic::Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(10));
    assert!(!gpu.stream_query(bench.stream).unwrap());
    gpu.context_resume(bench.context).unwrap();
    assert_eq!(bench.read(total, 1), [3]);
}
