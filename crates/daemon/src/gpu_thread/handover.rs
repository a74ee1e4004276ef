//! Changes of holder without wake-ups.
//!
//! A sleeping thread takes 50 to 200 µs to run again, on a virtual processor more, and two would have to wake
//! for every change: this one and the next holder. So a little before the holder is expected to give its lease
//! back the next one is woken to wait awake, and this thread watches for the moment itself.
//!
//! ```text
//!        lease                    end       expected            given back
//!   ─────────────────────────────┼─────────────┼──────────────────┼──► next holder
//!                                    ├ PREPARE ┤ ◄── watched ──►
//!                                └── drain, as the last times ──┘
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Acquire;

use mica_limits::SharedPage;
use mica_scheduler::arbiter::Handover;

/// So long before the lease is expected back everybody is awake.
const PREPARE_NS: u64 = 500_000;
/// Longest watch past the expected moment; a client that takes longer rings the doorbell.
const WATCH_NS: u64 = 800_000;

/// What is known about the ends of leases.
#[derive(Debug, Default)]
pub(super) struct Handovers {
    /// The change to come, as it was known last.
    coming: Option<Handover>,
    /// Holder, sequence number and end of the lease whose end has been prepared: one that was prolonged since has another.
    prepared: Option<(u64, u32, u64)>,
    /// How long each client took to drain after its last two leases.
    drains: BTreeMap<u64, [u64; 2]>,
}

impl Handovers {
    /// When to prepare for this change; `None` if that has been done.
    pub(super) fn prepare_at(&mut self, handover: &Handover) -> Option<u64> {
        self.coming = Some(*handover);
        let lease = name(handover);
        (self.prepared != Some(lease))
            .then(|| self.expected_ns(handover).saturating_sub(PREPARE_NS))
    }

    /// The change is being prepared: until when to watch for it.
    pub(super) fn watch_until(&mut self, handover: &Handover) -> u64 {
        self.prepared = Some(name(handover));
        self.expected_ns(handover) + WATCH_NS
    }

    /// Learns, if the holder has just given its lease back, how long that took.
    pub(super) fn look(&mut self, holder: u64, page: &SharedPage, now_ns: u64) {
        let Some(coming) = self.coming.filter(|c| c.holder == holder) else {
            return;
        };
        if page.counters.yielded.load(Acquire) == coming.sequence {
            self.coming = None;
            let took_ns = now_ns.saturating_sub(coming.end_ns);
            let drains = self.drains.entry(holder).or_default();
            *drains = [drains[1], took_ns];
        }
    }

    /// A client is gone.
    pub(super) fn forget(&mut self, client: u64) {
        self.drains.remove(&client);
    }

    /// When the lease will be given back, rather too early than too late.
    fn expected_ns(&self, handover: &Handover) -> u64 {
        let drains = self
            .drains
            .get(&handover.holder)
            .copied()
            .unwrap_or_default();
        handover.end_ns + drains[0].min(drains[1])
    }
}

fn name(handover: &Handover) -> (u64, u32, u64) {
    (handover.holder, handover.sequence, handover.end_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Release;

    const MS: u64 = 1_000_000;

    fn lease(holder: u64, sequence: u32, end_ns: u64) -> Handover {
        Handover {
            end_ns,
            holder,
            sequence,
            next: 9,
        }
    }

    fn end(handovers: &mut Handovers, page: &SharedPage, lease: &Handover, now_ns: u64) {
        let _ = handovers.prepare_at(lease);
        page.counters.yielded.store(lease.sequence, Release);
        handovers.look(lease.holder, page, now_ns);
    }

    #[test]
    fn a_holder_that_drains_slowly_is_watched_later() {
        let page = SharedPage::create().unwrap();
        let mut handovers = Handovers::default();
        let first = lease(1, 1, 10 * MS);
        assert_eq!(handovers.prepare_at(&first), Some(10 * MS - PREPARE_NS));
        end(&mut handovers, &page, &first, 13 * MS);
        // Once may be chance.
        let second = lease(1, 2, 30 * MS);
        assert_eq!(handovers.prepare_at(&second), Some(30 * MS - PREPARE_NS));
        end(&mut handovers, &page, &second, 32 * MS);
        let third = lease(1, 3, 50 * MS);
        assert_eq!(handovers.prepare_at(&third), Some(52 * MS - PREPARE_NS));
        assert_eq!(handovers.watch_until(&third), 52 * MS + WATCH_NS);
        assert_eq!(handovers.prepare_at(&third), None, "prepared already");
        let prolonged = lease(1, 3, 58 * MS);
        assert!(handovers.prepare_at(&prolonged).is_some());
        end(&mut handovers, &page, &third, 50 * MS);
        let fourth = lease(1, 4, 70 * MS);
        assert_eq!(handovers.prepare_at(&fourth), Some(70 * MS - PREPARE_NS));
    }

    #[test]
    fn what_is_learnt_of_one_says_nothing_of_another() {
        let page = SharedPage::create().unwrap();
        let mut handovers = Handovers::default();
        for sequence in 1..3 {
            end(&mut handovers, &page, &lease(1, sequence, 10 * MS), 15 * MS);
        }
        let other = lease(2, 1, 30 * MS);
        assert_eq!(handovers.prepare_at(&other), Some(30 * MS - PREPARE_NS));
        handovers.forget(1);
        let again = lease(1, 7, 30 * MS);
        assert_eq!(handovers.prepare_at(&again), Some(30 * MS - PREPARE_NS));
    }
}
