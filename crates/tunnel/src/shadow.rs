//! Host memory on both sides of a wall, and how it is kept equal.
//!
//! Each side has the bytes in shared memory with its neighbour (the program, the worker) and, once the memory is *mapped*,
//! a copy of what it last sent or received. A side sends the words that differ from that copy, by page: a bit for each
//! word of four bytes, then those words. The other side writes just these, so that what each side writes to words of its
//! own survives, also if both write at the same time.

use mica_wire::session::{
    ContextSynchronize, EventQuery, EventSynchronize, GraphLaunch, GraphUpload, Launch, LaunchWith,
    MappedBytes, Request, StreamQuery, StreamSynchronize, StreamWaitValue,
};

/// Calls whose work reads and writes host memory that it was given by its address.
pub(crate) const WORK: &[u16] = &[
    Launch::NUMBER,
    LaunchWith::NUMBER,
    GraphLaunch::NUMBER,
    GraphUpload::NUMBER,
    StreamWaitValue::NUMBER,
];

/// Calls that wait for work, or ask whether it is done: it may be waiting for what the program has written.
pub(crate) const WAITS: &[u16] = &[
    ContextSynchronize::NUMBER,
    StreamSynchronize::NUMBER,
    StreamQuery::NUMBER,
    EventSynchronize::NUMBER,
    EventQuery::NUMBER,
];

/// The unit that is compared.
pub const PAGE: usize = 4096;
/// The unit that is sent.
const WORD: usize = 4;
/// Bytes of a bit for each word of a page.
const BITS: usize = PAGE / WORD / 8;

/// Host memory on one side.
#[derive(Debug)]
pub struct Shadow {
    mapped: MappedBytes,
    bytes: u64,
    known: Option<Vec<u8>>,
}

impl Shadow {
    /// Memory that is not mapped yet.
    pub fn new(mapped: MappedBytes, bytes: u64) -> Self {
        Self {
            mapped,
            bytes,
            known: None,
        }
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is kept equal.
    pub fn is_mapped(&self) -> bool {
        self.known.is_some()
    }

    /// Begins to keep it equal: what is here now is agreed on. The near end sends all of it afterwards.
    pub fn map(&mut self) {
        if self.known.is_none() {
            let mut known = vec![0; self.bytes as usize];
            self.mapped.read(0, &mut known);
            self.known = Some(known);
        }
    }

    /// Begins to keep it equal with a side that has nothing but zeros.
    pub fn map_as_zeros(&mut self) {
        self.known = Some(vec![0; self.bytes as usize]);
    }

    /// Whether bytes are inside.
    pub fn holds(&self, offset: u64, bytes: usize) -> bool {
        offset
            .checked_add(bytes as u64)
            .is_some_and(|end| end <= self.bytes)
    }

    /// Copies bytes out; false if they are not inside.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> bool {
        let inside = self.holds(offset, bytes.len());
        if inside {
            self.mapped.read(offset as usize, bytes);
        }
        inside
    }

    /// Copies bytes to the end of a buffer; false, and nothing copied, if they are not inside.
    pub fn append_to(&self, offset: u64, bytes: usize, out: &mut Vec<u8>) -> bool {
        let inside = self.holds(offset, bytes);
        if inside {
            self.mapped.append_to(offset as usize, bytes, out);
        }
        inside
    }

    /// Copies bytes in, whatever was agreed on; false if they are not inside.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let inside = self.holds(offset, bytes.len());
        if inside {
            self.mapped.write(offset as usize, bytes);
        }
        inside
    }

    /// Takes over what the other side has changed of the page at an offset; false if that is not inside, makes no sense,
    /// or the memory is not mapped.
    pub fn merge(&mut self, offset: u64, changes: &[u8]) -> bool {
        let (Some(known), Some((bits, mut words))) =
            (&mut self.known, changes.split_at_checked(BITS))
        else {
            return false;
        };
        let page = usize::try_from(offset)
            .ok()
            .and_then(|offset| Some((offset, known.get_mut(offset..)?)));
        let Some((offset, page)) = page.filter(|(_, rest)| !rest.is_empty()) else {
            return false;
        };
        let most = page.len().min(PAGE);
        let page = &mut page[..most];
        // Most often all of it has changed, when memory is filled or sent for the first time.
        if words.len() == page.len() && bits.iter().all(|bits| *bits == u8::MAX) {
            self.mapped.write(offset, words);
            page.copy_from_slice(words);
            return true;
        }
        for (index, old) in page.chunks_mut(WORD).enumerate() {
            if bits[index / 8] & 1 << (index % 8) == 0 {
                continue;
            }
            let Some((new, more)) = words.split_at_checked(old.len()) else {
                return false;
            };
            words = more;
            self.mapped.write(offset + index * WORD, new);
            old.copy_from_slice(new);
        }
        words.is_empty()
    }

    /// Calls `send` with what has changed of each page since it was last sent or received.
    pub fn changes(&mut self, send: impl FnMut(u64, &[u8])) {
        self.send(false, 0, usize::MAX, send);
    }

    /// The same from a page on, until so many bytes were sent; the page to go on at, `None` after the last.
    pub fn some_changes(
        &mut self,
        first: usize,
        most_bytes: usize,
        send: impl FnMut(u64, &[u8]),
    ) -> Option<usize> {
        self.send(false, first, most_bytes, send)
    }

    /// Calls `send` with all of every page.
    pub fn all(&mut self, send: impl FnMut(u64, &[u8])) {
        self.send(true, 0, usize::MAX, send);
    }

    fn send(
        &mut self,
        all: bool,
        first: usize,
        most_bytes: usize,
        mut send: impl FnMut(u64, &[u8]),
    ) -> Option<usize> {
        let known = self.known.as_mut()?;
        let mut sent = 0;
        let mut page = [0; PAGE];
        let mut changes = Vec::with_capacity(BITS + PAGE);
        for (index, old) in known.chunks_mut(PAGE).enumerate().skip(first) {
            if sent >= most_bytes {
                return Some(index);
            }
            let page = &mut page[..old.len()];
            self.mapped.read(index * PAGE, page);
            if !all && page == old {
                continue;
            }
            changes.clear();
            changes.resize(BITS, 0);
            for (word, (new, old)) in page.chunks(WORD).zip(old.chunks(WORD)).enumerate() {
                if all || new != old {
                    changes[word / 8] |= 1 << (word % 8);
                    changes.extend_from_slice(new);
                }
            }
            send((index * PAGE) as u64, &changes);
            sent += changes.len();
            old.copy_from_slice(page);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_wire::session::create_sealed;

    fn shadow(bytes: usize) -> Shadow {
        let file = create_sealed("test", bytes as u64).unwrap();
        Shadow::new(MappedBytes::map(&file, 0, bytes, 0).unwrap(), bytes as u64)
    }

    fn word(side: &Shadow, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        assert!(side.read(offset, &mut bytes));
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn changes_outside_of_the_memory_are_refused() {
        let mut side = shadow(2 * PAGE + 8);
        assert!(!side.merge(0, &[0; BITS]), "not mapped");
        side.map();
        let end = 2 * PAGE as u64 + 8;
        for offset in [end, end + 1, end + PAGE as u64, u64::MAX - 3, u64::MAX] {
            assert!(!side.merge(offset, &[u8::MAX; BITS]), "{offset:#x}");
            assert!(!side.merge(offset, &[0; BITS]), "{offset:#x}");
            assert!(!side.merge(offset, &[u8::MAX; BITS + 8]), "{offset:#x}");
        }
        assert!(
            !side.merge(end - 8, &[u8::MAX; BITS + 12]),
            "too many words"
        );
        assert!(side.merge(end - 8, &[u8::MAX; BITS + 8]));
        assert_eq!(word(&side, end - 4), u32::MAX);
    }

    #[test]
    fn much_that_has_changed_is_sent_in_parts() {
        let mut side = shadow(10 * PAGE + 8);
        side.map_as_zeros();
        assert!(side.write(0, &[7; 10 * PAGE + 8]));
        let (mut at, mut parts, mut offsets) = (Some(0), 0, Vec::new());
        while let Some(first) = at {
            at = side.some_changes(first, 3 * PAGE, |offset, _| offsets.push(offset));
            parts += 1;
        }
        let all: Vec<u64> = (0..11).map(|page| page * PAGE as u64).collect();
        assert_eq!((parts, offsets), (4, all));
        side.changes(|offset, _| panic!("{offset} is sent again"));
    }

    #[test]
    fn what_both_sides_write_to_one_page_at_once_survives() {
        let (mut near, mut far) = (shadow(3 * PAGE), shadow(3 * PAGE));
        assert!(near.write(8, &7_u32.to_le_bytes()));
        near.map();
        far.map();
        near.all(|offset, page| assert!(far.merge(offset, page)));
        assert_eq!(word(&far, 8), 7);
        near.changes(|_, _| panic!("nothing has changed"));
        // Both write, and both send before they have received.
        assert!(far.write(16, &2_u32.to_le_bytes()) && near.write(20, &3_u32.to_le_bytes()));
        let (mut to_near, mut to_far) = (Vec::new(), Vec::new());
        far.changes(|offset, page| to_near.push((offset, page.to_vec())));
        near.changes(|offset, page| to_far.push((offset, page.to_vec())));
        for (offset, page) in to_near {
            assert!(near.merge(offset, &page));
        }
        for (offset, page) in to_far {
            assert!(far.merge(offset, &page));
        }
        for side in [&near, &far] {
            let found = [8, 16, 20].map(|offset| word(side, offset));
            assert_eq!(found, [7, 2, 3]);
        }
        far.changes(|_, _| panic!("what was received is not sent back"));
    }

    #[test]
    fn changes_that_make_no_sense_are_refused() {
        let mut side = shadow(PAGE + 4);
        assert!(!side.merge(0, &[0; BITS]), "not mapped");
        side.map();
        assert!(side.merge(0, &[0; BITS]));
        assert!(!side.merge(0, &[0; BITS - 1]) && !side.merge(0, &[0; BITS + 1]));
        assert!(!side.merge(0, &[0xff; BITS]), "words are missing");
        assert!(!side.merge(u64::MAX, &[1; BITS + 4]));
        assert!(!side.merge(2 * PAGE as u64, &[1; BITS + 4]));
        assert!(!side.write(PAGE as u64 + 1, &[0; 4]));
        let mut last = vec![0; BITS];
        last[0] = 1;
        last.extend([9; 4]);
        assert!(side.merge(PAGE as u64, &last));
        assert_eq!(word(&side, PAGE as u64), 0x0909_0909);
    }
}
