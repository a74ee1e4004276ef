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

/// An operation that is timed.
struct Operation {
    what: &'static str,
    kernel: &'static str,
    /// The filter of its texture.
    texture: Option<usize>,
    unit: Unit,
    most_ns: Option<f64>,
}

const fn operation(
    what: &'static str,
    kernel: &'static str,
    unit: Unit,
    most_ns: Option<f64>,
) -> Operation {
    Operation {
        what,
        kernel,
        texture: None,
        unit,
        most_ns,
    }
}

const OPERATIONS: [Operation; 8] = [
    Operation {
        texture: Some(0),
        ..operation("texture fetch, point", "texture", Unit::Thread, Some(4.0))
    },
    Operation {
        texture: Some(1),
        ..operation("texture fetch, linear", "texture", Unit::Thread, Some(10.0))
    },
    operation("shfl", "shuffle", Unit::Thread, Some(1.0)),
    operation("ballot", "ballot", Unit::Thread, Some(0.5)),
    operation("match_any", "match_any", Unit::Thread, Some(10.0)),
    operation("redux", "redux", Unit::Thread, None),
    operation("mma.m16n8k16 of halves", "mma", Unit::Warp, Some(1000.0)),
    operation(
        "cuda::barrier arrive_and_wait",
        "arrive_and_wait",
        Unit::Block,
        Some(30_000.0),
    ),
];

/// Measures the operations, then the stencil against gcc where there is one.
pub(super) fn run(gcc: Option<&mut Rival>, report: &mut Report) -> Result<()> {
    let rig = Rig::new(Some(1))?;
    for operation in OPERATIONS {
        let Operation {
            what,
            unit,
            most_ns,
            ..
        } = operation;
        let ns = rig.time(operation.kernel, BLOCKS, operation.texture)?;
        let ns = ns / (f64::from(BLOCKS) * STEPS * unit.per_block());
        report.add(Line {
            what: format!("corners: {what}, a {}", unit.name()),
            native: "-".into(),
            mica: nanoseconds(ns),
            goal: most_ns.map_or_else(|| "-".into(), |most| format!("≤ {}", nanoseconds(most))),
            reached: most_ns.map(|most| ns <= most),
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
        100.0.. => format!("{ns:.0} ns"),
        10.0.. => format!("{ns:.1} ns"),
        _ => format!("{ns:.2} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_with_three_digits_at_most() {
        assert_eq!(nanoseconds(0.5), "0.50 ns");
        assert_eq!(nanoseconds(10.2), "10.2 ns");
        assert_eq!(nanoseconds(896.2), "896 ns");
        assert_eq!(nanoseconds(30_000.0), "30.0 µs");
    }
}
