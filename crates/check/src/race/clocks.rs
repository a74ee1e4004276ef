//! What each thread of a block knows of the others: vector clocks, shared by the threads that met last.
//!
//! The epoch of a thread grows when others may learn of what the thread did. An access of thread `u` in
//! epoch `e` happened before the next access of thread `t` if `t` knows of epoch `e` of `u`.

use std::collections::HashMap;
use std::sync::Arc;

use mica_kernel::monitor::ThreadSet;

/// Epochs of the threads of one block, by thread.
type Epochs = Arc<Vec<u32>>;
/// Epochs of threads of other blocks, by block.
type Foreign = Arc<HashMap<u32, Epochs>>;

/// Largest epoch that is remembered with an access; a block that needs more is not watched any further.
pub(crate) const LAST_EPOCH: u32 = (1 << 22) - 1;

/// Other blocks that a thread can know of: each of a block's threads may know of others than its neighbours.
pub(crate) const MOST_FOREIGN: usize = 16_384;

/// What a thread knows.
#[derive(Clone, Debug)]
struct Known {
    own: Epochs,
    foreign: Option<Foreign>,
}

impl Known {
    fn join(&mut self, other: &Known) -> bool {
        join_epochs(&mut self.own, &other.own);
        join_foreign(&mut self.foreign, &other.foreign)
    }
}

fn join_epochs(into: &mut Epochs, from: &Epochs) {
    if Arc::ptr_eq(into, from) || into.iter().zip(&**from).all(|(a, b)| a >= b) {
        return;
    }
    let joined = into.iter().zip(&**from).map(|(a, b)| *a.max(b));
    *into = Arc::new(joined.collect());
}

/// False if there is no room for all.
fn join_foreign(into: &mut Option<Foreign>, from: &Option<Foreign>) -> bool {
    let Some(from) = from else { return true };
    match into {
        None => *into = Some(Arc::clone(from)),
        Some(own) if Arc::ptr_eq(own, from) => {}
        Some(own) => {
            let own = Arc::make_mut(own);
            for (block, epochs) in &**from {
                if let Some(known) = own.get_mut(block) {
                    join_epochs(known, epochs);
                } else if own.len() < MOST_FOREIGN {
                    own.insert(*block, Arc::clone(epochs));
                } else {
                    return false;
                }
            }
        }
    }
    true
}

/// What strong writes have released, by address.
#[derive(Debug, Default)]
pub(crate) struct SyncClocks {
    clocks: HashMap<u64, SyncClock>,
    version: u64,
    held_bytes: u64,
    is_lost: bool,
}

#[derive(Debug, Default)]
struct SyncClock {
    blocks: HashMap<u32, Epochs>,
    version: u64,
}

/// Host bytes of an entry of a map besides its value.
const ENTRY_BYTES: u64 = 64;

impl SyncClocks {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Host bytes that the clocks take, about.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Drops all clocks for want of memory. From then on nobody knows which accesses are ordered.
    pub(crate) fn lose(&mut self) {
        self.clear();
        self.is_lost = true;
    }

    /// Whether clocks were dropped.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Adds what a block's thread released to the clock of an address.
    fn release(&mut self, address: u64, block: u32, released: &Known) {
        if self.is_lost {
            return;
        }
        self.version += 1;
        let mut held = 0;
        let clock = self.clocks.entry(address).or_insert_with(|| {
            held += ENTRY_BYTES;
            SyncClock::default()
        });
        clock.version = self.version;
        let foreign = released.foreign.iter().flat_map(|f| f.iter());
        for (block, epochs) in std::iter::once((&block, &released.own)).chain(foreign) {
            match clock.blocks.get_mut(block) {
                Some(known) => join_epochs(known, epochs),
                None => {
                    held += ENTRY_BYTES + size_of_val(&epochs[..]) as u64;
                    clock.blocks.insert(*block, Arc::clone(epochs));
                }
            }
        }
        self.held_bytes += held;
    }
}

/// The threads of one block.
#[derive(Debug)]
pub(crate) struct Clocks {
    block: u32,
    epochs: Vec<u32>,
    known: Vec<Known>,
    /// What a fence of the thread has made ready for release by a later strong write.
    fenced: Vec<Option<Known>>,
    /// The last version of a released clock that the thread acquired: address and version.
    acquired: Vec<(u64, u64)>,
    /// What arrivals at the named barriers have released.
    arrivals: [Option<Known>; 16],
    /// Whether a thread would have to know of more than there is room for: nobody knows any more which accesses are ordered.
    is_full: bool,
}

impl Clocks {
    /// A block in which nobody knows anything of the others.
    pub(crate) fn new(block: u32, threads: u32) -> Self {
        let threads = threads as usize;
        let nothing = Known {
            own: Arc::new(vec![0; threads]),
            foreign: None,
        };
        Self {
            block,
            epochs: vec![1; threads],
            known: vec![nothing; threads],
            fenced: vec![None; threads],
            acquired: vec![(0, 0); threads],
            arrivals: Default::default(),
            is_full: false,
        }
    }

    /// The epoch of a thread; `None` where there are too many to remember, or a thread knows of too many blocks.
    pub(crate) fn epoch(&self, thread: u32) -> Option<u32> {
        let epoch = *self.epochs.get(thread as usize)?;
        (epoch <= LAST_EPOCH && !self.is_full).then_some(epoch)
    }

    /// Whether a thread knows of an epoch of another.
    pub(crate) fn knows(&self, thread: u32, block: u32, other: u32, epoch: u32) -> bool {
        let Some(known) = self.known.get(thread as usize) else {
            return true;
        };
        let epochs = match block == self.block {
            true if other == thread => return true,
            true => Some(&known.own),
            false => known.foreign.as_ref().and_then(|f| f.get(&block)),
        };
        epochs.is_some_and(|e| e.get(other as usize).is_some_and(|e| epoch <= *e))
    }

    /// What a thread knows, with its own epoch; nobody shares its later accesses.
    fn release(&mut self, thread: usize) -> Known {
        let mut known = self.known[thread].clone();
        let own = Arc::make_mut(&mut known.own);
        own[thread] = self.epochs[thread];
        self.epochs[thread] = self.epochs[thread].saturating_add(1);
        known
    }

    /// Threads that met know of all that each of them did or knew.
    pub(crate) fn meet(&mut self, threads: &ThreadSet) {
        self.meet_with(threads, None);
    }

    fn meet_with(&mut self, threads: &ThreadSet, also: Option<Known>) {
        let mut members = threads.iter().filter(|t| (*t as usize) < self.epochs.len());
        let Some(first) = members.next() else { return };
        let mut all = self.known[first as usize].clone();
        if let Some(also) = &also {
            self.is_full |= !all.join(also);
        }
        for t in members {
            self.is_full |= !all.join(&self.known[t as usize]);
        }
        let own = Arc::make_mut(&mut all.own);
        for t in threads.iter().map(|t| t as usize) {
            if let Some(epoch) = self.epochs.get_mut(t) {
                own[t] = *epoch;
                *epoch = epoch.saturating_add(1);
            }
        }
        for t in threads.iter().map(|t| t as usize) {
            if let Some(known) = self.known.get_mut(t) {
                *known = all.clone();
            }
        }
    }

    /// A thread arrives at a barrier without waiting.
    pub(crate) fn arrive(&mut self, barrier: u32, thread: u32) {
        if thread as usize >= self.epochs.len() {
            return;
        }
        let released = self.release(thread as usize);
        match &mut self.arrivals[barrier as usize & 15] {
            Some(known) => self.is_full |= !known.join(&released),
            none => *none = Some(released),
        }
    }

    /// A barrier opens.
    pub(crate) fn barrier(&mut self, barrier: u32, waiting: &ThreadSet) {
        let arrived = self.arrivals[barrier as usize & 15].take();
        self.meet_with(waiting, arrived);
    }

    /// A fence of a thread.
    pub(crate) fn fence(&mut self, thread: u32) {
        if (thread as usize) < self.epochs.len() {
            let released = self.release(thread as usize);
            self.fenced[thread as usize] = Some(released);
        }
    }

    /// A strong write: whoever reads it later knows what the thread had done before its last fence, or
    /// before the write if the write itself releases.
    pub(crate) fn write(
        &mut self,
        sync: &mut SyncClocks,
        address: u64,
        thread: u32,
        release: bool,
    ) {
        let t = thread as usize;
        if t >= self.epochs.len() {
            return;
        }
        let released = match release {
            true => Some(self.release(t)),
            false => self.fenced[t].clone(),
        };
        if let Some(released) = released {
            sync.release(address, self.block, &released);
        }
    }

    /// A strong read.
    pub(crate) fn read(&mut self, sync: &SyncClocks, address: u64, thread: u32) {
        let t = thread as usize;
        let Some(clock) = sync.clocks.get(&address) else {
            return;
        };
        if t >= self.epochs.len() || self.acquired[t] == (address, clock.version) {
            return;
        }
        self.acquired[t] = (address, clock.version);
        let known = &mut self.known[t];
        for (block, epochs) in &clock.blocks {
            if *block == self.block {
                join_epochs(&mut known.own, epochs);
            } else {
                let one = Arc::new(HashMap::from([(*block, Arc::clone(epochs))]));
                self.is_full |= !join_foreign(&mut known.foreign, &Some(one));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(threads: u32) -> ThreadSet {
        ThreadSet::first(threads)
    }

    #[test]
    fn a_barrier_orders_what_came_before_it() {
        let mut clocks = Clocks::new(0, 64);
        let before = clocks.epoch(3).unwrap();
        assert!(!clocks.knows(5, 0, 3, before));
        clocks.barrier(0, &all(64));
        assert!(clocks.knows(5, 0, 3, before));
        assert!(!clocks.knows(5, 0, 3, clocks.epoch(3).unwrap()));
        assert!(clocks.knows(3, 0, 3, clocks.epoch(3).unwrap()));
    }

    #[test]
    fn a_barrier_of_some_orders_only_them() {
        let mut clocks = Clocks::new(0, 64);
        let epoch = clocks.epoch(1).unwrap();
        clocks.meet(&ThreadSet::of_warp(0, 0b11));
        assert!(clocks.knows(0, 0, 1, epoch));
        assert!(!clocks.knows(2, 0, 1, epoch));
        // Thread 0 passes on what it learned.
        clocks.meet(&ThreadSet::of_warp(0, 0b101));
        assert!(clocks.knows(2, 0, 1, epoch));
    }

    #[test]
    fn an_arrival_releases_and_does_not_acquire() {
        let mut clocks = Clocks::new(0, 64);
        let (producer, consumer) = (clocks.epoch(0).unwrap(), clocks.epoch(40).unwrap());
        clocks.arrive(1, 0);
        clocks.barrier(1, &ThreadSet::of_warp(1, u32::MAX));
        assert!(clocks.knows(40, 0, 0, producer));
        assert!(!clocks.knows(0, 0, 40, consumer));
    }

    #[test]
    fn a_fence_before_a_strong_write_orders_blocks() {
        let mut sync = SyncClocks::default();
        let (mut a, mut b) = (Clocks::new(0, 32), Clocks::new(1, 32));
        let epoch = a.epoch(7).unwrap();
        a.write(&mut sync, 64, 7, false);
        b.read(&sync, 64, 0);
        assert!(!b.knows(0, 0, 7, epoch), "no fence");
        a.fence(7);
        a.write(&mut sync, 64, 7, false);
        let later = a.epoch(7).unwrap();
        b.read(&sync, 64, 0);
        assert!(b.knows(0, 0, 7, epoch) && !b.knows(0, 0, 7, later));
        b.barrier(0, &all(32));
        assert!(b.knows(31, 0, 7, epoch), "the barrier passes it on");
    }

    #[test]
    fn a_releasing_write_needs_no_fence() {
        let mut sync = SyncClocks::default();
        let (mut a, mut b) = (Clocks::new(0, 32), Clocks::new(1, 32));
        let epoch = a.epoch(0).unwrap();
        a.write(&mut sync, 8, 0, true);
        b.read(&sync, 8, 3);
        assert!(b.knows(3, 0, 0, epoch) && !b.knows(4, 0, 0, epoch));
    }

    #[test]
    fn the_memory_of_released_clocks_is_counted_and_can_be_dropped() {
        let mut sync = SyncClocks::default();
        let mut clocks = Clocks::new(0, 32);
        (0..100).for_each(|word| clocks.write(&mut sync, word * 4, 0, true));
        assert!(sync.held_bytes() >= 100 * 32 * 4, "{}", sync.held_bytes());
        sync.lose();
        clocks.write(&mut sync, 8, 0, true);
        assert!(sync.is_lost() && sync.held_bytes() == 0);
        sync.clear();
        assert!(!sync.is_lost());
    }

    #[test]
    fn a_thread_that_learns_of_too_many_blocks_is_not_watched_any_further() {
        let mut sync = SyncClocks::default();
        let mut reader = Clocks::new(u32::MAX, 32);
        for block in 0..=MOST_FOREIGN as u32 {
            assert!(reader.epoch(0).is_some(), "{block}");
            let mut writer = Clocks::new(block, 32);
            writer.write(&mut sync, u64::from(block) * 4, 0, true);
            reader.read(&sync, u64::from(block) * 4, 0);
        }
        assert_eq!(reader.epoch(0), None);
        let known = reader.known[0].foreign.as_ref();
        assert_eq!(known.map(|known| known.len()), Some(MOST_FOREIGN));
    }
}
