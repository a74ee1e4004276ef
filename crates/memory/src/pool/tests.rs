use super::*;

/// A pool with a device that has chunks without end.
struct Grown {
    pool: Pool,
    next: u64,
    held: BTreeSet<u64>,
}

impl Grown {
    fn new() -> Self {
        Self {
            pool: Pool::new(),
            next: FRAME_BYTES,
            held: BTreeSet::new(),
        }
    }

    fn alloc(&mut self, owner: u64, bytes: u64) -> u64 {
        if let Some(at) = self.pool.place(owner, bytes) {
            return at;
        }
        let base = self.next;
        self.next += 2 * FRAME_BYTES;
        self.held.insert(base);
        self.pool.add_chunk(owner, bytes, base);
        self.pool.place(owner, bytes).unwrap()
    }

    fn free(&mut self, address: u64) -> u64 {
        let (_, _, owner) = self.pool.find(address).unwrap();
        assert_eq!(self.pool.free(owner + 1, address), None, "another's");
        let freed = self.pool.free(owner, address).unwrap();
        if let Some(base) = freed.empty_chunk {
            assert!(self.held.remove(&base));
        }
        freed.bytes
    }
}

fn random(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

#[test]
fn classes_waste_an_eighth_at_most() {
    for bytes in 1..=SLAB_BYTES {
        let class = class_of(bytes).unwrap();
        assert!(class >= bytes && class.is_multiple_of(STEP_BYTES));
        assert!(
            class - bytes < STEP_BYTES.max(bytes / 8 + 1),
            "{bytes} {class}"
        );
    }
    assert_eq!(class_of(SLAB_BYTES + 1), None);
}

#[test]
fn pieces_never_overlap_and_an_owner_keeps_one_empty_chunk() {
    let (mut grown, mut random) = (Grown::new(), random(3));
    let mut live: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for round in 0..30_000 {
        if random() % 100 < 52 && round < 28_000 {
            let owner = random() % 3;
            let bytes = match random() % 4 {
                0 => 1 + random() % 512,
                1 => 1 + random() % SLAB_BYTES,
                2 => 1 + random() % LARGEST_BYTES,
                _ => 1 << (random() % 20),
            };
            let at = grown.alloc(owner, bytes);
            assert!(at.is_multiple_of(STEP_BYTES));
            let before = live.range(..=at).next_back();
            assert!(before.is_none_or(|(start, (length, _))| start + length <= at));
            assert!(live.range(at..at + bytes).next().is_none());
            live.insert(at, (bytes, owner));
        } else if let Some((&at, &(bytes, owner))) =
            live.iter().nth(random() as usize % live.len().max(1))
        {
            assert_eq!(
                grown.pool.find(at + random() % bytes),
                Some((at, bytes, owner))
            );
            assert_eq!(grown.free(at), bytes);
            assert_eq!(grown.pool.free(owner, at), None, "twice");
            live.remove(&at);
        }
        let figures = grown.pool.figures();
        assert_eq!(figures.held_bytes, grown.held.len() as u64 * FRAME_BYTES);
        assert_eq!(figures.pieces, live.len() as u64);
    }
    let asked: u64 = live.values().map(|(bytes, _)| bytes).sum();
    assert_eq!(grown.pool.figures().asked_bytes, asked);
    for at in live.into_keys() {
        grown.free(at);
    }
    assert_eq!(
        grown.pool.figures().held_bytes,
        3 * FRAME_BYTES,
        "one an owner"
    );
    for base in grown.pool.trim() {
        assert!(grown.held.remove(&base));
    }
    assert_eq!(grown.pool.figures(), Figures::default());
    assert!(grown.held.is_empty());
}

#[test]
fn an_empty_chunk_serves_requests_of_any_size() {
    let mut grown = Grown::new();
    for bytes in [100, 4096, 60_000, 500_000, LARGEST_BYTES] {
        for _ in 0..3 {
            let at = grown.alloc(1, bytes);
            assert_eq!(grown.pool.find(at), Some((at, bytes, 1)));
            assert_eq!(grown.free(at), bytes);
        }
    }
    assert_eq!(grown.held.len(), 1);
    assert_eq!(grown.pool.trim().len(), 1);
    assert!(grown.pool.trim().is_empty());
}

#[test]
fn owners_share_no_chunk_and_an_owners_end_frees_all_of_it() {
    let mut grown = Grown::new();
    let mine: Vec<u64> = [100, 3000, 300_000]
        .map(|bytes| grown.alloc(1, bytes))
        .into();
    let theirs = grown.alloc(2, 100);
    assert!(mine.iter().all(|at| chunk_of(*at) != chunk_of(theirs)));
    let mut bases = grown.pool.free_all(1);
    bases.sort_unstable();
    assert_eq!(
        bases,
        mine.iter().map(|at| chunk_of(*at)).collect::<Vec<_>>()
    );
    assert_eq!(grown.pool.find(mine[0]), None);
    assert_eq!(grown.pool.find(theirs), Some((theirs, 100, 2)));
    assert_eq!(grown.pool.figures().pieces, 1);
}

#[test]
fn addresses_that_are_no_piece_are_refused() {
    let mut grown = Grown::new();
    let (small, middle) = (grown.alloc(1, 1000), grown.alloc(1, 200_000));
    for wrong in [small + 1, small + 1024, middle + 4096, 0, u64::MAX] {
        assert_eq!(grown.pool.free(1, wrong), None, "{wrong:#x}");
    }
    assert_eq!(
        grown.pool.find(small + 1000),
        None,
        "behind what was asked for"
    );
    assert!(grown.pool.place(1, 0).is_none() && grown.pool.place(1, LARGEST_BYTES + 1).is_none());
}

#[test]
fn a_request_gets_the_smallest_gap_of_all_rooms() {
    let mut grown = Grown::new();
    let held: Vec<u64> = (0..8).map(|_| grown.alloc(1, 500_000)).collect();
    assert_eq!(grown.held.len(), 2, "two rooms of four");
    grown.free(held[1]);
    grown.free(held[6]);
    grown.free(held[7]);
    assert_eq!(grown.alloc(1, 400_000), held[1]);
    assert_eq!(grown.alloc(1, 900_000), held[6]);
    assert_eq!(grown.held.len(), 2);
    let figures = grown.pool.figures();
    assert!(figures.largest_free_bytes < 200_000, "{figures:?}");
}
