//! Whether more work will follow in a moment.
//!
//! A program that waits for each kernel leaves the device idle for the instant it takes to launch the
//! next. To give a lease back in every such instant would end its turn after each kernel, whatever
//! its share. So the lease is kept for a moment, by devices whose idle gaps have been short.

/// How long a lease is kept without work.
const KEEP_NS: u64 = 500_000;
/// Lulls in a row that were longer, after which the next one is not waited for.
const LONG_LULLS: u32 = 2;

/// The device's idle gaps: times without a running grid.
#[derive(Debug, Default)]
pub(crate) struct IdleGaps {
    since_ns: Option<u64>,
    long_in_row: u32,
    /// Time for which the lease was kept without work, in idle gaps that are over.
    kept_ns: u64,
}

impl IdleGaps {
    /// The last grid has ended.
    pub(crate) fn begin(&mut self, now: u64) {
        self.since_ns.get_or_insert(now);
    }

    /// A grid has come.
    pub(crate) fn end(&mut self, now: u64) {
        self.kept_ns = self.kept_ns(now);
        if let Some(since) = self.since_ns.take() {
            let is_long = now.saturating_sub(since) > KEEP_NS;
            self.long_in_row = match is_long {
                true => self.long_in_row.saturating_add(1),
                false => 0,
            };
        }
    }

    /// Nanoseconds for which the lease has been kept without work, in all.
    pub(crate) fn kept_ns(&self, now: u64) -> u64 {
        match self.since_ns {
            Some(since) if self.long_in_row < LONG_LULLS => {
                self.kept_ns + now.saturating_sub(since).min(KEEP_NS)
            }
            _ => self.kept_ns,
        }
    }

    /// Nanoseconds for which the lease should still be kept.
    pub(crate) fn keep_ns(&self, now: u64) -> u64 {
        match self.since_ns {
            Some(since) if self.long_in_row < LONG_LULLS => (since + KEEP_NS).saturating_sub(now),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_gaps_keep_the_lease_and_long_ones_stop_that() {
        let mut gaps = IdleGaps::default();
        assert_eq!(gaps.keep_ns(7), 0, "nothing has run yet");
        gaps.begin(1000);
        assert_eq!(gaps.keep_ns(1000), KEEP_NS);
        assert_eq!(gaps.keep_ns(1000 + KEEP_NS), 0);
        let mut now = 1000;
        for _ in 0..LONG_LULLS {
            now += 2 * KEEP_NS;
            gaps.end(now);
            gaps.begin(now);
        }
        assert_eq!(gaps.keep_ns(now), 0, "it thinks for long");
        let kept_ns = u64::from(LONG_LULLS) * KEEP_NS;
        assert_eq!(gaps.kept_ns(now + 7), kept_ns);
        gaps.end(now + 10);
        gaps.begin(now + 20);
        assert_eq!(gaps.keep_ns(now + 20), KEEP_NS, "it does not any more");
        assert_eq!(gaps.kept_ns(now + 27), kept_ns + 7);
    }
}
