//! How busy the processor is with what is not the demo's.
//!
//! The software GPU is this processor: what other programs take of it, no share can give back.

/// Ticks of processor time up to a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Processor {
    total: u64,
    busy: u64,
    ours: u64,
}

impl Processor {
    /// Reads the kernel's counters; `ours` are the demo's processes.
    pub(crate) fn now(ours: &[u32]) -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let (total, busy) = totals(&text);
        let ours = ours
            .iter()
            .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok())
            .map(|text| of_process(&text))
            .sum();
        Self { total, busy, ours }
    }

    /// Percent of the processor that others used since `before`.
    pub(crate) fn others_percent_since(&self, before: &Self) -> f64 {
        let total = self.total.saturating_sub(before.total).max(1);
        let busy = self.busy.saturating_sub(before.busy);
        let ours = self.ours.saturating_sub(before.ours);
        100.0 * busy.saturating_sub(ours) as f64 / total as f64
    }
}

/// All ticks and those that were not idle, of `/proc/stat`.
fn totals(text: &str) -> (u64, u64) {
    let line = text.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal; guest time is in user's already.
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|word| word.parse().ok())
        .collect();
    let total: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (total, total - idle)
}

/// Ticks that a process and the children it has waited for used, of its `stat`; its name may hold
/// anything.
fn of_process(text: &str) -> u64 {
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_ascii_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|word| word.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_read_from_the_kernels_lines() {
        assert_eq!(totals("cpu  10 1 5 100 4 0 2 8 9 9\ncpu0 1"), (130, 26));
        let line = "7 (a) b) c) S 1 7 7 0 -1 4194560 1 2 3 4 30 10 1 1 20 0";
        assert_eq!(of_process(line), 42);
        assert_eq!(of_process("nonsense"), 0);
    }

    #[test]
    fn what_is_not_ours_is_others() {
        let before = Processor::default();
        let after = Processor {
            total: 200,
            busy: 150,
            ours: 100,
        };
        assert!((after.others_percent_since(&before) - 25.0).abs() < 1e-9);
    }
}
