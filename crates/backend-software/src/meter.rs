//! How long kernels ran: exact at any moment, cheap for those who run them.

use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use crate::context::lock;

/// Adds up the time that threads spend between [`Meter::enter`] and [`Meter::leave`].
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<Inner>);

#[derive(Clone, Copy, Debug, Default)]
struct Inner {
    done_ns: u64,
    running: u64,
    /// Sum of the entry times of the threads inside.
    since_ns: u128,
}

impl Meter {
    /// A thread begins at `now`.
    pub(crate) fn enter(&self, now: u64) {
        let mut inner = lock(&self.0);
        inner.running += 1;
        inner.since_ns += u128::from(now);
    }

    /// A thread that began at `since` ends at `now`.
    pub(crate) fn leave(&self, since: u64, now: u64) {
        let mut inner = lock(&self.0);
        inner.running -= 1;
        inner.since_ns -= u128::from(since);
        inner.done_ns += now.saturating_sub(since);
    }

    /// Nanoseconds so far, running threads included.
    pub(crate) fn total_ns(&self) -> u64 {
        let inner = *lock(&self.0);
        let now = u128::from(now_ns());
        let open = (u128::from(inner.running) * now).saturating_sub(inner.since_ns);
        inner.done_ns + u64::try_from(open).unwrap_or(0)
    }
}

/// Nanoseconds of a monotonic clock that starts with the first question.
pub(crate) fn now_ns() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = START.get_or_init(Instant::now);
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_and_closed_visits_add_up() {
        let meter = Meter::default();
        now_ns();
        meter.enter(0);
        meter.leave(0, 500);
        assert_eq!(meter.total_ns(), 500);
        let since = now_ns();
        meter.enter(since);
        assert!(meter.total_ns() >= 500);
        meter.leave(since, since + 10);
        assert_eq!(meter.total_ns(), 510);
    }
}
