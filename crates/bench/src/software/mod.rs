//! `mica bench software`: the software GPU against gcc and PoCL, from one run.
//!
//! Each round runs every kernel once on every side, so that whatever else the machine does hits all of
//! them; medians are compared, and results must agree.

mod corners;
mod device;
mod kernels;
mod rival;

use anyhow::{Result, bail, ensure};

use self::device::Bench;
use self::rival::Rival;
use super::report::{Line, Report};
use crate::args::BenchArgs;

/// Rounds of every kernel.
const ROUNDS: usize = 7;

/// A kernel's name, its size, and what is promised: most of gcc's time, most of PoCL's.
type Kernel = (&'static str, &'static str, Option<f64>, Option<f64>);

/// What is compared.
const KERNELS: [Kernel; 7] = [
    ("vadd", "16 Mi floats", Some(1.1), None),
    (
        "nbody",
        "16,384 bodies, gcc's SIMD by hand",
        Some(2.5),
        Some(0.5),
    ),
    (
        "matmul",
        "1024², 32² tiles, gcc's loop blocked",
        Some(2.5),
        Some(0.25),
    ),
    ("mandelbrot", "512², 500 steps, gcc scalar", Some(1.1), None),
    ("reduction", "16 Mi floats", None, None),
    ("histogram", "16 Mi bytes", Some(4.0), None),
    ("stencil", "4096², five points", None, None),
];

pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    let only = args.only.clone().unwrap_or_default();
    let mut report = Report::new(args.json);
    // First, while this process has nothing else in memory.
    if "idle device".contains(&only) {
        report.add(idle_memory()?);
    }
    let folder = tempfile::tempdir()?;
    let mut sides = Sides {
        ours: Bench::new(None)?,
        gcc: available("gcc", Rival::gcc(folder.path())?),
        opencl: available("PoCL", Rival::opencl(folder.path())?),
    };
    let mut outcome = Outcome::default();
    for kernel in KERNELS {
        if kernel.0.contains(&only) {
            compare(kernel, &mut sides, &mut outcome, &mut report)?;
        }
    }
    if let Some(gcc) = sides.gcc.as_mut() {
        let ratios = &mut outcome.ratios;
        further(&only, gcc, &mut sides.ours, ratios, &mut report)?;
    }
    if "all kernels".contains(&only) && !outcome.ratios.is_empty() {
        report.add(mean(&outcome.ratios));
        let is_there = sides.opencl.is_some();
        report.add(slower_than_pocl(is_there.then_some(outcome.slower)));
    }
    if "corners".contains(&only) {
        corners::run(sides.gcc.as_mut(), &mut report)?;
    }
    if "two threads".contains(&only) {
        report.add(two_threads()?);
    }
    if "bounds checks".contains(&only) {
        bounds_checks(&mut report)?;
    }
    if "launch".contains(&only) {
        launches(&sides.ours, &mut report)?;
    }
    report.finish()
}

/// Whoever runs the kernels.
struct Sides {
    ours: Bench,
    gcc: Option<Rival>,
    opencl: Option<Rival>,
}

/// What all kernels together show.
#[derive(Default)]
struct Outcome {
    /// Times of the software GPU in times of gcc.
    ratios: Vec<f64>,
    /// Kernels that PoCL runs faster.
    slower: usize,
}

/// One kernel on all sides, in turns.
fn compare(
    (name, what, gcc_most, pocl_most): Kernel,
    sides: &mut Sides,
    outcome: &mut Outcome,
    report: &mut Report,
) -> Result<()> {
    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 0..=ROUNDS {
        let ours = sides.ours.run(name)?;
        let rival = |rival: &mut Option<Rival>| rival.as_mut().map(|r| r.run(name)).transpose();
        let runs = [
            Some(ours),
            rival(&mut sides.gcc)?,
            rival(&mut sides.opencl)?,
        ];
        for (run, times) in runs.iter().zip(&mut times) {
            let Some(run) = run else { continue };
            agree(name, ours.checksum, run.checksum)?;
            // The first round only warms up.
            if round > 0 {
                times.push(run.ns);
            }
        }
    }
    let [ours, gcc, pocl] = times;
    let ours = median(ours);
    if !gcc.is_empty() {
        let theirs = median(gcc);
        outcome.ratios.push(ours / theirs);
        report.add(compared(name, what, "gcc", ours, theirs, gcc_most));
    }
    if !pocl.is_empty() {
        let theirs = median(pocl);
        outcome.slower += usize::from(ours > theirs);
        report.add(compared(name, what, "PoCL", ours, theirs, pocl_most));
    }
    Ok(())
}

/// How many kernels PoCL runs faster, if it is there.
fn slower_than_pocl(slower: Option<usize>) -> Line {
    let kernels = KERNELS.len();
    Line {
        what: format!("all kernels: slower than PoCL, of the {kernels} with one"),
        native: "-".into(),
        mica: slower.map_or_else(|| "-".into(), |slower| slower.to_string()),
        goal: "0".into(),
        reached: slower.map(|slower| slower == 0),
    }
}

/// The kernels that have no PoCL side yet: in turns with gcc, no more than four times its time.
fn further(
    only: &str,
    gcc: &mut Rival,
    bench: &mut Bench,
    ratios: &mut Vec<f64>,
    report: &mut Report,
) -> Result<()> {
    for more in &kernels::MORE {
        if !more.name.contains(only) {
            continue;
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let (run, other) = (bench.run_more(more)?, gcc.run(more.name)?);
            agree(more.name, run.checksum, other.checksum)?;
            // The first round only warms up.
            if round > 0 {
                ours.push(run.ns);
                theirs.push(other.ns);
            }
        }
        let (ours, theirs) = (median(ours), median(theirs));
        ratios.push(ours / theirs);
        report.add(compared(
            more.name,
            more.what,
            "gcc",
            ours,
            theirs,
            Some(4.0),
        ));
    }
    Ok(())
}

/// The geometric mean of the ratios to gcc.
fn mean(ratios: &[f64]) -> Line {
    let mean = (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp();
    Line {
        what: format!(
            "all kernels: geometric mean of {} ratios to gcc",
            ratios.len()
        ),
        native: "-".into(),
        mica: format!("×{mean:.2}"),
        goal: "≤ ×1.5".into(),
        reached: Some(mean <= 1.5),
    }
}

fn available(name: &str, rival: Result<Rival, String>) -> Option<Rival> {
    match rival {
        Ok(rival) => {
            if !rival.label.is_empty() {
                errln!("{name}: {}", rival.label);
            }
            Some(rival)
        }
        Err(why) => {
            errln!("{name} is not compared with: {why}");
            None
        }
    }
}

/// Whether two sides computed the same, as far as 32-bit floats do.
fn agree(name: &str, ours: f64, theirs: f64) -> Result<()> {
    let difference = (ours - theirs).abs() / theirs.abs().max(1e-30);
    ensure!(
        difference < 1e-3,
        "{name}: this device's results ({ours:e}) are not the comparison's ({theirs:e})"
    );
    Ok(())
}

fn compared(
    name: &str,
    what: &str,
    rival: &str,
    ours: f64,
    theirs: f64,
    most: Option<f64>,
) -> Line {
    let ratio = ours / theirs;
    Line {
        what: format!("{name} ({what}), {rival}"),
        native: milliseconds(theirs),
        mica: format!("{} (×{ratio:.2})", milliseconds(ours)),
        goal: most.map_or_else(|| "-".into(), |most| format!("≤ ×{most}")),
        reached: most.map(|most| ratio <= most),
    }
}

fn two_threads() -> Result<Line> {
    let cores = std::thread::available_parallelism()?.get();
    if cores < 2 {
        bail!("two threads cannot be measured on one core");
    }
    let (mut one, mut two) = (Bench::new(Some(1))?, Bench::new(Some(2))?);
    let (mut slow, mut fast) = (Vec::new(), Vec::new());
    for round in 0..=5 {
        let (a, b) = (one.run("nbody")?, two.run("nbody")?);
        if round > 0 {
            slow.push(a.ns);
            fast.push(b.ns);
        }
    }
    let (slow, fast) = (median(slow), median(fast));
    let gain = slow / fast;
    Ok(Line {
        what: "two threads against one (nbody)".into(),
        native: milliseconds(slow),
        mica: format!("{} (×{gain:.2} as fast)", milliseconds(fast)),
        goal: "≥ ×1.8".into(),
        reached: Some(gain >= 1.8),
    })
}

/// What checking every address costs, one thread, in processor time.
fn bounds_checks(report: &mut Report) -> Result<()> {
    for bounds in mica_ptx_jit::bounds_cost::bounds_checks(5 * ROUNDS)? {
        let cost = bounds.checked_ns / bounds.unchecked_ns - 1.0;
        report.add(Line {
            what: format!("bounds checks, {}", bounds.kernel),
            native: format!("{} without", milliseconds(bounds.unchecked_ns)),
            mica: format!(
                "{} ({:+.1} %)",
                milliseconds(bounds.checked_ns),
                100.0 * cost
            ),
            goal: "≤ 5 %".into(),
            reached: Some(cost <= 0.05),
        });
    }
    Ok(())
}

fn launches(bench: &Bench, report: &mut Report) -> Result<()> {
    bench.empty_launches(200)?;
    let mut samples = bench.empty_launches(5000)?;
    samples.sort_by(f64::total_cmp);
    let p99 = samples[samples.len() * 99 / 100] / 1e3;
    let empty = median(samples) / 1e3;
    report.add(Line {
        what: "empty launch + sync".into(),
        native: "-".into(),
        mica: format!("{empty:.1} µs (p99 {p99:.1})"),
        goal: "≤ 10 µs".into(),
        reached: Some(empty <= 10.0),
    });
    let (mut cold, mut warm, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..15 {
        let [first, again] = bench.first_launch(number)?;
        cold.push(first);
        warm.push(again);
    }
    // Devices of their own know nothing but what is on disk.
    for number in 0..5 {
        kept.push(Bench::fresh()?.first_launch(number)?[0]);
    }
    for (what, times, most) in [
        ("first launch of a small kernel, cold", cold, 15.0),
        ("the same on a new device, from the disk cache", kept, 1.0),
        ("the same module again, from memory", warm, 1.0),
    ] {
        let time = median(times) / 1e6;
        report.add(Line {
            what: what.into(),
            native: "-".into(),
            mica: format!("{time:.2} ms"),
            goal: format!("≤ {most} ms"),
            reached: Some(time <= most),
        });
    }
    Ok(())
}

/// Resident memory that an idle device adds to a process.
fn idle_memory() -> Result<Line> {
    let before = resident_bytes()?;
    let vgpu = device::vgpu(None)?;
    let buffer = vgpu.alloc::<u8>(4096)?;
    vgpu.synchronize()?;
    let added = resident_bytes()?.saturating_sub(before) as f64 / 1e6;
    drop(buffer);
    Ok(Line {
        what: "memory of an idle device".into(),
        native: format!("{:.1} MB without", before as f64 / 1e6),
        mica: format!("+{added:.1} MB"),
        goal: "≤ 20 MB".into(),
        reached: Some(added <= 20.0),
    })
}

/// Resident memory of this process.
pub(super) fn resident_bytes() -> Result<u64> {
    super::resident_bytes_of(std::process::id())
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub(crate) fn milliseconds(ns: f64) -> String {
    format!("{:.2} ms", ns / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_differ_are_refused() {
        assert!(agree("vadd", 1000.0, 1000.4).is_ok());
        assert!(agree("vadd", 1000.0, 1002.0).is_err());
        assert!(agree("vadd", f64::NAN, 1.0).is_err());
    }

    #[test]
    fn the_mean_of_ratios_is_geometric() {
        assert_eq!(mean(&[0.5, 2.0]).mica, "×1.00");
        assert_eq!(mean(&[4.0, 1.0]).reached, Some(false));
    }

    #[test]
    fn a_promise_is_judged_by_the_ratio() {
        let line = compared("vadd", "", "gcc", 1.05e6, 1e6, Some(1.1));
        assert_eq!(line.reached, Some(true));
        assert_eq!(line.mica, "1.05 ms (×1.05)");
        assert_eq!(
            compared("vadd", "", "gcc", 1.2e6, 1e6, Some(1.1)).reached,
            Some(false)
        );
        assert_eq!(compared("stencil", "", "gcc", 9e6, 1e6, None).reached, None);
    }
}
