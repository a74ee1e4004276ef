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
    let store = BackingStore::new(true);
    store.grow_to(&gpu, None, CHUNK_BYTES + 1).unwrap();
    let pinned = || {
        let segments = store.segments();
        let pinned = segments.list.iter().map(|one| one.pinned);
        pinned.collect::<Vec<_>>()
    };
    assert_eq!(pinned(), [None, None]);
    store.grow_to(&gpu, Some(context), CHUNK_BYTES + 1).unwrap();
    assert_eq!(pinned(), [Some(context); 2], "and none was added");
    let pieces = store.take(Some(context), 2 * CHUNK_BYTES).unwrap();
    assert_eq!(
        store.bytes(),
        (3 * CHUNK_BYTES, 2 * CHUNK_BYTES),
        "one of the two is the stage"
    );
    store.shrink_to(&gpu, 0);
    assert_eq!(store.bytes().0, 2 * CHUNK_BYTES, "the rest is in use");
    store.give(pieces);
    assert_eq!(store.bytes(), (2 * CHUNK_BYTES, 0), "it stays");
    store.shrink_to(&gpu, 2 * CHUNK_BYTES);
    assert_eq!(store.bytes().0, 2 * CHUNK_BYTES, "as much is wanted");
    store.shrink_to(&gpu, 1);
    assert_eq!(store.bytes(), (CHUNK_BYTES, 0));
    gpu.context_destroy(context).unwrap();
    store.shrink_to(&gpu, 0);
    assert_eq!(store.bytes(), (0, 0));
}

#[test]
fn nobody_pins_on_the_way_and_what_left_is_pinned_afterwards() {
    let (gpu, context) = device();
    let context = Some(context);
    let store = BackingStore::new(true);
    store.grow_to(&gpu, context, 2 * CHUNK_BYTES).unwrap();
    assert!(store.set_hurry(true));
    let pieces = store.take(context, 3 * CHUNK_BYTES).unwrap();
    let alone: Vec<bool> = pieces
        .iter()
        .map(|one| store.copies_itself(context, one))
        .collect();
    assert_eq!(alone, [true, false, false]);
    // There is a way for one of them at a time.
    assert!(store.has_way(context, &pieces[..2]) && !store.has_way(context, &pieces[1..]));
    assert!(
        store.has_way_for(context, CHUNK_BYTES) && !store.has_way_for(context, CHUNK_BYTES + 1)
    );
    let stage = store.take_stage(context, CHUNK_BYTES).unwrap();
    assert!(store.copies_itself(context, &stage));
    assert!(
        store.take_stage(context, FRAME_BYTES).is_none(),
        "all of it is in use"
    );
    assert!(!store.has_way(context, &pieces[1..2]));
    store.give(vec![stage]);
    store.grow_to(&gpu, context, 9 * CHUNK_BYTES).unwrap();
    assert_eq!(store.bytes().0, 4 * CHUNK_BYTES, "memory moves");
    assert!(!store.copies_itself(context, &pieces[1]));
    assert!(store.set_hurry(false) && !store.set_hurry(false));
    store.grow_to(&gpu, context, 9 * CHUNK_BYTES).unwrap();
    assert_eq!(store.bytes(), (9 * CHUNK_BYTES, 3 * CHUNK_BYTES));
    assert!(pieces.iter().all(|one| store.copies_itself(context, one)));
    let stages = store.segments().list.iter().filter(|one| one.stage).count();
    assert_eq!(stages, STAGE_SEGMENTS);
    assert!(store.has_way(context, &pieces));
    // Of a context that is gone nothing is pinned.
    assert!(!store.copies_itself(None, &pieces[0]));
    store.give(pieces);
}

#[test]
fn whoever_needs_room_does_not_wait_for_the_thread_that_makes_it_ahead() {
    let (gpu, context) = device();
    let store = BackingStore::new(true);
    let (gpu, store) = (&gpu, &store);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Once at least: on a busy machine the rounds may be over before this thread begins.
            loop {
                let is_last = stop.load(SeqCst);
                store.grow_to(gpu, Some(context), 3 * CHUNK_BYTES).unwrap();
                if is_last {
                    break;
                }
                std::thread::yield_now();
            }
        });
        for round in 0..20 {
            store.set_hurry(round % 2 == 0);
            let sizes = [FRAME_BYTES, CHUNK_BYTES, 5 * FRAME_BYTES];
            let take = |bytes: &u64| store.take(Some(context), *bytes).unwrap();
            let taken: Vec<Vec<Piece>> = sizes.iter().map(take).collect();
            let mut spans: Vec<_> = (taken.iter().flatten())
                .map(|piece| store.span(piece).unwrap())
                .map(|span| (span.as_ptr() as u64, span.len()))
                .collect();
            spans.sort_unstable();
            for pair in spans.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "two pieces overlap");
            }
            taken.into_iter().for_each(|pieces| store.give(pieces));
        }
        stop.store(true, SeqCst);
    });
    let (held, used) = store.bytes();
    assert_eq!(used, 0);
    // Three at most hold what is taken at a time, and not one of the three belongs to the stage if the taker made them.
    let expected = 3 * CHUNK_BYTES..=6 * CHUNK_BYTES;
    assert!(expected.contains(&held), "{held}");
}

#[test]
fn pieces_of_any_size_take_no_more_than_they_hold() {
    let (_gpu, context) = device();
    let store = BackingStore::new(false);
    let mut taken = Vec::new();
    for frames in [20, 11, 1] {
        let pieces = store.take(Some(context), frames * FRAME_BYTES);
        taken.push(pieces.unwrap());
    }
    assert_eq!(store.bytes(), (CHUNK_BYTES, CHUNK_BYTES));
    let lengths: Vec<Vec<u64>> = (taken.iter())
        .map(|pieces| pieces.iter().map(|one| one.bytes / FRAME_BYTES).collect())
        .collect();
    assert_eq!(lengths, [vec![16, 4], vec![8, 2, 1], vec![1]]);
    taken.into_iter().for_each(|pieces| store.give(pieces));
    assert_eq!(store.bytes(), (0, 0));
}
