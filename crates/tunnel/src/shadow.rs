//! Host memory on both sides of a wall, and how it is kept equal.
//!
//! Each side has the bytes in shared memory with its neighbour (the program, the worker) and, once the memory is *mapped*,
//! a copy of what both sides last agreed on. A side sends the pages that differ from that copy. The other side takes over
//! the words that differ from its copy, so that changes to other words of the same page survive.

use mica_wire::session::Region;

/// The unit that is compared and sent.
pub const PAGE: usize = 4096;

/// Host memory on one side.
#[derive(Debug)]
pub struct Shadow {
    region: Region,
    bytes: u64,
    known: Option<Vec<u8>>,
}

impl Shadow {
    /// Memory that is not mapped yet.
    pub fn new(region: Region, bytes: u64) -> Self {
        Self {
            region,
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
            self.region.read(0, &mut known);
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
            self.region.read(offset as usize, bytes);
        }
        inside
    }

    /// Copies bytes in, whatever was agreed on; false if they are not inside.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let inside = self.holds(offset, bytes.len());
        if inside {
            self.region.write(offset as usize, bytes);
        }
        inside
    }

    /// Takes over what the other side has changed; false if it is not inside or the memory is not mapped.
    pub fn merge(&mut self, offset: u64, bytes: &[u8]) -> bool {
        if !self.holds(offset, bytes.len()) {
            return false;
        }
        let Some(known) = &mut self.known else {
            return false;
        };
        let known = &mut known[offset as usize..offset as usize + bytes.len()];
        for (index, (new, old)) in bytes.chunks(8).zip(known.chunks_mut(8)).enumerate() {
            if new != old {
                self.region.write(offset as usize + index * 8, new);
                old.copy_from_slice(new);
            }
        }
        true
    }

    /// Calls `send` with each page that differs from what was agreed on, and agrees on it.
    pub fn changes(&mut self, mut send: impl FnMut(u64, &[u8])) {
        let Some(known) = &mut self.known else {
            return;
        };
        let mut page = [0; PAGE];
        for (index, old) in known.chunks_mut(PAGE).enumerate() {
            let page = &mut page[..old.len()];
            self.region.read(index * PAGE, page);
            if page != old {
                send((index * PAGE) as u64, page);
                old.copy_from_slice(page);
            }
        }
    }

    /// Calls `send` with every page, and agrees on it.
    pub fn all(&mut self, mut send: impl FnMut(u64, &[u8])) {
        let Some(known) = &mut self.known else {
            return;
        };
        self.region.read(0, known);
        for (index, page) in known.chunks(PAGE).enumerate() {
            send((index * PAGE) as u64, page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mica_wire::session::create_sealed;

    fn shadow(bytes: usize) -> Shadow {
        let file = create_sealed("test", bytes as u64).unwrap();
        Shadow::new(Region::map(&file, 0, bytes, 0).unwrap(), bytes as u64)
    }

    #[test]
    fn changes_of_both_sides_to_one_page_survive() {
        let (mut near, mut far) = (shadow(3 * PAGE), shadow(3 * PAGE));
        assert!(near.write(8, &[1; 8]));
        near.map();
        far.map();
        near.all(|offset, page| assert!(far.merge(offset, page)));
        near.changes(|_, _| panic!("nothing has changed"));
        // The device and the program write different words of the same page.
        assert!(far.write(16, &[2; 8]) && near.write(24, &[3; 8]));
        far.changes(|offset, page| assert!(near.merge(offset, page)));
        near.changes(|offset, page| assert!(far.merge(offset, page)));
        for side in [&near, &far] {
            let mut bytes = [0; 32];
            assert!(side.read(0, &mut bytes));
            let expected = [[0; 8], [1; 8], [2; 8], [3; 8]].concat();
            assert_eq!(bytes[..], expected[..]);
        }
        assert!(!near.write(3 * PAGE as u64, &[1]) && !far.merge(u64::MAX, &[1]));
    }
}
