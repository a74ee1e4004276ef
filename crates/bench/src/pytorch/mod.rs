//! PyTorch as a tenant: GEMM loops that compete, and what direct mode costs a training or inference step.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::gpu::{Bench, SHARES, join, median, share_error, split};
use super::group::{Program, Side, start_time};
use super::report::Line;

const GEMM_LOOP: &str = include_str!("gemm_loop.py");
const STEPS: &str = include_str!("steps.py");

/// Ways to submit GEMMs.
const KINDS: [&str; 2] = ["plain", "graph"];
/// Long enough that all have heard the order, and keep the GPU busy, before what they do counts.
const TOGETHER: Duration = Duration::from_millis(700);
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

/// Steps through Mica over steps past it, in one process.
#[derive(Deserialize)]
struct Turns {
    train: f64,
    infer: f64,
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
/// The ratio of the same steps in one process.
type Ratio = fn(&Turns) -> f64;

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

/// Tenants that multiply matrices, call by call and as CUDA graphs. Processes stay for both, and on the bare driver for
/// all of it: to start one takes longer than to measure it.
pub(super) fn gemm_loops(bench: &mut Bench) -> Result<()> {
    let row = |kind: &str, shares: &[u32]| format!("PyTorch GEMM loops {kind} {}", join(shares));
    let wanted = |bench: &Bench, shares: &[u32]| {
        let kinds = KINDS.into_iter();
        let kinds = kinds.filter(|kind| bench.wanted(&row(kind, shares)));
        kinds.collect::<Vec<_>>()
    };
    let most = SHARES
        .iter()
        .filter(|shares| !wanted(bench, shares).is_empty())
        .map(|shares| shares.len())
        .max();
    let Some(most) = most else {
        return Ok(());
    };
    if !is_there(bench, "PyTorch GEMM loops") {
        return Ok(());
    }
    let shorter = bench.seconds.min(4.0);
    let mut bare = BareLoops::start(most, shorter)?;
    for shares in SHARES {
        let kinds = wanted(bench, shares);
        if kinds.is_empty() {
            continue;
        }
        let programs = shares.iter().map(|share| {
            let share = share.to_string();
            python(GEMM_LOOP, &[], &["--memory", "8GiB", "--share", &share])
        });
        let programs = programs.collect::<Vec<_>>();
        let mut tenants =
            PersistentProcess::start_all(programs.iter().map(|program| (Side::Mica, program)))?;
        for kind in kinds {
            let solo = bare.rates(kind, 1)?[0];
            let native = bare.rates(kind, shares.len())?;
            let mica = gemm_rates(&mut tenants, kind, bench.seconds)?;
            let error = share_error(&mica, shares);
            let part = |rates: &[f64]| 100.0 * rates.iter().sum::<f64>() / solo;
            bench.report.add(Line {
                what: row(kind, shares),
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
        PersistentProcess::end_all(tenants)?;
    }
    PersistentProcess::end_all(bare.processes)
}

/// Loops on the bare driver, which knows no shares: as many tenants get the same whatever was asked, so each kind and
/// number of them is measured once.
struct BareLoops {
    processes: Vec<PersistentProcess>,
    seconds: f64,
    measured: BTreeMap<(&'static str, usize), Vec<f64>>,
}

impl BareLoops {
    fn start(most: usize, seconds: f64) -> Result<Self> {
        let program = python(GEMM_LOOP, &[], &[]);
        let all = (0..most).map(|_| (Side::Native, &program));
        Ok(Self {
            processes: PersistentProcess::start_all(all)?,
            seconds,
            measured: BTreeMap::new(),
        })
    }

    fn rates(&mut self, kind: &'static str, count: usize) -> Result<Vec<f64>> {
        if let Some(rates) = self.measured.get(&(kind, count)) {
            return Ok(rates.clone());
        }
        let rates = gemm_rates(&mut self.processes[..count], kind, self.seconds)?;
        self.measured.insert((kind, count), rates.clone());
        Ok(rates)
    }
}

/// GEMMs a second of each of them, at the same time.
fn gemm_rates(servants: &mut [PersistentProcess], kind: &str, seconds: f64) -> Result<Vec<f64>> {
    let start = start_time(servants.len(), TOGETHER)?;
    for servant in servants.iter_mut() {
        servant.order(&format!("{kind} {start} {seconds}"))?;
    }
    let rates = servants.iter_mut().map(|servant| {
        let Rate { rate } = servant.report()?;
        Ok(rate)
    });
    rates.collect()
}

/// A process that is started once, says when it is ready, and answers orders, a line each.
struct PersistentProcess {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl PersistentProcess {
    /// Starts them side by side, and waits until all are ready.
    fn start_all<'a>(all: impl Iterator<Item = (Side, &'a Program)>) -> Result<Vec<Self>> {
        let servants = all.map(|(side, program)| Self::start(side, program));
        let mut servants = servants.collect::<Result<Vec<_>>>()?;
        for servant in &mut servants {
            servant.answer()?;
        }
        Ok(servants)
    }

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
        let line = self.answers.next().context("a process ended early")?;
        Ok(line?)
    }

    fn order(&mut self, line: &str) -> Result<()> {
        writeln!(self.orders, "{line}")?;
        Ok(())
    }

    fn report<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self.answer()?;
        serde_json::from_str(&line).with_context(|| format!("not a report: {line}"))
    }

    fn end_all(servants: Vec<Self>) -> Result<()> {
        for mut servant in servants {
            drop(servant.orders);
            let status = servant.child.wait()?;
            anyhow::ensure!(status.success(), "a process failed: {status}");
        }
        Ok(())
    }
}

/// Whose steps are measured in a turn: two processes on the bare driver and one under Mica, that one also with its calls
/// led past Mica to the driver.
const TAKERS: [(usize, &str); 4] = [(0, "go"), (1, "go"), (2, "go"), (1, "past")];
const NATIVE: usize = 0;
const MICA: usize = 1;
const SECOND_NATIVE: usize = 2;
const PAST_MICA: usize = 3;
type Turn = [Steps; TAKERS.len()];

/// One turn of a group.
fn take_turns(group: &mut [PersistentProcess], turn: usize) -> Result<Turn> {
    let mut measured = Turn::default();
    let count = TAKERS.len();
    // Whoever goes first finds the machine as the last turn left it, and each one as the one before left it.
    for place in 0..count {
        let who = match turn % 2 {
            0 => (place + turn / 2) % count,
            _ => (count - 1 - place + turn / 2) % count,
        };
        let (process, order) = TAKERS[who];
        group[process].order(order)?;
        measured[who] = group[process].report()?;
    }
    Ok(measured)
}

/// The median of ratios, and between which they lie.
fn with_range(ratios: &[f64]) -> String {
    let least = ratios.iter().copied().fold(f64::MAX, f64::min);
    let most = ratios.iter().copied().fold(f64::MIN, f64::max);
    let middle = median(ratios, |ratio| *ratio);
    format!("{middle:.4} ({least:.3} to {most:.3})")
}

/// The time of a small transformer's steps: groups of processes that take turns, the median of the turns' ratios in
/// each, and the median of those. A second process on the bare driver shows how much two that do the same differ: more
/// than Mica costs, so the process under Mica also takes steps past it and through it in turns.
pub(super) fn steps(bench: &mut Bench) -> Result<()> {
    let name = "PyTorch steps";
    if !bench.wanted(name) || !is_there(bench, name) {
        return Ok(());
    }
    let measured = take_steps(name)?;
    let figures: [(&str, Figure, Ratio); 2] = [
        ("training", |steps| steps.train_ms, |turns| turns.train),
        ("inference", |steps| steps.infer_ms, |turns| turns.infer),
    ];
    for (what, figure, in_turns) in figures {
        let one = measured.in_one.iter().map(in_turns).collect::<Vec<_>>();
        let compared = Compared::of(&measured.groups, figure);
        let Compared {
            native_ms,
            mica_ms,
            native,
            mica,
            past,
        } = &compared;
        bench.report.add(Line {
            what: format!("{name}: {what}, past Mica and through it in turns in one process, {GROUPS} processes"),
            native: format!("{native_ms:.3} ms"),
            mica: format!("ratio {}", with_range(&one)),
            goal: "ratio ≤ 1.01".into(),
            reached: Some(median(&one, |ratio| *ratio) <= 1.01),
        });
        bench.report.add(Line {
            what: format!("{name}: {what}, {GROUPS} groups of {TURNS} turns"),
            native: format!("{native_ms:.3} ms; against itself {}", with_range(native)),
            mica: format!(
                "{mica_ms:.3} ms, ratio {}; its calls past Mica {}",
                with_range(mica),
                with_range(past)
            ),
            goal: "ratio ≤ 1.01".into(),
            reached: Some(median(mica, |ratio| *ratio) <= 1.01),
        });
    }
    Ok(())
}

/// What all groups measured.
struct Measured {
    groups: Vec<Vec<Turn>>,
    /// Past Mica and through it in turns in one process, of each group.
    in_one: Vec<Turns>,
}

fn take_steps(name: &str) -> Result<Measured> {
    // All of a time fit side by side; the one that works has the GPU to itself whatever its share.
    let share = (100 / GROUPS_AT_A_TIME).to_string();
    let program = python(STEPS, &[], &["--memory", "8GiB", "--share", &share]);
    let sides = [Side::Native, Side::Mica, Side::Native];
    let mut groups: Vec<Vec<Turn>> = Vec::new();
    let mut in_one = Vec::new();
    while groups.len() < GROUPS {
        let now = GROUPS_AT_A_TIME.min(GROUPS - groups.len());
        let all = (0..now).flat_map(|_| sides);
        let mut started = PersistentProcess::start_all(all.map(|side| (side, &program)))?;
        for group in started.chunks_mut(sides.len()) {
            let turns = (0..TURNS).map(|turn| take_turns(group, turn));
            groups.push(turns.collect::<Result<_>>()?);
            let mica = &mut group[TAKERS[MICA].0];
            mica.order("turns")?;
            let turns = mica.report::<Turns>()?;
            errln!(
                "{name}: {} of {GROUPS} groups; in one process ×{:.4} training, ×{:.4} inference",
                groups.len(),
                turns.train,
                turns.infer
            );
            in_one.push(turns);
        }
        PersistentProcess::end_all(started)?;
    }
    Ok(Measured { groups, in_one })
}

/// One figure of the steps, of all who take them.
struct Compared {
    native_ms: f64,
    mica_ms: f64,
    /// Ratios of the groups: the second native process against the first, Mica's against the mean of both, and the same
    /// for its calls past Mica.
    native: Vec<f64>,
    mica: Vec<f64>,
    past: Vec<f64>,
}

impl Compared {
    fn of(groups: &[Vec<Turn>], figure: Figure) -> Self {
        let time = |who: usize| median(groups, |turns| median(turns, |turn| figure(&turn[who])));
        let in_turn = |turn: &Turn, who: usize| match who {
            SECOND_NATIVE => figure(&turn[SECOND_NATIVE]) / figure(&turn[NATIVE]),
            _ => 2.0 * figure(&turn[who]) / (figure(&turn[NATIVE]) + figure(&turn[SECOND_NATIVE])),
        };
        let of_group = |turns: &Vec<Turn>, who| median(turns, |turn| in_turn(turn, who));
        let ratios = |who: usize| -> Vec<f64> {
            let ratios = groups.iter().map(|turns| of_group(turns, who));
            ratios.collect()
        };
        Self {
            native_ms: time(NATIVE),
            mica_ms: time(MICA),
            native: ratios(SECOND_NATIVE),
            mica: ratios(MICA),
            past: ratios(PAST_MICA),
        }
    }
}
