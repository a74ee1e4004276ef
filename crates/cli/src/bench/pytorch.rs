//! PyTorch as a tenant: GEMM loops that compete, and what direct mode costs a training or inference step.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::gpu::{Bench, SHARES, join, median, share_error, split};
use super::group::{Program, Side, run_together, start_time};
use super::report::Line;

const GEMM_LOOP: &str = include_str!("pytorch/gemm_loop.py");
const STEPS: &str = include_str!("pytorch/steps.py");

/// Importing PyTorch and its first GEMM take this long on a busy machine.
const WARM_UP: Duration = Duration::from_secs(12);
/// Groups of processes, and how often those of a group take turns. Turns are short, so that what else happens on the
/// machine falls on all of them alike.
const GROUPS: usize = 4;
const TURNS: usize = 12;

#[derive(Deserialize)]
struct Rate {
    rate: f64,
}

/// The fastest of a few steps: whatever else the machine does only makes them slower.
#[derive(Clone, Copy, Default, Deserialize)]
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

/// Tenants that multiply matrices, call by call and as CUDA graphs.
pub(super) fn gemm_loops(bench: &mut Bench) -> Result<()> {
    for kind in ["plain", "graph"] {
        let mut solo = None;
        for shares in SHARES {
            let name = format!("PyTorch GEMM loops {kind} {}", join(shares));
            if !bench.wanted(&name) || !is_there(bench, &name) {
                continue;
            }
            let seconds = bench.seconds;
            let solo = match solo {
                Some(solo) => solo,
                None => *solo.insert(gemm_rates(Side::Native, kind, &shares[..1], seconds)?[0]),
            };
            let native = gemm_rates(Side::Native, kind, shares, seconds)?;
            let mica = gemm_rates(Side::Mica, kind, shares, seconds)?;
            let error = share_error(&mica, shares);
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
    }
    Ok(())
}

/// GEMMs a second of each tenant.
fn gemm_rates(side: Side, kind: &str, shares: &[u32], seconds: f64) -> Result<Vec<f64>> {
    let start = start_time(shares.len(), WARM_UP)?.to_string();
    let arguments = [kind.to_owned(), start, seconds.to_string()];
    let programs: Vec<Program> = shares
        .iter()
        .map(|share| {
            let share = share.to_string();
            let options = ["--memory", "8GiB", "--share", &share];
            python(GEMM_LOOP, &arguments, &options)
        })
        .collect();
    let rates: Vec<Rate> = run_together(side, &programs)?;
    Ok(rates.iter().map(|report| report.rate).collect())
}

/// One process that measures a few steps whenever it is told to.
struct Stepper {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Stepper {
    fn start(side: Side, program: &Program) -> Result<Self> {
        let mut command = program.command(side)?;
        let mut child = command
            // Two processes of one side should differ as little as they can.
            .env("PYTHONHASHSEED", "0")
            .stdin(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("python3 cannot be started")?;
        let (Some(orders), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a child without its pipes");
        };
        let answers = BufReader::new(output).lines();
        Ok(Self {
            child,
            orders,
            answers,
        })
    }

    fn answer(&mut self) -> Result<String> {
        let line = self.answers.next().context("the steps ended early")?;
        Ok(line?)
    }

    fn measure(&mut self) -> Result<Steps> {
        writeln!(self.orders, "go")?;
        let line = self.answer()?;
        serde_json::from_str(&line).with_context(|| format!("not a report: {line}"))
    }

    fn end(mut self) -> Result<()> {
        drop(self.orders);
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "the steps failed: {status}");
        Ok(())
    }
}

/// The time of a small transformer's steps: processes that take turns, and the median of the turns' ratios. A second
/// process on the bare driver shows how much two that do the same differ on this machine.
pub(super) fn steps(bench: &mut Bench) -> Result<()> {
    let name = "PyTorch steps";
    if !bench.wanted(name) || !is_there(bench, name) {
        return Ok(());
    }
    let program = python(STEPS, &[], &["--memory", "20GiB", "--share", "100"]);
    let sides = [Side::Native, Side::Mica, Side::Native];
    let mut turns: Vec<[Steps; 3]> = Vec::new();
    for _ in 0..GROUPS {
        let mut group: Vec<Stepper> = Vec::new();
        for side in sides {
            group.push(Stepper::start(side, &program)?);
        }
        for stepper in &mut group {
            stepper.answer()?;
        }
        for turn in 0..TURNS {
            let mut measured = [Steps::default(); 3];
            // Whoever goes first finds the machine as the last turn left it.
            for place in 0..3 {
                let who = (place + turn) % 3;
                measured[who] = group[who].measure()?;
            }
            turns.push(measured);
        }
        for stepper in group {
            stepper.end()?;
        }
        eprintln!("{name}: {} of {} repeats", turns.len(), GROUPS * TURNS);
    }
    let figures: [(&str, Figure); 2] = [
        ("training", |steps| steps.train_ms),
        ("inference", |steps| steps.infer_ms),
    ];
    for (what, figure) in figures {
        let time = |who: usize| median(&turns, |turn| figure(&turn[who]));
        let ratio = |who: usize| {
            median(&turns, |turn| {
                // Against the mean of the two that ran before and after it.
                let others: f64 = (0..3)
                    .filter(|k| *k != who && *k != 1)
                    .map(|k| figure(&turn[k]))
                    .sum();
                let count = if who == 1 { 2.0 } else { 1.0 };
                figure(&turn[who]) * count / others
            })
        };
        let mica = ratio(1);
        bench.report.add(Line {
            what: format!("{name}: {what}, {} repeats", turns.len()),
            native: format!("{:.3} ms; against itself {:.4}", time(0), ratio(2)),
            mica: format!("{:.3} ms, ratio {mica:.4}", time(1)),
            goal: "ratio ≤ 1.01".into(),
            reached: Some(mica <= 1.01),
        });
    }
    Ok(())
}
