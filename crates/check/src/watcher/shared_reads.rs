//! Reads of shared memory, which by far the most kernels read more often than they write it.
//!
//! After a barrier of the whole block all that was written before is known to all threads. Until somebody writes again
//! a read races with nothing, and it matters only to a write before the next such barrier. So reads are put off, those of
//! a group as one, and looked at when something is written; or dropped at the barrier. What is found is the same as if
//! each was looked at when it was told: nothing that a look depends on changes in between.

use mica_kernel::monitor::{
    Access, AccessKind, AccessSpace, GroupAccess, LaneAddresses, NotedRead, ThreadSet,
};

use super::{BlockWatcher, LiveMemory, Where};
use crate::finding::Tool;

/// Groups of reads that wait to be looked at.
const MOST_READS: usize = 1 << 16;

impl<M: LiveMemory> BlockWatcher<M> {
    /// Puts off looking at an access of shared memory. Whether that is right.
    pub(super) fn put_off(&mut self, access: &Access) -> bool {
        self.may_put_off(access) && self.put_off_reads(NotedRead::new(access, 1, 0))
    }

    /// Puts off looking for races of a group's accesses. Whether that is right.
    pub(super) fn put_off_group(&mut self, group: &GroupAccess<'_>) -> bool {
        let LaneAddresses::Stride(stride) = group.addresses else {
            return false;
        };
        if group.first.space != AccessSpace::Shared || !self.may_put_off(&group.first) {
            return false;
        }
        if self.tools.has(Tool::Initcheck) {
            (0..group.lanes).for_each(|lane| self.initcheck(&group.lane(lane), Where::Shared));
        }
        self.put_off_reads(NotedRead::new(&group.first, group.lanes, stride))
    }

    /// Puts off looking at reads that compiled code noted. Whether that is right.
    pub(super) fn put_off_noted(&mut self, reads: &[NotedRead]) -> bool {
        if !self.is_unwritten || self.clocks.is_none() || self.tools.has(Tool::Initcheck) {
            return false;
        }
        if self.reads.len() + reads.len() > MOST_READS {
            self.catch_up();
        }
        self.reads.extend_from_slice(reads);
        true
    }

    fn may_put_off(&self, first: &Access) -> bool {
        let is_plain = first.kind == AccessKind::Read && first.order == 0;
        is_plain && self.is_unwritten && self.clocks.is_some()
    }

    fn put_off_reads(&mut self, reads: NotedRead) -> bool {
        if self.reads.len() == MOST_READS {
            self.catch_up();
        }
        self.reads.push(reads);
        true
    }

    /// Looks at all reads that were put off, before anything happens that orders threads or writes.
    pub(super) fn catch_up(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let mut reads = std::mem::take(&mut self.reads);
        for read in reads.drain(..) {
            let group = read.group();
            for lane in 0..group.lanes {
                self.look_for_race(&group.lane(lane), Where::Shared);
            }
        }
        self.reads = reads;
    }

    /// A barrier opens: forgets reads that no later write can race with.
    pub(super) fn settle_reads(&mut self, waiting: &ThreadSet) {
        let is_whole = waiting.len() == self.block.threads();
        if is_whole && self.is_unwritten && self.are_all_watched() {
            self.reads.clear();
        }
        self.catch_up();
        self.is_unwritten |= is_whole;
    }

    /// Whether no thread has more epochs than are remembered, of which a read would tell.
    fn are_all_watched(&self) -> bool {
        let mut threads = 0..self.block.threads();
        let clocks = self.clocks.as_ref();
        clocks.is_some_and(|c| threads.all(|t| c.epoch(t).is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Finding;
    use crate::launch::LaunchFindings;
    use crate::settings::Tools;
    use crate::watcher::WatchedBlock;
    use crate::watcher::tests::{Anything, Noise};
    use mica_kernel::monitor::{LaneValues, Line, Monitor, order};
    use std::sync::Arc;

    const THREADS: u32 = 64;
    const SHARED: u64 = 0x1000;

    /// What is found in a random program, and how many reads a barrier forgot.
    fn found(seed: u64, put_off: bool) -> (Vec<Finding>, usize) {
        let mut noise = Noise(seed);
        let mut below = |n: u64| noise.below(n);
        let findings = Arc::new(LaunchFindings::default());
        let mut tools = Tools::default().with(Tool::Racecheck);
        if seed.is_multiple_of(2) {
            tools = tools.with(Tool::Initcheck);
        }
        let launch = (1, [1, 1, 1], "k".to_owned());
        let mut watcher = BlockWatcher::new(tools, launch, None, Anything, Arc::clone(&findings));
        let mut forgotten = 0;
        for number in 0..2 {
            watcher.begin(WatchedBlock {
                number,
                shape: [THREADS, 1, 1],
                shared: (SHARED, 256),
                ..WatchedBlock::default()
            });
            for line in 0..200 {
                let thread = below(u64::from(THREADS)) as u32;
                let kind = match below(12) {
                    0 => AccessKind::Write,
                    1 => AccessKind::Atomic,
                    _ => AccessKind::Read,
                };
                let (order, bytes) = match (kind, below(8)) {
                    (AccessKind::Atomic, _) => (order::STRONG, 4),
                    (_, 0) => (order::STRONG | order::VOLATILE, 4),
                    (_, 1) => (0, 1),
                    _ => (0, 4),
                };
                let access = Access {
                    thread,
                    bytes,
                    address: SHARED + 4 * below(48),
                    kind,
                    order,
                    space: AccessSpace::Shared,
                    line: Line {
                        ptx: line + 1,
                        source: 0,
                    },
                    value: None,
                };
                match below(40) {
                    0..=2 => {
                        forgotten += watcher.reads.len();
                        watcher.barrier(0, &ThreadSet::first(THREADS));
                    }
                    3 => watcher.barrier(1, &ThreadSet::of_warp(1, u32::MAX)),
                    4 => watcher.warp(&ThreadSet::of_warp(0, 0xffff)),
                    5 => watcher.fence(thread),
                    6 => watcher.arrive(2, thread),
                    7..=15 if order == 0 && kind == AccessKind::Read => {
                        let first = Access {
                            thread: 16 * (thread / 16),
                            ..access
                        };
                        let group = GroupAccess {
                            first,
                            lanes: 16,
                            addresses: LaneAddresses::Stride(4 * below(2) as i64),
                            values: LaneValues::None,
                        };
                        assert!(watcher.accesses(&group).is_ok());
                    }
                    16..=22 if order == 0 && kind == AccessKind::Read => {
                        let first = Access {
                            thread: 16 * (thread / 16),
                            ..access
                        };
                        let reads = [0, 4].map(|stride| NotedRead::new(&first, 16, stride));
                        watcher.reads(&reads);
                    }
                    _ => assert!(watcher.access(&access)),
                }
                if !put_off {
                    watcher.catch_up();
                }
            }
        }
        (findings.take().0, forgotten)
    }

    #[test]
    fn reads_that_are_put_off_change_no_report() {
        let (mut races, mut forgotten) = (0, 0);
        for seed in 1..400 {
            let (at_once, _) = found(seed, false);
            let (later, dropped) = found(seed, true);
            assert_eq!(format!("{later:?}"), format!("{at_once:?}"), "seed {seed}");
            races += at_once.len();
            forgotten += dropped;
        }
        assert!(races > 1000 && forgotten > 1000, "{races} {forgotten}");
    }
}
