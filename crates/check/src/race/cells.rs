//! What is remembered of four bytes: the last accesses that others may race with.

use mica_kernel::monitor::{AccessKind, order};

use super::clocks::Clocks;

/// An access as it is remembered; all zero for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) block: u32,
    /// Thread in the low 10 bits, epoch above.
    pub(super) who: u32,
    /// Line of the PTX text in the low 24 bits, then the bytes of the word, then flags.
    pub(super) what: u32,
}

/// The bytes of the word, in [`Mark::what`].
pub(super) const BYTES: u32 = 15 << 24;

mod flag {
    /// Strong, and no store in turn.
    pub(super) const STRONG: u32 = 1 << 28;
    /// Strong and volatile, where the lanes of a warp meet.
    pub(super) const VOLATILE: u32 = 1 << 29;
    pub(super) const ATOMIC: u32 = 1 << 30;
    pub(super) const VALID: u32 = 1 << 31;
}

impl Mark {
    fn is_valid(self) -> bool {
        self.what & flag::VALID != 0
    }

    fn thread(self) -> u32 {
        self.who & 1023
    }

    fn is_strong(self) -> bool {
        self.what & (flag::STRONG | flag::VOLATILE) != 0
    }

    fn same_thread(self, other: Mark) -> bool {
        self.block == other.block && self.thread() == other.thread()
    }

    fn is_known(self, clocks: &Clocks, thread: u32) -> bool {
        clocks.knows(thread, self.block, self.thread(), self.who >> 10)
    }
}

/// An access to a part of one word, as it is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) block: u32,
    pub(crate) thread: u32,
    pub(crate) epoch: u32,
    pub(crate) ptx_line: u32,
    /// Which of the four bytes.
    pub(crate) bytes: u32,
    pub(crate) kind: AccessKind,
    pub(crate) order: u32,
}

impl Seen {
    /// Line, bytes and flags, as they are remembered.
    pub(super) fn what(&self) -> u32 {
        let mut what = self.ptx_line & 0xff_ffff | (self.bytes & 15) << 24 | flag::VALID;
        if self.order & (order::STRONG | order::IN_TURN) == order::STRONG {
            what |= flag::STRONG;
        }
        if self.order & order::VOLATILE != 0 {
            what |= flag::VOLATILE;
        }
        if self.kind == AccessKind::Atomic {
            what |= flag::ATOMIC;
        }
        what
    }

    fn mark(&self) -> Mark {
        Mark {
            block: self.block,
            who: self.thread & 1023 | self.epoch << 10,
            what: self.what(),
        }
    }

    /// Whether what earlier reads did is of no interest after this access.
    pub(super) fn is_full_write(&self) -> bool {
        self.kind == AccessKind::Write && self.bytes & 15 == 15
    }
}

/// An earlier access that the new one races with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) block: u32,
    pub(crate) thread: u32,
    pub(crate) ptx_line: u32,
    pub(crate) kind: AccessKind,
    /// Both accesses are volatile: code that takes a warp to run in step.
    pub(crate) volatile: bool,
}

/// What is remembered of one word. Two writers and two readers are kept, of different threads, so that one of
/// them is another thread than the next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub(super) writes: [Mark; 2],
    pub(super) reads: [Mark; 2],
}

impl Cell {
    /// Looks for an earlier access that nothing orders before this one, then remembers this one.
    pub(super) fn access(&mut self, seen: &Seen, clocks: &Clocks) -> Option<Hit> {
        let mark = seen.mark();
        if self.is_one_more(mark, clocks) {
            self.writes[0] = mark;
            return None;
        }
        self.look(seen, mark, clocks)
    }

    fn look(&mut self, seen: &Seen, mark: Mark, clocks: &Clocks) -> Option<Hit> {
        let mut hit = None;
        let mut look = |earlier: Mark, kind: AccessKind| {
            if hit.is_some() || !races(earlier, mark, clocks) {
                return;
            }
            hit = Some(Hit {
                block: earlier.block,
                thread: earlier.thread(),
                ptx_line: earlier.what & 0xff_ffff,
                kind: match earlier.what & flag::ATOMIC {
                    0 => kind,
                    _ => AccessKind::Atomic,
                },
                volatile: earlier.what & mark.what & flag::VOLATILE != 0,
            });
        };
        let [newest, older] = self.writes;
        look(newest, AccessKind::Write);
        // Atomic operations on one word come one after the other, so a write of who has made the newest comes after the
        // older one: the last block resets the counter that all blocks have counted with.
        let is_reset = seen.kind == AccessKind::Write
            && newest.same_thread(mark)
            && newest.what & older.what & flag::ATOMIC != 0;
        if !is_reset {
            look(older, AccessKind::Write);
        }
        if seen.kind == AccessKind::Read {
            keep(&mut self.reads, mark, clocks, seen.thread);
            return hit;
        }
        self.reads.iter().for_each(|r| look(*r, AccessKind::Read));
        keep(&mut self.writes, mark, clocks, seen.thread);
        if seen.is_full_write() {
            // Whoever races with the reads races with this write too, or comes after it.
            self.reads = [Mark::default(); 2];
        }
        hit
    }
}

impl Cell {
    /// Whether an atomic access follows two of the same instruction in the same epoch: it takes the newer one's place.
    fn is_one_more(&self, mark: Mark, clocks: &Clocks) -> bool {
        let [first, second] = &self.writes;
        let is_atomic = mark.what & (flag::ATOMIC | flag::STRONG | flag::VOLATILE);
        is_atomic == flag::ATOMIC | flag::STRONG
            && (first.what, second.what) == (mark.what, mark.what)
            && (first.block, second.block) == (mark.block, mark.block)
            && [first.who >> 10, second.who >> 10] == [mark.who >> 10; 2]
            && second.thread() != mark.thread()
            && !self.reads.iter().any(|read| read.is_valid())
            && clocks.common_epoch() == Some(mark.who >> 10)
    }
}

/// Puts the newest first, and keeps one of another thread that the newest does not come after.
fn keep(marks: &mut [Mark; 2], mark: Mark, clocks: &Clocks, thread: u32) {
    let [first, second] = *marks;
    let worth =
        |old: Mark| old.is_valid() && !old.same_thread(mark) && !old.is_known(clocks, thread);
    // The older of two stays: it is the one of another warp more often.
    marks[1] = match (worth(second), worth(first)) {
        (true, _) => second,
        (false, true) => first,
        (false, false) => Mark::default(),
    };
    marks[0] = mark;
}

fn races(earlier: Mark, mark: Mark, clocks: &Clocks) -> bool {
    if !earlier.is_valid() || earlier.same_thread(mark) || earlier.what & mark.what & BYTES == 0 {
        return false;
    }
    if earlier.is_strong() && mark.is_strong() {
        // Volatile accesses do not race, but give lanes of a warp no order: only `__syncwarp` does. Of two stores in turn
        // nobody knows whether a loop gave them one.
        let in_step = earlier.what & mark.what & flag::VOLATILE != 0
            && (earlier.what | mark.what) & flag::STRONG != 0
            && earlier.block == mark.block
            && earlier.thread() / 32 == mark.thread() / 32;
        if !in_step {
            return false;
        }
    }
    !earlier.is_known(clocks, mark.thread())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_kernel::monitor::ThreadSet;

    fn seen(clocks: &Clocks, thread: u32, kind: AccessKind, order: u32) -> Seen {
        Seen {
            block: clocks.block(),
            thread,
            epoch: clocks.epoch(thread).unwrap(),
            ptx_line: 10 + thread,
            bytes: 15,
            kind,
            order,
        }
    }

    #[test]
    fn a_write_races_with_reads_until_a_barrier() {
        let mut clocks = Clocks::new(0, 64);
        let mut cell = Cell::default();
        for t in 0..64 {
            let read = seen(&clocks, t, AccessKind::Read, 0);
            assert_eq!(cell.access(&read, &clocks), None);
        }
        // The last reader writes: the others race with it.
        let write = seen(&clocks, 63, AccessKind::Write, 0);
        let hit = cell.access(&write, &clocks).unwrap();
        assert_eq!((hit.kind, hit.thread != 63), (AccessKind::Read, true));
        clocks.barrier(0, &ThreadSet::first(64));
        let write = seen(&clocks, 0, AccessKind::Write, 0);
        assert_eq!(cell.access(&write, &clocks), None);
    }

    #[test]
    fn atomics_race_with_plain_accesses_only() {
        let clocks = Clocks::new(0, 64);
        let mut cell = Cell::default();
        for t in 0..3 {
            let add = seen(&clocks, t, AccessKind::Atomic, order::STRONG);
            assert_eq!(cell.access(&add, &clocks), None);
        }
        let read = seen(&clocks, 2, AccessKind::Read, 0);
        let hit = cell.access(&read, &clocks).unwrap();
        assert_eq!(hit.kind, AccessKind::Atomic);
    }

    #[test]
    fn atomics_one_after_the_other_leave_what_each_would() {
        let mut noise = crate::watcher::tests::Noise(9);
        let (mut usual, mut slow) = (Cell::default(), Cell::default());
        let mut alike = 0;
        let mut clocks = Clocks::new(0, 64);
        for _ in 0..60_000 {
            let kind = match noise.below(30) {
                0 => AccessKind::Read,
                1 => AccessKind::Write,
                _ => AccessKind::Atomic,
            };
            let order = match noise.below(30) {
                0 => 0,
                1 => order::STRONG | order::VOLATILE,
                _ => order::STRONG,
            };
            let mut seen = seen(&clocks, noise.below(64) as u32, kind, order);
            seen.ptx_line = 7 + u32::from(noise.below(20) == 0);
            let mark = seen.mark();
            alike += u32::from(usual.is_one_more(mark, &clocks));
            let hit = usual.access(&seen, &clocks);
            assert_eq!(hit, slow.look(&seen, mark, &clocks));
            assert_eq!((usual.reads, usual.writes), (slow.reads, slow.writes));
            match noise.below(100) {
                0 => clocks.barrier(0, &ThreadSet::first(64)),
                1 => clocks.meet(&ThreadSet::of_warp(1, u32::MAX)),
                2 => clocks = Clocks::new(noise.below(3) as u32, 64),
                _ => {}
            }
        }
        assert!(alike > 1000, "{alike}");
    }

    #[test]
    fn bytes_beside_each_other_do_not_race() {
        let clocks = Clocks::new(0, 64);
        let mut cell = Cell::default();
        for t in 0..4 {
            let mut write = seen(&clocks, t, AccessKind::Write, 0);
            write.bytes = 1 << t;
            assert_eq!(cell.access(&write, &clocks), None);
        }
        let mut write = seen(&clocks, 9, AccessKind::Write, 0);
        write.bytes = 0b1000;
        assert!(cell.access(&write, &clocks).is_some());
    }

    #[test]
    fn volatile_lanes_need_syncwarp() {
        let clocks = Clocks::new(0, 64);
        let in_step = order::STRONG | order::VOLATILE;
        // Of the same warp, of another one, and in a loop that may wait.
        for (volatile, thread, races) in [
            (in_step, 1, true),
            (in_step, 40, false),
            (order::STRONG, 1, false),
        ] {
            let mut cell = Cell::default();
            let write = seen(&clocks, 0, AccessKind::Write, volatile);
            assert_eq!(cell.access(&write, &clocks), None);
            let read = seen(&clocks, thread, AccessKind::Read, volatile);
            assert_eq!(cell.access(&read, &clocks).is_some(), races);
        }
    }

    #[test]
    fn lanes_may_take_turns_with_volatile_stores() {
        let clocks = Clocks::new(0, 64);
        let store = order::STRONG | order::VOLATILE | order::IN_TURN;
        let load = order::STRONG | order::VOLATILE;
        for (kind, order, races) in [
            (AccessKind::Write, store, false),
            (AccessKind::Read, load, true),
            (AccessKind::Read, order::STRONG, false),
            (AccessKind::Read, 0, true),
            (AccessKind::Atomic, order::STRONG, false),
        ] {
            let mut cell = Cell::default();
            let write = seen(&clocks, 0, AccessKind::Write, store);
            assert_eq!(cell.access(&write, &clocks), None);
            let other = seen(&clocks, 1, kind, order);
            assert_eq!(cell.access(&other, &clocks).is_some(), races, "{kind:?}");
        }
    }

    #[test]
    fn who_counted_last_may_reset_the_counter() {
        let clocks = Clocks::new(0, 64);
        let count = |thread| seen(&clocks, thread, AccessKind::Atomic, order::STRONG);
        let reset = |thread| seen(&clocks, thread, AccessKind::Write, 0);
        for (last, resets, races) in [(2, 2, false), (2, 1, true), (2, 3, true)] {
            let mut cell = Cell::default();
            for thread in [0, 1, last] {
                assert_eq!(cell.access(&count(thread), &clocks), None);
            }
            let hit = cell.access(&reset(resets), &clocks);
            assert_eq!(hit.is_some(), races, "thread {resets} resets it");
        }
    }
}
