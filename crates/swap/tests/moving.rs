//! What leaves, what stays, and that nothing of it is lost.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use mica_backend_software::{Config, SoftwareGpu};
use mica_gpu::{Access, ContextId, Copy3d, DevicePtr, Gpu, HostSpan, Place as Side, StreamId};
use mica_memory::residency::Place;
use mica_memory::{CHUNK_BYTES, FRAME_BYTES};
use mica_swap::{SwapGpu, Swapper};

const MIB: u64 = 1 << 20;

struct Bench {
    swapper: Arc<Swapper>,
    device: Arc<dyn Gpu>,
    gpu: Arc<SwapGpu>,
    context: ContextId,
    stream: StreamId,
    wanted: Arc<AtomicU32>,
}

impl Bench {
    fn new() -> Self {
        let config = Config {
            memory_bytes: Some(1 << 30),
            workers: Some(1),
            ..Config::default()
        };
        let device: Arc<dyn Gpu> = Arc::new(SoftwareGpu::new(config).unwrap());
        let wanted = Arc::new(AtomicU32::new(0));
        let said = Arc::clone(&wanted);
        let swapper = Swapper::new(move || {
            said.fetch_add(1, SeqCst);
        });
        let gpu = swapper.wrap(Arc::clone(&device));
        let context = gpu.context_create().unwrap();
        let stream = gpu.default_stream(context).unwrap();
        Self {
            swapper,
            device,
            gpu,
            context,
            stream,
            wanted,
        }
    }

    fn write(&self, at: u64, bytes: &mut [u8]) {
        // SAFETY: the bytes live until the stream has passed the copy.
        let span = unsafe { HostSpan::new(bytes.as_mut_ptr(), bytes.len() as u64) };
        let copy = Copy3d::linear(Side::Device(DevicePtr(at)), Side::Host(span), span.len());
        self.gpu.copy(self.stream, &copy).unwrap();
        self.gpu.stream_synchronize(self.stream).unwrap();
    }

    fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // SAFETY: as above.
        let span = unsafe { HostSpan::new(bytes.as_mut_ptr(), bytes.len() as u64) };
        let copy = Copy3d::linear(Side::Host(span), Side::Device(DevicePtr(at)), span.len());
        self.gpu.copy(self.stream, &copy).unwrap();
        self.gpu.stream_synchronize(self.stream).unwrap();
        bytes
    }

    fn used(&self) -> u64 {
        let (free, total) = self.device.memory_info().unwrap();
        total - free
    }

    fn come_back(&self) {
        self.swapper.allow(0);
        self.swapper
            .come_back(|_| {}, |text| panic!("{text}"), || false);
    }
}

#[test]
fn contents_survive_and_the_card_is_empty_meanwhile() {
    let bench = Bench::new();
    let before = bench.used();
    let sizes = [
        100,
        4096,
        70_000,
        MIB,
        MIB + 1,
        3 * MIB,
        CHUNK_BYTES + 5 * MIB,
    ];
    let mut random = 1_u8;
    let mut pattern = |length: usize| -> Vec<u8> {
        let next = |byte: &mut u8| {
            random = random.wrapping_mul(109).wrapping_add(89);
            *byte = random;
        };
        let mut bytes = vec![0; length];
        bytes.iter_mut().for_each(next);
        bytes
    };
    let mut held = Vec::new();
    for bytes in sizes {
        let at = bench.gpu.memory_alloc(bench.context, bytes).unwrap();
        let mut contents = pattern(bytes as usize);
        bench.write(at.0, &mut contents);
        held.push((at, contents));
    }
    for _ in 0..3 {
        let seen = std::cell::Cell::new(0);
        bench
            .swapper
            .leave(|status| seen.set(seen.get().max(status.out_bytes)))
            .unwrap();
        let status = bench.swapper.status();
        assert_eq!((status.place, status.movable_bytes), (Place::Away, 0));
        assert_eq!(status.out_bytes, seen.get());
        assert_eq!(bench.used(), before, "the card is as it was before");
        bench.come_back();
        assert_eq!(bench.gpu.store_bytes().1, 0);
        for (at, contents) in &held {
            assert!(bench.read(at.0, contents.len()) == *contents, "{at:?}");
        }
    }
    for (at, _) in held {
        bench.gpu.memory_free(bench.context, at).unwrap();
    }
    assert!(
        bench.gpu.trim() && !bench.gpu.trim(),
        "one chunk is kept for later"
    );
    assert_eq!(bench.used(), before);
}

#[test]
fn frames_of_the_program_keep_their_mappings_and_access() {
    let bench = Bench::new();
    let gpu = &bench.gpu;
    let at = gpu.address_reserve(4 * FRAME_BYTES, 0).unwrap();
    let second = DevicePtr(at.0 + 2 * FRAME_BYTES);
    let frame = gpu.frame_create(FRAME_BYTES).unwrap();
    let unmapped = gpu.frame_create(FRAME_BYTES).unwrap();
    gpu.frame_map(at, frame).unwrap();
    gpu.frame_map(second, frame).unwrap();
    gpu.frame_access(at, FRAME_BYTES, Access::ReadWrite)
        .unwrap();
    gpu.frame_access(second, FRAME_BYTES, Access::Read).unwrap();
    bench.write(at.0 + 5, &mut [1, 2, 3]);
    gpu.frame_release(frame).unwrap();
    bench.swapper.leave(|_| {}).unwrap();
    assert_eq!(bench.swapper.status().out_bytes, 2 * FRAME_BYTES);
    bench.come_back();
    assert_eq!(bench.read(second.0 + 5, 3), [1, 2, 3]);
    bench.write(at.0 + 6, &mut [9]);
    assert_eq!(
        bench.read(second.0 + 5, 3),
        [1, 9, 3],
        "one frame at two addresses"
    );
    let refused = gpu.fill(
        bench.stream,
        &mica_gpu::Fill2d {
            dst: second,
            pitch: 0,
            element_bytes: 1,
            value: 1,
            width: 4,
            height: 1,
        },
    );
    assert!(refused.is_err(), "still read-only");
    gpu.frame_unmap(at, FRAME_BYTES).unwrap();
    gpu.frame_unmap(second, FRAME_BYTES).unwrap();
    gpu.frame_release(unmapped).unwrap();
    assert_eq!(bench.swapper.status().movable_bytes, 0);
    gpu.address_free(at, 4 * FRAME_BYTES).unwrap();
}

#[test]
fn calls_wait_for_memory_that_is_away_and_say_so_once() {
    let bench = Bench::new();
    let at = bench.gpu.memory_alloc(bench.context, 2 * MIB).unwrap();
    bench.write(at.0, &mut [7]);
    bench.swapper.leave(|_| {}).unwrap();
    assert!(!bench.gpu.has_plenty_of_room(1));
    std::thread::scope(|scope| {
        let reads: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| bench.read(at.0, 1)))
            .collect();
        while bench.wanted.load(SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(bench.swapper.status().wanted);
        bench.come_back();
        for read in reads {
            assert_eq!(read.join().unwrap(), [7]);
        }
    });
    assert_eq!(bench.wanted.load(SeqCst), 1);
}

#[test]
fn memory_comes_back_no_further_than_it_is_allowed() {
    let bench = Bench::new();
    for _ in 0..4 {
        let at = bench.gpu.memory_alloc(bench.context, 4 * MIB).unwrap();
        bench.write(at.0, &mut [7]);
    }
    bench.swapper.leave(|_| {}).unwrap();
    bench.swapper.allow(10 * MIB);
    let swapper = &bench.swapper;
    std::thread::scope(|scope| {
        scope.spawn(|| swapper.come_back(|_| {}, |text| panic!("{text}"), || false));
        while swapper.status().out_bytes > 12 * MIB {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(120));
        let status = swapper.status();
        assert_eq!(
            (status.place, status.out_bytes),
            (Place::Returning, 12 * MIB)
        );
        swapper.allow(0);
    });
    assert_eq!(swapper.status().place, Place::Resident);
}

#[test]
fn the_end_of_a_session_does_not_wait_for_memory_that_is_away() {
    let bench = Bench::new();
    let before = bench.used();
    let at = bench.gpu.memory_alloc(bench.context, 2 * MIB).unwrap();
    let reserved = bench.gpu.address_reserve(FRAME_BYTES, 0).unwrap();
    let frame = bench.gpu.frame_create(FRAME_BYTES).unwrap();
    bench.gpu.frame_map(reserved, frame).unwrap();
    bench.swapper.leave(|_| {}).unwrap();
    std::thread::scope(|scope| {
        let fill = scope.spawn(|| bench.gpu.memory_alloc(bench.context, 100));
        while bench.wanted.load(SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        bench.gpu.give_up_waits();
        assert!(fill.join().unwrap().is_err());
    });
    bench.gpu.context_destroy(bench.context).unwrap();
    bench.gpu.frame_unmap(reserved, FRAME_BYTES).unwrap();
    bench.gpu.frame_release(frame).unwrap();
    bench.gpu.address_free(reserved, FRAME_BYTES).unwrap();
    let _ = at;
    assert_eq!((bench.used(), bench.gpu.store_bytes()), (before, (0, 0)));
    assert_eq!(bench.swapper.status().out_bytes, 0);
}

#[test]
fn what_another_process_has_stays_and_is_counted() {
    let bench = Bench::new();
    let shared = bench.gpu.memory_alloc(bench.context, 2 * MIB).unwrap();
    let own = bench.gpu.memory_alloc(bench.context, 2 * MIB).unwrap();
    bench.write(shared.0, &mut [3]);
    bench.write(own.0, &mut [4]);
    let (file, bytes) = bench.gpu.memory_export(bench.context, shared).unwrap();
    assert_eq!(bytes, 2 * MIB);
    bench.swapper.leave(|_| {}).unwrap();
    let status = bench.swapper.status();
    assert_eq!((status.out_bytes, status.pinned_bytes), (2 * MIB, 2 * MIB));
    bench.come_back();
    assert_eq!(
        (bench.read(shared.0, 1), bench.read(own.0, 1)),
        (vec![3], vec![4])
    );
    drop(file);
    let small = bench.gpu.memory_alloc(bench.context, 100).unwrap();
    assert!(bench.gpu.memory_export(bench.context, small).is_err());
}

#[test]
fn what_is_queued_while_memory_is_away_calls_it_back() {
    let bench = Bench::new();
    let gpu = &bench.gpu;
    gpu.memory_alloc(bench.context, 4 * MIB).unwrap();
    bench.swapper.leave(|_| {}).unwrap();
    gpu.stream_synchronize(bench.stream).unwrap();
    assert_eq!(bench.wanted.load(SeqCst), 0, "nobody waits for an idle one");
    // A callback touches no memory, and is reached only when work goes on.
    let reached = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&reached);
    let callback = Box::new(move || {
        count.fetch_add(1, SeqCst);
    });
    gpu.stream_callback(bench.stream, callback).unwrap();
    let called = bench.wanted.load(SeqCst) == 1;
    assert!(
        called || reached.load(SeqCst) == 1,
        "it waits for memory that nobody calls back"
    );
    bench.come_back();
    gpu.stream_synchronize(bench.stream).unwrap();
    assert_eq!(reached.load(SeqCst), 1);
}

/// Allocations that are more than what is on the way at a time, with a mark in each chunk.
fn marked(bench: &Bench) -> Vec<(DevicePtr, u8)> {
    let sizes = [
        3 * MIB,
        CHUNK_BYTES,
        40 * MIB,
        2 * CHUNK_BYTES + MIB,
        70_000,
    ];
    let held = sizes.iter().cycle().take(10).zip(1..);
    held.map(|(bytes, mark)| {
        let at = bench.gpu.memory_alloc(bench.context, *bytes).unwrap();
        for offset in (0..*bytes).step_by(CHUNK_BYTES as usize / 2) {
            bench.write(at.0 + offset, &mut [mark; 9]);
        }
        bench.write(at.0 + bytes - 9, &mut [mark; 9]);
        (at, mark)
    })
    .collect()
}

#[test]
fn two_devices_change_places_frame_by_frame() {
    let (one, other) = (Bench::new(), Bench::new());
    let held = [marked(&one), marked(&other)];
    other.swapper.leave(|_| {}).unwrap();
    let all = other.swapper.status().out_bytes;
    for (leaves, returns) in [(&one, &other), (&other, &one), (&one, &other)] {
        let most = std::cell::Cell::new(0);
        std::thread::scope(|scope| {
            let back = || {
                returns
                    .swapper
                    .come_back(|_| {}, |text| panic!("{text}"), || false)
            };
            let back = scope.spawn(back);
            let report = |status: mica_swap::Status| {
                let here = status.movable_bytes + returns.swapper.status().movable_bytes;
                most.set(here.max(most.get()));
                returns.swapper.allow(all - status.out_bytes);
            };
            leaves.swapper.leave(report).unwrap();
            back.join().unwrap();
        });
        assert!(most.get() <= all, "{} on a card of {all}", most.get());
        assert_eq!(leaves.swapper.status().out_bytes, all);
        assert_eq!(returns.gpu.store_bytes(), (0, 0));
    }
    one.come_back();
    for (bench, held) in [&one, &other].into_iter().zip(held) {
        for (at, mark) in held {
            let (_, bytes) = bench.gpu.memory_range(bench.context, at).unwrap();
            for offset in (0..bytes).step_by(CHUNK_BYTES as usize / 2) {
                assert_eq!(
                    bench.read(at.0 + offset, 9),
                    [mark; 9],
                    "{mark} at {offset:#x}"
                );
            }
            assert_eq!(bench.read(at.0 + bytes - 9, 9), [mark; 9]);
        }
    }
}

#[test]
fn a_session_may_end_at_any_step_of_a_move() {
    for round in 0..8_u64 {
        let bench = Bench::new();
        let before = bench.used();
        marked(&bench);
        let returns = round % 2 == 1;
        if returns {
            bench.swapper.leave(|_| {}).unwrap();
            bench.swapper.allow(0);
        }
        let steps = AtomicU32::new(0);
        let report = |_| {
            steps.fetch_add(1, SeqCst);
        };
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let moves = scope.spawn(|| match returns {
                true => {
                    let swapper = &bench.swapper;
                    swapper.come_back(report, |_| {}, || over.load(SeqCst));
                }
                false => bench.swapper.leave(report).unwrap(),
            });
            while u64::from(steps.load(SeqCst)) < 2 + 3 * round && !moves.is_finished() {
                std::thread::yield_now();
            }
            bench.gpu.give_up_waits();
            bench.gpu.context_destroy(bench.context).unwrap();
            over.store(true, SeqCst);
        });
        let left = bench.swapper.status();
        assert_eq!(
            (left.out_bytes, left.movable_bytes),
            (0, 0),
            "round {round}"
        );
        assert_eq!((bench.used(), bench.gpu.store_bytes()), (before, (0, 0)));
    }
}
