//! Counts the moments at which the process has nothing submitted, or next to nothing.
//!
//! Many of them after few launches each is what a bursty program looks like to the daemon. One submission
//! behind the one that runs is next to nothing: the GPU then ends the process's turn when the running one
//! is done, whatever its slice (two 4 ms kernels in flight got 8 ms of a 14 ms slice, three got all of it).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use mica_wire::host::page::ClientPage;

use super::{Leases, is_finished};

const PLACES: usize = 64;
/// Most submissions outstanding that are next to nothing.
const SHALLOW: u64 = 1;

#[derive(Debug)]
pub(super) struct IdleMoments {
    /// Launches at the last drain: polling again after it is not another drain.
    last_drain: AtomicU64,
    /// Launches at the last moment with next to nothing submitted.
    last_shallow: AtomicU64,
    /// Events recorded lately, each in the place its address gives, and the launches there were then. Two
    /// events may share a place: then one of them tells nothing.
    recorded: [Recorded; PLACES],
}

#[derive(Debug)]
struct Recorded {
    event: AtomicU64,
    launches: AtomicU64,
    /// All launches before it were on its stream.
    everything: AtomicBool,
}

impl Recorded {
    const fn none() -> Self {
        Self {
            event: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            everything: AtomicBool::new(false),
        }
    }
}

/// Submissions so far.
#[inline]
pub(super) fn launches(page: &ClientPage) -> u64 {
    page.counters.launches.load(Relaxed)
}

impl IdleMoments {
    pub(super) const fn new() -> Self {
        Self {
            last_drain: AtomicU64::new(0),
            last_shallow: AtomicU64::new(0),
            recorded: [const { Recorded::none() }; PLACES],
        }
    }

    fn place(&self, event: u64) -> &Recorded {
        // Handles are addresses of objects of some hundred bytes.
        let mixed = (event >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.recorded[(mixed >> 58) as usize % PLACES]
    }

    #[inline]
    pub(super) fn recorded(&self, page: &ClientPage, event: u64, everything: bool) {
        let place = self.place(event);
        place.event.store(event, Relaxed);
        place.launches.store(launches(page), Relaxed);
        place.everything.store(everything, Relaxed);
    }

    /// Returns whether it is certain that nothing runs.
    #[inline]
    pub(super) fn event_done(&self, page: &ClientPage, event: u64) -> bool {
        let place = self.place(event);
        if place.event.load(Relaxed) != event {
            return false;
        }
        let (before, now) = (place.launches.load(Relaxed), launches(page));
        match now.wrapping_sub(before) {
            0 => return self.all_done(page, before, place.everything.load(Relaxed)),
            1..=SHALLOW if self.last_shallow.swap(now, Relaxed) != now => count_drain(page),
            _ => {}
        }
        false
    }

    /// The first `before` launches are done, all of them if `everything`, else those of one stream: a drain, as far
    /// as the program can tell, if none came since. Returns whether it is certain that nothing runs.
    #[inline]
    pub(super) fn all_done(&self, page: &ClientPage, before: u64, everything: bool) -> bool {
        let now = launches(page);
        if before != now {
            return false;
        }
        if self.last_drain.swap(now, Relaxed) != now {
            count_drain(page);
        }
        if everything {
            page.counters.finished.store(now, Relaxed);
        }
        everything
    }

    /// A wait of our own has seen all of the first `before` launches done; whether none came since.
    pub(super) fn waited(&self, page: &ClientPage, before: u64) -> bool {
        let none_since = launches(page) == before;
        if none_since {
            self.last_drain.store(before, Relaxed);
            page.counters.finished.store(before, Relaxed);
        }
        none_since
    }
}

#[inline]
fn count_drain(page: &ClientPage) {
    let drains = &page.counters.drains;
    drains.store(drains.load(Relaxed).wrapping_add(1), Relaxed);
}

impl Leases {
    /// Whether nothing has been submitted since the last drain, as far as the program's own waits tell.
    pub(super) fn seems_idle(&self, page: &ClientPage) -> bool {
        self.moments.last_drain.load(Relaxed) == launches(page)
            && page.counters.syncing.load(Relaxed) == 0
    }

    /// Whether it is certain that nothing is submitted.
    pub(super) fn is_idle(&self, page: &ClientPage) -> bool {
        self.seems_idle(page) && is_finished(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_counted_once_and_certain_only_if_everything_was_waited_for() {
        let (page, leases) = (ClientPage::default(), Leases::new());
        let drains = || page.counters.drains.load(Relaxed);
        page.counters.launches.store(3, Relaxed);
        leases.all_done(&page, 2, true);
        assert_eq!(drains(), 0, "one was submitted meanwhile");
        leases.all_done(&page, 3, false);
        leases.all_done(&page, 3, false);
        assert_eq!(drains(), 1);
        assert!(leases.seems_idle(&page) && !leases.is_idle(&page));
        leases.all_done(&page, 3, true);
        assert!(leases.is_idle(&page));
        leases.recorded(&page, 0x100, true);
        page.counters.launches.store(4, Relaxed);
        leases.event_done(&page, 0x100);
        leases.event_done(&page, 0x100);
        assert_eq!(drains(), 2, "one behind is next to nothing");
        leases.event_done(&page, 0x200);
        page.counters.launches.store(5, Relaxed);
        leases.event_done(&page, 0x100);
        assert_eq!(drains(), 2, "two are not");
    }
}
