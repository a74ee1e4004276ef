//! What a client of the daemon's leases does besides passing the gate, the same in a program and in a worker.
//!
//! ```text
//!   submission ──► gate ──► not more queued than a lease allows (`depth`) ──► driver
//!   wait of the program's ──► a moment with nothing submitted? (`moments`) ──► counters of the page
//!   lease over ──► `watch` or the thread at the gate ──► `drain`: waits for the GPU, gives the lease back
//! ```
//! Owns no thread and no driver: its user brings both.

mod depth;
mod drain;
mod idle_moments;
mod watch;

use std::sync::atomic::Ordering::Relaxed;

use mica_wire::host::page::ClientPage;

use crate::Gate;
use crate::clock::monotonic_ns;
use depth::Depth;
use drain::{Drain, PATIENCE_NS};
use idle_moments::{IdleMoments, launches};

/// A process's part in leases. Made at compile time where hooks need it without a look at anything else.
#[derive(Debug)]
pub struct Leases {
    drain: Drain,
    depth: Depth,
    moments: IdleMoments,
}

/// How Mica's own wait for all submitted work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// All submitted work was waited for.
    pub done: bool,
    /// Nothing was submitted meanwhile.
    pub nothing_since: bool,
}

impl Default for Leases {
    fn default() -> Self {
        Self::new()
    }
}

impl Leases {
    /// Nothing is submitted yet.
    pub const fn new() -> Self {
        Self {
            drain: Drain::new(),
            depth: Depth::new(),
            moments: IdleMoments::new(),
        }
    }

    /// Takes a place in the queue for one submission if it may go now; never waits.
    pub fn go_now(&self, gate: &Gate) -> bool {
        gate.is_open() || gate.may_run() && !self.depth.is_full() && self.depth.add()
    }

    /// Waits until one submission may go. `patient` says whether the thread may wait for what is queued already:
    /// that may wait for what the thread does next. Returns early when `over` says so.
    pub fn take_turn(&self, gate: &Gate, patient: &dyn Fn() -> bool, over: &dyn Fn() -> bool) {
        loop {
            let lease = gate.enter_unless(over, &mut |sequence| {
                let finished = is_finished(gate.page());
                if !finished {
                    self.drain.lease_ended(sequence);
                }
                finished
            });
            if lease.is_none() || over() || self.depth.add() {
                return;
            }
            if !self.wait_for_queue(gate, patient) {
                return;
            }
            // The lease may have ended, and been given back by another thread, while this one waited: what
            // went now would run in somebody else's time.
        }
    }

    /// Waits while as much is queued as may be, for the queue or the end of the lease; false if nobody should wait
    /// for it: then the submission goes with the rest.
    fn wait_for_queue(&self, gate: &Gate, patient: &dyn Fn() -> bool) -> bool {
        if self.drain.is_stuck() || !patient() {
            return false;
        }
        let end_ns = gate.page().lease.lease_end_ns.load(Relaxed);
        let left_ns = end_ns.saturating_sub(monotonic_ns());
        let done = self.drain.wait(self.drain.ask(), left_ns.min(PATIENCE_NS));
        done || !self.drain.is_stuck()
    }

    /// Waits for everything submitted, however long that takes, and learns from it how much may be queued. Only on
    /// the thread that [`Leases::drain`] runs on: no other waits in our name.
    pub fn wait_for_all(&self, page: &ClientPage, wait: impl FnOnce() -> bool) -> Waited {
        let (begun_ns, before) = (monotonic_ns(), launches(page));
        page.counters.syncing.fetch_add(1, Relaxed);
        let done = wait();
        page.counters.syncing.fetch_sub(1, Relaxed);
        self.depth.drained();
        let nothing_since = self.moments.waited(page, before);
        if done {
            self.depth.learn(monotonic_ns() - begun_ns);
        }
        Waited {
            done,
            nothing_since,
        }
    }

    /// Has the thread that drains look whether anything still runs: what was submitted may have ended unseen.
    pub fn look(&self) {
        self.drain.ask();
    }

    /// A program's wait has seen the first `before` launches done, all of them if `everything`, else those of one
    /// stream.
    #[inline]
    pub fn all_done(&self, page: &ClientPage, before: u64, everything: bool) {
        if self.moments.all_done(page, before, everything) {
            self.depth.drained();
        }
    }

    /// An event is recorded behind what was submitted so far; `everything` of it is on the event's stream.
    #[inline]
    pub fn recorded(&self, page: &ClientPage, event: u64, everything: bool) {
        self.moments.recorded(page, event, everything);
    }

    /// An event was seen to have been reached.
    #[inline]
    pub fn event_done(&self, page: &ClientPage, event: u64) {
        if self.moments.event_done(page, event) {
            self.depth.drained();
        }
    }

    /// Whether a wait for everything has gone on for so long that nobody should wait for its end.
    pub fn is_stuck(&self) -> bool {
        self.drain.is_stuck()
    }
}

/// Whether it is certain that nothing submitted still runs.
fn is_finished(page: &ClientPage) -> bool {
    page.counters.finished.load(Relaxed) == launches(page)
}
