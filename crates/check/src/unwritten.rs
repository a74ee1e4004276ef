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
    /// Pages that have a bit map.
    maps: u64,
    /// Host bytes that the table and its bit maps may take.
    limit: u64,
    /// Whether a page was left out because the limit was reached.
    is_full: bool,
}

impl Unwritten {
    pub(crate) fn new(base: u64, len: u64, limit: u64) -> Self {
        Self {
            pages: PageTable::new(base, len),
            maps: 0,
            limit,
            is_full: false,
        }
    }

    /// Host bytes that the table and its bit maps take.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.maps * (PAGE / 8) + self.pages.held_bytes()
    }

    /// Remembers no further pages.
    pub(crate) fn close(&mut self) {
        self.limit = 0;
    }

    /// Whether a page was left out since the last question.
    pub(crate) fn take_is_full(&mut self) -> bool {
        std::mem::take(&mut self.is_full)
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

    /// Sets what is known of a page. Past the limit the page counts as written.
    fn set_page(&mut self, at: u64, page: Option<Page>) {
        let has_room = self.held_bytes() < self.limit;
        self.is_full |= page.is_some() && !has_room;
        let page = page.filter(|_| has_room);
        let maps = |page: &Option<Page>| u64::from(matches!(page, Some(Page::Some(_))));
        let new_maps = maps(&page);
        let before = match page {
            None => self.pages.remove(at),
            page => match self.pages.slot(at) {
                Some(slot) => std::mem::replace(slot, page),
                None => return,
            },
        };
        self.maps = self.maps + new_maps - maps(&before);
    }

    /// Memory that was just allocated.
    pub(crate) fn allocate(&mut self, address: u64, bytes: u64) {
        Self::each_page(address, bytes, |at, n| {
            if n == PAGE {
                return self.set_page(at, Some(Page::Whole));
            }
            match self.pages.get(at) {
                Some(Page::Whole) => {}
                Some(Page::Some(bits)) => set(bits, at % PAGE, n, true),
                None => {
                    let mut bits = Box::new([0; WORDS]);
                    set(&mut bits, at % PAGE, n, true);
                    self.set_page(at, Some(Page::Some(bits)));
                }
            }
        });
    }

    /// Bytes that were written, or of which nothing is known.
    pub(crate) fn write(&mut self, address: u64, bytes: u64) {
        Self::each_page(address, bytes, |at, n| {
            let left = match self.pages.get(at) {
                None => return,
                Some(_) if n == PAGE => None,
                Some(Page::Whole) => {
                    let mut bits = Box::new([u64::MAX; WORDS]);
                    set(&mut bits, at % PAGE, n, false);
                    Some(Page::Some(bits))
                }
                Some(Page::Some(bits)) => {
                    set(bits, at % PAGE, n, false);
                    match bits.iter().all(|word| *word == 0) {
                        true => None,
                        false => return,
                    }
                }
            };
            self.set_page(at, left);
        });
        if bytes >= PAGE {
            self.pages.trim(address, bytes);
        }
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
        let mut memory = Unwritten::new(base, 1 << 24, u64::MAX);
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

    #[test]
    fn a_page_that_is_written_or_past_the_limit_takes_no_memory() {
        let mut memory = Unwritten::new(0, 1 << 24, 100 << 10);
        memory.allocate(0, 1 << 24);
        let table = memory.held_bytes();
        (0..4096).for_each(|page| memory.write(page * PAGE, 4));
        assert!(memory.held_bytes() <= 100 << 10, "{}", memory.held_bytes());
        assert!(memory.take_is_full() && !memory.take_is_full());
        assert!(memory.is_unwritten(4, 4), "the first page is remembered");
        assert!(!memory.is_unwritten(4095 * PAGE + 4, 4), "the last is not");
        memory.write(4, PAGE - 4);
        assert!(!memory.is_unwritten(4, 4));
        memory.write(PAGE, 4095 * PAGE);
        assert!(table > 0 && memory.held_bytes() == 0);
    }
}
