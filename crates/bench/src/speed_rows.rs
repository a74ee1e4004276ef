//! The rows of isolated mode's speed: how a figure is read, its unit, and its goal.

use mica_load::CopyTimes;

use super::report::{Line, Numbers};
use super::speed::Costs;

/// What isolated mode promises of a figure.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// At most this much, whatever the bare driver takes.
    AtMost(f64),
    /// At most this much more than the bare driver.
    AtMostMore(f64),
    /// At most so many times the bare driver's.
    AtMostTimes(f64),
    /// At least this percentage of the bare driver's rate.
    AtLeastPercent(f64),
    /// Nothing is promised.
    Watched,
}

impl Goal {
    fn text(self, unit: &str) -> String {
        match self {
            Self::AtMost(most) => format!("≤ {most} {unit}"),
            Self::AtMostMore(most) => format!("≤ +{most} {unit}"),
            Self::AtMostTimes(most) => format!("≤ ×{most}"),
            Self::AtLeastPercent(least) => format!("≥ {least} %"),
            Self::Watched => "-".into(),
        }
    }

    fn is_reached(self, native: f64, isolated: f64) -> Option<bool> {
        match self {
            Self::AtMost(most) => Some(isolated <= most),
            Self::AtMostMore(most) => Some(isolated - native <= most),
            Self::AtMostTimes(most) => Some(isolated <= native * most),
            Self::AtLeastPercent(least) => Some(100.0 * isolated >= native * least),
            Self::Watched => None,
        }
    }
}

/// One figure.
pub(super) struct Row {
    what: &'static str,
    unit: &'static str,
    pub(super) figure: fn(&Costs) -> f64,
    goal: Goal,
}

/// Sizes as `CallCosts` orders them.
const MIB_256: usize = 0;
const MIB_1: usize = 1;
const KIB_4: usize = 2;

fn to_gb_s(copy: CopyTimes) -> f64 {
    copy.bytes as f64 / copy.to_device_us / 1e3
}

fn from_gb_s(copy: CopyTimes) -> f64 {
    copy.bytes as f64 / copy.from_device_us / 1e3
}

const fn row(what: &'static str, unit: &'static str, figure: fn(&Costs) -> f64, goal: Goal) -> Row {
    Row {
        what,
        unit,
        figure,
        goal,
    }
}

const PINNED: Goal = Goal::AtLeastPercent(98.0);
const PAGEABLE: Goal = Goal::AtLeastPercent(100.0);
const SMALL: Goal = Goal::AtMostTimes(1.5);

/// Every figure, in the order in which they are printed.
#[rustfmt::skip]
pub(super) static ROWS: [Row; 23] = [
    row("first kernel", "ms", |c| c.first_kernel_ms, Goal::AtMostMore(50.0)),
    row("launch call, 200 after a wait", "µs", |c| c.calls.launch_call_us, Goal::AtMost(0.3)),
    row("launch in batches of 100,000", "µs", |c| c.calls.batch_launch_us, Goal::AtMostTimes(1.0)),
    row("launch + wait", "µs", |c| c.calls.launch_wait_us, Goal::AtMostMore(3.0)),
    row("event query", "µs", |c| c.calls.event_query_us, Goal::AtMost(0.1)),
    row("event record + query until reached", "µs", |c| c.calls.event_reached_us, Goal::Watched),
    row("graph of 300 kernels + wait", "µs", |c| c.calls.graph_us, Goal::AtMostTimes(1.15)),
    row("cuMemAlloc + free 1 MiB", "µs", |c| c.calls.alloc_free_us, Goal::AtMostTimes(1.5)),
    row("cuMemAllocAsync + free 1 MiB", "µs", |c| c.calls.pool_alloc_free_us, Goal::AtMost(1.5)),
    row("pinned copy to the device, 256 MiB", "GB/s", |c| to_gb_s(c.calls.pinned[MIB_256]), PINNED),
    row("pinned copy from the device, 256 MiB", "GB/s", |c| from_gb_s(c.calls.pinned[MIB_256]), PINNED),
    row("pinned copy to the device, 1 MiB", "GB/s", |c| to_gb_s(c.calls.pinned[MIB_1]), PINNED),
    row("pinned copy from the device, 1 MiB", "GB/s", |c| from_gb_s(c.calls.pinned[MIB_1]), PINNED),
    row("pageable copy to the device, 256 MiB", "GB/s", |c| to_gb_s(c.calls.pageable[MIB_256]), PAGEABLE),
    row("pageable copy from the device, 256 MiB", "GB/s", |c| from_gb_s(c.calls.pageable[MIB_256]), PAGEABLE),
    row("pageable copy to the device, 1 MiB", "GB/s", |c| to_gb_s(c.calls.pageable[MIB_1]), PAGEABLE),
    row("pageable copy from the device, 1 MiB", "GB/s", |c| from_gb_s(c.calls.pageable[MIB_1]), PAGEABLE),
    row("pageable copy to the device, 4 KiB", "µs", |c| c.calls.pageable[KIB_4].to_device_us, SMALL),
    row("pageable copy from the device, 4 KiB", "µs", |c| c.calls.pageable[KIB_4].from_device_us, SMALL),
    row("copy of 256 bytes to the device after a launch", "µs", |c| c.calls.after_launch_us[0], Goal::Watched),
    row("copy of 4 KiB to the device after a launch", "µs", |c| c.calls.after_launch_us[1], Goal::Watched),
    row("stream create + destroy", "µs", |c| c.calls.stream_us, Goal::Watched),
    row("event create + destroy", "µs", |c| c.calls.event_us, Goal::Watched),
];

impl Row {
    /// The name that `--only` chooses by.
    pub(super) fn name(&self) -> String {
        format!("isolated speed: {}", self.what)
    }

    /// The row as it is printed. Goals are a real GPU's: without a native side nothing is judged.
    pub(super) fn line(
        &self,
        native: Option<f64>,
        isolated: f64,
        direct: Option<f64>,
    ) -> (Line, Numbers) {
        let unit = self.unit;
        let shown = |value: f64| format!("{value:.*} {unit}", decimals(value));
        let ratio = native.map(|native| isolated / native);
        let mut mica = shown(isolated);
        if let Some(ratio) = ratio {
            mica += &format!(", ×{ratio:.3}");
        }
        if let Some(direct) = direct {
            mica += &format!(" (direct {})", shown(direct));
        }
        let line = Line {
            what: self.name(),
            native: native.map_or_else(|| "-".into(), shown),
            mica,
            goal: self.goal.text(unit),
            reached: native.and_then(|native| self.goal.is_reached(native, isolated)),
        };
        let numbers = Numbers {
            unit,
            native,
            isolated,
            direct,
            ratio,
        };
        (line, numbers)
    }
}

/// Three digits that count.
fn decimals(value: f64) -> usize {
    match value {
        value if value < 1.0 => 3,
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(goal: Goal, native: Option<f64>, isolated: f64) -> (Line, Numbers) {
        row("a call", "µs", |c| c.first_kernel_ms, goal).line(native, isolated, Some(4.7))
    }

    #[test]
    fn each_kind_of_goal_is_judged_at_its_limit() {
        let reached = |goal, native, isolated| of(goal, Some(native), isolated).0.reached;
        let cases = [
            (Goal::AtMost(0.3), 4.0, 0.3, 0.31),
            (Goal::AtMostMore(3.0), 10.0, 13.0, 13.1),
            (Goal::AtMostTimes(1.5), 4.0, 6.0, 6.1),
            (Goal::AtLeastPercent(98.0), 50.0, 49.0, 48.9),
        ];
        for (goal, native, good, bad) in cases {
            assert_eq!(reached(goal, native, good), Some(true), "{goal:?}");
            assert_eq!(reached(goal, native, bad), Some(false), "{goal:?}");
        }
        assert_eq!(reached(Goal::Watched, 1.0, 9.0), None);
    }

    #[test]
    fn a_row_has_both_sides_and_their_ratio() {
        let (line, numbers) = of(Goal::AtMostMore(3.0), Some(10.0), 12.5);
        assert_eq!(line.what, "isolated speed: a call");
        assert_eq!(line.native, "10.0 µs");
        assert_eq!(line.mica, "12.5 µs, ×1.250 (direct 4.70 µs)");
        assert_eq!(line.goal, "≤ +3 µs");
        assert_eq!(numbers.ratio, Some(1.25));
    }

    #[test]
    fn nothing_is_judged_without_a_native_side() {
        let (line, numbers) = of(Goal::AtMost(0.3), None, 9.0);
        assert_eq!((line.native.as_str(), line.reached), ("-", None));
        assert_eq!(numbers.ratio, None);
    }

    #[test]
    fn rates_are_bytes_over_time() {
        let copy = CopyTimes {
            bytes: 1_000_000,
            to_device_us: 100.0,
            from_device_us: 50.0,
        };
        assert!((to_gb_s(copy) - 10.0).abs() < 1e-9);
        assert!((from_gb_s(copy) - 20.0).abs() < 1e-9);
    }
}
