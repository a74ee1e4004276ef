//! Pages of events that workers of one virtual GPU have together.
//!
//! An event is two words of a page: the number of its last record, and of the last one that was reached. The page is a
//! sealed file; programs never map it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lock;
use mica_vgpu::SharedProgress;
use mica_wire::session::{MappedBytes, check_foreign, create_sealed};
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 64 << 10;
const SLOT_BYTES: usize = 8;
const SLOTS: u32 = (PAGE_BYTES as usize / SLOT_BYTES) as u32;

/// A page of events.
#[derive(Debug)]
pub(crate) struct EventPage {
    mapped: MappedBytes,
    file: OwnedFd,
    /// Places that were given back, and the first that was never given.
    free: Mutex<(Vec<u32>, u32)>,
}

impl EventPage {
    /// A page of this worker's.
    pub(crate) fn new() -> Result<Arc<Self>, Errno> {
        Self::map(create_sealed("mica-events", PAGE_BYTES)?)
    }

    /// A page of another worker's.
    pub(crate) fn open(file: OwnedFd) -> Result<Arc<Self>, Errno> {
        check_foreign(&file, 0, PAGE_BYTES)?;
        Self::map(file)
    }

    fn map(file: OwnedFd) -> Result<Arc<Self>, Errno> {
        let mapped = MappedBytes::map(&file, 0, PAGE_BYTES as usize, 0)?;
        let free = Mutex::default();
        Ok(Arc::new(Self { mapped, file, free }))
    }

    /// Its file.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A place for a new event; `None` if all are taken.
    pub(crate) fn take(self: &Arc<Self>) -> Option<SharedEvent> {
        let mut free = lock(&self.free);
        let slot = match free.0.pop() {
            Some(slot) => slot,
            None if free.1 < SLOTS => {
                free.1 += 1;
                free.1 - 1
            }
            None => return None,
        };
        let page = Arc::clone(self);
        let is_own = true;
        Some(SharedEvent { page, slot, is_own })
    }

    /// The event at a place that another worker has named; `None` if there is no such place.
    pub(crate) fn at(self: &Arc<Self>, slot: u32) -> Option<SharedEvent> {
        let page = Arc::clone(self);
        let is_own = false;
        (slot < SLOTS).then_some(SharedEvent { page, slot, is_own })
    }
}

/// An event in a page.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    page: Arc<EventPage>,
    slot: u32,
    is_own: bool,
}

impl SharedEvent {
    /// Its place.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Its page.
    pub(crate) fn page(&self) -> &Arc<EventPage> {
        &self.page
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        let at = self.slot as usize * SLOT_BYTES + index * 4;
        // SAFETY: the place is inside the page (checked where it was made), the page is mapped as long as we hold it
        // and can lose no memory, the address is a multiple of four, and all sides access the word as an atomic.
        unsafe { AtomicU32::from_ptr(self.page.mapped.as_ptr().add(at).cast()) }
    }

    fn recorded(&self) -> &AtomicU32 {
        self.word(0)
    }

    fn reached(&self) -> &AtomicU32 {
        self.word(1)
    }
}

/// Whether one number comes after another; they begin again at zero some day.
fn is_after(number: u32, other: u32) -> bool {
    (number.wrapping_sub(other) as i32) > 0
}

impl SharedProgress for SharedEvent {
    fn begin(&self) -> u32 {
        self.recorded().fetch_add(1, AcqRel).wrapping_add(1)
    }

    fn reach(&self, record: u32) {
        let later = |now| is_after(record, now).then_some(record);
        if self.reached().fetch_update(AcqRel, Acquire, later).is_ok() {
            // Others wait in other processes.
            let _ = futex::wake(self.reached(), futex::Flags::empty(), i32::MAX as u32);
        }
    }

    fn is_reached(&self) -> bool {
        let recorded = self.recorded().load(Acquire);
        !is_after(recorded, self.reached().load(Acquire))
    }

    fn sleep(&self, limit: Duration) {
        let seen = self.reached().load(Acquire);
        if self.is_reached() {
            return;
        }
        let limit = Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let _ = futex::wait(self.reached(), futex::Flags::empty(), seen, Some(&limit));
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        if self.is_own {
            // Nobody may wait for an event that is gone.
            self.reach(self.recorded().load(Relaxed));
            lock(&self.page.free).0.push(self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_sees_records_and_that_they_were_reached() {
        let page = EventPage::new().unwrap();
        let ours = page.take().unwrap();
        let there = EventPage::open(page.file().try_clone_to_owned().unwrap()).unwrap();
        let theirs = there.at(ours.slot()).unwrap();
        assert!(theirs.is_reached(), "never recorded");
        let (first, second) = (ours.begin(), ours.begin());
        ours.reach(first);
        assert!(!theirs.is_reached());
        let waiting = std::thread::spawn(move || {
            while !theirs.is_reached() {
                theirs.sleep(Duration::from_secs(10));
            }
        });
        ours.reach(second);
        ours.reach(first);
        waiting.join().unwrap();
        assert!(ours.is_reached(), "an older record takes nothing back");
    }

    #[test]
    fn an_event_that_goes_leaves_nobody_waiting_and_its_place_behind() {
        let page = EventPage::new().unwrap();
        let ours = page.take().unwrap();
        let theirs = page.at(ours.slot()).unwrap();
        ours.begin();
        assert!(!theirs.is_reached());
        let slot = ours.slot();
        drop(ours);
        assert!(theirs.is_reached());
        assert_eq!(page.take().unwrap().slot(), slot);
        assert!(page.at(SLOTS).is_none());
        let all: Vec<_> = std::iter::from_fn(|| page.take()).collect();
        assert_eq!(all.len(), SLOTS as usize);
    }

    #[test]
    fn files_that_are_no_pages_are_refused() {
        let short = create_sealed("test", 4096).unwrap();
        assert!(EventPage::open(short).is_err());
        let other = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(EventPage::open(other.into()).is_err());
    }
}
