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
const WARM_UP: Duration = Duration::from_secs(10);
/// Groups of processes, how many of them there are at a time, and how often those of a group take turns. Two processes
/// that do the same differ for as long as they live (where their memory lies), so there are many; turns are short, so
/// that what else happens on the machine falls on all of a group alike.
const GROUPS: usize = 10;
const GROUPS_AT_A_TIME: usize = 5;
const TURNS: usize = 8;

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

/// One turn of a group, each of its processes once.
fn take_turns(group: &mut [Stepper], turn: usize) -> Result<[Steps; 3]> {
    let mut measured = [Steps::default(); 3];
    // Whoever goes first finds the machine as the last turn left it.
    for place in 0..3 {
        let who = (place + turn) % 3;
        measured[who] = group[who].measure()?;
    }
    Ok(measured)
}

/// The time of a small transformer's steps: groups of processes that take turns, the median of the turns' ratios in
/// each, and the median of those. A second process on the bare driver shows how much two that do the same differ.
pub(super) fn steps(bench: &mut Bench) -> Result<()> {
    let name = "PyTorch steps";
    if !bench.wanted(name) || !is_there(bench, name) {
        return Ok(());
    }
    let program = python(STEPS, &[], &["--memory", "20GiB", "--share", "100"]);
    let sides = [Side::Native, Side::Mica, Side::Native];
    let mut groups: Vec<Vec<[Steps; 3]>> = Vec::new();
    while groups.len() < GROUPS {
        let mut waiting: Vec<Vec<Stepper>> = Vec::new();
        for _ in 0..GROUPS_AT_A_TIME.min(GROUPS - groups.len()) {
            let group = sides.map(|side| Stepper::start(side, &program));
            waiting.push(group.into_iter().collect::<Result<_>>()?);
        }
        for stepper in waiting.iter_mut().flatten() {
            stepper.answer()?;
        }
        for mut group in waiting {
            let turns = (0..TURNS).map(|turn| take_turns(&mut group, turn));
            groups.push(turns.collect::<Result<_>>()?);
            for stepper in group {
                stepper.end()?;
            }
        }
        eprintln!("{name}: {} of {GROUPS} groups", groups.len());
    }
    let figures: [(&str, Figure); 2] = [
        ("training", |steps| steps.train_ms),
        ("inference", |steps| steps.infer_ms),
    ];
    for (what, figure) in figures {
        let time = |who: usize| median(&groups, |turns| median(turns, |turn| figure(&turn[who])));
        // The second native process is compared with the first, Mica's with the mean of both.
        let in_turn = |turn: &[Steps; 3], who: usize| match who {
            1 => 2.0 * figure(&turn[1]) / (figure(&turn[0]) + figure(&turn[2])),
            _ => figure(&turn[who]) / figure(&turn[0]),
        };
        let of_group = |turns: &Vec<[Steps; 3]>, who| median(turns, |turn| in_turn(turn, who));
        let ratio = |who: usize| median(&groups, |turns| of_group(turns, who));
        let spread = |who: usize| {
            let ratios = groups.iter().map(|turns| of_group(turns, who));
            let (least, most) = ratios.fold((f64::MAX, f64::MIN), |(least, most), ratio| {
                (least.min(ratio), most.max(ratio))
            });
            format!("{least:.3} to {most:.3}")
        };
        let mica = ratio(1);
        bench.report.add(Line {
            what: format!("{name}: {what}, {GROUPS} groups of {TURNS} turns"),
            native: format!(
                "{:.3} ms; against itself {:.4} ({})",
                time(0),
                ratio(2),
                spread(2)
            ),
            mica: format!("{:.3} ms, ratio {mica:.4} ({})", time(1), spread(1)),
            goal: "ratio ≤ 1.01".into(),
            reached: Some(mica <= 1.01),
        });
    }
    Ok(())
}
