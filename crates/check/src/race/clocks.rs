//! What each thread of a block knows of the others: vector clocks, shared by the threads that met last.
//!
//! The epoch of a thread grows when others may learn of what the thread did. An access of thread `u` in
//! epoch `e` happened before the next access of thread `t` if `t` knows of epoch `e` of `u`.

use std::collections::HashMap;
use std::sync::Arc;

use mica_kernel::monitor::ThreadSet;

use super::sync::SyncClocks;

/// Epochs of the threads of one block, by thread.
pub(super) type Epochs = Arc<Vec<u32>>;
/// Epochs of threads of other blocks, by block.
pub(super) type Foreign = Arc<HashMap<u32, Epochs>>;

/// Largest epoch that is remembered with an access; a block that needs more is not watched any further.
pub(crate) const LAST_EPOCH: u32 = (1 << 22) - 1;

/// Other blocks that a thread can know of: each of a block's threads may know of others than its neighbours.
pub(crate) const MOST_FOREIGN: usize = 16_384;

/// What a thread knows.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) own: Epochs,
    pub(super) foreign: Option<Foreign>,
}

impl Known {
    fn join(&mut self, other: &Known) -> bool {
        join_epochs(&mut self.own, &other.own);
        join_foreign(&mut self.foreign, &other.foreign)
    }
}

pub(super) fn join_epochs(into: &mut Epochs, from: &Epochs) {
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

/// The threads of one block.
///
/// Until threads meet or release something one by one, all are in the same epoch and know all earlier ones: nothing is
/// kept for each thread then.
#[derive(Debug)]
pub(crate) struct Clocks {
    block: u32,
    threads: usize,
    /// The epoch of all threads, of which each knows what all did in earlier epochs, and nothing of other blocks.
    common: Option<u32>,
    /// Of each thread, where there is no common epoch.
    epochs: Vec<u32>,
    known: Vec<Known>,
    /// What a fence of the thread has made ready for release by a later strong write.
    fenced: Vec<Option<Known>>,
    /// Whether some thread passed a fence.
    fences: bool,
    /// The last version of a released clock that the thread acquired: address and version.
    acquired: Vec<(u64, u64)>,
    /// What arrivals at the named barriers have released.
    arrivals: [Option<Known>; 16],
    /// Whether some thread may know of other blocks.
    knows_others: bool,
    /// Whether a thread would have to know of more than there is room for: nobody knows any more which accesses are ordered.
    is_full: bool,
    #[cfg(test)]
    unites: bool,
}

impl Clocks {
    /// A block in which nobody knows anything of the others.
    pub(crate) fn new(block: u32, threads: u32) -> Self {
        Self {
            block,
            threads: threads as usize,
            common: Some(1),
            epochs: Vec::new(),
            known: Vec::new(),
            fenced: Vec::new(),
            fences: false,
            acquired: Vec::new(),
            arrivals: Default::default(),
            knows_others: false,
            is_full: false,
            #[cfg(test)]
            unites: true,
        }
    }

    #[cfg(test)]
    pub(super) fn block(&self) -> u32 {
        self.block
    }

    /// The epoch of a thread; `None` where there are too many to remember, or a thread knows of too many blocks.
    #[inline]
    pub(crate) fn epoch(&self, thread: u32) -> Option<u32> {
        let epoch = match self.common {
            Some(epoch) if (thread as usize) < self.threads => epoch,
            Some(_) => return None,
            None => *self.epochs.get(thread as usize)?,
        };
        (epoch <= LAST_EPOCH && !self.is_full).then_some(epoch)
    }

    /// The epoch that all threads are in, where each knows of all that was done in earlier ones.
    #[inline]
    pub(crate) fn common_epoch(&self) -> Option<u32> {
        self.common
            .filter(|epoch| *epoch <= LAST_EPOCH && !self.is_full)
    }

    /// The epoch of threads that follow each other, if it is the same.
    #[inline]
    pub(crate) fn epoch_of_all(&self, first: u32, count: u32) -> Option<u32> {
        let epoch = self.epoch(first)?;
        let is_same = match self.common {
            Some(_) => (first + count) as usize <= self.threads,
            None => (first..first + count).all(|t| self.epoch(t) == Some(epoch)),
        };
        is_same.then_some(epoch)
    }

    /// Whether some thread may know what threads of other blocks did.
    #[inline]
    pub(crate) fn knows_others(&self) -> bool {
        self.knows_others
    }

    /// Whether a strong write that does not release by itself may release what came before a fence.
    #[inline]
    pub(crate) fn may_release(&self) -> bool {
        self.fences
    }

    /// Whether a thread knows of an epoch of another.
    pub(crate) fn knows(&self, thread: u32, block: u32, other: u32, epoch: u32) -> bool {
        if let Some(common) = self.common {
            let is_own = block == self.block;
            return thread as usize >= self.threads
                || is_own && (other == thread || epoch < common);
        }
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

    /// Keeps what each thread knows from now on.
    fn part(&mut self) {
        let Some(epoch) = self.common.take() else {
            return;
        };
        let known = Known {
            own: Arc::new(vec![epoch - 1; self.threads]),
            foreign: None,
        };
        self.epochs.clear();
        self.epochs.resize(self.threads, epoch);
        self.known.clear();
        self.known.resize(self.threads, known);
        self.fenced.resize(self.threads, None);
        self.acquired.resize(self.threads, (0, 0));
    }

    /// All threads have met: nothing is kept for each of them, unless they know of other blocks.
    fn unite(&mut self) {
        #[cfg(test)]
        if !self.unites {
            return;
        }
        if self.common.is_none() && !self.knows_others {
            // Epochs that a thread never had are skipped.
            self.common = self.epochs.iter().max().copied();
        }
    }

    /// What a thread knows, with its own epoch; nobody shares its later accesses.
    fn release(&mut self, thread: usize) -> Known {
        self.part();
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
        let are_all = threads.len() as usize == self.threads;
        if let Some(epoch) = self.common.filter(|_| are_all && also.is_none()) {
            self.common = Some(epoch.saturating_add(1));
            return;
        }
        self.part();
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
        if are_all {
            self.unite();
        }
    }

    /// A thread arrives at a barrier without waiting.
    pub(crate) fn arrive(&mut self, barrier: u32, thread: u32) {
        if thread as usize >= self.threads {
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
        if (thread as usize) < self.threads {
            let released = self.release(thread as usize);
            self.fenced[thread as usize] = Some(released);
            self.fences = true;
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
        if t >= self.threads {
            return;
        }
        let released = match release {
            true => Some(self.release(t)),
            false => self.fenced.get(t).cloned().flatten(),
        };
        if let Some(released) = released {
            sync.release(address, self.block, &released);
        }
    }

    /// A strong read.
    #[inline]
    pub(crate) fn read(&mut self, sync: &SyncClocks, address: u64, thread: u32) {
        if sync.is_empty() {
            return;
        }
        let t = thread as usize;
        let Some(clock) = sync.get(address) else {
            return;
        };
        if t >= self.threads || self.acquired.get(t) == Some(&(address, clock.version)) {
            return;
        }
        self.part();
        self.acquired[t] = (address, clock.version);
        let known = &mut self.known[t];
        for (block, epochs) in &clock.blocks {
            if *block == self.block {
                join_epochs(&mut known.own, epochs);
            } else {
                self.knows_others = true;
                let one = Arc::new(HashMap::from([(*block, Arc::clone(epochs))]));
                self.is_full |= !join_foreign(&mut known.foreign, &Some(one));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watcher::tests::Noise;

    /// Clocks that keep what each thread knows from the start on, and never unite.
    fn of_each(block: u32, threads: u32) -> Clocks {
        let mut clocks = Clocks::new(block, threads);
        clocks.part();
        clocks.unites = false;
        clocks
    }

    /// An access as its clocks and those of [`of_each`] date it.
    type Dated = (u32, u32, u32, u32);

    fn check(usual: &Clocks, each: &Clocks, past: &[Dated], noise: &mut Noise) {
        for _ in 0..20 {
            let (block, other, epoch, of_each) = past[noise.below(past.len() as u64) as usize];
            let thread = noise.below(64) as u32;
            assert_eq!(
                usual.knows(thread, block, other, epoch),
                each.knows(thread, block, other, of_each),
                "thread {thread} of {block}, {other}"
            );
        }
    }

    #[test]
    fn a_common_epoch_orders_what_epochs_of_threads_order() {
        let mut common = 0;
        for seed in 1..60 {
            let mut noise = Noise(seed);
            let (mut sync, mut sync_of_each) = (SyncClocks::default(), SyncClocks::default());
            let mut past: Vec<Dated> = Vec::new();
            for block in 0..3 {
                let (mut usual, mut each) = (Clocks::new(block, 64), of_each(block, 64));
                for _ in 0..80 {
                    let t = noise.below(64) as u32;
                    let [warp, lanes] = [t / 32, noise.below(1 << 32) as u32];
                    let (what, releases) = (noise.below(14), noise.below(3) == 0);
                    let set = match noise.below(3) {
                        0 => ThreadSet::of_warp(warp, u32::MAX),
                        1 => ThreadSet::of_warp(warp, lanes),
                        _ => all(64),
                    };
                    let both = [(&mut usual, &mut sync), (&mut each, &mut sync_of_each)];
                    for (clocks, sync) in both {
                        match what {
                            0..=3 => clocks.barrier(0, &all(64)),
                            4 => clocks.meet(&set),
                            5 => clocks.barrier(1, &set),
                            6 => clocks.arrive(1, t),
                            7 => clocks.fence(t),
                            8 => clocks.write(sync, 64, t, releases),
                            9 if seed % 2 == 0 => clocks.read(sync, 64, t),
                            _ => {}
                        }
                    }
                    past.push((block, t, usual.epoch(t).unwrap(), each.epoch(t).unwrap()));
                    check(&usual, &each, &past, &mut noise);
                    common += u32::from(usual.common_epoch().is_some());
                }
            }
        }
        assert!(common > 1000, "{common}");
    }

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
