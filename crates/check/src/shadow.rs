//! What is known of device memory: who accessed it in the running launch, and which bytes nobody wrote.
//!
//! Bounded, and granted in steps by whoever counts host memory: past the limit, or where no more is granted, further
//! pages are not watched, which the report says.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::pages::{PAGE, PageTable};
use crate::race::{
    CELLS_BYTES, Clocks, Hit, NoRoom, ROWS_BYTES, RowAccess, RowPage, Seen, SyncClocks,
};
use crate::unwritten::Unwritten;

/// Bytes that the shadow of a device takes at most, unless told otherwise.
pub const DEFAULT_SHADOW_BYTES: u64 = 1 << 30;

/// Bytes that are asked for at once.
const STEP: u64 = 8 << 20;
/// The part of the limit that is kept for unwritten memory: one in so many.
const UNWRITTEN_PART: u64 = 4;
/// Launches whose released clocks are kept. Each launch gives its clocks up when it ends.
const MOST_LAUNCHES: usize = 64;

/// Asked for more host memory; `false` refuses it.
pub type Grant = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// The shadow of one device's memory.
#[derive(Debug)]
pub struct Shadow {
    state: Mutex<State>,
    limit: u64,
}

pub(crate) struct State {
    races: PageTable<Page>,
    pub(crate) unwritten: Unwritten,
    /// What strong writes of each launch have released: several launches may run side by side.
    sync: BTreeMap<u64, SyncClocks>,
    /// The last launch for which pages of earlier launches were dropped.
    swept: u64,
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
    rows: Box<RowPage>,
}

impl Shadow {
    /// The shadow of an arena, of at most `limit` bytes, which `grant` is asked for.
    pub fn new(base: u64, len: u64, limit: u64, grant: Grant) -> Self {
        Self {
            state: Mutex::new(State {
                races: PageTable::new(base, len),
                unwritten: Unwritten::new(base, len, limit / UNWRITTEN_PART),
                sync: BTreeMap::new(),
                swept: 0,
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

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something could not be watched for want of memory; asked once.
    pub fn take_is_full(&self) -> bool {
        let mut state = self.lock();
        let is_unwritten_full = state.unwritten.take_is_full();
        std::mem::take(&mut state.is_full) | is_unwritten_full
    }

    /// A launch is over: what its threads released orders nobody any more.
    pub fn end(&self, launch: u64) {
        self.lock().sync.remove(&launch);
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
            let words = match state.races.get(at) {
                Some(page) => {
                    page.rows.forget(word_of(at));
                    1
                }
                // To the next page.
                None => (PAGE / 4) as usize - word_of(at),
            };
            at += 4 * words as u64;
        }
    }

    /// Whether no byte of a range was ever written.
    pub fn is_unwritten(&self, address: u64, bytes: u64) -> bool {
        self.lock().unwritten.is_unwritten(address, bytes)
    }
}

impl State {
    /// What strong writes of a launch have released.
    pub(crate) fn sync(&mut self, launch: u64) -> &mut SyncClocks {
        if !self.sync.contains_key(&launch) && self.sync.len() >= MOST_LAUNCHES {
            self.sync.pop_first();
        }
        self.sync.entry(launch).or_default()
    }

    /// Whether what is known for races has room for so many bytes more.
    fn has_room(&mut self, bytes: u64) -> bool {
        // Memory that is known to be unwritten keeps its part: races must not hide unwritten reads.
        let others = match self.unwritten.held_bytes() {
            0 => 0,
            _ => self.limit / UNWRITTEN_PART,
        };
        self.race_bytes() + bytes <= self.limit - others && self.is_granted(bytes)
    }

    /// Host bytes of what is known for races.
    fn race_bytes(&self) -> u64 {
        let sync: u64 = self.sync.values().map(SyncClocks::held_bytes).sum();
        self.page_bytes + self.races.held_bytes() + sync
    }

    /// Whether all that is held, and so many bytes more, is granted.
    fn is_granted(&mut self, bytes: u64) -> bool {
        let wanted = self.race_bytes() + self.unwritten.held_bytes() + bytes;
        while wanted > self.granted {
            if !(self.grant)(STEP) {
                return false;
            }
            self.granted += STEP;
        }
        true
    }

    /// Drops what is known of words that only earlier launches accessed, once for each launch.
    fn sweep(&mut self, launch: u64) -> bool {
        if self.swept == launch {
            return false;
        }
        self.swept = launch;
        let mut left = 0;
        let removed = self.races.retain(|page| {
            let is_kept = page.launch == launch;
            left += u64::from(is_kept) * page.rows.held_bytes();
            is_kept
        });
        self.page_bytes = left;
        removed > 0
    }

    /// Whether there is room for so many bytes more, if need be in place of what earlier launches left.
    fn make_room(&mut self, launch: u64, bytes: u64) -> bool {
        self.has_room(bytes) || self.sweep(launch) && self.has_room(bytes)
    }

    /// Asks for the memory that the clocks of a launch have taken; drops them where it is refused.
    pub(crate) fn charge_sync(&mut self, launch: u64) {
        if !self.make_room(launch, 0) {
            self.sync(launch).lose();
            self.is_full = true;
        }
    }

    /// Asks for the memory that bit maps of unwritten bytes have taken; where it is refused, no further ones are made.
    pub(crate) fn charge_unwritten(&mut self) {
        if !self.is_granted(0) {
            self.unwritten.close();
        }
    }

    /// An access of one thread to the word at an address; `None` past the limit.
    #[inline]
    pub(crate) fn access(
        &mut self,
        (launch, address): (u64, u64),
        seen: &Seen,
        clocks: &Clocks,
    ) -> Option<Option<Hit>> {
        self.with_page(launch, address, |page| {
            page.one(word_of(address), seen, clocks)
        })
    }

    /// An access to some words of the row that an address is in; `None` past the limit.
    #[inline]
    pub(crate) fn access_row(
        &mut self,
        (launch, address): (u64, u64),
        access: &RowAccess,
        clocks: &Clocks,
        hit: &mut impl FnMut(usize, Hit),
    ) -> Option<()> {
        self.with_page(launch, address, |page| {
            page.some(word_of(address), access, clocks, hit)
        })
    }

    /// Whether an access finds nothing that depends on the thread that makes it.
    pub(crate) fn is_quiet(
        &mut self,
        (launch, address): (u64, u64),
        access: &RowAccess,
        clocks: &Clocks,
    ) -> bool {
        let page = self.page(launch, address);
        page.is_some_and(|page| page.is_quiet(word_of(address), access, clocks))
    }

    #[inline]
    fn with_page<T>(
        &mut self,
        launch: u64,
        address: u64,
        mut f: impl FnMut(&mut RowPage) -> Result<T, NoRoom>,
    ) -> Option<T> {
        if let Ok(done) = f(self.page(launch, address)?) {
            return Some(done);
        }
        // A row of words that are accessed in many ways.
        if !self.make_room(launch, CELLS_BYTES) {
            self.is_full = true;
            return None;
        }
        self.page_bytes += CELLS_BYTES;
        let page = self.page(launch, address)?;
        page.grant();
        f(page).ok()
    }

    /// The page that holds an address; `None` past the limit.
    #[inline]
    fn page(&mut self, launch: u64, address: u64) -> Option<&mut RowPage> {
        if self.races.get(address).is_none() {
            if !self.make_room(launch, ROWS_BYTES) {
                self.is_full = true;
                return None;
            }
            let rows = RowPage::new(0);
            *self.races.slot(address)? = Some(Page { launch, rows });
            self.page_bytes += ROWS_BYTES;
        }
        let page = self.races.get(address)?;
        if page.launch != launch {
            page.launch = launch;
            page.rows.clear();
        }
        Some(&mut page.rows)
    }
}

/// The number of a word in its page.
fn word_of(address: u64) -> usize {
    (address % PAGE) as usize / 4
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
        let pages = (0..10_000).take_while(|page| state.page(1, page * 4096).is_some());
        let pages = pages.count() as u64;
        assert!(pages > 0 && pages * ROWS_BYTES <= 2 * STEP, "{pages}");
        drop(state);
        assert!(shadow.take_is_full() && !shadow.take_is_full());
    }

    #[test]
    fn a_later_launch_has_the_memory_of_earlier_ones() {
        let shadow = Shadow::new(0, 1 << 30, 16 * ROWS_BYTES, Box::new(|_| true));
        let mut state = shadow.lock();
        let mut watched = |launch: u64, first: u64| {
            let pages = (first..first + 100).take_while(|p| state.page(launch, p * 4096).is_some());
            pages.count()
        };
        let most = watched(1, 0);
        assert!((10..16).contains(&most), "{most}");
        assert_eq!(watched(1, 200), 0);
        assert_eq!(watched(2, 200), most);
    }

    #[test]
    fn clocks_that_take_too_much_memory_are_dropped_and_told() {
        let shadow = Shadow::new(0, 1 << 30, 1 << 20, Box::new(|_| true));
        let mut state = shadow.lock();
        let mut clocks = crate::race::Clocks::new(0, 1024);
        for word in 0..1000 {
            clocks.write(state.sync(1), word * 4, 0, true);
            state.charge_sync(1);
        }
        assert!(state.sync(1).is_lost() && !state.sync(2).is_lost());
        drop(state);
        assert!(shadow.take_is_full());
        shadow.end(1);
        assert!(!shadow.lock().sync(1).is_lost());
    }
}
