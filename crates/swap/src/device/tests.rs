//! Memory that leaves while no host memory is ready for it, as it does right after the start of a program on a card.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use mica_backend_software::{Config, SoftwareGpu};
use mica_gpu::{ContextId, Copy3d, DevicePtr, HostSpan, Place as Side, StreamId};
use mica_memory::CHUNK_BYTES;
use mica_memory::residency::Place;

use super::*;
use crate::Swapper;

const PIECES: u64 = 5;

struct Bench {
    swapper: Arc<Swapper>,
    gpu: Arc<SwapGpu>,
    context: ContextId,
    stream: StreamId,
    held: Vec<DevicePtr>,
}

impl Bench {
    /// With five pieces of memory, each with a mark at many places.
    fn new() -> Self {
        let config = Config {
            memory_bytes: Some(8 * CHUNK_BYTES),
            workers: Some(1),
            ..Config::default()
        };
        let device: Arc<dyn Gpu> = Arc::new(SoftwareGpu::new(config).unwrap());
        let swapper = Swapper::new(|| {});
        let gpu = swapper.wrap_as(device, true, None);
        let context = gpu.context_create().unwrap();
        let stream = gpu.default_stream(context).unwrap();
        let mut bench = Self {
            swapper,
            gpu,
            context,
            stream,
            held: Vec::new(),
        };
        for piece in 0..PIECES {
            // Not all of them whole segments.
            let at = bench.gpu.memory_alloc(context, CHUNK_BYTES - (piece << 21));
            bench.held.push(at.unwrap());
            bench.marks(piece, |bench, at, mark| {
                bench.copy(&mut { mark }, |host| (Side::Device(at), host));
            });
        }
        bench
    }

    fn marks(&self, piece: u64, each: impl Fn(&Self, DevicePtr, u64)) {
        let bytes = CHUNK_BYTES - (piece << 21);
        let at = self.held[piece as usize].0;
        for offset in (0..bytes).step_by((3 << 20) + 8).chain([bytes - 8]) {
            each(self, DevicePtr(at + offset), (piece << 32) + offset + 1);
        }
    }

    fn check(&self) {
        for piece in 0..PIECES {
            self.marks(piece, |bench, at, mark| {
                let mut word = 0;
                bench.copy(&mut word, |host| (host, Side::Device(at)));
                assert_eq!(word, mark, "piece {piece} at {at:?}");
            });
        }
    }

    fn copy(&self, word: &mut u64, sides: impl FnOnce(Side) -> (Side, Side)) {
        // SAFETY: the word lives until the stream has passed the copy.
        let span = unsafe { HostSpan::new(std::ptr::from_mut(word).cast(), 8) };
        let (to, from) = sides(Side::Host(span));
        let copy = Copy3d::linear(to, from, 8);
        self.gpu.copy(self.stream, &copy).unwrap();
        self.gpu.stream_synchronize(self.stream).unwrap();
    }

    fn pinned_bytes(&self) -> u64 {
        let store = &self.gpu.store;
        let context = Some(self.context);
        let all = store.pinned_segments(context);
        all * CHUNK_BYTES
    }

    fn come_back(&self) {
        self.swapper.allow(0);
        let trouble = |text: &str| panic!("{text}");
        self.swapper.come_back(|_| {}, trouble, || false);
        assert_eq!(self.swapper.status().place, Place::Resident);
    }
}

#[test]
fn memory_leaves_by_way_of_the_stage_and_nobody_pins_meanwhile() {
    let bench = Bench::new();
    // As much as stands ready before a program has allocated anything.
    bench
        .gpu
        .store
        .grow_to(&*bench.gpu.inner, Some(bench.context), 4 * CHUNK_BYTES)
        .unwrap();
    for round in 0..3 {
        let before = bench.pinned_bytes();
        let steps = AtomicU64::new(0);
        let out_bytes = AtomicU64::new(0);
        let left = bench.swapper.leave(|status| {
            // Each step is told, and further than the one before.
            assert!(status.out_bytes >= out_bytes.swap(status.out_bytes, SeqCst));
            steps.fetch_add(1, SeqCst);
        });
        left.unwrap();
        assert!(steps.load(SeqCst) >= PIECES, "{steps:?} steps");
        assert_eq!(bench.swapper.status().place, Place::Away);
        assert_eq!(bench.pinned_bytes(), before, "round {round}");
        let used = bench.gpu.store_bytes().1;
        assert_eq!(used, bench.swapper.status().out_bytes, "the stage is empty");
        if round == 1 {
            // What waits in host memory is pinned there, so that it returns by the short way.
            bench.swapper.prepare(0).unwrap();
            assert!(bench.pinned_bytes() > before);
        }
        bench.come_back();
        assert_eq!(bench.gpu.store_bytes().1, 0);
        bench.check();
    }
}

#[test]
fn memory_leaves_without_a_stage_too() {
    let bench = Bench::new();
    bench.swapper.leave(|_| {}).unwrap();
    assert_eq!(
        (bench.swapper.status().place, bench.pinned_bytes()),
        (Place::Away, 0)
    );
    bench.come_back();
    bench.check();
}

#[test]
fn a_session_may_end_while_its_memory_is_on_the_stage() {
    for round in 0..6_u64 {
        let bench = Bench::new();
        bench
            .gpu
            .store
            .grow_to(&*bench.gpu.inner, Some(bench.context), 4 * CHUNK_BYTES)
            .unwrap();
        let steps = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let leaves = scope.spawn(|| {
                bench
                    .swapper
                    .leave(|_| _ = steps.fetch_add(1, SeqCst))
                    .unwrap();
            });
            while steps.load(SeqCst) < 2 + round && !leaves.is_finished() {
                std::thread::yield_now();
            }
            bench.gpu.give_up_waits();
            bench.gpu.context_destroy(bench.context).unwrap();
        });
        assert_eq!(bench.gpu.store_bytes().1, 0, "round {round}");
    }
}
