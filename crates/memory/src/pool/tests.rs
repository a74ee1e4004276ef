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
        let freed = self.pool.free(address).unwrap();
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
fn pieces_never_overlap_and_the_last_one_takes_its_chunk_with_it() {
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
            assert_eq!(grown.pool.free(at), None, "twice");
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
    assert_eq!(grown.pool.figures(), Figures::default());
}

#[test]
fn owners_share_no_chunk_and_an_owners_end_frees_all_of_it() {
    let mut grown = Grown::new();
    let mine: Vec<u64> = [100, 5000, 300_000]
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
        assert_eq!(grown.pool.free(wrong), None, "{wrong:#x}");
    }
    assert_eq!(
        grown.pool.find(small + 1000),
        None,
        "behind what was asked for"
    );
    assert!(grown.pool.place(1, 0).is_none() && grown.pool.place(1, LARGEST_BYTES + 1).is_none());
}
