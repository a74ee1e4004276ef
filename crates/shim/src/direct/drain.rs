//! Waits for what the process has submitted, on a thread of its own.
//!
//! Work may never end by itself: a kernel polls for what a thread of the program does next, a host function waits
//! for it to be submitted. So the program's own threads never wait in the driver in our name. They ask this thread
//! to, and stop waiting for its answer when their lease has ended (then the gate holds them, and the daemon sees
//! to it that it opens) or after [`PATIENCE_NS`].
//!
//! ```text
//!   at the gate, lease over ──┐ number                       ┌─ give the lease back, also one taken away since
//!   too much queued ──────────┼─► ASKED ─► cuCtxSynchronize ─┤
//!   mica-lease ───────────────┘                              └─► DONE ─► whoever waits
//! ```

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use mica_limits::monotonic_ns;
use rustix::thread::futex;
use rustix::time::Timespec;

use super::state::Direct;
use super::{control, launch};
use crate::log;

/// Longest wait of a program's thread for its queue while nobody else wants the GPU: far longer than what a queue of
/// the depth that leases allow takes to finish.
pub(crate) const PATIENCE_NS: u64 = 1_000_000_000;
/// Sleeps end now and then, to notice the process's end.
const LONGEST_SLEEP_NS: u64 = 1_000_000_000;
/// Where a capture forbids to wait: what is queued gets so long before the lease goes back with it.
const CAPTURE_NS: u64 = 250_000;

/// Waits asked for; a futex word.
static ASKED: AtomicU32 = AtomicU32::new(0);
/// The last of them that is over; a futex word.
static DONE: AtomicU32 = AtomicU32::new(0);
/// When the wait that goes on now began, 0 while none does.
static SINCE_NS: AtomicU64 = AtomicU64::new(0);
/// Number of the last lease that is to be given back after a wait, above [`NO_LEASE`].
static ENDED: AtomicU64 = AtomicU64::new(0);
const NO_LEASE: u64 = 0;

/// A wait that was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Ticket(u32);

/// Asks for a wait for everything submitted so far.
pub(crate) fn ask() -> Ticket {
    let ticket = ASKED.fetch_add(1, Release).wrapping_add(1);
    let _ = futex::wake(&ASKED, futex::Flags::PRIVATE, 1);
    Ticket(ticket)
}

/// The lease of this number has ended and is to be given back once everything submitted has finished. Asks once.
pub(crate) fn lease_ended(sequence: u32) {
    let ended = u64::from(sequence) + 1;
    if ENDED.swap(ended, Release) != ended {
        ask();
    }
}

/// Waits until it is over, or so long; says which.
pub(crate) fn wait(ticket: Ticket, limit_ns: u64) -> bool {
    let until_ns = monotonic_ns().saturating_add(limit_ns);
    loop {
        let done = DONE.load(Acquire);
        if ticket.0.wrapping_sub(done) as i32 <= 0 {
            return true;
        }
        let now_ns = monotonic_ns();
        if now_ns >= until_ns {
            return false;
        }
        sleep(&DONE, done, until_ns - now_ns);
    }
}

/// Whether a wait goes on now.
pub(crate) fn is_waiting() -> bool {
    SINCE_NS.load(Relaxed) != 0
}

/// Whether it has gone on for so long that nobody should wait for its end.
pub(crate) fn is_stuck() -> bool {
    let since_ns = SINCE_NS.load(Relaxed);
    since_ns != 0 && monotonic_ns().saturating_sub(since_ns) > PATIENCE_NS
}

/// The thread's body.
pub(crate) fn run(direct: &'static Direct) {
    // The lease that has been given back already, so that each is given back once.
    let mut given = NO_LEASE;
    while !control::exiting() {
        let asked = ASKED.load(Acquire);
        if asked == DONE.load(Relaxed) {
            sleep(&ASKED, asked, LONGEST_SLEEP_NS);
            continue;
        }
        // Before the wait, so that all of its work is waited for.
        let ended = ENDED.load(Acquire);
        let began_ns = monotonic_ns();
        SINCE_NS.store(began_ns, Relaxed);
        let drained = control::inside_driver(launch::drain);
        SINCE_NS.store(0, Relaxed);
        DONE.store(asked, Release);
        let _ = futex::wake(&DONE, futex::Flags::PRIVATE, i32::MAX as u32);
        if ended != given {
            given = ended;
            if !drained {
                std::thread::sleep(std::time::Duration::from_nanos(CAPTURE_NS));
            }
            direct.gate.give_back((ended - 1) as u32);
        }
        let took_ns = monotonic_ns() - began_ns;
        if took_ns > PATIENCE_NS {
            log::line(&format!(
                "work submitted to the GPU took {} ms to finish after its lease",
                took_ns / 1_000_000
            ));
        }
    }
}

fn sleep(word: &AtomicU32, value: u32, limit_ns: u64) {
    let limit_ns = limit_ns.min(LONGEST_SLEEP_NS);
    let limit = Timespec {
        tv_sec: (limit_ns / 1_000_000_000) as i64,
        tv_nsec: (limit_ns % 1_000_000_000) as _,
    };
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, Some(&limit));
}
