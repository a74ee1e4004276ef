//! The threads that work for the daemon in this process, signals blocked.
//!
//! ```text
//!   mica-link     reads the socket
//!   mica-command  sleeps on the command word: slices, suspension
//!   mica-lease    sleeps on the gate word: gives a lease back that nobody is at the gate to give back
//!   mica-drain    waits for the GPU for the others
//! ```

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

use mica_limits::Commands;

use super::reconcile;
use super::state::{Direct, state};
use super::submission::{self, LEASES};
use crate::log;

static COMMANDS: Commands = Commands::new();
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
        && spawn("mica-command", move || {
            let each_round = |stopped: bool| {
                if !stopped {
                    reconcile::refresh(direct);
                }
            };
            COMMANDS.run(
                &mica_rm::OwnChannels,
                &direct.link,
                exiting,
                each_round,
                log::line,
            );
        })
        && spawn("mica-drain", move || {
            let wait = || inside_driver(submission::drain);
            LEASES.drain(&direct.gate, exiting, wait, log::line);
        })
        && spawn("mica-lease", move || {
            LEASES.watch(&direct.gate, gate, exiting);
        })
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
        COMMANDS.context_made(&direct.link);
    }
}

/// Channel groups came or went.
pub(crate) fn contexts_changed() {
    if let Some(direct) = state() {
        COMMANDS.wake(&direct.link);
    }
}
