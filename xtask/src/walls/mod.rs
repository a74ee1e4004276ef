//! Walls between a program and its GPU, built for real: the programs behind them must notice nothing.
//!
//! `cargo xtask walls --only podman`, `--only docker` and `--only containerd` run containers, `--only tls` the network, `--only chaos` kills and cuts. Each check is a row of the table; what cannot be built here is skipped with its
//! reason.

mod attach;
mod cable;
mod chaos;
mod chaos_guest;
mod chaos_ring;
mod containerd;
mod containers;
mod docker;
mod guide;
mod link;
mod machines;
mod mica;
mod podman;
mod qemu;
mod qemu_programs;
mod root_folders;
mod tls;
mod user;

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::bounded;
use crate::command::{cargo, run as run_command, target};
use crate::suite;

/// What became of a check.
enum Outcome {
    Passed(String),
    Skipped(String),
    Failed(String),
}

/// The table.
#[derive(Default)]
struct Rows(Vec<(String, Outcome)>);

impl Rows {
    /// Runs a check and adds its row. A check tells what it saw.
    fn check(&mut self, name: &str, check: impl FnOnce() -> Result<String>) {
        let began = Instant::now();
        let outcome = match check() {
            Ok(text) => Outcome::Passed(format!("{text} ({:.1} s)", began.elapsed().as_secs_f64())),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        };
        self.add(name, outcome);
    }

    fn skip(&mut self, name: &str, why: &str) {
        self.add(name, Outcome::Skipped(why.into()));
    }

    fn add(&mut self, name: &str, outcome: Outcome) {
        let (word, text) = match &outcome {
            Outcome::Passed(text) => ("pass", text),
            Outcome::Skipped(text) => ("skip", text),
            Outcome::Failed(text) => ("FAIL", text),
        };
        println!("{word}  {name:<44} {text}");
        self.0.push((name.into(), outcome));
    }

    fn verdict(&self) -> Result<()> {
        let count = |is: fn(&Outcome) -> bool| self.0.iter().filter(|(_, o)| is(o)).count();
        let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
        let passed = self.0.len() - failed - skipped;
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        if failed > 0 {
            bail!("{failed} checks failed");
        }
        Ok(())
    }
}

/// Which programs are run behind a wall, and with which build of Mica.
#[derive(Clone, Copy)]
struct Options<'a> {
    /// Build of Mica: `release` or `debug`.
    profile: &'a str,
    /// Only CUDA programs whose name contains this.
    programs: &'a str,
    /// All programs in the QEMU guest, whose processor is emulated, not a few.
    all: bool,
    /// Kills and cuts over each transport.
    rounds: u32,
}

/// Walls that can be chosen.
const WALLS: [&str; 8] = [
    "podman",
    "docker",
    "containerd",
    "guest",
    "qemu",
    "tls",
    "demo",
    "chaos",
];

impl<'a> Options<'a> {
    /// What the words of the command line say, and the one wall that they name.
    fn parse(words: &[&'a str]) -> Result<(Self, Option<&'a str>)> {
        let mut options = Options {
            profile: "release",
            programs: "",
            all: false,
            rounds: 50,
        };
        let mut only = None;
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match (*word, words.as_slice().first()) {
                ("--debug", _) => options.profile = "debug",
                ("--all", _) => options.all = true,
                ("--only", Some(wall)) => {
                    only = Some(*wall);
                    words.next();
                }
                ("--programs", Some(filter)) => {
                    options.programs = filter;
                    words.next();
                }
                ("--rounds", Some(rounds)) => {
                    let is_no_number = || format!("--rounds {rounds}: write a number");
                    options.rounds = rounds.parse().with_context(is_no_number)?;
                    words.next();
                }
                (other, _) => {
                    bail!(
                        "{other}: write --only {}, --debug, --all, --programs FILTER or --rounds N",
                        WALLS.join(" | ")
                    )
                }
            }
        }
        if let Some(wall) = only.filter(|wall| !WALLS.contains(wall)) {
            bail!("there is no wall {wall:?}: write {}", WALLS.join(" | "));
        }
        Ok((options, only))
    }
}

/// `cargo xtask walls [--only WALL] [--debug] [--all] [--programs FILTER] [--rounds N]`.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let (options, only) = Options::parse(words)?;
    let wants = |wall: &str| only.is_none_or(|only| only == wall);
    bounded::catch_interrupts();
    build(options.profile)?;
    let mut rows = Rows::default();
    if wants("podman") {
        containers::run(&mut rows, options)?;
    }
    if wants("docker") {
        docker::run(&mut rows, options)?;
    }
    if wants("containerd") {
        containerd::run(&mut rows, options)?;
    }
    if wants("guest") {
        machines::run(&mut rows, options)?;
    }
    if wants("qemu") {
        qemu::run(&mut rows, options)?;
    }
    if wants("tls") {
        tls::run(&mut rows, options)?;
    }
    if wants("demo") {
        demo(&mut rows, options);
    }
    if wants("chaos") {
        chaos_ring::run(&mut rows, options)?;
        chaos_guest::run(&mut rows, options)?;
        chaos::run(&mut rows, options)?;
    }
    rows.verdict()
}

/// Three tenants behind three walls at once: `mica bench walls` counts their kernels.
fn demo(rows: &mut Rows, options: Options) {
    rows.check("demo: three tenants behind three walls", || {
        let mut command = Command::new(target().join(options.profile).join("mica"));
        let printed = podman::text(command.args(["bench", "walls", "--only", "shares", "--json"]))?;
        let rows: serde_json::Value = serde_json::from_str(&printed)?;
        ensure!(rows[0]["reached"] == true, "{printed}");
        Ok(rows[0]["mica"].as_str().unwrap_or_default().to_owned())
    });
}

fn build(profile: &str) -> Result<()> {
    if profile == "release" {
        suite::build_release()?;
        let mut guest = cargo(&["build", "--release", "--package", "mica-guest"]);
        return run_command("guest's agent", &mut guest);
    }
    let mut command = cargo(&["build"]);
    for package in ["mica-cli", "mica-shim", "mica-nvml-shim", "mica-guest"] {
        command.args(["--package", package]);
    }
    run_command("debug build", &mut command)
}
