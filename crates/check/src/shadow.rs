//! What is known of device memory: who accessed it in the running launch, and which bytes nobody wrote.
//!
//! Bounded, and granted in steps by whoever counts host memory: past the limit, or where no more is granted, further
//! pages are not watched for races, which the report says.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pages::PageTable;
use crate::race::{Cell, SyncClocks, WORDS_PER_PAGE};
use crate::unwritten::Unwritten;

/// Bytes that the shadow of a device takes at most, unless told otherwise.
pub const DEFAULT_SHADOW_BYTES: u64 = 1 << 30;

/// Bytes that are asked for at once.
const STEP: u64 = 8 << 20;

/// Asked for more host memory; `false` refuses it.
pub type Grant = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// The shadow of one device's memory.
#[derive(Debug)]
pub struct Shadow {
    state: Mutex<State>,
    limit: u64,
}

pub(crate) struct State {
    cells: PageTable<Page>,
    pub(crate) unwritten: Unwritten,
    pub(crate) sync: SyncClocks,
    /// The launch that `sync` speaks of.
    launch: u64,
    page_bytes: u64,
    granted: u64,
    grant: Grant,
    limit: u64,
    /// Whether something was left out.
    pub(crate) is_full: bool,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("page_bytes", &self.page_bytes)
            .field("is_full", &self.is_full)
            .finish_non_exhaustive()
    }
}

/// The words of a page, as the launch that touched it last left them.
#[derive(Debug)]
struct Page {
    launch: u64,
    cells: Box<[Cell]>,
}

impl Shadow {
    /// The shadow of an arena, of at most `limit` bytes, which `grant` is asked for.
    pub fn new(base: u64, len: u64, limit: u64, grant: Grant) -> Self {
        Self {
            state: Mutex::new(State {
                cells: PageTable::new(base, len),
                unwritten: Unwritten::new(base, len),
                sync: SyncClocks::default(),
                launch: 0,
                page_bytes: 0,
                granted: 0,
                grant,
                limit,
                is_full: false,
            }),
            limit,
        }
    }

    /// Most bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something could not be watched for want of memory; asked once.
    pub fn take_is_full(&self) -> bool {
        std::mem::take(&mut self.lock().is_full)
    }

    /// Memory was allocated that nobody has written yet.
    pub fn allocated(&self, address: u64, bytes: u64) {
        self.lock().unwritten.allocate(address, bytes);
    }

    /// Memory was written by a copy or a fill, or is of no interest any more.
    pub fn written(&self, address: u64, bytes: u64) {
        self.lock().unwritten.write(address, bytes);
    }

    /// Memory has another owner from now on: what its last owner did races with nobody.
    pub fn forget(&self, address: u64, bytes: u64) {
        let mut state = self.lock();
        let mut at = address & !3;
        while at < address.saturating_add(bytes) {
            if let Some(page) = state.cells.get(at)
                && let Some(cell) = page.cells.get_mut((at % crate::pages::PAGE) as usize / 4)
            {
                *cell = Cell::default();
            }
            at += 4;
        }
    }

    /// Whether no byte of a range was ever written.
    pub fn is_unwritten(&self, address: u64, bytes: u64) -> bool {
        self.lock().unwritten.is_unwritten(address, bytes)
    }
}

impl State {
    /// The launch whose accesses follow.
    pub(crate) fn enter(&mut self, launch: u64) {
        if self.launch != launch {
            self.launch = launch;
            self.sync.clear();
        }
    }

    /// Whether there is room for so many bytes more.
    fn make_room(&mut self, bytes: u64) -> bool {
        let wanted = self.page_bytes + self.unwritten.held + bytes;
        if wanted > self.limit {
            return false;
        }
        if wanted > self.granted {
            if !(self.grant)(STEP) {
                return false;
            }
            self.granted += STEP;
        }
        self.page_bytes += bytes;
        true
    }

    /// The word that holds an address; `None` past the limit.
    pub(crate) fn cell(&mut self, launch: u64, address: u64) -> Option<&mut Cell> {
        let fresh = std::mem::size_of::<Cell>() as u64 * WORDS_PER_PAGE as u64;
        let has_room = match self.cells.slot(address)? {
            Some(_) => true,
            None => self.make_room(fresh),
        };
        if !has_room {
            self.is_full = true;
            return None;
        }
        let slot = self.cells.slot(address)?;
        let page = slot.get_or_insert_with(|| Page {
            launch,
            cells: vec![Cell::default(); WORDS_PER_PAGE].into_boxed_slice(),
        });
        if page.launch != launch {
            page.launch = launch;
            page.cells.fill(Cell::default());
        }
        page.cells
            .get_mut((address % crate::pages::PAGE) as usize / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_granted_is_not_taken_and_told() {
        let grants = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(2));
        let left = std::sync::Arc::clone(&grants);
        let grant = move |_| left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) > 0;
        let shadow = Shadow::new(0, 1 << 30, 1 << 30, Box::new(grant));
        let mut state = shadow.lock();
        let pages = (0..10_000).take_while(|page| state.cell(1, page * 4096).is_some());
        let pages = pages.count() as u64;
        let page_bytes = std::mem::size_of::<Cell>() as u64 * WORDS_PER_PAGE as u64;
        assert!(pages > 0 && pages * page_bytes <= 2 * STEP, "{pages}");
        drop(state);
        assert!(shadow.take_is_full() && !shadow.take_is_full());
    }
}
