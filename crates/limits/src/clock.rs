//! The clock both sides of a lease agree on.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC, the same in every process of the host.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}
