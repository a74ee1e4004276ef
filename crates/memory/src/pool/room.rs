//! A chunk of pieces of any size.
//!
//! Keeps the pieces and the gaps between them in order. Which gap a request goes to is the pool's decision, which knows the
//! gaps of all rooms.

use crate::{FRAME_BYTES, Figures};

/// Pieces are multiples of this.
const STEP: u64 = 512;

/// What a request takes of a room.
pub(super) fn taken_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(STEP)
}

/// Bytes from an offset on.
pub(super) type Range = (u64, u64);

/// A piece or a gap.
#[derive(Clone, Copy, Debug)]
struct Extent {
    offset: u32,
    length: u32,
    /// Bytes that were asked for; 0 for a gap.
    asked: u32,
}

impl Extent {
    fn range(&self) -> Range {
        (u64::from(self.offset), u64::from(self.length))
    }
}

/// What a freed piece leaves behind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    /// Bytes that had been asked for.
    pub(super) bytes: u64,
    /// Gaps before and behind that are no more.
    pub(super) joined: [Option<Range>; 2],
    /// The gap that there is now.
    pub(super) gap: Range,
}

/// One chunk.
#[derive(Debug)]
pub(super) struct Room {
    /// All of the chunk, in order; no two gaps are neighbours. A piece has more than 4 KiB, so there are at most 1023.
    extents: Vec<Extent>,
}

impl Room {
    pub(super) fn new() -> Self {
        let all = Extent {
            offset: 0,
            length: FRAME_BYTES as u32,
            asked: 0,
        };
        Self { extents: vec![all] }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self.extents[..], [only] if only.asked == 0)
    }

    fn index_of(&self, offset: u64) -> Option<usize> {
        let found = |extent: &Extent| u64::from(extent.offset).cmp(&offset);
        self.extents.binary_search_by(found).ok()
    }

    pub(super) fn gaps(&self) -> impl Iterator<Item = Range> {
        let gaps = self.extents.iter().filter(|extent| extent.asked == 0);
        gaps.map(Extent::range)
    }

    /// Takes a piece from the beginning of a gap; the gap that is left behind it.
    pub(super) fn take(&mut self, offset: u64, bytes: u64) -> Option<Option<Range>> {
        let index = self.index_of(offset)?;
        let (gap, given) = (self.extents[index], taken_bytes(bytes) as u32);
        if gap.asked != 0 || gap.length < given {
            return None;
        }
        self.extents[index] = Extent {
            length: given,
            asked: bytes as u32,
            ..gap
        };
        if gap.length == given {
            return Some(None);
        }
        let left = Extent {
            offset: gap.offset + given,
            length: gap.length - given,
            asked: 0,
        };
        self.extents.insert(index + 1, left);
        Some(Some(left.range()))
    }

    /// Takes a piece that begins at an offset inside a gap: the gap that was there, and those that are left.
    pub(super) fn take_at(&mut self, offset: u64, bytes: u64) -> Option<(Range, Vec<Range>)> {
        let given = taken_bytes(bytes);
        let inside = |(start, length): &Range| {
            *start <= offset
                && offset
                    .checked_add(given)
                    .is_some_and(|end| end <= start + length)
        };
        let gap = self.gaps().find(inside)?;
        if !offset.is_multiple_of(STEP) {
            return None;
        }
        let mut left = Vec::new();
        if offset > gap.0 {
            let index = self.index_of(gap.0)?;
            let before = offset - gap.0;
            self.extents[index].length = before as u32;
            let behind = Extent {
                offset: offset as u32,
                length: (gap.1 - before) as u32,
                asked: 0,
            };
            self.extents.insert(index + 1, behind);
            left.push((gap.0, before));
        }
        left.extend(self.take(offset, bytes)?);
        Some((gap, left))
    }

    /// Frees the piece that begins at an offset.
    pub(super) fn give(&mut self, offset: u64) -> Option<Given> {
        let mut index = self.index_of(offset)?;
        let bytes = u64::from(std::mem::take(&mut self.extents[index].asked));
        if bytes == 0 {
            return None;
        }
        let is_gap = |extent: &&Extent| extent.asked == 0;
        let next = self.extents.get(index + 1).filter(is_gap).copied();
        if let Some(next) = next {
            self.extents[index].length += next.length;
            self.extents.remove(index + 1);
        }
        let before = index.checked_sub(1).map(|before| self.extents[before]);
        let before = before.filter(|extent| extent.asked == 0);
        if before.is_some() {
            let length = self.extents.remove(index).length;
            index -= 1;
            self.extents[index].length += length;
        }
        Some(Given {
            bytes,
            joined: [before, next].map(|gap| gap.map(|gap| gap.range())),
            gap: self.extents[index].range(),
        })
    }

    /// The piece around an offset: where it begins, and the bytes that were asked for.
    pub(super) fn find(&self, offset: u64) -> Option<(u64, u64)> {
        let behind = |extent: &Extent| u64::from(extent.offset) <= offset;
        let index = self.extents.partition_point(behind).checked_sub(1)?;
        let extent = self.extents[index];
        let (start, asked) = (u64::from(extent.offset), u64::from(extent.asked));
        (offset - start < asked).then_some((start, asked))
    }

    pub(super) fn figures(&self) -> Figures {
        let pieces = || self.extents.iter().filter(|extent| extent.asked > 0);
        Figures {
            held_bytes: FRAME_BYTES,
            asked_bytes: pieces().map(|piece| u64::from(piece.asked)).sum(),
            given_bytes: pieces().map(|piece| u64::from(piece.length)).sum(),
            largest_free_bytes: self.gaps().map(|(_, length)| length).max().unwrap_or(0),
            pieces: pieces().count() as u64,
        }
    }
}
