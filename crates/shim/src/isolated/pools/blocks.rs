//! The memory of a pool: chunks that the worker allocated, cut into blocks here.
//!
//! A block that was freed on a stream can be used at once by later work of that stream, and by everybody once the
//! stream has been waited for. So allocating and freeing in stream order needs no word to the worker; only a chunk
//! does. What a pool keeps beyond its threshold goes back when a stream is waited for.
//!
//! Pure bookkeeping: it calls nobody, and addresses are numbers.

use std::collections::BTreeMap;

/// Blocks begin and end at multiples of this.
pub(crate) const ALIGN: u64 = 512;
/// Chunks are multiples of this: what the driver hands out at least.
const CHUNK_STEP: u64 = 2 << 20;
/// Small blocks come from chunks of this size, so that one request to the worker serves many of them.
const SMALL_CHUNK: u64 = 32 << 20;

/// Until when a free block belongs to a stream: `frees` counts what was freed on the stream up to this block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    stream: u64,
    frees: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Free {
    bytes: u64,
    /// `None` if everybody may use it.
    held: Option<Held>,
}

#[derive(Debug)]
struct Chunk {
    bytes: u64,
    /// Free blocks by address.
    free: BTreeMap<u64, Free>,
}

impl Chunk {
    fn is_free_for_all(&self) -> bool {
        let mut blocks = self.free.values();
        matches!((blocks.next(), blocks.next()), (Some(only), None) if only.bytes == self.bytes && only.held.is_none())
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct StreamFrees {
    /// Blocks freed on it so far.
    made: u64,
    /// How many of these it has passed.
    passed: u64,
}

/// The memory of one pool in one context.
#[derive(Debug, Default)]
pub(crate) struct PoolMemory {
    chunks: BTreeMap<u64, Chunk>,
    streams: BTreeMap<u64, StreamFrees>,
    used: u64,
}

/// Bytes of the block for a request; `None` if there are not so many.
pub(crate) fn block_bytes(bytes: u64) -> Option<u64> {
    bytes.max(1).checked_next_multiple_of(ALIGN)
}

/// Bytes of the chunk to ask for when no block of `bytes` is free.
pub(crate) fn chunk_bytes(bytes: u64) -> Option<u64> {
    match bytes <= SMALL_CHUNK / 8 {
        true => Some(SMALL_CHUNK),
        false => bytes.checked_next_multiple_of(CHUNK_STEP),
    }
}

/// The smallest chunk that holds a block of `bytes`.
pub(crate) fn least_chunk_bytes(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(CHUNK_STEP)
}

impl PoolMemory {
    /// Takes a block of `bytes`, a multiple of [`ALIGN`], for a stream: the smallest that fits.
    pub(crate) fn take(&mut self, bytes: u64, stream: u64) -> Option<u64> {
        let usable = |free: &Free| {
            let mine = free.held.is_none_or(|held| held.stream == stream);
            mine && free.bytes >= bytes
        };
        let all = self.chunks.values_mut().flat_map(|chunk| {
            let best = chunk.free.iter().filter(|(_, free)| usable(free));
            best.min_by_key(|(_, free)| free.bytes)
                .map(|(address, free)| (*address, *free))
        });
        let (address, free) = all.min_by_key(|(_, free)| free.bytes)?;
        let chunk = self.chunk_of(address)?;
        chunk.free.remove(&address);
        if free.bytes > bytes {
            let rest = Free {
                bytes: free.bytes - bytes,
                held: free.held,
            };
            chunk.free.insert(address + bytes, rest);
        }
        self.used += bytes;
        Some(address)
    }

    /// Adds a chunk, free for everybody.
    pub(crate) fn add_chunk(&mut self, address: u64, bytes: u64) {
        let free = BTreeMap::from([(address, Free { bytes, held: None })]);
        self.chunks.insert(address, Chunk { bytes, free });
    }

    /// Gives a block back in the order of a stream.
    pub(crate) fn give(&mut self, address: u64, bytes: u64, stream: u64) {
        let frees = self.streams.entry(stream).or_default();
        frees.made += 1;
        let frees = frees.made;
        self.put_back(address, bytes, Some(Held { stream, frees }));
    }

    /// Gives a block back that no work uses any more.
    pub(crate) fn give_idle(&mut self, address: u64, bytes: u64) {
        self.put_back(address, bytes, None);
    }

    /// How many blocks were freed on a stream: what to pass to [`PoolMemory::passed`] after a wait that begins now.
    pub(crate) fn frees_of(&self, stream: u64) -> u64 {
        self.streams.get(&stream).map_or(0, |frees| frees.made)
    }

    /// The same for all streams.
    pub(crate) fn all_frees(&self) -> Vec<(u64, u64)> {
        let frees = self.streams.iter();
        frees.map(|(stream, frees)| (*stream, frees.made)).collect()
    }

    /// A stream has passed its first `frees` frees: these blocks are everybody's.
    pub(crate) fn passed(&mut self, stream: u64, frees: u64) {
        match self.streams.get_mut(&stream) {
            Some(known) if known.passed < frees => known.passed = frees,
            _ => return,
        }
        self.let_go(|held| held.stream == stream && held.frees <= frees);
    }

    /// All work of the context is done.
    #[cfg(test)]
    fn all_passed(&mut self) {
        for frees in self.streams.values_mut() {
            frees.passed = frees.made;
        }
        self.let_go(|_| true);
    }

    /// Takes out chunks that nobody uses while more than `keep` bytes are reserved.
    pub(crate) fn trim(&mut self, keep: u64) -> Vec<u64> {
        let mut reserved = self.reserved();
        let mut gone = Vec::new();
        self.chunks.retain(|address, chunk| {
            let stays = reserved <= keep || !chunk.is_free_for_all();
            if !stays {
                reserved -= chunk.bytes;
                gone.push(*address);
            }
            stays
        });
        gone
    }

    /// Bytes in blocks that are in use.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// First address of the chunk that a block is in.
    pub(crate) fn chunk_start(&self, address: u64) -> Option<u64> {
        let (start, chunk) = self.chunks.range(..=address).next_back()?;
        (address - start < chunk.bytes).then_some(*start)
    }

    /// Bytes of all chunks.
    pub(crate) fn reserved(&self) -> u64 {
        self.chunks.values().map(|chunk| chunk.bytes).sum()
    }

    fn chunk_of(&mut self, address: u64) -> Option<&mut Chunk> {
        let (start, chunk) = self.chunks.range_mut(..=address).next_back()?;
        (address - start < chunk.bytes).then_some(chunk)
    }

    fn put_back(&mut self, address: u64, bytes: u64, held: Option<Held>) {
        self.used = self.used.saturating_sub(bytes);
        let Some(chunk) = self.chunk_of(address) else {
            return;
        };
        chunk.free.insert(address, Free { bytes, held });
        join(&mut chunk.free, address);
    }

    fn let_go(&mut self, mut whose: impl FnMut(&Held) -> bool) {
        for chunk in self.chunks.values_mut() {
            let mut freed = Vec::new();
            for (address, free) in &mut chunk.free {
                if free.held.as_ref().is_some_and(&mut whose) {
                    free.held = None;
                    freed.push(*address);
                }
            }
            for address in freed {
                join(&mut chunk.free, address);
            }
        }
    }
}

/// Joins a free block with its neighbours, where the same may use them.
fn join(free: &mut BTreeMap<u64, Free>, address: u64) {
    let Some(mut block) = free.get(&address).copied() else {
        // Joined with the block before it already.
        return;
    };
    let mut start = address;
    let together = |a: Option<Held>, b: Option<Held>| match (a, b) {
        (None, None) => Some(None),
        (Some(a), Some(b)) if a.stream == b.stream => Some(Some(Held {
            stream: a.stream,
            frees: a.frees.max(b.frees),
        })),
        _ => None,
    };
    if let Some((&before, &first)) = free.range(..start).next_back()
        && before + first.bytes == start
        && let Some(held) = together(first.held, block.held)
    {
        free.remove(&start);
        block = Free {
            bytes: first.bytes + block.bytes,
            held,
        };
        start = before;
    }
    // More than one, if several were let go of at once.
    while let after = start + block.bytes
        && let Some(&next) = free.get(&after)
        && let Some(held) = together(block.held, next.held)
    {
        free.remove(&after);
        block = Free {
            bytes: block.bytes + next.bytes,
            held,
        };
    }
    free.insert(start, block);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pool() -> PoolMemory {
        let mut pool = PoolMemory::default();
        pool.add_chunk(64 * MIB, 2 * MIB);
        pool
    }

    #[test]
    fn a_block_freed_on_a_stream_is_that_streams_until_it_was_waited_for() {
        let mut pool = pool();
        let block = pool.take(2 * MIB, 1).unwrap();
        pool.give(block, 2 * MIB, 1);
        assert_eq!(pool.take(MIB, 2), None);
        assert_eq!(pool.take(MIB, 1), Some(block));
        pool.give(block, MIB, 1);
        let frees = pool.frees_of(1);
        pool.passed(1, frees);
        assert_eq!(pool.take(2 * MIB, 2), Some(block));
        assert_eq!((pool.used(), pool.reserved()), (2 * MIB, 2 * MIB));
    }

    #[test]
    fn a_wait_that_began_before_a_free_says_nothing_about_it() {
        let mut pool = pool();
        let block = pool.take(2 * MIB, 1).unwrap();
        let frees = pool.frees_of(1);
        pool.give(block, 2 * MIB, 1);
        pool.passed(1, frees);
        assert_eq!(pool.take(MIB, 2), None);
    }

    #[test]
    fn chunks_go_back_when_nobody_uses_them() {
        let mut pool = pool();
        pool.add_chunk(128 * MIB, 2 * MIB);
        let block = pool.take(MIB, 1).unwrap();
        assert_eq!(pool.trim(0).len(), 1);
        pool.give(block, MIB, 1);
        assert!(pool.trim(0).is_empty());
        pool.all_passed();
        assert_eq!(pool.trim(2 * MIB), []);
        assert_eq!(pool.trim(0).len(), 1);
        assert_eq!((pool.used(), pool.reserved()), (0, 0));
    }

    /// Random blocks on three streams: no two overlap, none is handed to a stream that must not have it, and all
    /// comes together again.
    #[test]
    fn random_use_never_hands_out_a_byte_twice() {
        let mut seed = 7_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut pool = PoolMemory::default();
        pool.add_chunk(64 * MIB, 4 * MIB);
        pool.add_chunk(68 * MIB, 4 * MIB);
        let mut live: Vec<(u64, u64)> = Vec::new();
        for _ in 0..20_000 {
            let stream = random() % 3;
            if random() % 2 == 0 {
                let bytes = block_bytes(random() % (MIB / 2)).unwrap();
                if let Some(block) = pool.take(bytes, stream) {
                    let apart = |(at, len): &(u64, u64)| block + bytes <= *at || at + len <= block;
                    assert!(live.iter().all(apart));
                    live.push((block, bytes));
                }
            } else if !live.is_empty() {
                let (block, bytes) = live.swap_remove(random() as usize % live.len());
                pool.give(block, bytes, stream);
            }
            if random() % 50 == 0 {
                let frees = pool.frees_of(stream);
                pool.passed(stream, frees);
            }
            let used: u64 = live.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(pool.used(), used);
        }
        for (block, bytes) in live {
            pool.give(block, bytes, 0);
        }
        pool.all_passed();
        assert_eq!(pool.trim(0).len(), 2);
    }
}
