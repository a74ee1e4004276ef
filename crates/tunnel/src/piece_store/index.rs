//! What lies where in the files of a [`super::PieceStore`], and which piece makes room for another.

use std::collections::{BTreeSet, HashMap};

use crate::pieces::{Hash, prefix};

/// Bytes of a record: the hash, when it was last used, how often it was found, zeros.
pub(super) const RECORD_BYTES: usize = 64;

/// What the index says of a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// All zeros: the place is free.
    pub(super) hash: Hash,
    /// Microseconds since 1970.
    pub(super) used_us: u64,
    /// How often a program sent the piece again.
    pub(super) found: u64,
}

impl Record {
    pub(super) fn is_free(&self) -> bool {
        self.hash == [0; 32]
    }

    pub(super) fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..32].copy_from_slice(&self.hash);
        bytes[32..40].copy_from_slice(&self.used_us.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.found.to_le_bytes());
        bytes
    }

    /// Any bytes are a record: a wrong hash is found out when the piece is read. A time that has not come yet is `now_us`.
    pub(super) fn from_bytes(bytes: &[u8; RECORD_BYTES], now_us: u64) -> Self {
        let mut record = Self::default();
        record.hash.copy_from_slice(&bytes[..32]);
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        if !record.is_free() {
            (record.used_us, record.found) = (number(32).min(now_us), number(40));
        }
        record
    }
}

/// The index as this process knows it; others may have changed the file since.
#[derive(Debug, Default)]
pub(super) struct Index {
    records: Vec<Record>,
    by_hash: HashMap<Hash, u32>,
    /// Every place, the first to be taken first: free ones, then pieces that were never found again, then the others.
    order: BTreeSet<(bool, u64, u32)>,
}

impl Index {
    /// An index of so many places, from the bytes of its file, which may be shorter.
    pub(super) fn new(bytes: &[u8], places: u32, now_us: u64) -> Self {
        let mut index = Self {
            records: vec![Record::default(); places as usize],
            ..Self::default()
        };
        let (records, _) = bytes.as_chunks::<RECORD_BYTES>();
        for place in 0..places {
            let record = records.get(place as usize);
            let record = record.map(|bytes| Record::from_bytes(bytes, now_us));
            index.order.insert((false, 0, place));
            index.set(place, record.unwrap_or_default());
        }
        index
    }

    pub(super) fn get(&self, place: u32) -> Record {
        self.records
            .get(place as usize)
            .copied()
            .unwrap_or_default()
    }

    /// Where a piece is.
    pub(super) fn find(&self, hash: &Hash) -> Option<u32> {
        self.by_hash.get(hash).copied()
    }

    /// Notes what a place has now.
    pub(super) fn set(&mut self, place: u32, record: Record) {
        let Some(slot) = self.records.get_mut(place as usize) else {
            return;
        };
        let old = std::mem::replace(slot, record);
        self.order.remove(&(old.found > 0, old.used_us, place));
        (self.order).insert((record.found > 0, record.used_us, place));
        if self.by_hash.get(&old.hash) == Some(&place) {
            self.by_hash.remove(&old.hash);
        }
        if !record.is_free() {
            self.by_hash.insert(record.hash, place);
        }
    }

    /// The place that the next piece takes: a free one, if that is wanted, else that of the piece that is missed least.
    pub(super) fn next_place(&self, may_be_free: bool) -> Option<u32> {
        let mut places = self.order.iter().map(|(_, _, place)| *place);
        places.find(|place| may_be_free || !self.get(*place).is_free())
    }

    /// Prefixes of at most `most` pieces, those that were used last first.
    pub(super) fn prefixes(&self, most: usize) -> Vec<u64> {
        let mut pieces: Vec<&Record> = (self.by_hash.values())
            .filter_map(|place| self.records.get(*place as usize))
            .collect();
        pieces.sort_unstable_by_key(|record| std::cmp::Reverse(record.used_us));
        (pieces.iter().take(most))
            .map(|record| prefix(&record.hash))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u8, used_us: u64, found: u64) -> Record {
        Record {
            hash: [number; 32],
            used_us,
            found,
        }
    }

    #[test]
    fn free_places_go_first_then_what_was_never_found_again() {
        let mut index = Index::new(&[], 4, 100);
        for (place, record) in [record(1, 10, 1), record(2, 30, 0), record(3, 20, 0)]
            .into_iter()
            .enumerate()
        {
            index.set(place as u32, record);
        }
        assert_eq!(index.next_place(true), Some(3));
        assert_eq!(index.next_place(false), Some(2), "the oldest of the two");
        index.set(2, record(4, 40, 0));
        assert_eq!(index.find(&[3; 32]), None);
        index.set(3, record(5, 50, 2));
        assert_eq!(index.next_place(true), Some(1));
        index.set(1, record(2, 60, 1));
        index.set(2, record(4, 70, 3));
        assert_eq!(index.next_place(true), Some(0), "the oldest of all");
        let told = index.prefixes(2);
        assert_eq!(told, [prefix(&[4; 32]), prefix(&[2; 32])]);
    }

    #[test]
    fn an_index_of_any_bytes_can_be_used() {
        let mut bytes = Vec::new();
        for number in [1_u8, 0, 1, 7] {
            bytes.extend(record(number, u64::MAX, 9).to_bytes());
        }
        bytes.extend([255; 70]);
        let index = Index::new(&bytes, 5, 1000);
        assert_eq!(index.get(1), Record::default(), "a free place has no more");
        assert_eq!(index.get(3), record(7, 1000, 9));
        assert_eq!(index.get(4).hash, [255; 32]);
        assert_eq!(index.next_place(true), Some(1));
        // Two places say that they have one piece.
        assert!(matches!(index.find(&[1; 32]), Some(0 | 2)));
        assert_eq!(index.prefixes(10).len(), 3);
        assert_eq!(Index::new(&bytes, 0, 0).next_place(true), None);
    }
}
