//! The clock both sides of a lease agree on, and sleep by it.

use std::sync::atomic::AtomicU32;

use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC, the same in every process of the host.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Sleeps while a futex word has this value, so long at most; whether it was woken.
pub(crate) fn sleep_on(word: &AtomicU32, value: u32, flags: futex::Flags, limit_ns: u64) -> bool {
    let limit = Timespec {
        tv_sec: (limit_ns / 1_000_000_000) as i64,
        tv_nsec: (limit_ns % 1_000_000_000) as _,
    };
    futex::wait(word, flags, value, Some(&limit)).is_ok()
}

/// Gives this thread real-time priority, before all ordinary threads. Refused without privileges.
pub fn run_before_others() -> bool {
    // SAFETY: a structure of integers, which may be zero. Some C libraries have more than the priority in it.
    let mut least: libc::sched_param = unsafe { std::mem::zeroed() };
    least.sched_priority = 1;
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: names this thread, and parameters that live through the call.
    unsafe { libc::sched_setscheduler(0, policy, &least) == 0 }
}
