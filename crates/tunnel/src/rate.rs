//! How many bytes a second something takes.

use std::time::Duration;

/// The part of what is remembered that each new measurement takes the place of: pieces are sent at once while buffers have room, and then
/// one waits for all of them.
const FRESH: f64 = 1.0 / 32.0;

/// A mean over the last measurements, by bytes and time: a mean of rates would tell little of those that took long.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rate {
    bytes: f64,
    seconds: f64,
}

impl Rate {
    /// Notes how long some bytes took.
    pub(crate) fn note(&mut self, bytes: usize, took: Duration) {
        self.bytes = self.bytes * (1.0 - FRESH) + bytes as f64;
        self.seconds = self.seconds * (1.0 - FRESH) + took.as_secs_f64().max(1e-9);
    }

    /// Bytes a second; 0 while unknown.
    pub(crate) fn get(&self) -> u64 {
        match self.bytes > 0.0 {
            true => (self.bytes / self.seconds).max(1.0) as u64,
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wait_counts_for_all_that_it_made_room_for() {
        let mut rate = Rate::default();
        assert_eq!(rate.get(), 0);
        rate.note(1 << 20, Duration::from_millis(10));
        assert_eq!(rate.get(), 100 << 20);
        // 2 MiB wait for 40 ms in all: 50 MiB a second.
        for _ in 0..20 {
            for wait in [0, 0, 0, 40, 0, 0, 0, 0] {
                let took = Duration::from_millis(wait) + Duration::from_micros(50);
                rate.note(256 << 10, took);
            }
        }
        let found = rate.get() >> 20;
        assert!((40..=60).contains(&found), "{found} MiB/s");
    }
}
