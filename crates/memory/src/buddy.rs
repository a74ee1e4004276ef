//! A block of memory, given out in halves of halves.
//!
//! Places pieces of host memory that tenants leave their contents in. Sizes are powers of two times one unit, so any
//! two free halves join again and a block that is empty is whole.

use std::collections::BTreeSet;

use crate::Figures;

/// One block of `unit << orders` bytes.
#[derive(Clone, Debug)]
pub struct Buddy {
    unit: u64,
    /// Free pieces of `unit << order` bytes, by first offset in units.
    free: Vec<BTreeSet<u64>>,
    given_units: u64,
    asked_bytes: u64,
    pieces: u64,
}

impl Buddy {
    /// A block of `unit << orders` bytes, all free.
    pub fn new(unit: u64, orders: u32) -> Self {
        let mut free = vec![BTreeSet::new(); orders as usize + 1];
        free[orders as usize].insert(0);
        Self {
            unit: unit.max(1),
            free,
            given_units: 0,
            asked_bytes: 0,
            pieces: 0,
        }
    }

    /// Bytes of the block.
    pub fn bytes(&self) -> u64 {
        self.unit << (self.free.len() - 1)
    }

    fn order_of(&self, bytes: u64) -> Option<usize> {
        let units = bytes
            .max(1)
            .div_ceil(self.unit)
            .checked_next_power_of_two()?;
        let order = units.trailing_zeros() as usize;
        (order < self.free.len()).then_some(order)
    }

    /// Takes a piece of at least `bytes`; its offset.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let wanted = self.order_of(bytes)?;
        let found = (wanted..self.free.len()).find(|order| !self.free[*order].is_empty())?;
        let at = self.free[found].pop_first()?;
        for order in (wanted..found).rev() {
            self.free[order].insert(at + (1 << order));
        }
        self.given_units += 1 << wanted;
        self.asked_bytes += bytes;
        self.pieces += 1;
        Some(at * self.unit)
    }

    /// Gives back what [`Buddy::take`] gave for so many bytes; false, and nothing changes, if part of it is free.
    pub fn give(&mut self, offset: u64, bytes: u64) -> bool {
        let Some(order) = self.order_of(bytes) else {
            return false;
        };
        let mut at = offset / self.unit;
        let is_whole = offset.is_multiple_of(self.unit) && at.is_multiple_of(1 << order);
        if !is_whole || offset >= self.bytes() || self.overlaps_free(at, order) {
            return false;
        }
        self.given_units -= 1 << order;
        self.asked_bytes = self.asked_bytes.saturating_sub(bytes);
        self.pieces -= 1;
        let mut order = order;
        while order + 1 < self.free.len() && self.free[order].remove(&(at ^ (1 << order))) {
            at &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(at);
        true
    }

    fn overlaps_free(&self, at: u64, order: usize) -> bool {
        let end = at + (1 << order);
        let inside = |o: usize| self.free[o].range(at..end).next().is_some();
        let around = |o: usize| self.free[o].contains(&(at & !((1 << o) - 1)));
        (0..self.free.len()).any(|o| inside(o) || (o > order && around(o)))
    }

    /// Whether nothing is given out.
    pub fn is_empty(&self) -> bool {
        self.given_units == 0
    }

    /// Sums.
    pub fn figures(&self) -> Figures {
        let largest = self.free.iter().rposition(|free| !free.is_empty());
        Figures {
            held_bytes: self.bytes(),
            asked_bytes: self.asked_bytes,
            given_bytes: self.given_units * self.unit,
            largest_free_bytes: largest.map_or(0, |order| self.unit << order),
            pieces: self.pieces,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_join_again() {
        let mut buddy = Buddy::new(2, 5);
        assert_eq!(buddy.bytes(), 64);
        let pieces: Vec<u64> = (0..32).map(|_| buddy.take(1).unwrap()).collect();
        assert_eq!(buddy.take(1), None);
        assert_eq!(buddy.figures().largest_free_bytes, 0);
        for piece in pieces.iter().rev() {
            assert!(buddy.give(*piece, 1));
        }
        assert!(buddy.is_empty());
        assert_eq!(buddy.take(64), Some(0));
    }

    #[test]
    fn a_piece_that_is_free_is_not_taken_back() {
        let mut buddy = Buddy::new(1, 4);
        let at = buddy.take(4).unwrap();
        assert!(!buddy.give(at + 4, 4), "never given");
        assert!(!buddy.give(at + 1, 4), "not its beginning");
        assert!(!buddy.give(at, 64), "larger than the block");
        assert!(buddy.give(at, 4));
        assert!(!buddy.give(at, 4), "twice");
        assert!(!buddy.give(16, 1) && !buddy.give(u64::MAX, 1));
        assert_eq!(buddy.take(17), None);
    }

    #[test]
    fn random_pieces_never_overlap_and_all_come_back() {
        let mut state = 7_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut buddy = Buddy::new(4, 8);
        let mut given: Vec<(u64, u64)> = Vec::new();
        for _ in 0..20_000 {
            if random() % 3 == 0 && !given.is_empty() {
                let (at, bytes) = given.swap_remove(random() as usize % given.len());
                assert!(buddy.give(at, bytes));
            } else {
                let bytes = 1 + random() % 200;
                if let Some(at) = buddy.take(bytes) {
                    let clear =
                        |(start, length): &(u64, u64)| at + bytes <= *start || start + length <= at;
                    assert!(given.iter().all(clear) && at + bytes <= buddy.bytes());
                    given.push((at, bytes));
                }
            }
            let asked: u64 = given.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(buddy.figures().asked_bytes, asked);
        }
        for (at, bytes) in given {
            assert!(buddy.give(at, bytes));
        }
        assert_eq!(buddy.figures().largest_free_bytes, buddy.bytes());
    }
}
