//! Gives leases back that nobody is at the gate to give back, and early when their holder is idle.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use mica_wire::host::page::{gate, suspend};
use rustix::thread::futex;

use super::{Leases, is_finished};
use crate::Gate;
use crate::clock::{monotonic_ns, sleep_on};

/// While a lease is held its holder is looked at this often; idle, it gives the lease back early.
const LEASE_TICK_NS: u64 = 250_000;
/// A thread that is at the gate gives the lease back itself; it gets this long.
const GRACE_NS: u64 = 100_000;
/// While an ended lease is being drained there is nothing to do but to see it taken away.
const DRAINING_NS: u64 = 10_000_000;

impl Leases {
    /// The body of the thread that sleeps on the gate word, until `over` says that the process is about to end.
    /// `seen` is what the word was before anything was submitted: the thread may begin much later.
    pub fn watch(&self, gate: &Gate, mut seen: u32, over: impl Fn() -> bool) {
        let page = gate.page();
        let mut launches_before = 0;
        while !over() {
            let word = page.lease.gate.load(Acquire);
            let before = std::mem::replace(&mut seen, word);
            if word != before && gate::state(word) == gate::OPEN {
                self.gate_opened(gate, before, word);
            }
            let held = gate::state(word) == gate::LEASED
                && page.counters.yielded.load(Relaxed) != gate::sequence(word);
            if !held {
                if gate::state(word) == gate::CLOSED {
                    self.gate_closed(gate, word);
                }
                sleep(gate, word, None);
                continue;
            }
            let now = monotonic_ns();
            let end = page.lease.lease_end_ns.load(Relaxed);
            if now < end {
                let launches = page.counters.launches.load(Relaxed);
                sleep(gate, word, Some((end - now + GRACE_NS).min(LEASE_TICK_NS)));
                let same =
                    page.counters.launches.load(Relaxed) == launches && launches == launches_before;
                launches_before = launches;
                let waiting = page.counters.waiting.load(Relaxed) > 0;
                // Nothing submitted for two ticks and nothing running: others may have the rest.
                let unused = same && !waiting && self.seems_idle(page);
                if unused && page.lease.gate.load(Acquire) == word {
                    self.give_up_rest(gate, word);
                }
            } else if now < end + GRACE_NS {
                sleep(gate, word, Some(end + GRACE_NS - now));
            } else {
                self.finish_lease(gate, word);
            }
        }
    }

    /// Gives back a lease whose holder seems to have nothing running, once that is certain.
    fn give_up_rest(&self, gate: &Gate, word: u32) {
        let page = gate.page();
        // A program that has waited for one of several streams may have work on the others.
        if !is_finished(page) && !self.drain.is_waiting() {
            self.drain.wait(self.drain.ask(), LEASE_TICK_NS);
        }
        if self.is_idle(page) {
            gate.give_back(gate::sequence(word));
        }
    }

    /// What was submitted while the gate was open, or under a lease that was taken away, may run on for long: the
    /// daemon is told when it has drained.
    fn gate_closed(&self, gate: &Gate, word: u32) {
        let page = gate.page();
        let sequence = gate::sequence(word);
        // A lease that is only paused goes on soon, and the daemon waits for the process's report.
        let suspended = page.commands.suspend.load(Relaxed) == suspend::STOP;
        if suspended || !gate::is_later(sequence, page.counters.yielded.load(Relaxed)) {
            return;
        }
        if self.is_idle(page) {
            gate.give_back(sequence);
        } else {
            self.drain.lease_ended(sequence);
        }
    }

    /// A lease that ended, or a gate that closed, while the whole process stood still: the daemon waits to hear that
    /// its work has drained.
    fn gate_opened(&self, gate: &Gate, before: u32, word: u32) {
        let sequence = gate::before(gate::sequence(word));
        let was_open = gate::state(before) == gate::OPEN && gate::sequence(before) == sequence;
        let yielded = gate.page().counters.yielded.load(Relaxed);
        if !was_open && gate::is_later(sequence, yielded) {
            self.drain.lease_ended(sequence);
        }
    }

    /// Gives back an ended lease that no thread has come to the gate to give back, once its work has drained.
    fn finish_lease(&self, gate: &Gate, word: u32) {
        if self.is_idle(gate.page()) {
            gate.give_back(gate::sequence(word));
        } else {
            self.drain.lease_ended(gate::sequence(word));
            sleep(gate, word, Some(DRAINING_NS));
        }
    }
}

fn sleep(gate: &Gate, word: u32, limit_ns: Option<u64>) {
    // Without a limit of its own the sleep still ends now and then, to notice the process's end.
    let limit_ns = limit_ns.unwrap_or(1_000_000_000);
    let gate = &gate.page().lease.gate;
    sleep_on(gate, word, futex::Flags::empty(), limit_ns);
}
