//! A chunk of pieces of any size, each where it fits best.

use std::collections::BTreeMap;

use crate::{FRAME_BYTES, Figures};

/// Pieces are multiples of this.
const STEP: u64 = 4096;

/// One chunk.
#[derive(Debug)]
pub(super) struct Room {
    /// Free ranges, offset and bytes; neighbours are joined.
    free: BTreeMap<u64, u64>,
    /// Pieces by offset: the bytes that were asked for.
    pieces: BTreeMap<u64, u64>,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            free: BTreeMap::from([(0, FRAME_BYTES)]),
            pieces: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of the smallest free range that a request fits.
    pub(super) fn best_fit(&self, bytes: u64) -> Option<u64> {
        let fits = |length: &&u64| **length >= bytes.next_multiple_of(STEP);
        self.free.values().filter(fits).min().copied()
    }

    /// Takes a piece; its offset and what it takes.
    pub(super) fn take(&mut self, bytes: u64) -> Option<(u64, u64)> {
        let given = bytes.next_multiple_of(STEP);
        let length = self.best_fit(bytes)?;
        let (&offset, _) = self.free.iter().find(|(_, free)| **free == length)?;
        self.free.remove(&offset);
        if length > given {
            self.free.insert(offset + given, length - given);
        }
        self.pieces.insert(offset, bytes);
        Some((offset, given))
    }

    /// Frees the piece that begins at an offset; the bytes that were asked for, and those it took.
    pub(super) fn give(&mut self, offset: u64) -> Option<(u64, u64)> {
        let bytes = self.pieces.remove(&offset)?;
        let given = bytes.next_multiple_of(STEP);
        let (mut start, mut length) = (offset, given);
        if let Some(next) = self.free.remove(&(offset + given)) {
            length += next;
        }
        if let Some((&before, &free)) = self.free.range(..offset).next_back()
            && before + free == offset
        {
            self.free.remove(&before);
            (start, length) = (before, length + free);
        }
        self.free.insert(start, length);
        Some((bytes, given))
    }

    /// The piece around an offset: where it begins, and the bytes that were asked for.
    pub(super) fn find(&self, offset: u64) -> Option<(u64, u64)> {
        let (&start, &bytes) = self.pieces.range(..=offset).next_back()?;
        (offset - start < bytes).then_some((start, bytes))
    }

    pub(super) fn figures(&self) -> Figures {
        let given = |bytes: &u64| bytes.next_multiple_of(STEP);
        Figures {
            held_bytes: FRAME_BYTES,
            asked_bytes: self.pieces.values().sum(),
            given_bytes: self.pieces.values().map(given).sum(),
            largest_free_bytes: self.free.values().max().copied().unwrap_or(0),
            pieces: self.pieces.len() as u64,
        }
    }
}
