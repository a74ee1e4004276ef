//! Accesses of a group as accesses of rows.

use mica_kernel::monitor::{AccessKind, GroupAccess, LaneAddresses};

use super::cells::Seen;
use super::rows::{RowAccess, Threads, WORDS};

/// What some lanes of a group access in one row.
#[derive(Debug)]
pub(crate) struct Span {
    /// An address in the row.
    pub(crate) address: u64,
    pub(crate) access: RowAccess,
    /// The first lane, and how many.
    pub(crate) lane: u32,
    pub(crate) lanes: u32,
}

impl Span {
    /// The lane that accesses a word of the row, where each word is accessed by one.
    #[inline]
    pub(crate) fn lane_of(&self, word: usize) -> u32 {
        self.lane + (((word - self.access.first) as u32) >> self.access.threads.shift)
    }
}

/// How the lanes of a group lie in words.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Each lane has `1 << shift` words.
    Words { shift: u8 },
    /// Each word has so many lanes.
    Parts { lanes: u32 },
    /// All lanes access the same.
    Same,
}

/// The rows that a plain access of a group is in, one after the other, in the order of its lanes.
#[derive(Debug)]
pub(crate) struct Spans {
    shape: Shape,
    /// Of the whole group.
    address: u64,
    thread: u32,
    bytes: u32,
    lanes: u32,
    words: u32,
    /// Words before the span.
    before: u32,
    done: u32,
    span: Span,
}

impl Spans {
    /// The rows of a group of which `seen` is the access of the first lane; `None` for groups of other shapes.
    #[inline]
    pub(crate) fn new(group: &GroupAccess<'_>, seen: Seen) -> Option<Self> {
        let first = &group.first;
        let LaneAddresses::Stride(stride) = group.addresses else {
            return None;
        };
        let bytes = first.bytes;
        let is_known = matches!(bytes, 1 | 2 | 4 | 8 | 16);
        if !is_known || first.address & u64::from(bytes - 1) != 0 || first.order != 0 {
            return None;
        }
        let (shape, words) = match (stride, bytes) {
            (0, _) if first.kind == AccessKind::Read => (Shape::Same, bytes.div_ceil(4)),
            (_, 4..) if stride == i64::from(bytes) => {
                let shift = (bytes / 4).trailing_zeros() as u8;
                (Shape::Words { shift }, group.lanes << shift)
            }
            _ if stride == i64::from(bytes) => {
                let lanes = 4 / bytes;
                if !first.address.is_multiple_of(4) || !group.lanes.is_multiple_of(lanes) {
                    return None;
                }
                (Shape::Parts { lanes }, group.lanes / lanes)
            }
            _ => return None,
        };
        let access = RowAccess {
            seen,
            threads: Threads::one(seen.thread),
            first: 0,
            words: 0,
        };
        Some(Self {
            shape,
            address: first.address,
            thread: first.thread,
            bytes,
            lanes: group.lanes,
            words,
            before: 0,
            done: 0,
            span: Span {
                address: 0,
                access,
                lane: 0,
                lanes: 0,
            },
        })
    }

    /// Goes on to the next row. Whether there is one.
    #[inline]
    pub(crate) fn next(&mut self) -> bool {
        if self.done == self.words {
            return false;
        }
        self.before = self.done;
        let address = self.address + 4 * u64::from(self.done);
        let word = (address / 4) as usize % WORDS;
        let words = (WORDS - word).min((self.words - self.done) as usize);
        self.done += words as u32;
        let count = words as u32;
        let (lane, lanes, bytes) = match self.shape {
            Shape::Words { shift } => (self.before >> shift, count >> shift, 15),
            Shape::Parts { lanes } => (self.before * lanes, count * lanes, self.part()),
            Shape::Same => (0, self.lanes, self.part()),
        };
        let threads = self.threads(word, lane);
        let span = &mut self.span;
        (span.address, span.lane, span.lanes) = (address, lane, lanes);
        let access = &mut span.access;
        (access.first, access.words, access.threads) = (word, words, threads);
        access.seen.bytes = bytes;
        true
    }

    /// The row. Where several lanes access the same words it is the access of the first of them.
    #[inline]
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// The access of the last lane that accesses the words of the row, where several do. Those between the first and the
    /// last leave nothing behind, if the row is quiet.
    #[inline]
    pub(crate) fn last(&self) -> Option<RowAccess> {
        let mut access = self.span.access;
        match self.shape {
            Shape::Words { .. } => return None,
            Shape::Parts { lanes } => {
                access.threads = self.threads(access.first, self.span.lane + lanes - 1);
                access.seen.bytes = self.part() << (4 - self.bytes);
            }
            Shape::Same => access.threads = Threads::one(self.thread + self.lanes - 1),
        }
        Some(access)
    }

    /// The bytes of the first word that the first lane accesses.
    #[inline]
    fn part(&self) -> u32 {
        match self.bytes {
            4.. => 15,
            bytes => ((1 << bytes) - 1) << (self.address % 4),
        }
    }

    /// The threads of a row, of which the lane is that of `word`.
    #[inline]
    fn threads(&self, word: usize, lane: u32) -> Threads {
        let (by, shift) = match self.shape {
            Shape::Words { shift } => (1, shift),
            Shape::Parts { lanes } => (lanes as u8, 0),
            Shape::Same => (0, 0),
        };
        let before = (word as u32 * u32::from(by)) >> shift;
        Threads {
            first: (self.thread + lane) as i16 - before as i16,
            by,
            shift,
        }
    }
}
