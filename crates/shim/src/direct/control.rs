//! The threads that work for the daemon in this process, signals blocked.
//!
//! ```text
//!   mica-link     reads the socket
//!   mica-command  sleeps on the command word: slices, suspension
//!   mica-lease    sleeps on the gate word: gives a lease back that nobody is at the gate to give back
//!   mica-drain    waits for the GPU for the others
//! ```

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

use mica_limits::monotonic_ns;
use mica_wire::host::page::{client_flags, gate, suspend};
use rustix::thread::futex;
use rustix::time::Timespec;

use super::state::{Direct, state};
use super::{commands, drain, sync};
use crate::log;

/// While a lease is held its holder is looked at this often; idle, it gives the lease back early.
const LEASE_TICK_NS: u64 = 250_000;
/// A thread that is at the gate gives the lease back itself; it gets this long.
const GRACE_NS: u64 = 100_000;
/// While an ended lease is being drained there is nothing to do but to see it taken away.
const DRAINING_NS: u64 = 10_000_000;
const STACK_BYTES: usize = 512 << 10;

static EXITING: AtomicBool = AtomicBool::new(false);
static NEVER: AtomicBool = AtomicBool::new(false);
/// Held while this module's threads are inside the driver.
static IN_DRIVER: Mutex<()> = Mutex::new(());

/// Starts the threads; false if one cannot be started, and limits could not be kept.
pub(crate) fn start(direct: &'static Direct) -> bool {
    // SAFETY: the handler stores to an atomic and takes a lock for a bounded time. Registered after
    // the driver's own handlers, so that it runs before them.
    unsafe { libc::atexit(at_exit) };
    // What the gate was before anything was submitted: the thread that watches it may begin much later.
    let gate = direct.link.page().lease.gate.load(Acquire);
    spawn("mica-link", move || direct.link.serve(|_| {}, &NEVER))
        && spawn("mica-command", move || commands::run(direct))
        && spawn("mica-drain", move || drain::run(direct))
        && spawn("mica-lease", move || watch_leases(direct, gate))
}

/// From here on no thread of ours enters the driver: it is about to take itself down.
extern "C" fn at_exit() {
    EXITING.store(true, Release);
    for _ in 0..200 {
        if IN_DRIVER.try_lock().is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls into the driver on one of our threads, unless the process is about to end or another one is inside.
/// Never waits: whoever drains a suspended process is inside until the thread that calls this resumes it.
pub(crate) fn inside_driver_now<R>(call: impl FnOnce() -> R) -> Option<R> {
    let _inside = match IN_DRIVER.try_lock() {
        Ok(inside) => inside,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    (!exiting()).then(call)
}

/// Waits in the driver on one of our threads; false if the process is about to end.
pub(crate) fn inside_driver(wait: impl FnOnce() -> bool) -> bool {
    let _inside = IN_DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    !exiting() && wait()
}

/// Whether the process is about to end.
pub(crate) fn exiting() -> bool {
    EXITING.load(Acquire)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> bool {
    // A new thread inherits the mask: the program's signals are never ours.
    // SAFETY: an all-zero set is storage for the calls below, which fill it.
    let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are live.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
    }
    let started = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || {
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        });
    // SAFETY: the set was filled by the first call.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut()) };
    if let Err(error) = &started {
        log::line(&format!("the thread {name} cannot be started: {error}"));
    }
    started.is_ok()
}

/// A context was made: say so, and set its slice.
pub(crate) fn context_made() {
    if let Some(direct) = state() {
        let page = direct.link.page();
        page.client.flags.fetch_or(client_flags::CONTEXT, Release);
        contexts_changed();
        direct.link.ring();
    }
}

/// Channel groups came or went.
pub(crate) fn contexts_changed() {
    if let Some(direct) = state() {
        commands::wake(direct);
    }
}

fn watch_leases(direct: &'static Direct, mut seen: u32) {
    let page = direct.link.page();
    let mut launches_before = 0;
    while !exiting() {
        let word = page.lease.gate.load(Acquire);
        let before = std::mem::replace(&mut seen, word);
        if word != before && gate::state(word) == gate::OPEN {
            gate_opened(direct, before, word);
        }
        let held = gate::state(word) == gate::LEASED
            && page.counters.yielded.load(Relaxed) != gate::sequence(word);
        if !held {
            if gate::state(word) == gate::CLOSED {
                gate_closed(direct, word);
            }
            sleep_on_gate(direct, word, None);
            continue;
        }
        let now = monotonic_ns();
        let end = page.lease.lease_end_ns.load(Relaxed);
        if now < end {
            let launches = page.counters.launches.load(Relaxed);
            sleep_on_gate(
                direct,
                word,
                Some((end - now + GRACE_NS).min(LEASE_TICK_NS)),
            );
            let same =
                page.counters.launches.load(Relaxed) == launches && launches == launches_before;
            launches_before = launches;
            let waiting = page.counters.waiting.load(Relaxed) > 0;
            // Nothing submitted for two ticks and nothing running: others may have the rest.
            if same && !waiting && sync::idle(page) && page.lease.gate.load(Acquire) == word {
                give_up_rest(direct, word);
            }
        } else if now < end + GRACE_NS {
            sleep_on_gate(direct, word, Some(end + GRACE_NS - now));
        } else {
            finish_lease(direct, word);
        }
    }
}

/// Gives back a lease whose holder seems to have nothing running, once that is certain.
fn give_up_rest(direct: &Direct, word: u32) {
    let page = direct.link.page();
    // A program that has waited for one of several streams may have work on the others.
    if !sync::finished(page) && !drain::is_waiting() {
        drain::wait(drain::ask(), LEASE_TICK_NS);
    }
    if sync::idle(page) && sync::finished(page) {
        direct.gate.give_back(gate::sequence(word));
    }
}

/// What was submitted while the gate was open, or under a lease that was taken away, may run on for long: the daemon is
/// told when it has drained.
fn gate_closed(direct: &Direct, word: u32) {
    let page = direct.link.page();
    let sequence = gate::sequence(word);
    // One that is only paused goes on soon, and the daemon waits for word of it.
    let suspended = page.commands.suspend.load(Relaxed) == suspend::STOP;
    if suspended || !gate::is_later(sequence, page.counters.yielded.load(Relaxed)) {
        return;
    }
    if sync::idle(page) && sync::finished(page) {
        direct.gate.give_back(sequence);
    } else {
        drain::lease_ended(sequence);
    }
}

/// A lease that ended, or a gate that closed, while the whole process stood still: the daemon waits to hear that its
/// work has drained.
fn gate_opened(direct: &Direct, before: u32, word: u32) {
    let sequence = gate::before(gate::sequence(word));
    let was_open = gate::state(before) == gate::OPEN && gate::sequence(before) == sequence;
    let yielded = direct.link.page().counters.yielded.load(Relaxed);
    if !was_open && gate::is_later(sequence, yielded) {
        drain::lease_ended(sequence);
    }
}

/// Gives back an ended lease that no thread has come to the gate to give back, once its work has drained.
fn finish_lease(direct: &Direct, word: u32) {
    if sync::idle(direct.link.page()) && sync::finished(direct.link.page()) {
        direct.gate.give_back(gate::sequence(word));
    } else {
        drain::lease_ended(gate::sequence(word));
        sleep_on_gate(direct, word, Some(DRAINING_NS));
    }
}

fn sleep_on_gate(direct: &Direct, word: u32, limit_ns: Option<u64>) {
    // Without a limit of its own the sleep still ends now and then, to notice the process's end.
    let limit_ns = limit_ns.unwrap_or(1_000_000_000);
    let limit = Timespec {
        tv_sec: (limit_ns / 1_000_000_000) as i64,
        tv_nsec: (limit_ns % 1_000_000_000) as _,
    };
    let gate = &direct.link.page().lease.gate;
    let _ = futex::wait(gate, futex::Flags::empty(), word, Some(&limit));
}
