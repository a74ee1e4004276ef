//! How much may be queued under a lease: no more than is finished soon after the lease ends.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

const DEPTH_MIN: u32 = 2;
const DEPTH_MAX: u32 = 1024;
/// A lease whose work took longer than this to finish had too much queued.
const DRAIN_LONG_NS: u64 = 3_000_000;
const DRAIN_SHORT_NS: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Depth {
    /// Submissions that may be outstanding under a lease.
    most: AtomicU32,
    /// Submissions since the last wait, under leases.
    outstanding: AtomicU32,
    /// Whether the depth was reached since the last hand-over.
    reached: AtomicBool,
}

impl Depth {
    pub(super) const fn new() -> Self {
        Self {
            most: AtomicU32::new(16),
            outstanding: AtomicU32::new(0),
            reached: AtomicBool::new(false),
        }
    }

    /// Whether one more submission would have to wait.
    pub(super) fn is_full(&self) -> bool {
        self.outstanding.load(Relaxed) + 1 >= self.most.load(Relaxed)
    }

    /// Counts a submission; false if it should wait because the queue is long.
    pub(super) fn add(&self) -> bool {
        let fits = self.outstanding.fetch_add(1, Relaxed) + 1 < self.most.load(Relaxed);
        if !fits {
            self.reached.store(true, Relaxed);
        }
        fits
    }

    /// Everything submitted so far has finished.
    #[inline]
    pub(super) fn drained(&self) {
        if self.outstanding.load(Relaxed) != 0 {
            self.outstanding.store(0, Relaxed);
        }
    }

    /// What was queued took so long to finish.
    pub(super) fn learn(&self, took_ns: u64) {
        let most = self.most.load(Relaxed);
        let reached = self.reached.swap(false, Relaxed);
        if took_ns > DRAIN_LONG_NS {
            self.most.store((most / 2).max(DEPTH_MIN), Relaxed);
        } else if took_ns < DRAIN_SHORT_NS && reached {
            self.most.store((most * 2).min(DEPTH_MAX), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_finishes_at_once_may_be_longer_and_one_that_does_not_shorter() {
        let depth = Depth::new();
        let room = || {
            depth.drained();
            (0..).take_while(|_| depth.add()).count()
        };
        assert_eq!(room(), 15);
        assert!(depth.is_full());
        depth.learn(1);
        assert_eq!(room(), 31);
        depth.learn(DRAIN_LONG_NS + 1);
        assert_eq!(room(), 15);
        depth.drained();
        assert!(!depth.is_full());
    }
}
