//! Kills at random moments of what serves a virtual machine's program: over the stream alone, and with the session in shared memory.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::chaos::{KILLED_WITHIN, LATEST_HARM, Random, ended, seed};
use super::machines::{Guest, Way, until_empty, vgpu};
use super::mica::Mica;
use super::podman::text;
use super::tls::signal_children;
use super::{Options, Rows};
use crate::bounded::{self, Scratch};
use crate::command::target;

/// What a busy machine may take more: a worker whose program was there for a moment waits for another one.
const BUSY: Duration = Duration::from_secs(12);

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Program,
    /// The process that serves the stream, on the host.
    StreamProcess,
    /// The agent in the guest: as if the machine had crashed.
    Agent,
    /// The relay on the host, with all its processes.
    Relay,
}

/// Both ways, each as one check.
pub(super) fn run(rows: &mut Rows, options: Options) -> Result<()> {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        rows.skip(
            "chaos: guest",
            "needs root, for mount and network namespaces",
        );
        return Ok(());
    }
    let scratch = Scratch::new("chaos-guest")?;
    let mica = Mica::new(options, &scratch.0);
    text(&mut mica.command(&["create", vgpu(), "-m", "256MiB", "-s", "50"]))?;
    let (seed, count) = (seed()?, options.rounds);
    for way in [Way::Stream, Way::Ivshmem] {
        let folder = scratch.0.join(format!("{way:?}"));
        std::fs::create_dir_all(&folder)?;
        rows.check(&format!("chaos: {count} kills, {}", way.name()), || {
            rounds(&mica, options, &folder, way, seed).with_context(|| format!("with seed {seed}"))
        });
    }
    text(&mut mica.command(&["vm", "detach", vgpu()]))?;
    Ok(())
}

fn rounds(mica: &Mica, options: Options, folder: &Path, way: Way, seed: u32) -> Result<String> {
    let mut random = Random::new(seed);
    let victims = [
        Victim::Program,
        Victim::StreamProcess,
        Victim::Agent,
        Victim::Relay,
    ];
    let mut guest = Guest::start(mica, options, folder, way)?;
    let (mut round, mut in_vain) = (0, 0);
    let mut slowest = Duration::ZERO;
    while round < options.rounds {
        ensure!(!bounded::interrupted(), "interrupted");
        let victim = victims[round as usize % victims.len()];
        let freed = one(mica, &mut guest, victim, &mut random, options);
        match freed.with_context(|| format!("round {round}, {victim:?}"))? {
            Some(freed) => {
                round += 1;
                slowest = slowest.max(freed);
            }
            None => {
                in_vain += 1;
                ensure!(
                    in_vain <= 2 * options.rounds,
                    "programs end before they are harmed"
                );
            }
        }
        if matches!(victim, Victim::Agent | Victim::Relay) {
            drop(guest);
            let _ = std::fs::remove_dir_all(folder);
            std::fs::create_dir_all(folder)?;
            guest = Guest::start(mica, options, folder, way)?;
        }
    }
    let after = ended(start(&guest, options)?).context("a program after all of them")?;
    ensure!(after.starts_with("exit status: 0"), "{after}");
    Ok(format!(
        "freed {:.2} s after a kill at the latest",
        slowest.as_secs_f64()
    ))
}

/// A program that trains for about a second, and compares its results.
fn start(guest: &Guest, options: Options) -> Result<Child> {
    let mica = target().join(options.profile).join("mica");
    let mut command = guest.command(&mica, &["shim-load", "--train"]);
    Ok(command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?)
}

/// One round: how long after the kill everything was back; `None` if there was nothing to kill.
fn one(
    mica: &Mica,
    guest: &mut Guest,
    victim: Victim,
    random: &mut Random,
    options: Options,
) -> Result<Option<Duration>> {
    let mut program = start(guest, options)?;
    until_there(mica, &mut program)?;
    std::thread::sleep(random.within(LATEST_HARM));
    let killed = Instant::now();
    let is_harmed = match victim {
        _ if program.try_wait()?.is_some() => false,
        // `timeout` is the process that was started.
        Victim::Program => signal_children(program.id(), "-KILL")?,
        Victim::StreamProcess => signal_children(guest.relay.0.id(), "-KILL")?,
        Victim::Agent => guest.agent.0.kill().is_ok(),
        Victim::Relay => guest.relay.0.kill().is_ok(),
    };
    let said = ended(program)?;
    let is_well = said.starts_with("exit status: 0");
    until_empty(mica)?;
    let took = killed.elapsed();
    ensure!(took < KILLED_WITHIN + BUSY, "freed after {took:?}");
    match (is_harmed, is_well) {
        (true, false) => Ok(Some(took)),
        // The program had its results already.
        (true, true) if victim != Victim::Program => Ok(None),
        (false, true) => Ok(None),
        _ => bail!("{victim:?} killed: {is_harmed}; {said}"),
    }
}

/// Waits until the program is seen in the virtual GPU, or has ended.
fn until_there(mica: &Mica, program: &mut Child) -> Result<()> {
    let began = Instant::now();
    while program.try_wait()?.is_none() {
        let shown = mica.json(&["show", vgpu(), "--json"])?;
        if shown["processes"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
        {
            return Ok(());
        }
        ensure!(
            began.elapsed() < Duration::from_secs(30),
            "the program never comes"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
