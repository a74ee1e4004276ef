//! Which parts of a number line are free.
//!
//! Owns no memory: the same bookkeeping serves addresses of the arena, offsets in the frame file and
//! pieces of a chunk.

use std::collections::BTreeMap;

/// Free ranges, kept merged.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    free: BTreeMap<u64, u64>,
    /// Where the last search ended. Going round delays reuse, so a stale pointer keeps faulting.
    cursor: u64,
    /// First number and length of all of it.
    whole: (u64, u64),
}

impl Ranges {
    /// One free range.
    pub(crate) fn new(start: u64, len: u64) -> Self {
        let mut ranges = Self {
            whole: (start, len),
            ..Self::default()
        };
        if len > 0 {
            ranges.free.insert(start, len);
        }
        ranges
    }

    /// Whether a number is one of these, free or not.
    pub(crate) fn has(&self, at: u64) -> bool {
        let (start, len) = self.whole;
        at.wrapping_sub(start) < len
    }

    /// Takes `len` from the lowest place that fits; `align` is a power of two.
    pub(crate) fn take_lowest(&mut self, len: u64, align: u64) -> Option<u64> {
        let found = self.find(0, len, align)?;
        self.carve(found, len);
        Some(found)
    }

    /// Takes `len` from the next place after the last one that fits, going round once.
    pub(crate) fn take_next(&mut self, len: u64, align: u64) -> Option<u64> {
        let found = self
            .find(self.cursor, len, align)
            .or_else(|| self.find(0, len, align))?;
        self.carve(found, len);
        self.cursor = found + len;
        Some(found)
    }

    /// Takes `len` at a place, if all of it is free.
    pub(crate) fn take_at(&mut self, at: u64, len: u64) -> bool {
        let holds = |(&start, &free): (&u64, &u64)| {
            let end = at.checked_add(len);
            end.is_some_and(|end| end <= start + free)
        };
        let is_free = len > 0 && self.free.range(..=at).next_back().is_some_and(holds);
        if is_free {
            self.carve(at, len);
        }
        is_free
    }

    fn find(&self, from: u64, len: u64, align: u64) -> Option<u64> {
        if len == 0 {
            return None;
        }
        let before = self.free.range(..from).next_back();
        let fits = |start: u64, free: u64| {
            let end = start + free;
            let at = start.max(from).checked_add(align - 1)? & !(align - 1);
            (at.checked_add(len)? <= end).then_some(at)
        };
        before
            .into_iter()
            .chain(self.free.range(from..))
            .find_map(|(&start, &free)| fits(start, free))
    }

    fn carve(&mut self, at: u64, len: u64) {
        let Some((&start, &free)) = self.free.range(..=at).next_back() else {
            return;
        };
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let (end, free_end) = (at + len, start + free);
        if free_end > end {
            self.free.insert(end, free_end - end);
        }
    }

    /// Gives a range back. The caller only returns what it took.
    pub(crate) fn give(&mut self, start: u64, len: u64) {
        let (mut start, mut len) = (start, len);
        if let Some((&before, &before_len)) = self.free.range(..start).next_back()
            && before + before_len == start
        {
            self.free.remove(&before);
            start = before;
            len += before_len;
        }
        if let Some(after_len) = self.free.remove(&(start + len)) {
            len += after_len;
        }
        self.free.insert(start, len);
    }

    /// Whether exactly this one range is free.
    pub(crate) fn is_all_free(&self, start: u64, len: u64) -> bool {
        self.free.len() == 1 && self.free.get(&start) == Some(&len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_leaves_the_gap_free() {
        let mut ranges = Ranges::new(256, 10_000);
        assert_eq!(ranges.take_lowest(4096, 4096), Some(4096));
        assert_eq!(ranges.take_lowest(256, 256), Some(256));
        ranges.give(256, 256);
        ranges.give(4096, 4096);
        assert!(ranges.is_all_free(256, 10_000));
    }

    #[test]
    fn next_fit_does_not_reuse_until_it_has_gone_round() {
        let mut ranges = Ranges::new(0, 4 * 4096);
        let first = ranges.take_next(4096, 4096).unwrap();
        ranges.give(first, 4096);
        assert_eq!(ranges.take_next(4096, 4096), Some(4096));
        assert_eq!(ranges.take_next(2 * 4096, 4096), Some(2 * 4096));
        assert_eq!(ranges.take_next(4096, 4096), Some(0));
        assert_eq!(ranges.take_next(4096, 4096), None);
    }

    #[test]
    fn a_cursor_inside_a_free_range_uses_the_rest_of_it() {
        let mut ranges = Ranges::new(0, 100);
        assert_eq!(ranges.take_next(10, 1), Some(0));
        ranges.give(0, 10);
        assert_eq!(ranges.take_next(90, 1), Some(10));
        assert_eq!(ranges.take_next(10, 1), Some(0));
    }

    #[test]
    fn a_place_is_taken_once_and_only_as_a_whole() {
        let mut ranges = Ranges::new(100, 100);
        for (at, len) in [(99, 2), (199, 2), (150, 0), (250, 1), (150, u64::MAX)] {
            assert!(!ranges.take_at(at, len), "{len} at {at}");
        }
        assert!(ranges.take_at(150, 20) && !ranges.take_at(169, 1));
        assert!(ranges.take_at(100, 50) && ranges.take_at(170, 30));
        assert_eq!(ranges.take_lowest(1, 1), None);
        ranges.give(150, 20);
        assert!(ranges.take_at(150, 20));
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        let mut ranges = Ranges::new(0, 1 << 40);
        assert_eq!(ranges.take_lowest(u64::MAX, 1), None);
        assert_eq!(ranges.take_next(u64::MAX - 4096, 4096), None);
        assert_eq!(ranges.take_lowest(0, 1), None);
    }
}
