//! Which bytes nobody wrote.

use crate::pages::{PAGE, PageTable};

const WORDS: usize = (PAGE / 64) as usize;

/// The bytes of one page, a bit for each that nobody wrote.
#[derive(Debug)]
enum Page {
    /// None was written.
    Whole,
    /// Those whose bit is set were not.
    Some(Box<[u64; WORDS]>),
}

/// Bytes of device memory that were allocated and not written since.
#[derive(Debug)]
pub(crate) struct Unwritten {
    pages: PageTable<Page>,
    /// Bytes held in bit maps.
    pub(crate) held: u64,
}

impl Unwritten {
    pub(crate) fn new(base: u64, len: u64) -> Self {
        Self {
            pages: PageTable::new(base, len),
            held: 0,
        }
    }

    /// Calls `f` for each page of a range with the first byte in it and how many.
    fn each_page(address: u64, bytes: u64, mut f: impl FnMut(u64, u64)) {
        let end = address.saturating_add(bytes);
        let mut at = address;
        while at < end {
            let next = ((at / PAGE + 1) * PAGE).min(end);
            f(at, next - at);
            at = next;
        }
    }

    /// Memory that was just allocated.
    pub(crate) fn allocate(&mut self, address: u64, bytes: u64) {
        Self::each_page(address, bytes, |at, n| {
            let Some(slot) = self.pages.slot(at) else {
                return;
            };
            if n == PAGE {
                *slot = Some(Page::Whole);
                return;
            }
            match slot {
                Some(Page::Whole) => {}
                Some(Page::Some(bits)) => set(bits, at % PAGE, n, true),
                None => {
                    let mut bits = Box::new([0; WORDS]);
                    set(&mut bits, at % PAGE, n, true);
                    *slot = Some(Page::Some(bits));
                    self.held += PAGE / 8;
                }
            }
        });
    }

    /// Bytes that were written, or of which nothing is known.
    pub(crate) fn write(&mut self, address: u64, bytes: u64) {
        Self::each_page(address, bytes, |at, n| {
            if n == PAGE {
                if let Some(slot) = self.pages.slot(at) {
                    *slot = None;
                }
                return;
            }
            match self.pages.get(at) {
                Some(Page::Some(bits)) => set(bits, at % PAGE, n, false),
                Some(whole) => {
                    let mut bits = Box::new([u64::MAX; WORDS]);
                    set(&mut bits, at % PAGE, n, false);
                    *whole = Page::Some(bits);
                    self.held += PAGE / 8;
                }
                None => {}
            }
        });
    }

    /// Whether nobody wrote any byte of the range. A value of which a part was written may be a structure with
    /// gaps, so it counts as written.
    pub(crate) fn is_unwritten(&mut self, address: u64, bytes: u64) -> bool {
        let mut all = bytes > 0;
        Self::each_page(address, bytes, |at, n| {
            all &= match self.pages.get(at) {
                None => false,
                Some(Page::Whole) => true,
                Some(Page::Some(bits)) => (at..at + n).all(|b| {
                    let b = b % PAGE;
                    bits[b as usize / 64] >> (b % 64) & 1 == 1
                }),
            };
        });
        all
    }
}

fn set(bits: &mut [u64; WORDS], from: u64, bytes: u64, to: bool) {
    let (mut at, end) = (from, from + bytes);
    while at < end {
        let n = (64 - at % 64).min(end - at);
        let mask = (u64::MAX >> (64 - n)) << (at % 64);
        let word = &mut bits[at as usize / 64];
        *word = if to { *word | mask } else { *word & !mask };
        at += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_known_apart() {
        let base = 1 << 40;
        let mut memory = Unwritten::new(base, 1 << 24);
        assert!(!memory.is_unwritten(base, 4));
        memory.allocate(base + 256, 10_000);
        assert!(memory.is_unwritten(base + 256, 10_000));
        assert!(!memory.is_unwritten(base + 252, 4));
        memory.write(base + 5000, 3);
        assert!(!memory.is_unwritten(base + 5000, 4), "a part was written");
        assert!(memory.is_unwritten(base + 5003, 1) && !memory.is_unwritten(base + 5002, 1));
        memory.write(base, 1 << 20);
        assert!(!memory.is_unwritten(base + 300, 4));
        memory.allocate(base + 4096, 4096);
        assert!(memory.is_unwritten(base + 4096, 4096));
    }
}
