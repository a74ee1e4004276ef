//! When work may be submitted.
//!
//! The fast path is one load of one word: no lease is in force, go. Otherwise the thread submits while
//! it holds a lease and sleeps on the word until the next one. It never waits here for work that was
//! submitted: that may wait for what this very thread does next.
//!
//! ```text
//!   OPEN ── submit
//!   LEASED ── before the end: submit
//!          └─ after it: nothing runs: mark yielded, ring, sleep
//!                       else: sleep; whoever waits for the work marks it yielded
//!   CLOSED ── ring once, sleep until LEASED or OPEN
//! ```

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use mica_wire::host::page::{ClientPage, gate};
use rustix::thread::futex;

use crate::HostLink;
use crate::clock::{monotonic_ns, sleep_on};

/// Longest wait without sleeping for a turn that was announced.
const AWAKE_NS: u64 = 1_500_000;
/// A lost wake-up lasts no longer than this.
const ASLEEP_NS: u64 = 200_000_000;
/// The end of a lease may be moved without anybody being woken.
const ENDED_NS: u64 = 500_000;

/// The gate that submissions pass.
#[derive(Clone, Debug)]
pub struct Gate {
    link: Arc<HostLink>,
    /// A thread waits awake for the turn to come; the others need not.
    awake: Arc<AtomicBool>,
}

impl Gate {
    /// The gate of a connection.
    pub fn new(link: Arc<HostLink>) -> Self {
        Self {
            link,
            awake: Arc::default(),
        }
    }

    /// The page shared with the daemon.
    pub fn page(&self) -> &ClientPage {
        self.link.page()
    }

    /// Has the threads at the gate look whether they still want to pass.
    pub fn wake(&self) {
        let gate = &self.link.page().lease.gate;
        let _ = futex::wake(gate, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Whether a submission may go at once, without a lease. This is all the common case costs.
    #[inline]
    pub fn is_open(&self) -> bool {
        gate::state(self.link.page().lease.gate.load(Relaxed)) == gate::OPEN
    }

    /// Whether work may run now, lease or not; never waits.
    pub fn may_run(&self) -> bool {
        let page = self.link.page();
        let word = page.lease.gate.load(Acquire);
        match gate::state(word) {
            gate::OPEN => true,
            gate::LEASED
                if monotonic_ns() < page.lease.lease_end_ns.load(Relaxed)
                    && page.counters.yielded.load(Relaxed) != gate::sequence(word) =>
            {
                true
            }
            // Nobody is there who could grant another.
            _ => self.link.is_down(),
        }
    }

    /// Waits until a submission may go. `drained` is asked when a lease has ended, with its number: whether
    /// nothing submitted still runs. If so the lease is given back here; else `drained` must have seen to
    /// it that somebody gives it back later. It must not wait itself.
    ///
    /// Returns the sequence number of the lease under which it may go, if it needs one. Returns at once if
    /// the daemon is gone: hardware slices stay in force without it.
    pub fn enter(&self, drained: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        self.enter_unless(&|| false, drained)
    }

    /// As [`Gate::enter`]; also returns when `over` says that the submission is not wanted any more, which is looked
    /// at after a [`Gate::wake`].
    pub fn enter_unless(
        &self,
        over: &dyn Fn() -> bool,
        drained: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        let page = self.link.page();
        let mut waited_since = None;
        let lease = loop {
            let word = page.lease.gate.load(Acquire);
            if self.link.is_down() || over() {
                break None;
            }
            match gate::state(word) {
                gate::OPEN => break None,
                gate::LEASED if page.counters.yielded.load(Relaxed) != gate::sequence(word) => {
                    if monotonic_ns() < page.lease.lease_end_ns.load(Relaxed) {
                        break Some(gate::sequence(word));
                    }
                    if drained(gate::sequence(word)) {
                        self.give_back(gate::sequence(word));
                        continue;
                    }
                }
                _ => {}
            }
            if waited_since.is_none() {
                waited_since = Some(monotonic_ns());
                page.counters.waiting.fetch_add(1, SeqCst);
                self.link.ring();
            }
            self.sleep(word);
        };
        if let Some(since) = waited_since {
            page.counters.waiting.fetch_sub(1, SeqCst);
            page.counters
                .gate_wait_ns
                .fetch_add(monotonic_ns() - since, Relaxed);
        }
        lease
    }

    /// Gives the current lease back, if this client holds one; the work must be drained.
    pub fn yield_now(&self) {
        let word = self.link.page().lease.gate.load(Acquire);
        if gate::state(word) == gate::LEASED {
            self.give_back(gate::sequence(word));
        }
    }

    /// Gives the current lease back if its time is over; the work must be drained.
    pub fn yield_ended(&self) {
        let lease = &self.link.page().lease;
        let word = lease.gate.load(Acquire);
        // The end is written before the word, so it is no older than that.
        if gate::state(word) == gate::LEASED && monotonic_ns() >= lease.lease_end_ns.load(Relaxed) {
            self.give_back(gate::sequence(word));
        }
    }

    /// Gives the lease of this number back: what was submitted under it has drained. Says nothing about a
    /// lease that was granted since, and does nothing if a later one has been given back already.
    pub fn give_back(&self, sequence: u32) {
        let later = |yielded| gate::is_later(sequence, yielded).then_some(sequence);
        let yielded = &self.link.page().counters.yielded;
        if yielded.fetch_update(SeqCst, SeqCst, later).is_ok() {
            self.link.ring();
        }
    }

    fn sleep(&self, word: u32) {
        let leased = gate::state(word) == gate::LEASED;
        let limit_ns = if leased { ENDED_NS } else { ASLEEP_NS };
        let gate = &self.link.page().lease.gate;
        let woken = sleep_on(gate, word, futex::Flags::empty(), limit_ns);
        // Woken without a change: this process's turn is about to come, so one of its threads waits awake.
        if !woken || gate.load(Acquire) != word || self.awake.swap(true, Acquire) {
            return;
        }
        let begun = monotonic_ns();
        while gate.load(Acquire) == word && monotonic_ns() < begun + AWAKE_NS {
            std::hint::spin_loop();
        }
        self.awake.store(false, Release);
    }
}
