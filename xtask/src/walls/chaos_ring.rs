//! Kills at random moments of programs on this machine, whose calls go through shared memory: there is no cable to cut.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::chaos::{KILLED_WITHIN, LATEST_HARM, Random, ended, seed, until_made, until_none};
use super::tls::{Machine, signal_children};
use super::{Options, Rows};
use crate::bounded::{self, Scratch};

/// How long a daemon may take to start.
const DAEMON_WITHIN: Duration = Duration::from_secs(20);

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Program,
    Command,
    /// The processes that run the program's kernels.
    Workers,
}

/// The machine's daemon; ended when dropped.
struct Daemon<'a> {
    machine: &'a Machine,
    child: Child,
}

impl<'a> Daemon<'a> {
    fn start(machine: &'a Machine, socket: &Path) -> Result<Self> {
        let mut command = machine.plain(&["daemon"]);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let daemon = Self { machine, child };
        let began = Instant::now();
        while !socket.exists() {
            ensure!(began.elapsed() < DAEMON_WITHIN, "the daemon does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    /// Kills all workers; whether there were any. A worker's parent is the daemon or another worker.
    fn kill_workers(&self) -> Result<bool> {
        let mut any = false;
        for parent in children(self.child.id())? {
            any |= signal_children(parent, "-KILL")?;
        }
        Ok(signal_children(self.child.id(), "-KILL")? || any)
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.machine.command(&["daemon", "--stop"]).output();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes whose parent is this one.
fn children(pid: u32) -> Result<Vec<u32>> {
    let found = Command::new("pgrep")
        .args(["-P", &pid.to_string()])
        .output()?;
    let text = String::from_utf8_lossy(&found.stdout);
    Ok(text
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect())
}

/// All rounds as one check.
pub(super) fn run(rows: &mut Rows, options: Options) -> Result<()> {
    let scratch = Scratch::new("chaos-ring")?;
    let machine = Machine::new(options, scratch.0.join("host"));
    let daemon = Daemon::start(&machine, &scratch.0.join("host/run/control.sock"))?;
    let (seed, count) = (seed()?, options.rounds);
    rows.check(&format!("chaos: {count} kills over shared memory"), || {
        rounds(count, &daemon, seed).with_context(|| format!("with seed {seed}"))
    });
    Ok(())
}

fn rounds(count: u32, daemon: &Daemon, seed: u32) -> Result<String> {
    let mut random = Random::new(seed);
    let victims = [Victim::Program, Victim::Workers, Victim::Command];
    let (mut round, mut in_vain) = (0, 0);
    let mut slowest = Duration::ZERO;
    while round < count {
        ensure!(!bounded::interrupted(), "interrupted");
        let victim = victims[round as usize % victims.len()];
        let freed = one(daemon, victim, &mut random);
        match freed.with_context(|| format!("round {round}, {victim:?}"))? {
            Some(freed) => {
                round += 1;
                slowest = slowest.max(freed);
            }
            None => {
                in_vain += 1;
                ensure!(in_vain <= 2 * count, "programs end before they are harmed");
            }
        }
    }
    let after = ended(start(daemon)?).context("a program after all of them")?;
    ensure!(after.starts_with("exit status: 0"), "{after}");
    Ok(format!(
        "freed {:.2} s after a kill at the latest",
        slowest.as_secs_f64()
    ))
}

fn start(daemon: &Daemon) -> Result<Child> {
    let mut command = daemon.machine.plain(&[
        "run", "-m", "128MiB", "--gpu", "software", "--mode", "isolated", "--",
    ]);
    command
        .arg(&daemon.machine.mica)
        .args(["shim-load", "--train"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    Ok(command.spawn()?)
}

/// One round: how long after the kill everything was back; `None` if there was nothing to kill.
fn one(daemon: &Daemon, victim: Victim, random: &mut Random) -> Result<Option<Duration>> {
    let mut program = start(daemon)?;
    until_made(daemon.machine, &mut program)?;
    std::thread::sleep(random.within(LATEST_HARM));
    let killed = Instant::now();
    let is_harmed = match victim {
        _ if program.try_wait()?.is_some() => false,
        Victim::Program => signal_children(program.id(), "-KILL")?,
        Victim::Command => program.kill().is_ok(),
        Victim::Workers => daemon.kill_workers()?,
    };
    if is_harmed && victim == Victim::Command {
        // The program's own end is its own business: its virtual GPU ends with the command.
        program.wait()?;
        let freed = until_none(daemon.machine, killed, KILLED_WITHIN)?;
        return Ok(Some(freed));
    }
    let said = ended(program)?;
    let is_well = said.starts_with("exit status: 0");
    until_none(daemon.machine, Instant::now(), KILLED_WITHIN)?;
    match (is_harmed, is_well) {
        (true, false) => Ok(Some(killed.elapsed())),
        // It had its results when its workers were killed.
        (true, true) if victim == Victim::Workers => Ok(None),
        (false, true) => Ok(None),
        _ => bail!("{victim:?} killed: {is_harmed}; {said}"),
    }
}
