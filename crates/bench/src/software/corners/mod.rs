//! Corners: operations that programs use less, each against a time of its own.
//!
//! One thread of the device, in processor time, so that other programs of the machine shift nothing; the stencil is
//! compared by the clock, as it consists of launches.

mod rig;

use anyhow::Result;

use self::rig::Rig;
use super::rival::Rival;
use super::{agree, median, milliseconds};
use crate::report::{Line, Report};

/// Steps of each kernel.
const STEPS: f64 = 64.0;
const THREADS: f64 = 256.0;
const BLOCKS: u32 = 64;
/// Steps of the one-dimensional stencil, as in `bench_gcc.c`.
const JACOBI_STEPS: u32 = 500;
const ROUNDS: usize = 7;

/// What one operation is counted for.
#[derive(Clone, Copy)]
enum Unit {
    Thread,
    Warp,
    Block,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Thread => "thread",
            Unit::Warp => "warp",
            Unit::Block => "block of 256",
        }
    }

    fn per_block(self) -> f64 {
        match self {
            Unit::Thread => THREADS,
            Unit::Warp => THREADS / 32.0,
            Unit::Block => 1.0,
        }
    }
}

/// What, the kernel, the filter of its texture, for whom, the most nanoseconds.
const OPERATIONS: [(&str, &str, Option<usize>, Unit, Option<f64>); 8] = [
    (
        "texture fetch, point",
        "texture",
        Some(0),
        Unit::Thread,
        Some(4.0),
    ),
    (
        "texture fetch, linear",
        "texture",
        Some(1),
        Unit::Thread,
        Some(10.0),
    ),
    ("shfl", "shuffle", None, Unit::Thread, Some(1.0)),
    ("ballot", "ballot", None, Unit::Thread, Some(0.5)),
    ("match_any", "match_any", None, Unit::Thread, Some(10.0)),
    ("redux", "redux", None, Unit::Thread, None),
    (
        "mma.m16n8k16 of halves",
        "mma",
        None,
        Unit::Warp,
        Some(1000.0),
    ),
    (
        "cuda::barrier arrive_and_wait",
        "arrive_and_wait",
        None,
        Unit::Block,
        Some(30_000.0),
    ),
];

/// Measures the operations, then the stencil against gcc where there is one.
pub(super) fn run(gcc: Option<&mut Rival>, report: &mut Report) -> Result<()> {
    let rig = Rig::new(Some(1))?;
    for (what, kernel, texture, unit, most) in OPERATIONS {
        let ns = rig.time(kernel, BLOCKS, texture)?;
        let ns = ns / (f64::from(BLOCKS) * STEPS * unit.per_block());
        report.add(Line {
            what: format!("corners: {what}, a {}", unit.name()),
            native: "-".into(),
            mica: nanoseconds(ns),
            goal: most.map_or_else(|| "-".into(), |most| format!("≤ {}", nanoseconds(most))),
            reached: most.map(|most| ns <= most),
        });
    }
    report.add(fast_math(&rig)?);
    if let Some(gcc) = gcc {
        report.add(jacobi(gcc)?);
    }
    Ok(())
}

/// `__sinf` and `__expf` beside `sinf` and `expf`.
fn fast_math(rig: &Rig) -> Result<Line> {
    let each = f64::from(BLOCKS) * THREADS * STEPS;
    let exact = rig.time("exact_math", BLOCKS, None)? / each;
    let fast = rig.time("fast_math", BLOCKS, None)? / each;
    Ok(Line {
        what: "corners: __sinf + __expf against sinf + expf, a thread".into(),
        native: nanoseconds(exact),
        mica: format!("{} (×{:.2})", nanoseconds(fast), fast / exact),
        goal: "≤ ×1".into(),
        reached: Some(fast <= exact),
    })
}

fn jacobi(gcc: &mut Rival) -> Result<Line> {
    let rig = Rig::new(None)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (ns, checksum) = rig.jacobi(JACOBI_STEPS)?;
        let run = gcc.run("jacobi")?;
        agree("jacobi", checksum, run.checksum)?;
        // The first round only warms up.
        if round > 0 {
            ours.push(ns);
            theirs.push(run.ns);
        }
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let ratio = ours / theirs;
    Ok(Line {
        what: format!("corners: jacobi 1D (4096 elements, {JACOBI_STEPS} × 2 launches), gcc"),
        native: milliseconds(theirs),
        mica: format!("{} (×{ratio:.2})", milliseconds(ours)),
        goal: "≤ ×4".into(),
        reached: Some(ratio <= 4.0),
    })
}

fn nanoseconds(ns: f64) -> String {
    match ns {
        1000.0.. => format!("{:.1} µs", ns / 1e3),
        10.0.. => format!("{ns:.0} ns"),
        _ => format!("{ns:.2} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_with_three_digits_at_most() {
        assert_eq!(nanoseconds(0.5), "0.50 ns");
        assert_eq!(nanoseconds(96.2), "96 ns");
        assert_eq!(nanoseconds(30_000.0), "30.0 µs");
    }
}
