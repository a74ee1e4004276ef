//! How much of its processors the host leaves to the software GPU.
//!
//! Where other programs keep the host busy, a turn passes without the GPU's threads: what all virtual GPUs have together
//! is less than the whole GPU then, and a share is a part of that.

use mica_control::api::GpuKind;

/// A second in which leases were held for less says nothing.
const ENOUGH_NS: u64 = 200_000_000;
/// What a second counts against those before it.
const NEW: f64 = 0.25;
/// Seconds without leases after which nothing is known.
const FORGOTTEN_SECONDS: u32 = 5;

/// What a second showed, and those before it.
#[derive(Debug, Default)]
pub(crate) struct Processors {
    held_ns: u64,
    used_ns: u64,
    part: Option<f64>,
    silent_seconds: u32,
}

impl Processors {
    /// A second is over, after which leases had been held and used for so long in all.
    pub(crate) fn second_is_over(&mut self, kind: GpuKind, (held_ns, used_ns): (u64, u64)) {
        let held = held_ns.saturating_sub(std::mem::replace(&mut self.held_ns, held_ns));
        let used = used_ns.saturating_sub(std::mem::replace(&mut self.used_ns, used_ns));
        if kind != GpuKind::Software || held < ENOUGH_NS {
            self.silent_seconds = self.silent_seconds.saturating_add(1);
            if self.silent_seconds >= FORGOTTEN_SECONDS {
                self.part = None;
            }
            return;
        }
        self.silent_seconds = 0;
        let now = (used as f64 / held as f64).min(1.0);
        let before = self.part.unwrap_or(now);
        self.part = Some(before + NEW * (now - before));
    }

    /// Percent of the time of all turns in which there were processors; `None` where nothing is divided by turns.
    pub(crate) fn percent(&self) -> Option<f64> {
        self.part.map(|part| part * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_without_turns_are_forgotten_and_cards_are_not_judged() {
        let mut processors = Processors::default();
        let software = GpuKind::Software;
        let second = 1_000_000_000;
        processors.second_is_over(software, (second, second / 10));
        assert_eq!(processors.percent(), Some(10.0));
        for number in 2..=20 {
            processors.second_is_over(
                software,
                (number * second, second / 10 + second * (number - 1)),
            );
        }
        assert!(processors.percent().is_some_and(|percent| percent > 99.0));
        let last = (20 * second, 20 * second);
        for _ in 0..FORGOTTEN_SECONDS {
            assert!(processors.percent().is_some());
            processors.second_is_over(software, last);
        }
        assert_eq!(processors.percent(), None);
        processors.second_is_over(GpuKind::Nvidia, (30 * second, 20 * second));
        assert_eq!(processors.percent(), None);
    }
}
