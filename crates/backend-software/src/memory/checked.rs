//! Memory of a device that is checked: room between allocations, freed memory that is not handed out again
//! at once, and what is known of each byte.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use mica_check::{
    Allocation, AllocationState, CheckSettings, DEFAULT_SHADOW_BYTES, Grant, Shadow, Tool,
};
use mica_gpu::{Access, Share};

use crate::recover::outside;

use super::{Books, DeviceMemory, Kind, Live};

/// Address space behind a large allocation that nobody gets.
pub(super) const LARGE_ZONE: u64 = 64 << 10;
/// Bytes behind a small one.
pub(super) const SMALL_ZONE: u64 = 256;
/// Freed allocations that are kept from being used again: how many, and bytes of small ones, whose pages stay.
const MOST_PARKED: usize = 4096;
const MOST_PARKED_SMALL: u64 = 4 << 20;
/// How far from an allocation an access is still told as one beside it.
const NEAR: u64 = 1 << 20;

/// What a checked device keeps besides its books.
#[derive(Debug)]
pub(crate) struct Checked {
    shadow: Option<Arc<Shadow>>,
    is_initcheck: bool,
}

/// Freed allocations, oldest first.
#[derive(Debug, Default)]
pub(super) struct Parked {
    freed: VecDeque<(u64, Live)>,
    small_bytes: u64,
}

impl DeviceMemory {
    /// Checks everything from now on. Before the first allocation.
    pub(crate) fn check(&mut self, settings: &CheckSettings) {
        let tools = settings.tools;
        let needs_shadow = tools.has(Tool::Racecheck) || tools.has(Tool::Initcheck);
        let (base, len) = (self.arena.base(), self.arena.len());
        let grant = self.shadow_grant();
        let shadow = || Arc::new(Shadow::new(base, len, DEFAULT_SHADOW_BYTES, grant));
        self.checked = Some(Checked {
            shadow: needs_shadow.then(shadow),
            is_initcheck: tools.has(Tool::Initcheck),
        });
    }

    /// Charges the shadow to the session's budget of host bytes; where nobody counts, its limit is all that holds.
    fn shadow_grant(&self) -> Grant {
        let budget = Arc::clone(&self.budget);
        let shares: Mutex<Vec<Share>> = Mutex::default();
        Box::new(move |bytes| {
            let Some(budget) = budget.get() else {
                return true;
            };
            let share = outside(|| budget.take(bytes, "the shadow of checked memory"));
            let mut shares = shares.lock().unwrap_or_else(PoisonError::into_inner);
            share.map(|share| shares.push(share)).is_ok()
        })
    }

    /// What is known of each byte, where that is kept.
    pub(crate) fn shadow(&self) -> Option<&Arc<Shadow>> {
        self.checked.as_ref()?.shadow.as_ref()
    }

    /// Remembers that nobody has written new memory, or that all of it is defined.
    pub(super) fn note_new(&self, address: u64, bytes: u64, defined: bool) {
        let Some(checked) = self.checked.as_ref().filter(|c| c.is_initcheck) else {
            return;
        };
        if let Some(shadow) = &checked.shadow {
            match defined {
                true => shadow.written(address, bytes),
                false => shadow.allocated(address, bytes),
            }
        }
    }

    /// Remembers that a kernel allocated memory.
    pub(crate) fn note_malloc(&self, address: u64, bytes: u64) {
        self.note_new(address, bytes, false);
    }

    /// Remembers that a copy or a fill wrote memory.
    pub(crate) fn note_written(&self, address: u64, bytes: u64) {
        self.note_new(address, bytes, true);
    }

    /// The live range around an address: base, size and whether it may be written.
    pub(crate) fn live_range(&self, address: u64) -> Option<(u64, u64, bool)> {
        let books = self.books();
        let (base, live) = books.find(address)?;
        match live.access {
            Access::None => None,
            access => Some((base, live.bytes, access == Access::ReadWrite)),
        }
    }

    /// The allocation that an address is in, was in, or is beside.
    pub(crate) fn nearest(&self, address: u64) -> Option<Allocation> {
        let books = self.books();
        let of = |base: u64, bytes: u64, state| Allocation {
            address: base,
            bytes,
            state,
            what: String::new(),
            made_ms: None,
            distance: match address {
                a if a < base => -((base - a) as i64),
                a if a >= base + bytes => (a - base - bytes) as i64 + 1,
                _ => 0,
            },
            stack: Vec::new(),
        };
        let live = books.find(address);
        if let Some((base, live)) = live {
            return Some(of(base, live.bytes, AllocationState::Live));
        }
        let inside = |(base, live): &&(u64, Live)| address.wrapping_sub(*base) < live.bytes;
        if let Some((base, live)) = books.parked.freed.iter().rev().find(inside) {
            return Some(of(*base, live.bytes, AllocationState::Freed));
        }
        let before = books.live.range(..=address).next_back();
        let after = books.live.range(address..).next();
        let mut near: Vec<Allocation> = [before, after]
            .into_iter()
            .flatten()
            .map(|(base, live)| of(*base, live.bytes, AllocationState::Live))
            .filter(|a| a.distance.unsigned_abs() <= NEAR)
            .collect();
        near.sort_by_key(|a| (a.distance.unsigned_abs(), a.distance < 0));
        near.into_iter().next()
    }

    /// Address space. Where none is left, that of freed allocations is used again, the oldest first.
    pub(super) fn take_addresses(&self, books: &mut Books, bytes: u64, align: u64) -> Option<u64> {
        loop {
            if let Some(at) = books.space.take_next(bytes, align) {
                return Some(at);
            }
            let (address, live) = books.parked.freed.pop_front()?;
            self.release_parked(books, address, live);
        }
    }

    /// Keeps a freed allocation from being handed out again. `false`: free it as usual.
    pub(super) fn park(&self, books: &mut Books, address: u64, live: Live) -> bool {
        if self.checked.is_none() {
            return false;
        }
        match live.kind {
            Kind::Small { taken, .. } => books.parked.small_bytes += taken,
            Kind::Large { mapped, .. } => {
                if self.arena.unmap(address, mapped).is_err() {
                    return false;
                }
                books.discharge(mapped);
            }
            _ => return false,
        }
        // Nobody reads freed memory without a fault, so what is known of its bytes is of no use.
        self.note_written(address, live.bytes);
        books.parked.freed.push_back((address, live));
        while books.parked.freed.len() > MOST_PARKED || books.parked.small_bytes > MOST_PARKED_SMALL
        {
            let Some((address, live)) = books.parked.freed.pop_front() else {
                break;
            };
            self.release_parked(books, address, live);
        }
        true
    }

    /// Frees what was parked for an owner, whose context ends.
    pub(super) fn release_parked_of(&self, books: &mut Books, is_theirs: impl Fn(&Live) -> bool) {
        let freed = std::mem::take(&mut books.parked.freed);
        let (theirs, others) = freed.into_iter().partition(|(_, live)| is_theirs(live));
        books.parked.freed = others;
        let theirs: VecDeque<(u64, Live)> = theirs;
        for (address, live) in theirs {
            self.release_parked(books, address, live);
        }
    }

    fn release_parked(&self, books: &mut Books, address: u64, live: Live) {
        match live.kind {
            Kind::Small { chunk, taken } => {
                books.parked.small_bytes -= taken.min(books.parked.small_bytes);
                self.drop_small(books, chunk, address, taken);
            }
            Kind::Large { reserved, .. } => books.space.give(address, reserved),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Purpose;
    use super::*;

    fn memory(tools: &str) -> DeviceMemory {
        let mut memory = DeviceMemory::new(64 << 20, 1 << 36).unwrap();
        memory.check(&tools.parse().unwrap());
        memory
    }

    #[test]
    fn freed_memory_is_known_and_not_reused() {
        let memory = memory("memcheck");
        for bytes in [100, 1 << 20] {
            let a = memory.alloc(1, bytes, Purpose::Program).unwrap();
            memory.free(1, a).unwrap();
            let b = memory.alloc(1, bytes, Purpose::Program).unwrap();
            assert_ne!(a, b);
            let near = memory.nearest(a + 8).unwrap();
            assert_eq!((near.address, near.bytes), (a, bytes));
            assert_eq!((near.state, near.distance), (AllocationState::Freed, 0));
            assert!(!memory.is_live(a, 4, false));
            assert!(memory.free(1, a).is_err());
            memory.free(1, b).unwrap();
        }
        memory.free_all(1);
        assert_eq!(memory.info().0, 64 << 20);
    }

    #[test]
    fn an_access_beside_an_allocation_finds_the_room_between() {
        let memory = memory("memcheck");
        let a = memory.alloc(1, 256, Purpose::Program).unwrap();
        let b = memory.alloc(1, 256, Purpose::Program).unwrap();
        assert!(b >= a + 512 && !memory.is_live(a + 256, 4, false));
        let near = memory.nearest(a + 256).unwrap();
        assert_eq!((near.address, near.distance), (a, 1));
        assert_eq!(memory.nearest(a - 4).map(|n| n.distance), Some(-4));
    }

    #[test]
    fn freed_address_space_is_used_again_when_none_is_left() {
        let mut memory = DeviceMemory::new(64 << 20, 256 << 20).unwrap();
        memory.check(&"initcheck".parse().unwrap());
        for _ in 0..100 {
            let at = memory.alloc(1, 16 << 20, Purpose::Program).unwrap();
            assert!(memory.shadow().unwrap().is_unwritten(at, 4));
            memory.free(1, at).unwrap();
            assert!(!memory.shadow().unwrap().is_unwritten(at, 4));
        }
    }

    #[test]
    fn quarantine_is_bounded() {
        let memory = memory("memcheck");
        for _ in 0..3 * MOST_PARKED {
            let at = memory.alloc(1, 8192, Purpose::Program).unwrap();
            memory.free(1, at).unwrap();
        }
        assert!(memory.books().parked.small_bytes <= MOST_PARKED_SMALL);
    }

    #[test]
    fn new_memory_is_unwritten_until_a_copy() {
        let memory = memory("initcheck");
        let shadow = memory.shadow().unwrap();
        let a = memory.alloc(1, 4096, Purpose::Program).unwrap();
        let internal = memory.alloc(1, 4096, Purpose::Internal).unwrap();
        assert!(shadow.is_unwritten(a, 4) && !shadow.is_unwritten(internal, 4));
        memory.note_written(a, 4096);
        assert!(!shadow.is_unwritten(a, 4));
    }
}
