//! Everything at once, from several threads, in a random but repeatable order: nothing hangs, and
//! every counted block is there.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{Bench, config};
use mica_backend_software::SoftwareGpu;
use mica_gpu::{EventFlags, Gpu, StreamFlags};

/// A small linear congruential generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn tenant(gpu: &SoftwareGpu, seed: u64, steps: usize) {
    let mut dice = Dice(seed);
    let bench = Bench::new(gpu);
    let total = bench.alloc(4);
    bench.write(total, &[0]);
    let mut streams = vec![bench.stream];
    for i in 0..4 {
        let flags = StreamFlags {
            non_blocking: i % 2 == 0,
        };
        streams.push(gpu.stream_create(bench.context, flags, -i).unwrap());
    }
    let events: Vec<_> = (0..3)
        .map(|_| {
            gpu.event_create(bench.context, EventFlags::default())
                .unwrap()
        })
        .collect();
    let mut expected = 0;
    for _ in 0..steps {
        let stream = streams[dice.roll(streams.len() as u64) as usize];
        let event = events[dice.roll(events.len() as u64) as usize];
        match dice.roll(12) {
            0..=4 => {
                let blocks = 1 + dice.roll(40) as u32;
                bench.launch_on(stream, "count", blocks, &[total.0]);
                expected += blocks;
            }
            5 => gpu.event_record(event, stream).unwrap(),
            6 => gpu.stream_wait_event(stream, event).unwrap(),
            7 => gpu.stream_callback(stream, Box::new(|| {})).unwrap(),
            8 => gpu.stream_synchronize(stream).unwrap(),
            9 => gpu.event_synchronize(event).unwrap(),
            10 => {
                gpu.context_suspend(bench.context).unwrap();
                gpu.context_resume(bench.context).unwrap();
            }
            _ => {
                let at = bench.alloc(1 + dice.roll(200_000));
                gpu.memory_free(bench.context, at).unwrap();
                bench.launch_on(stream, "busy", 2, &[dice.roll(200)]);
            }
        }
    }
    bench.sync();
    assert_eq!(bench.read(total, 1), [expected]);
    gpu.context_destroy(bench.context).unwrap();
}

#[test]
fn tenants_do_not_lose_work_beside_a_faulty_one() {
    let gpu = SoftwareGpu::new(config()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let faulty = s.spawn(|| {
            let hole = gpu.arena().0 + gpu.arena().1 - 4096;
            while !stop.load(Ordering::SeqCst) {
                let bench = Bench::new(&gpu);
                bench.launch("count", 30, &[hole]);
                // Refused if the fault is known by now.
                let _late = bench.try_launch(bench.stream, "busy", 3, |_| {}, &[100]);
                assert!(gpu.context_synchronize(bench.context).is_err());
                gpu.context_destroy(bench.context).unwrap();
            }
        });
        let cancelled = s.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let bench = Bench::new(&gpu);
                let at = bench.alloc(8);
                bench.write(at, &[0, 0]);
                bench.launch("spin", 5, &[at.0, at.0 + 4]);
                gpu.cancel(bench.context, None).unwrap();
                bench.sync();
                gpu.context_destroy(bench.context).unwrap();
            }
        });
        let tenants: Vec<_> = (1..4)
            .map(|seed| {
                let gpu = &gpu;
                s.spawn(move || tenant(gpu, seed, 1500))
            })
            .collect();
        let results: Vec<_> = tenants.into_iter().map(|t| t.join()).collect();
        stop.store(true, Ordering::SeqCst);
        faulty.join().unwrap();
        cancelled.join().unwrap();
        assert!(results.iter().all(|r| r.is_ok()));
    });
    assert_eq!(gpu.memory_info().unwrap().0, 256 << 20);
}
