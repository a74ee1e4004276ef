//! How long to look before sleeping.
//!
//! A wake-up through the kernel costs several microseconds, and tens of them where a virtual
//! processor has halted, so whoever expects an answer in a moment looks for it first. Looking is
//! bounded, pays for itself or is given up, and never happens on a machine with one processor: an
//! idle session costs at most the longest look ([`SHORT_NS`], [`LONG_NS`]) of one processor's time, once. Whoever looks offers the
//! processor to others now and then, since the thread that is waited for may need it. Where that
//! takes long, strangers want it, and a thread that sleeps gets it back sooner than one that looks:
//! then nobody looks for a while.
//!
//! Two threads that look for each other on one processor answer by taking each other's offers, at four times the cost, and
//! the system moves neither for tens of milliseconds: to it both run. It does place a thread that wakes. So where
//! waits end within offers several times in a row, one wait is slept through: the wake-up leads to an idle processor, if there is one.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Longest look for the next call, and for what a copy waits for.
const SHORT_NS: u32 = 50_000;
/// Longest look for the end of GPU work, and for calls of urgent programs, where processors are many. The driver itself
/// spins there without a limit; a program that sleeps instead hears of the end of each step tens of microseconds late.
const LONG_NS: u32 = 5_000_000;
/// Longest look where a wake-up passes through other processes and a wall, which takes tens of microseconds: shorter looks on
/// both sides end in two sleeps for every call.
const WALL_NS: u32 = 200_000;
/// Processors from which on a second thread may spin beside the driver's.
pub(crate) const MANY_PROCESSORS: usize = 4;
/// Look that is tried even when earlier ones were in vain.
const LEAST_NS: u32 = 2_000;
/// Looks between two glances at the clock.
const LOOKS: u32 = 16;
/// Glances at the clock between two offers of the processor to others.
const GLANCES: u32 = 4;

/// Where processors are many, an offer is made this seldom: it takes a part of a microsecond, in which what is waited for
/// is not seen.
const OFFER_EVERY_NS: u128 = 20_000;
/// An offer that takes longer was taken by strangers.
const LONG_OFFER_NS: u128 = 150_000;
/// Waits without a look after such an offer: this many at first, then twice as many, up to the most.
const FIRST_REST: u32 = 8;
const MOST_REST: u32 = 1024;

/// An offer that takes longer was taken by another thread; nobody's returns in a part of a microsecond.
const TAKEN_OFFER_NS: u128 = 1_500;
/// Waits in a row that end within such an offer before one is slept through: this many at first, then twice as many, as the
/// sleep has not led elsewhere, up to the most.
const FIRST_SHARED: u32 = 4;
const MOST_SHARED: u32 = 256;

/// The memory of one place where threads wait.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Longest look.
    most_ns: AtomicU32,
    budget_ns: AtomicU32,
    /// Waits that will be slept through, and how many it will be the next time.
    resting: AtomicU32,
    next_rest: AtomicU32,
    /// Waits in a row that ended while the thread that was waited for had this one's processor, and how many lead to a sleep.
    shared: AtomicU32,
    shared_limit: AtomicU32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            most_ns: AtomicU32::new(SHORT_NS),
            budget_ns: AtomicU32::new(SHORT_NS),
            resting: AtomicU32::new(0),
            next_rest: AtomicU32::new(FIRST_REST),
            shared: AtomicU32::new(0),
            shared_limit: AtomicU32::new(FIRST_SHARED),
        }
    }
}

/// Processors this process may use; 2 if that is not known.
pub(crate) fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(2, usize::from))
}

impl Patience {
    /// From now on threads wait here for the end of work on a GPU, or as long for what is as urgent.
    pub(crate) fn expect_gpu_work(&self) {
        if processors() >= MANY_PROCESSORS {
            self.most_ns.store(LONG_NS, Relaxed);
            self.budget_ns.store(LONG_NS, Relaxed);
        }
    }

    /// From now on whoever sleeps here is woken through a wall.
    pub(crate) fn expect_slow_wakes(&self) {
        self.most_ns.fetch_max(WALL_NS, Relaxed);
        self.budget_ns.fetch_max(WALL_NS, Relaxed);
    }

    /// Looks until `ready`, or until it is time to sleep; says which. Gives the beginning of the wait,
    /// for [`Patience::waited`] after a sleep.
    pub(crate) fn look(&self, mut ready: impl FnMut() -> bool) -> Result<(), Instant> {
        if ready() {
            return Ok(());
        }
        let began = Instant::now();
        let resting = self.resting.load(Relaxed);
        if resting > 0 {
            self.resting.store(resting - 1, Relaxed);
        }
        if resting > 0 || processors() < 2 {
            return Err(began);
        }
        let budget = u128::from(self.budget_ns.load(Relaxed));
        let between_ns = match processors() >= MANY_PROCESSORS {
            true => OFFER_EVERY_NS,
            false => 0,
        };
        let mut next_offer_ns = between_ns;
        for glance in 1_u32.. {
            for _ in 0..LOOKS {
                if ready() {
                    self.note_alone();
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            let passed_ns = began.elapsed().as_nanos();
            if passed_ns >= budget {
                break;
            }
            if glance.is_multiple_of(GLANCES) && passed_ns >= next_offer_ns {
                next_offer_ns = passed_ns + between_ns;
                let offered = Instant::now();
                std::thread::yield_now();
                let took_ns = offered.elapsed().as_nanos();
                self.note_offer(took_ns);
                if (TAKEN_OFFER_NS..LONG_OFFER_NS).contains(&took_ns) && ready() {
                    self.note_shared();
                    return Ok(());
                }
            }
        }
        Err(began)
    }

    fn note_offer(&self, took_ns: u128) {
        let rest = self.next_rest.load(Relaxed);
        if took_ns > LONG_OFFER_NS {
            self.resting.store(rest, Relaxed);
            self.next_rest.store((rest * 2).min(MOST_REST), Relaxed);
        } else if rest > FIRST_REST {
            self.next_rest.store(rest - 1, Relaxed);
        }
    }

    /// A wait ended while another thread had this one's processor.
    fn note_shared(&self) {
        let limit = self.shared_limit.load(Relaxed);
        let shared = self.shared.load(Relaxed) + 1;
        if shared < limit {
            return self.shared.store(shared, Relaxed);
        }
        self.shared.store(0, Relaxed);
        self.shared_limit
            .store((limit * 2).min(MOST_SHARED), Relaxed);
        self.resting.fetch_max(1, Relaxed);
    }

    /// A wait ended while this thread looked: what it waited for came from another processor.
    #[inline]
    fn note_alone(&self) {
        if self.shared.load(Relaxed) > 0 {
            self.shared.store(0, Relaxed);
        }
        let limit = self.shared_limit.load(Relaxed);
        if limit > FIRST_SHARED {
            self.shared_limit.store(limit - 1, Relaxed);
        }
    }

    /// A sleep has ended. Had the longest look been enough, the next one is that long; if not, half
    /// as long as the last.
    pub(crate) fn waited(&self, began: Instant) {
        // The wake-up itself is part of the time that has passed.
        let most = self.most_ns.load(Relaxed);
        let near = u128::from(most + SHORT_NS);
        let next = match began.elapsed().as_nanos() <= near {
            true => most,
            false => (self.budget_ns.load(Relaxed) / 2).max(LEAST_NS),
        };
        self.budget_ns.store(next, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn long_waits_make_looks_short_and_short_ones_make_them_long_again() {
        let patience = Patience::default();
        let long_ago = Instant::now()
            .checked_sub(Duration::from_secs(1))
            .unwrap_or_else(Instant::now);
        for _ in 0..20 {
            patience.waited(long_ago);
        }
        if long_ago.elapsed() >= Duration::from_secs(1) {
            assert_eq!(patience.budget_ns.load(Relaxed), LEAST_NS);
        }
        patience.budget_ns.store(LEAST_NS, Relaxed);
        // A clock that has not moved is a wait that was short.
        patience.waited(Instant::now() + Duration::from_secs(1));
        assert_eq!(patience.budget_ns.load(Relaxed), SHORT_NS);
    }

    #[test]
    fn where_strangers_want_the_processor_nobody_looks_for_a_while() {
        let patience = Patience::default();
        patience.note_offer(10 * LONG_OFFER_NS);
        for _ in 0..FIRST_REST {
            let mut looks = 0;
            let waits = patience.look(|| {
                looks += 1;
                false
            });
            assert!(waits.is_err());
            assert_eq!(looks, 1);
        }
        assert_eq!(patience.resting.load(Relaxed), 0);
        assert_eq!(patience.next_rest.load(Relaxed), 2 * FIRST_REST);
        for _ in 0..2 * FIRST_REST {
            patience.note_offer(0);
        }
        assert_eq!(patience.next_rest.load(Relaxed), FIRST_REST);
    }

    #[test]
    fn who_shares_a_processor_sleeps_through_one_wait() {
        let patience = Patience::default();
        for round in 0..3 {
            let limit = FIRST_SHARED << round;
            for _ in 1..limit {
                patience.note_shared();
                assert_eq!(patience.resting.load(Relaxed), 0);
            }
            patience.note_shared();
            assert_eq!(patience.resting.load(Relaxed), 1);
            assert!(patience.look(|| false).is_err());
            assert_eq!(patience.resting.load(Relaxed), 0);
        }
        for _ in 0..MOST_SHARED {
            patience.note_alone();
        }
        assert_eq!(patience.shared_limit.load(Relaxed), FIRST_SHARED);
    }

    #[test]
    fn waits_that_end_within_offers_count_only_in_a_row() {
        let patience = Patience::default();
        for _ in 0..100 {
            for _ in 1..FIRST_SHARED {
                patience.note_shared();
            }
            patience.note_alone();
        }
        assert_eq!(patience.resting.load(Relaxed), 0);
    }

    #[test]
    fn a_look_ends_when_it_is_ready_or_in_vain() {
        let patience = Patience::default();
        assert!(patience.look(|| true).is_ok());
        assert!(patience.look(|| false).is_err());
    }
}
