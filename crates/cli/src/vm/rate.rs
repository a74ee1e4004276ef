//! How often a guest's streams are served: each starts a process on the host, outside the share that the guest has.

use std::time::{Duration, Instant};

/// Streams at once, and so many a second after that. A program opens up to four.
const BURST: f64 = 200.0;
const PER_SECOND: f64 = 40.0;

/// The streams that a guest may have served now.
pub(super) struct Rate {
    left: f64,
    since: Instant,
}

impl Rate {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            since: now,
        }
    }

    /// Waits until one more stream may be served. Others wait in the socket meanwhile.
    pub(super) fn wait(&mut self) {
        std::thread::sleep(self.take(Instant::now()));
    }

    /// Takes one; how long it has to wait.
    fn take(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.left = (self.left + passed * PER_SECOND).min(BURST) - 1.0;
        self.since = now;
        Duration::from_secs_f64((-self.left / PER_SECOND).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_served_at_once_and_a_flood_is_not() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        for _ in 0..BURST as usize {
            assert!(rate.take(start).is_zero());
        }
        let pause = Duration::from_secs_f64(1.0 / PER_SECOND);
        assert_eq!(rate.take(start), pause);
        // Whoever waits that long waits as long for the next one.
        let mut now = start + pause;
        for _ in 0..100 {
            let wait = rate.take(now);
            assert!(wait <= pause + Duration::from_micros(1), "{wait:?}");
            now += wait;
        }
        let later = now + Duration::from_secs(60);
        assert!(rate.take(later).is_zero());
    }
}
