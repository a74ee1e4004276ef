//! What is remembered of the words of a page.

use super::cells::{Cell, Hit, Seen};
use super::clocks::Clocks;
use super::rows::{Row, RowAccess, Threads, WORDS};

/// Words in a page of memory.
const PAGE_WORDS: usize = 1024;
pub(crate) const ROWS: usize = PAGE_WORDS / WORDS;

/// Host bytes of the rows of a page.
pub(crate) const ROWS_BYTES: u64 = size_of::<RowPage>() as u64;
/// Host bytes of a row that is kept word by word.
pub(crate) const CELLS_BYTES: u64 = size_of::<[Cell; WORDS]>() as u64;

/// A row has to be kept word by word, and nobody has allowed the memory for that.
#[derive(Debug)]
pub(crate) struct NoRoom;

/// The words of a page. Nothing is cleared until it is accessed.
#[derive(Debug)]
pub(crate) struct RowPage {
    /// A bit for each row that was accessed.
    live: u64,
    /// A bit for each row that is kept word by word.
    split: u64,
    /// How many places of its table each row has used, or where its cells are.
    used: [u8; ROWS],
    rows: [Row; ROWS],
    cells: Vec<[Cell; WORDS]>,
    /// Rows that may be kept word by word.
    granted: usize,
}

impl RowPage {
    /// A page of which `granted` rows may be kept word by word.
    pub(crate) fn new(granted: usize) -> Box<Self> {
        Box::new(Self {
            live: 0,
            split: 0,
            used: [0; ROWS],
            rows: [Row::default(); ROWS],
            cells: Vec::new(),
            granted,
        })
    }

    /// Forgets all accesses; keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.live = 0;
        self.split = 0;
        self.cells.clear();
    }

    /// Allows one more row to be kept word by word.
    pub(crate) fn grant(&mut self) {
        self.granted += 1;
    }

    /// Host bytes that may be taken.
    pub(crate) fn held_bytes(&self) -> u64 {
        ROWS_BYTES + self.granted as u64 * CELLS_BYTES
    }

    /// Forgets accesses of one word.
    pub(crate) fn forget(&mut self, word: usize) {
        let (row, word) = (word / WORDS, word % WORDS);
        if self.live >> row & 1 == 0 {
            return;
        }
        match self.cells_of(row) {
            Some(cells) => cells[word] = Cell::default(),
            None => self.rows[row].forget(word, 1),
        }
    }

    #[inline]
    fn cells_of(&mut self, row: usize) -> Option<&mut [Cell; WORDS]> {
        let is_split = self.split >> row & 1 == 1;
        let at = usize::from(self.used[row]);
        is_split.then(|| self.cells.get_mut(at))?
    }

    #[inline]
    fn touch(&mut self, row: usize) {
        if self.live >> row & 1 == 0 {
            self.live |= 1 << row;
            self.used[row] = 0;
            self.rows[row].clear();
        }
    }

    /// Keeps a row word by word.
    fn split(&mut self, row: usize) -> Result<(), NoRoom> {
        if self.cells.len() >= self.granted {
            return Err(NoRoom);
        }
        let cells = std::array::from_fn(|word| self.rows[row].cell(word));
        self.used[row] = self.cells.len() as u8;
        self.split |= 1 << row;
        self.cells.push(cells);
        Ok(())
    }

    /// An access of one thread to one word of the page.
    #[inline]
    pub(crate) fn one(
        &mut self,
        word: usize,
        seen: &Seen,
        clocks: &Clocks,
    ) -> Result<Option<Hit>, NoRoom> {
        let row = word / WORDS % ROWS;
        if let Some(cells) = self.cells_of(row) {
            return Ok(cells[word % WORDS].access(seen, clocks));
        }
        let access = RowAccess {
            seen: *seen,
            threads: Threads::of_one(seen.thread, word % WORDS),
            first: word % WORDS,
            words: 1,
        };
        let mut found = None;
        self.some(word, &access, clocks, &mut |_, hit| {
            found = Some(hit);
        })?;
        Ok(found)
    }

    /// An access of several words of the row that a word of the page is in, each by one thread.
    #[inline]
    pub(crate) fn some(
        &mut self,
        word: usize,
        access: &RowAccess,
        clocks: &Clocks,
        hit: &mut impl FnMut(usize, Hit),
    ) -> Result<(), NoRoom> {
        let row = word / WORDS % ROWS;
        self.touch(row);
        if self.split >> row & 1 == 0 {
            let used = &mut self.used[row];
            if (self.rows[row].access(access, used, clocks, hit)).is_ok() {
                return Ok(());
            }
            self.split(row)?;
        }
        let Some(cells) = self.cells_of(row) else {
            return Ok(());
        };
        for word in access.each_word() {
            if let Some(found) = cells[word].access(&access.word(word), clocks) {
                hit(word, found);
            }
        }
        Ok(())
    }

    /// Whether an access of some words of a row finds nothing that depends on the thread that makes it.
    pub(crate) fn is_quiet(&mut self, word: usize, access: &RowAccess, clocks: &Clocks) -> bool {
        let row = word / WORDS % ROWS;
        self.touch(row);
        self.split >> row & 1 == 0 && self.rows[row].is_quiet(access, clocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::race::{Spans, SyncClocks};
    use crate::watcher::tests::Noise;
    use mica_kernel::monitor::{
        Access, AccessKind, AccessSpace, GroupAccess, LaneAddresses, LaneValues, Line, ThreadSet,
        order,
    };

    /// A group whose accesses lie side by side, or are all the same.
    fn group(noise: &mut Noise, line: u32) -> (Access, u32, i64) {
        let bytes = 1u32 << noise.below(5);
        let kind = [AccessKind::Read, AccessKind::Read, AccessKind::Write][noise.below(3) as usize];
        let is_same = noise.below(4) == 0 && kind == AccessKind::Read;
        let first = Access {
            thread: 16 * noise.below(4) as u32,
            bytes,
            address: u64::from(bytes) * noise.below(20),
            kind,
            order: 0,
            space: AccessSpace::Arena,
            line: Line {
                ptx: line,
                source: 0,
            },
            value: None,
        };
        let lanes = [4, 16][noise.below(2) as usize];
        (first, lanes, if is_same { 0 } else { i64::from(bytes) })
    }

    fn seen(access: &Access, clocks: &Clocks, block: u32, bytes: u32) -> Seen {
        Seen {
            block,
            thread: access.thread,
            epoch: clocks.epoch(access.thread).unwrap(),
            ptx_line: access.line.ptx,
            bytes,
            kind: access.kind,
            order: access.order,
        }
    }

    /// What cells find for each word of one access after the other.
    fn by_cells(
        cells: &mut [Cell],
        access: &Access,
        (clocks, block): (&Clocks, u32),
        found: &mut Vec<(usize, Hit)>,
    ) {
        let (mut at, end) = (access.address, access.address + u64::from(access.bytes));
        while at < end {
            let n = (4 - at % 4).min(end - at);
            let bytes = ((1 << n) - 1) << (at % 4);
            let seen = seen(access, clocks, block, bytes);
            let word = (at / 4) as usize;
            found.extend(cells[word].access(&seen, clocks).map(|hit| (word, hit)));
            at += n;
        }
    }

    /// The same from a page; `alike` counts what was told as one.
    fn by_rows(
        page: &mut RowPage,
        group: &GroupAccess<'_>,
        (clocks, block): (&Clocks, u32),
        (found, alike): (&mut Vec<(usize, Hit)>, &mut usize),
    ) {
        let first = &group.first;
        let epoch = clocks.epoch_of_all(first.thread, group.lanes);
        let spans = epoch.and_then(|_| Spans::new(group, seen(first, clocks, block, 0)));
        let one_by_one = |page: &mut RowPage, found: &mut Vec<_>, lane: u32| {
            let access = group.lane(lane);
            let (mut at, end) = (access.address, access.address + u64::from(access.bytes));
            while at < end {
                let n = (4 - at % 4).min(end - at);
                let seen = seen(&access, clocks, block, ((1 << n) - 1) << (at % 4));
                let word = (at / 4) as usize;
                let hit = page.one(word, &seen, clocks).unwrap();
                found.extend(hit.map(|hit| (word, hit)));
                at += n;
            }
        };
        let Some(mut spans) = spans else {
            (0..group.lanes).for_each(|lane| one_by_one(page, found, lane));
            return;
        };
        while spans.next() {
            let (span, last) = (spans.span(), spans.last());
            let word = (span.address / 4) as usize;
            let row = word / WORDS * WORDS;
            let mut note = |word: usize, hit| found.push((row + word, hit));
            match &last {
                None => page.some(word, &span.access, clocks, &mut note).unwrap(),
                Some(last) if page.is_quiet(word, &span.access, clocks) => {
                    for access in [&span.access, last] {
                        page.some(word, access, clocks, &mut note).unwrap();
                    }
                }
                Some(_) => {
                    let lanes = span.lane..span.lane + span.lanes;
                    lanes.for_each(|lane| one_by_one(page, found, lane));
                    continue;
                }
            }
            *alike += 1;
        }
    }

    /// Threads meet, or learn of other blocks.
    fn order_some(noise: &mut Noise, clocks: &mut Clocks, sync: &mut SyncClocks) {
        match noise.below(30) {
            0 | 1 => clocks.barrier(0, &ThreadSet::first(64)),
            2 => clocks.meet(&ThreadSet::of_warp(noise.below(2) as u32, u32::MAX)),
            3 => clocks.meet(&ThreadSet::of_warp(0, 0b1010)),
            4 => clocks.write(sync, 64, noise.below(64) as u32, true),
            5 => clocks.read(sync, 64, noise.below(64) as u32),
            6 => clocks.arrive(1, noise.below(64) as u32),
            7 => clocks.barrier(1, &ThreadSet::of_warp(1, u32::MAX)),
            _ => {}
        }
    }

    #[test]
    fn a_row_finds_what_cells_find() {
        let (mut races, mut alike, mut split) = (0, 0, 0);
        for seed in 1..600 {
            let mut noise = Noise(seed);
            let mut cells = vec![Cell::default(); PAGE_WORDS];
            let mut page = RowPage::new(ROWS);
            let mut sync = SyncClocks::default();
            let orders = !seed.is_multiple_of(3);
            for block in 0..3 {
                let mut clocks = Clocks::new(block, 64);
                for line in 1..60 {
                    let (first, lanes, stride) = group(&mut noise, line);
                    let mut group = GroupAccess {
                        first,
                        lanes,
                        addresses: LaneAddresses::Stride(stride),
                        values: LaneValues::None,
                    };
                    if noise.below(20) == 0 {
                        group.first.order = order::STRONG;
                        group.lanes = 1;
                    }
                    let (mut expected, mut found) = (Vec::new(), Vec::new());
                    for lane in 0..group.lanes {
                        by_cells(
                            &mut cells,
                            &group.lane(lane),
                            (&clocks, block),
                            &mut expected,
                        );
                    }
                    by_rows(
                        &mut page,
                        &group,
                        (&clocks, block),
                        (&mut found, &mut alike),
                    );
                    assert_eq!(found, expected, "seed {seed}, block {block}, {group:?}");
                    races += found.len();
                    if orders {
                        order_some(&mut noise, &mut clocks, &mut sync);
                    }
                }
            }
            split += page.split.count_ones();
        }
        assert!(
            races > 1000 && alike > 10_000 && split > 100,
            "{races} {alike} {split}"
        );
    }
}
