//! What is remembered of sixteen words: accesses of threads that follow each other, as one.
//!
//! A row says the same of each word as a [`Cell`] would, in a ninth of the memory: accesses are in a table, and each
//! word has the numbers of its accesses in the table. What is true of all words alike is decided once; where it differs
//! from word to word, each is looked at as a cell. A row with more accesses than the table holds is kept as cells.

use mica_kernel::monitor::AccessKind;

use super::cells::{BYTES, Cell, Hit, Mark, Seen};
use super::clocks::Clocks;

/// Words of a row.
pub(super) const WORDS: usize = 16;
/// Accesses that a row remembers.
const MOST_ACCESSES: usize = 6;

/// Which thread accesses which word of a row: the first one plus `word * by >> shift`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Threads {
    /// The thread of the row's first word, also where that word is not accessed: it may be negative.
    pub(super) first: i16,
    pub(super) by: u8,
    pub(super) shift: u8,
}

impl Threads {
    /// A thread of one word: a row of neighbours to which the thread belongs, so that theirs is the same access.
    #[inline]
    pub(super) fn of_one(thread: u32, word: usize) -> Self {
        Self {
            first: thread as i16 - word as i16,
            by: 1,
            shift: 0,
        }
    }

    /// The same thread for each word.
    pub(super) fn one(thread: u32) -> Self {
        Self {
            first: thread as i16,
            by: 0,
            shift: 0,
        }
    }

    #[inline]
    pub(super) fn of(self, word: usize) -> u32 {
        let offset = (word as u32 * u32::from(self.by)) >> self.shift;
        (i32::from(self.first) + offset as i32) as u32
    }

    /// Whether no word has the same thread in both.
    fn are_apart(self, other: Self) -> bool {
        (self.by, self.shift) == (other.by, other.shift) && self.first != other.first
    }
}

/// An access of some words of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RowMark {
    block: u32,
    epoch: u32,
    what: u32,
    threads: Threads,
}

impl RowMark {
    fn of_word(&self, word: usize) -> Mark {
        Mark {
            block: self.block,
            who: self.threads.of(word) & 1023 | self.epoch << 10,
            what: self.what,
        }
    }
}

/// An access of a row as it is looked at: of words that follow each other, each by one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowAccess {
    /// What is the same for all; the thread is not.
    pub(crate) seen: Seen,
    pub(crate) threads: Threads,
    pub(crate) first: usize,
    pub(crate) words: usize,
}

impl RowAccess {
    #[inline]
    fn mark(&self) -> RowMark {
        RowMark {
            block: self.seen.block,
            epoch: self.seen.epoch,
            what: self.seen.what(),
            threads: self.threads,
        }
    }

    pub(super) fn word(&self, word: usize) -> Seen {
        Seen {
            thread: self.threads.of(word),
            ..self.seen
        }
    }

    pub(super) fn each_word(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.words
    }
}

/// A number below 16 for each word of a row; 0 for none.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers(u64);

impl Numbers {
    const ONES: u64 = 0x1111_1111_1111_1111;

    /// All bits of the numbers of some words.
    #[inline]
    fn mask(first: usize, words: usize) -> u64 {
        (u64::MAX >> (64 - 4 * words)) << (4 * first)
    }

    #[inline]
    fn get(self, word: usize) -> usize {
        (self.0 >> (4 * word)) as usize & 15
    }

    #[inline]
    fn set(&mut self, mask: u64, number: usize) {
        self.0 = self.0 & !mask | (Self::ONES * number as u64) & mask;
    }

    /// All bits of the words that have this number.
    #[inline]
    fn equal_to(self, number: usize) -> u64 {
        let differs = self.0 ^ (Self::ONES * number as u64);
        let differs = differs | differs >> 2;
        let differs = (differs | differs >> 1) & Self::ONES;
        (differs ^ Self::ONES) * 15
    }

    /// Calls `f` for each number but 0 of the words in a mask, once, until it gives false. Whether it never did.
    #[inline]
    fn each(self, mask: u64, mut f: impl FnMut(usize) -> bool) -> bool {
        let mut left = self.0 & mask;
        while left != 0 {
            let number = (left >> (left.trailing_zeros() & !3)) as usize & 15;
            if !f(number) {
                return false;
            }
            left &= !self.equal_to(number);
        }
        true
    }
}

/// How an earlier access and a new one are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Each thread comes after what was done to its word.
    After,
    /// No thread does.
    Apart,
    /// It depends on the word.
    Mixed,
}

/// What is remembered of sixteen words; the first line of the cache is all that most rows need.
#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    /// The newest write of each word, and one of another thread that the newest does not come after.
    writes: [Numbers; 2],
    reads: [Numbers; 2],
    marks: [RowMark; MOST_ACCESSES],
}

/// A row has no place for one more access.
#[derive(Debug)]
pub(super) struct IsFull;

impl Row {
    /// Forgets all accesses. Only written, as a row that was not touched for long takes time to be read.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.writes = Default::default();
        self.reads = Default::default();
    }

    /// Forgets all accesses of some words.
    pub(super) fn forget(&mut self, first: usize, words: usize) {
        let mask = Numbers::mask(first, words);
        for numbers in self.writes.iter_mut().chain(&mut self.reads) {
            numbers.0 &= !mask;
        }
    }

    /// What is remembered of one word.
    pub(super) fn cell(&self, word: usize) -> Cell {
        let mark = |numbers: Numbers| match numbers.get(word) {
            0 => Mark::default(),
            number => self.marks[number - 1].of_word(word),
        };
        Cell {
            writes: self.writes.map(mark),
            reads: self.reads.map(mark),
        }
    }

    /// Looks for earlier accesses that nothing orders before this one, then remembers this one. `used` is how many
    /// places of the table are taken.
    #[inline]
    pub(super) fn access(
        &mut self,
        access: &RowAccess,
        used: &mut u8,
        clocks: &Clocks,
        hit: &mut impl FnMut(usize, Hit),
    ) -> Result<(), IsFull> {
        let mark = access.mark();
        let number = self.place(mark, access, used)?;
        if self.is_alike(access, &mark, number, clocks) {
            return Ok(());
        }
        for word in access.each_word() {
            let mut cell = self.cell(word);
            let found = cell.access(&access.word(word), clocks);
            self.put_back(word, &cell, access, number);
            if let Some(found) = found {
                hit(word, found);
            }
        }
        Ok(())
    }

    /// Whether the next access finds nothing here that its threads may race with, nor that depends on which thread it is.
    pub(super) fn is_quiet(&self, access: &RowAccess, clocks: &Clocks) -> bool {
        let mask = Numbers::mask(access.first, access.words);
        let is_after = |number: usize| self.marks[number - 1].is_over(access, clocks);
        let is_foreign = |number: usize| {
            let mark = &self.marks[number - 1];
            mark.is_over(access, clocks)
                || mark.block != access.seen.block && !clocks.knows_others()
        };
        let is_read = access.seen.kind == AccessKind::Read;
        let others = if is_read { self.writes } else { self.reads };
        let own = if is_read { self.reads } else { self.writes };
        others.iter().all(|n| n.each(mask, is_after))
            && own.iter().all(|n| match is_read {
                true => n.each(mask, is_foreign),
                false => n.each(mask, is_after),
            })
    }

    /// Remembers an access of which all words tell the same. Whether they do, and nothing races with it.
    fn is_alike(
        &mut self,
        access: &RowAccess,
        mark: &RowMark,
        number: usize,
        clocks: &Clocks,
    ) -> bool {
        let mask = Numbers::mask(access.first, access.words);
        if self.is_untouched(mask) {
            let own = match access.seen.kind {
                AccessKind::Read => &mut self.reads,
                _ => &mut self.writes,
            };
            own[0].set(mask, number);
            return true;
        }
        let marks = &self.marks;
        let order = |number: usize| order(&marks[number - 1], mark, access, clocks);
        let is_safe = |number: usize| {
            marks[number - 1].what & mark.what & BYTES == 0 || order(number) == Order::After
        };
        let is_read = access.seen.kind == AccessKind::Read;
        let are_safe = |all: &[Numbers; 2]| all.iter().all(|n| n.each(mask, is_safe));
        if !are_safe(&self.writes) || !is_read && !are_safe(&self.reads) {
            return false;
        }
        let own = if is_read { &self.reads } else { &self.writes };
        // Of two earlier ones that the new one does not come after, the older stays.
        let [mut stay, mut moved] = [0u64; 2];
        let is_known = own[1].each(mask, |number| {
            let order = order(number);
            if order == Order::Apart {
                stay |= own[1].equal_to(number);
            }
            order != Order::Mixed
        }) && own[0].each(mask & !stay, |number| {
            let order = order(number);
            if order == Order::Apart {
                moved |= own[0].equal_to(number) & !stay;
            }
            order != Order::Mixed
        });
        if !is_known {
            return false;
        }
        let second = own[1].0 & (stay | !mask) | own[0].0 & moved & mask;
        let own = if is_read {
            &mut self.reads
        } else {
            &mut self.writes
        };
        own[1] = Numbers(second);
        own[0].set(mask, number);
        if access.seen.is_full_write() {
            self.reads.iter_mut().for_each(|n| n.0 &= !mask);
        }
        true
    }

    #[inline]
    fn is_untouched(&self, mask: u64) -> bool {
        let [a, b] = [&self.writes, &self.reads].map(|n| n[0].0 | n[1].0);
        (a | b) & mask == 0
    }

    /// Takes what is remembered of one word after an access from its cell.
    fn put_back(&mut self, word: usize, cell: &Cell, access: &RowAccess, number: usize) {
        let mask = Numbers::mask(word, 1);
        let marks = &self.marks;
        let (kept, own) = match access.seen.kind {
            AccessKind::Read => (cell.reads[1], &mut self.reads),
            _ => (cell.writes[1], &mut self.writes),
        };
        let is_kept = |n: Numbers| match n.get(word) {
            0 => false,
            number => marks[number - 1].of_word(word) == kept,
        };
        let second = match (is_kept(own[1]), is_kept(own[0])) {
            (true, _) => own[1].get(word),
            (false, true) => own[0].get(word),
            (false, false) => 0,
        };
        own[1].set(mask, second);
        own[0].set(mask, number);
        if access.seen.is_full_write() {
            self.reads.iter_mut().for_each(|n| n.0 &= !mask);
        }
    }

    /// The number of an access in the table.
    #[inline]
    fn place(&mut self, mark: RowMark, access: &RowAccess, used: &mut u8) -> Result<usize, IsFull> {
        let count = usize::from(*used);
        if count == 0 {
            (*used, self.marks[0]) = (1, mark);
            return Ok(1);
        }
        let word = access.first;
        let is_same = |m: &RowMark| {
            (m.what, m.block, m.epoch) == (mark.what, mark.block, mark.epoch)
                && (m.threads == mark.threads
                    || access.words == 1 && m.threads.of(word) == mark.threads.of(word))
        };
        let known = self.marks.iter().take(count).rposition(is_same);
        if let Some(at) = known {
            return Ok(at + 1);
        }
        let at = if count < MOST_ACCESSES {
            *used += 1;
            count
        } else {
            self.unused().ok_or(IsFull)?
        };
        self.marks[at] = mark;
        Ok(at + 1)
    }

    /// A place of the table that no word names any more.
    fn unused(&self) -> Option<usize> {
        let mut named = 0u32;
        for numbers in self.writes.iter().chain(&self.reads) {
            numbers.each(u64::MAX, |number| {
                named |= 1 << (number - 1);
                true
            });
        }
        let free = (!named).trailing_zeros() as usize;
        (free < MOST_ACCESSES).then_some(free)
    }
}

impl RowMark {
    /// Whether every thread of the new access's block knows of this one.
    fn is_over(&self, access: &RowAccess, clocks: &Clocks) -> bool {
        let epoch = clocks.common_epoch();
        self.block == access.seen.block && epoch.is_some_and(|epoch| self.epoch < epoch)
    }
}

fn order(earlier: &RowMark, new: &RowMark, access: &RowAccess, clocks: &Clocks) -> Order {
    if earlier.block != new.block {
        return match clocks.knows_others() {
            true => Order::Mixed,
            false => Order::Apart,
        };
    }
    if earlier.threads == new.threads {
        return Order::After;
    }
    match clocks.common_epoch() {
        Some(epoch) if earlier.epoch < epoch => Order::After,
        Some(_) if earlier.threads.are_apart(new.threads) => Order::Apart,
        Some(_) if access.words == 1 => {
            match earlier.threads.of(access.first) == new.threads.of(access.first) {
                true => Order::After,
                false => Order::Apart,
            }
        }
        _ => Order::Mixed,
    }
}
