use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use mica_backend_software::{Config, SoftwareGpu};

use super::*;

fn device() -> (SoftwareGpu, ContextId) {
    let config = Config {
        memory_bytes: Some(64 << 20),
        workers: Some(1),
        ..Config::default()
    };
    let gpu = SoftwareGpu::new(config).unwrap();
    let context = gpu.context_create().unwrap();
    (gpu, context)
}

#[test]
fn memory_that_stands_ready_is_pinned_when_there_is_a_context() {
    let (gpu, context) = device();
    let arena = Arena::new(true);
    arena.grow_to(&gpu, None, CHUNK_BYTES + 1).unwrap();
    let pinned = || {
        let segments = arena.segments();
        let pinned = segments.list.iter().map(|one| one.pinned);
        pinned.collect::<Vec<_>>()
    };
    assert_eq!(pinned(), [None, None]);
    arena.grow_to(&gpu, Some(context), CHUNK_BYTES + 1).unwrap();
    assert_eq!(pinned(), [Some(context); 2], "and none was added");
    let pieces = arena.take(&gpu, Some(context), 2 * CHUNK_BYTES).unwrap();
    assert_eq!(arena.bytes(), (2 * CHUNK_BYTES, 2 * CHUNK_BYTES));
    arena.shrink_to(&gpu, 0);
    assert_eq!(arena.bytes().0, 2 * CHUNK_BYTES, "all of it is in use");
    arena.give(pieces);
    assert_eq!(arena.bytes(), (2 * CHUNK_BYTES, 0), "it stays");
    arena.shrink_to(&gpu, 2 * CHUNK_BYTES);
    assert_eq!(arena.bytes().0, 2 * CHUNK_BYTES, "as much is wanted");
    arena.shrink_to(&gpu, 1);
    assert_eq!(arena.bytes(), (CHUNK_BYTES, 0));
    gpu.context_destroy(context).unwrap();
    arena.shrink_to(&gpu, 0);
    assert_eq!(arena.bytes(), (0, 0));
}

#[test]
fn whoever_needs_room_does_not_wait_for_the_thread_that_makes_it_ahead() {
    let (gpu, context) = device();
    let arena = Arena::new(true);
    let (gpu, arena) = (&gpu, &arena);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Once at least: on a busy machine the rounds may be over before this thread begins.
            loop {
                let is_last = stop.load(SeqCst);
                arena.grow_to(gpu, Some(context), 3 * CHUNK_BYTES).unwrap();
                if is_last {
                    break;
                }
                std::thread::yield_now();
            }
        });
        for round in 0..20 {
            arena.set_hurry(round % 2 == 0);
            let sizes = [FRAME_BYTES, CHUNK_BYTES, 5 * FRAME_BYTES];
            let take = |bytes: &u64| arena.take(gpu, Some(context), *bytes).unwrap();
            let taken: Vec<Vec<Piece>> = sizes.iter().map(take).collect();
            let mut spans: Vec<_> = (taken.iter().flatten())
                .map(|piece| arena.span(piece).unwrap())
                .map(|span| (span.as_ptr() as u64, span.len()))
                .collect();
            spans.sort_unstable();
            for pair in spans.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "two pieces overlap");
            }
            taken.into_iter().for_each(|pieces| arena.give(pieces));
        }
        stop.store(true, SeqCst);
    });
    let (held, used) = arena.bytes();
    assert_eq!((used, arena.segments().coming), (0, 0));
    let expected = 3 * CHUNK_BYTES..=6 * CHUNK_BYTES;
    assert!(expected.contains(&held), "{held}");
}

#[test]
fn pieces_of_any_size_take_no_more_than_they_hold() {
    let (gpu, context) = device();
    let arena = Arena::new(false);
    let mut taken = Vec::new();
    for frames in [20, 11, 1] {
        let pieces = arena.take(&gpu, Some(context), frames * FRAME_BYTES);
        taken.push(pieces.unwrap());
    }
    assert_eq!(arena.bytes(), (CHUNK_BYTES, CHUNK_BYTES));
    let lengths: Vec<Vec<u64>> = (taken.iter())
        .map(|pieces| pieces.iter().map(|one| one.bytes / FRAME_BYTES).collect())
        .collect();
    assert_eq!(lengths, [vec![16, 4], vec![8, 2, 1], vec![1]]);
    taken.into_iter().for_each(|pieces| arena.give(pieces));
    assert_eq!(arena.bytes(), (0, 0));
}
