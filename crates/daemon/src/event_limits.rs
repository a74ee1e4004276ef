//! Keeps programs from filling the event log, and the log file, with events that they cause.
//!
//! Each kind of event of each virtual GPU has an allowance that refills. What exceeds the allowance is counted and left
//! out; the next event that is kept tells how many were.

use std::collections::HashMap;
use std::time::Instant;

/// Events of one kind and virtual GPU that are kept at once.
const BURST: f64 = 256.0;
/// Events each second after the burst.
const PER_SECOND: f64 = 4.0;
/// Allowances that are kept before full ones are dropped.
const MOST_ALLOWANCES: usize = 1024;

#[derive(Debug)]
struct Allowance {
    left: f64,
    at: Instant,
    left_out: u64,
}

impl Allowance {
    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + seconds * PER_SECOND).min(BURST);
        self.at = now;
    }
}

/// The allowances of all virtual GPUs.
#[derive(Debug, Default)]
pub(crate) struct EventLimits {
    allowances: HashMap<(Option<String>, String), Allowance>,
}

impl EventLimits {
    /// Whether an event is kept: then how many like it were left out since the last that was.
    pub(crate) fn admit(&mut self, vgpu: Option<&str>, kind: &str, now: Instant) -> Option<u64> {
        if self.allowances.len() >= MOST_ALLOWANCES {
            self.allowances.retain(|_, allowance| {
                allowance.refill(now);
                allowance.left < BURST || allowance.left_out > 0
            });
        }
        let key = (vgpu.map(str::to_owned), kind.to_owned());
        let allowance = self.allowances.entry(key).or_insert(Allowance {
            left: BURST,
            at: now,
            left_out: 0,
        });
        allowance.refill(now);
        if allowance.left < 1.0 {
            allowance.left_out += 1;
            return None;
        }
        allowance.left -= 1.0;
        Some(std::mem::take(&mut allowance.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_is_left_out_counted_and_nobody_elses() {
        let (mut floods, now) = (EventLimits::default(), Instant::now());
        let kept = (0..100_000).filter(|_| floods.admit(Some("a"), "note", now).is_some());
        assert_eq!(kept.count(), BURST as usize);
        assert_eq!(floods.admit(Some("b"), "note", now), Some(0));
        assert_eq!(floods.admit(Some("a"), "memory_denied", now), Some(0));
        assert_eq!(floods.admit(None, "note", now), Some(0));
        let later = now + Duration::from_secs(1);
        let left_out = 100_000 - BURST as u64;
        assert_eq!(floods.admit(Some("a"), "note", later), Some(left_out));
        assert_eq!(floods.admit(Some("a"), "note", later), Some(0));
    }

    #[test]
    fn virtual_gpus_that_come_and_go_leave_nothing() {
        let (mut floods, mut now) = (EventLimits::default(), Instant::now());
        for number in 0..10 * MOST_ALLOWANCES {
            now += Duration::from_secs(1);
            floods.admit(Some(&format!("vgpu-{number}")), "note", now);
            assert!(floods.allowances.len() <= MOST_ALLOWANCES);
        }
    }
}
