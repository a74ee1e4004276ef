//! `mica bench gpu`: what the calls of a program cost more.

use anyhow::Result;
use mica_load::{InTurns, LoadReport, Pattern};

use super::gpu::{Bench, median};
use super::group::{Side, Tenant, compete, load};
use super::report::Line;

/// What is measured, how it is read from a report, its unit, and the most Mica may add.
type Figure = (&'static str, fn(&LoadReport) -> f64, &'static str, f64);

/// Pairs of processes whose costs are compared.
const OVERHEAD_PAIRS: usize = 5;

impl Bench {
    /// Calls past Mica and through it in one process.
    fn calls_in_turns(&mut self, processes: &[InTurns]) {
        type Figure = fn(&InTurns) -> f64;
        let figures: [(&str, Figure, Figure, &str, f64); 2] = [
            (
                "empty launch",
                |t| t.launch_ns,
                |t| t.launch_more_ns,
                "ns",
                50.0,
            ),
            (
                "cuMemAlloc + free 1 MiB",
                |t| t.alloc_free_us,
                |t| t.alloc_free_more_us,
                "µs",
                1.0,
            ),
        ];
        for (what, past, more, unit, most) in figures {
            let (native, mica, reached) = if processes.is_empty() {
                ("no driver was found behind Mica".into(), "-".into(), false)
            } else {
                let over = median(processes, more);
                (
                    format!("{:.2} {unit}", median(processes, past)),
                    format!("{over:+.2} {unit}"),
                    over <= most,
                )
            };
            self.report.add(Line {
                what: format!("overhead: {what}, in turns in one process"),
                native,
                mica,
                goal: format!("≤ +{most} {unit}"),
                reached: Some(reached),
            });
        }
    }

    /// Costs at the caller: processes of both sides in pairs on one core, and the medians of the pairs' differences.
    pub(super) fn overhead(&mut self) -> Result<()> {
        if !self.wanted("overhead") {
            return Ok(());
        }
        let tenant = [Tenant::with_share(100, load(Pattern::Micro, 0, 1, 0.0))];
        let mut pairs = Vec::new();
        for pair in 0..OVERHEAD_PAIRS {
            // Whoever goes first finds the machine as the last pair left it.
            pairs.push(if pair % 2 == 0 {
                let native = compete(Side::Native, &tenant)?.remove(0);
                (native, compete(Side::Mica, &tenant)?.remove(0))
            } else {
                let mica = compete(Side::Mica, &tenant)?.remove(0);
                (compete(Side::Native, &tenant)?.remove(0), mica)
            });
        }
        let in_turns: Vec<InTurns> = pairs.iter().filter_map(|pair| pair.1.in_turns).collect();
        self.calls_in_turns(&in_turns);
        let figures: [Figure; 2] = [
            ("launch + sync", |r| r.launch_sync_us, "µs", f64::INFINITY),
            ("start-up to first kernel", |r| r.startup_ms, "ms", 20.0),
        ];
        for (what, figure, unit, most) in figures {
            let before = median(&pairs, |pair| figure(&pair.0));
            let after = median(&pairs, |pair| figure(&pair.1));
            let over = median(&pairs, |pair| figure(&pair.1) - figure(&pair.0));
            self.report.add(Line {
                what: format!("overhead: {what}"),
                native: format!("{before:.1} {unit}"),
                mica: format!("{after:.1} {unit} ({over:+.1})"),
                goal: if most.is_finite() {
                    format!("≤ +{most} {unit}")
                } else {
                    "-".into()
                },
                reached: most.is_finite().then_some(over <= most),
            });
        }
        Ok(())
    }
}
