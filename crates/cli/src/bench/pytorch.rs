//! PyTorch as a tenant: GEMM loops that compete, and what direct mode costs a training or inference step.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

use super::gpu::{Bench, join, median, share_error, split};
use super::group::{Program, Side, run_together, start_time};
use super::report::Line;

const GEMM_LOOP: &str = include_str!("pytorch/gemm_loop.py");
const STEPS: &str = include_str!("pytorch/steps.py");

/// Importing PyTorch and its first GEMM take this long on a busy machine.
const WARM_UP: Duration = Duration::from_secs(15);
/// Processes of each side, in turn, whose step times are compared.
const REPEATS: usize = 10;

#[derive(Deserialize)]
struct Rate {
    rate: f64,
}

#[derive(Deserialize)]
struct Steps {
    train_ms: f64,
    infer_ms: f64,
}

fn python(script: &str, arguments: &[String], options: &[&str]) -> Program {
    let mut command: Vec<OsString> = ["python3", "-c", script].map(OsString::from).to_vec();
    command.extend(arguments.iter().map(OsString::from));
    Program {
        options: options.iter().map(|word| (*word).to_owned()).collect(),
        command,
    }
}

/// A number of a step.
type Figure = fn(&Steps) -> f64;

/// Whether there is a PyTorch to measure; says so where there is none.
fn is_there(bench: &mut Bench, what: &str) -> bool {
    let found = Command::new("python3")
        .args(["-c", "import torch; assert torch.cuda.is_available()"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        bench.report.add(Line {
            what: what.to_owned(),
            native: "no PyTorch with CUDA here".into(),
            mica: "-".into(),
            goal: "-".into(),
            reached: None,
        });
    }
    found
}

/// Two tenants at 70/30 that multiply matrices, call by call and as CUDA graphs.
pub(super) fn gemm_loops(bench: &mut Bench) -> Result<()> {
    let shares = [70, 30];
    for kind in ["plain", "graph"] {
        let name = format!("PyTorch GEMM loops {kind} {}", join(&shares));
        if !bench.wanted(&name) || !is_there(bench, &name) {
            continue;
        }
        let seconds = bench.seconds;
        let run = |side, shares: &[u32]| -> Result<Vec<f64>> {
            let start = start_time(shares.len(), WARM_UP)?.to_string();
            let arguments = [kind.to_owned(), start, seconds.to_string()];
            let programs: Vec<Program> = shares
                .iter()
                .map(|share| {
                    let share = share.to_string();
                    python(
                        GEMM_LOOP,
                        &arguments,
                        &["--memory", "8GiB", "--share", &share],
                    )
                })
                .collect();
            let rates: Vec<Rate> = run_together(side, &programs)?;
            Ok(rates.iter().map(|report| report.rate).collect())
        };
        let solo = run(Side::Native, &shares[..1])?[0];
        let native = run(Side::Native, &shares)?;
        let mica = run(Side::Mica, &shares)?;
        let error = share_error(&mica, &shares);
        let part = |rates: &[f64]| 100.0 * rates.iter().sum::<f64>() / solo;
        bench.report.add(Line {
            what: name,
            native: format!("{} ({:.1} % of solo)", split(&native), part(&native)),
            mica: format!(
                "{} ({:.1} % of solo), error {error:.2}",
                split(&mica),
                part(&mica)
            ),
            goal: "error ≤ 0.5, sum ≥ 97 %".into(),
            reached: Some(error <= 0.5 && part(&mica) >= 97.0),
        });
    }
    Ok(())
}

/// The time of a small transformer's steps: both sides in turn, and the median of the pairs' ratios.
pub(super) fn steps(bench: &mut Bench) -> Result<()> {
    let name = "PyTorch steps";
    if !bench.wanted(name) || !is_there(bench, name) {
        return Ok(());
    }
    let program = [python(STEPS, &[], &["--memory", "20GiB", "--share", "100"])];
    let mut pairs: Vec<(Steps, Steps)> = Vec::new();
    for repeat in 0..REPEATS {
        // Whoever goes first finds the machine as the last pair left it: take turns.
        let first = [Side::Native, Side::Mica][repeat % 2];
        let second = [Side::Mica, Side::Native][repeat % 2];
        let one = run_together(first, &program)?.remove(0);
        let other = run_together(second, &program)?.remove(0);
        pairs.push(if first == Side::Native {
            (one, other)
        } else {
            (other, one)
        });
    }
    let figures: [(&str, Figure); 2] = [
        ("training", |steps| steps.train_ms),
        ("inference", |steps| steps.infer_ms),
    ];
    for (what, figure) in figures {
        let ratio = median(&pairs, |(native, mica)| figure(mica) / figure(native));
        bench.report.add(Line {
            what: format!("{name}: {what}, {REPEATS} pairs"),
            native: format!("{:.3} ms", median(&pairs, |pair| figure(&pair.0))),
            mica: format!(
                "{:.3} ms, ratio {ratio:.4}",
                median(&pairs, |pair| figure(&pair.1))
            ),
            goal: "ratio ≤ 1.01".into(),
            reached: Some(ratio <= 1.01),
        });
    }
    Ok(())
}
