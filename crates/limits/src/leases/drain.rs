//! Waits for what the process has submitted, on a thread of its own.
//!
//! Work may never end by itself: a kernel polls for what a thread of the program does next, a host function waits
//! for it to be submitted. So the threads that submit never wait in the driver in our name. They ask this thread
//! to, and stop waiting for its answer when their lease has ended (then the gate holds them, and the daemon sees
//! to it that it opens) or after [`PATIENCE_NS`].
//!
//! ```text
//!   at the gate, lease over ──┐ number                       ┌─ give the lease back, also one taken away since
//!   too much queued ──────────┼─► asked ─► cuCtxSynchronize ─┤
//!   the one that watches ─────┘                              └─► done ─► whoever waits
//! ```

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::thread::futex;

use super::Leases;
use crate::Gate;
use crate::clock::{monotonic_ns, sleep_on};

/// Longest wait of a thread that submits for its queue while nobody else wants the GPU: far longer than what a
/// queue of the depth that leases allow takes to finish.
pub(super) const PATIENCE_NS: u64 = 1_000_000_000;
/// Sleeps end now and then, to notice the process's end.
const LONGEST_SLEEP_NS: u64 = 1_000_000_000;
/// Where a capture forbids to wait: what is queued gets so long before the lease goes back with it.
const CAPTURE_NS: u64 = 250_000;
const NO_LEASE: u64 = 0;

#[derive(Debug)]
pub(super) struct Drain {
    /// Waits asked for; a futex word.
    asked: AtomicU32,
    /// The last of them that is over; a futex word.
    done: AtomicU32,
    /// When the wait that goes on now began, 0 while none does.
    since_ns: AtomicU64,
    /// Number of the last lease that is to be given back after a wait, above [`NO_LEASE`].
    ended: AtomicU64,
}

/// A wait that was asked for.
#[derive(Clone, Copy)]
pub(super) struct Ticket(u32);

impl Drain {
    pub(super) const fn new() -> Self {
        Self {
            asked: AtomicU32::new(0),
            done: AtomicU32::new(0),
            since_ns: AtomicU64::new(0),
            ended: AtomicU64::new(NO_LEASE),
        }
    }

    /// Asks for a wait for everything submitted so far.
    pub(super) fn ask(&self) -> Ticket {
        let ticket = self.asked.fetch_add(1, Release).wrapping_add(1);
        let _ = futex::wake(&self.asked, futex::Flags::PRIVATE, 1);
        Ticket(ticket)
    }

    /// The lease of this number has ended and is to be given back once everything submitted has finished. Asks
    /// once.
    pub(super) fn lease_ended(&self, sequence: u32) {
        let ended = u64::from(sequence) + 1;
        if self.ended.swap(ended, Release) != ended {
            self.ask();
        }
    }

    /// Waits until it is over, or so long; says which.
    pub(super) fn wait(&self, ticket: Ticket, limit_ns: u64) -> bool {
        let until_ns = monotonic_ns().saturating_add(limit_ns);
        loop {
            let done = self.done.load(Acquire);
            if ticket.0.wrapping_sub(done) as i32 <= 0 {
                return true;
            }
            let now_ns = monotonic_ns();
            if now_ns >= until_ns {
                return false;
            }
            sleep(&self.done, done, until_ns - now_ns);
        }
    }

    /// Whether a wait goes on now.
    pub(super) fn is_waiting(&self) -> bool {
        self.since_ns.load(Relaxed) != 0
    }

    /// Whether it has gone on for so long that nobody should wait for its end.
    pub(super) fn is_stuck(&self) -> bool {
        let since_ns = self.since_ns.load(Relaxed);
        since_ns != 0 && monotonic_ns().saturating_sub(since_ns) > PATIENCE_NS
    }
}

impl Leases {
    /// The body of the thread that waits for the GPU, until `over` says that the process is about to end. `wait`
    /// waits for everything submitted, by [`Leases::wait_for_all`], and says whether it could; `tell` is told of
    /// work that took long.
    pub fn drain(
        &self,
        gate: &Gate,
        over: impl Fn() -> bool,
        mut wait: impl FnMut() -> bool,
        tell: impl Fn(&str),
    ) {
        let drain = &self.drain;
        // The lease that has been given back already, so that each is given back once.
        let mut given = NO_LEASE;
        while !over() {
            let asked = drain.asked.load(Acquire);
            if asked == drain.done.load(Relaxed) {
                sleep(&drain.asked, asked, LONGEST_SLEEP_NS);
                continue;
            }
            // Before the wait, so that all of its work is waited for.
            let ended = drain.ended.load(Acquire);
            let began_ns = monotonic_ns();
            drain.since_ns.store(began_ns, Relaxed);
            let drained = wait();
            drain.since_ns.store(0, Relaxed);
            drain.done.store(asked, Release);
            let _ = futex::wake(&drain.done, futex::Flags::PRIVATE, i32::MAX as u32);
            if ended != given {
                given = ended;
                if !drained {
                    std::thread::sleep(std::time::Duration::from_nanos(CAPTURE_NS));
                }
                gate.give_back((ended - 1) as u32);
            }
            let took_ns = monotonic_ns() - began_ns;
            if took_ns > PATIENCE_NS {
                tell(&format!(
                    "work submitted to the GPU took {} ms to finish after its lease",
                    took_ns / 1_000_000
                ));
            }
        }
    }
}

fn sleep(word: &AtomicU32, value: u32, limit_ns: u64) {
    let limit_ns = limit_ns.min(LONGEST_SLEEP_NS);
    sleep_on(word, value, futex::Flags::PRIVATE, limit_ns);
}
