//! Addresses that another process can have again.
//!
//! The driver takes a wanted address of reserved space as a hint, and not every address: but the first of a whole part of the
//! address space, where systems and the driver put nothing of their own, it gives. So a device that is to be continued by
//! another process has one such part reserved, and what lies where in it is decided here.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use mica_gpu::Result;

use super::invalid;

/// Frames of the driver's memory.
const FRAME_BYTES: u64 = 2 << 20;
/// Bytes of the part.
const SPACE_BYTES: u64 = 1 << 40;
/// Where parts lie: those of software GPUs that can be continued lie in the same, see `mica_backend_software`.
const APART: std::ops::Range<u64> = 1 << 44..1 << 46;

/// Free addresses of one part: first address and bytes. Neighbours are one.
#[derive(Debug)]
pub(super) struct Places {
    base: u64,
    bytes: u64,
    /// The driver has reserved the part.
    pub(super) is_reserved: bool,
    /// Another device had the part: no other one will do.
    pub(super) is_wanted: bool,
    free: BTreeMap<u64, u64>,
}

impl Places {
    /// A part by chance: what one process learns of its addresses tells nothing of another's.
    pub(super) fn anywhere() -> Self {
        let slots = (APART.end - APART.start) / SPACE_BYTES;
        let slot = RandomState::new().build_hasher().finish() % slots;
        Self::of(APART.start + slot * SPACE_BYTES, SPACE_BYTES)
    }

    /// The part that an earlier device had.
    ///
    /// # Errors
    /// It is no such part.
    pub(super) fn at(base: u64, bytes: u64) -> Result<Self> {
        let end = base.checked_add(bytes);
        let is_apart = base >= APART.start && end.is_some_and(|end| end <= APART.end);
        if !is_apart || bytes == 0 || !(base | bytes).is_multiple_of(FRAME_BYTES) {
            let what = format!("{bytes} bytes at {base:#x} are no address space of a device");
            return Err(invalid(what));
        }
        let is_wanted = true;
        Ok(Self {
            is_wanted,
            ..Self::of(base, bytes)
        })
    }

    fn of(base: u64, bytes: u64) -> Self {
        Self {
            base,
            bytes,
            is_reserved: false,
            is_wanted: false,
            free: BTreeMap::from([(base, bytes)]),
        }
    }

    /// First address and bytes.
    pub(super) fn space(&self) -> (u64, u64) {
        (self.base, self.bytes)
    }

    /// Whether an address lies in the part.
    pub(super) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.bytes
    }

    /// Takes the first free place for so many bytes.
    pub(super) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(FRAME_BYTES)?;
        let align = align.max(FRAME_BYTES);
        let at = self.free.iter().find_map(|(start, length)| {
            let at = start.checked_next_multiple_of(align)?;
            let end = at.checked_add(bytes)?;
            (end <= start + length).then_some(at)
        })?;
        self.take_at(at, bytes).then_some(at)
    }

    /// Takes one place; false, and nothing changes, if it is not free.
    pub(super) fn take_at(&mut self, at: u64, bytes: u64) -> bool {
        let (Some(bytes), Some((&start, &length))) = (
            bytes.checked_next_multiple_of(FRAME_BYTES),
            self.free.range(..=at).next_back(),
        ) else {
            return false;
        };
        let (end, free_end) = (at.checked_add(bytes), start + length);
        let Some(end) = end.filter(|end| *end <= free_end && bytes > 0) else {
            return false;
        };
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if end < free_end {
            self.free.insert(end, free_end - end);
        }
        true
    }

    /// Gives back a place that was taken.
    pub(super) fn give(&mut self, at: u64, bytes: u64) {
        if !self.contains(at) {
            return;
        }
        let (mut start, mut end) = (at, at + bytes.next_multiple_of(FRAME_BYTES));
        if let Some((&before, &length)) = self.free.range(..at).next_back()
            && before + length == at
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 1 << 44;

    #[test]
    fn places_are_given_once_and_join_again() {
        let mut places = Places::at(BASE, 16 << 20).unwrap();
        let first = places.take(3 << 20, 0).unwrap();
        let second = places.take(2 << 20, 8 << 20).unwrap();
        assert_eq!((first, second), (BASE, BASE + (8 << 20)));
        assert!(!places.take_at(BASE + (2 << 20), 2 << 20), "taken");
        assert!(places.take_at(BASE + (4 << 20), 4 << 20));
        assert_eq!(places.take(8 << 20, 0), None, "6 MiB are left");
        for (at, bytes) in [
            (first, 3 << 20),
            (BASE + (4 << 20), 4 << 20),
            (second, 2 << 20),
        ] {
            places.give(at, bytes);
        }
        assert_eq!(places.free, BTreeMap::from([(BASE, 16 << 20)]));
        assert_eq!(places.take(16 << 20, 0), Some(BASE));
    }

    #[test]
    fn only_parts_apart_from_what_a_process_has_are_taken() {
        assert!(Places::at(0x7f00_0000_0000, 1 << 30).is_err());
        assert!(Places::at(BASE + 1, 1 << 30).is_err() && Places::at(BASE, 0).is_err());
        assert!(Places::at(u64::MAX - FRAME_BYTES + 1, FRAME_BYTES).is_err());
        let (base, bytes) = Places::anywhere().space();
        assert!(Places::at(base, bytes).is_ok());
    }

    #[test]
    fn random_places_never_overlap() {
        let mut state = 11_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut places = Places::at(BASE, 1 << 30).unwrap();
        let mut given: Vec<(u64, u64)> = Vec::new();
        for _ in 0..5000 {
            if random() % 2 == 0 && !given.is_empty() {
                let (at, bytes) = given.swap_remove(random() as usize % given.len());
                places.give(at, bytes);
                continue;
            }
            let bytes = (1 + random() % 20) << 21;
            if let Some(at) = places.take(bytes, 0) {
                let clear =
                    |(start, length): &(u64, u64)| at + bytes <= *start || start + length <= at;
                assert!(given.iter().all(clear));
                given.push((at, bytes));
            }
        }
    }
}
