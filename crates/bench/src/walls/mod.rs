//! `mica bench walls`: the same program on the host and behind walls, isolated mode, in turns.
//!
//! The container is one of Mica's own making: process, mount and user namespaces, and the socket that `mica cdi generate` gives to
//! containers. `cargo xtask walls` runs the same in Podman, where nothing is measured.

mod cores;
mod guest;
mod network;
mod relay;
mod shares;
mod uploads;

use std::process::Command;

use anyhow::Result;
use mica_command::child::own_path;
use mica_command::refusal::explain;
use mica_control::api::{ContainerSocketSpec, Mode, Percent, VgpuSpec};
use serde::Serialize;

use super::report::{Line, Report};
use super::shim_load::ShimNumbers;
use super::software::median;
use crate::demo::private_daemon::PrivateDaemon;
use crate::programs::{isolated_run, numbers};
use crate::{BenchArgs, Libraries};
pub(crate) use cores::cpu_seconds;

/// Rounds of each side.
const ROUNDS: usize = 5;
/// Most that the container may differ from the host.
const MOST_DIFFERENCE: f64 = 0.05;
/// Bytes of a GB and of a GiB: goals are in GB, as of networks.
const GB_IN_GIB: f64 = 1e9 / (1_u64 << 30) as f64;

/// One figure of both sides.
struct Pair {
    what: String,
    unit: &'static str,
    host: f64,
    behind: f64,
    goal: String,
    reached: Option<bool>,
}

/// The numbers of a row, for programs that read the JSON.
#[derive(Serialize)]
struct PairNumbers {
    unit: &'static str,
    host: f64,
    behind: f64,
    ratio: f64,
}

impl Pair {
    fn report(self, report: &mut Report) {
        let Self {
            unit, host, behind, ..
        } = self;
        let ratio = behind / host;
        let line = Line {
            what: self.what,
            native: format!("{host:.2} {unit} on the host"),
            mica: format!("{behind:.2} {unit} (×{ratio:.2})"),
            goal: self.goal,
            reached: self.reached,
        };
        let numbers = PairNumbers {
            unit,
            host,
            behind,
            ratio,
        };
        report.add_with(line, numbers);
    }
}

/// A figure of the program: its name, its unit, whether more is better, and where it is.
type Figure = (&'static str, &'static str, bool, fn(&ShimNumbers) -> f64);

const LAUNCH: Figure = ("cuLaunchKernel at its caller", "ns", false, |n| n.launch_ns);
const SYNC: Figure = ("launch + wait", "µs", false, |n| n.launch_sync_us);
const TO_DEVICE: Figure = ("cuMemcpyHtoD, 64 MiB", "GB/s", true, |n| {
    n.to_device_64_gib_per_second / GB_IN_GIB
});
const FROM_DEVICE: Figure = ("cuMemcpyDtoH, 64 MiB", "GB/s", true, |n| {
    n.from_device_64_gib_per_second / GB_IN_GIB
});
const STARTUP: Figure = ("cuInit to the end of the first launch", "ms", false, |n| {
    n.startup_ms
});
const BATCHES: Figure = ("launches in batches of 1,000", "a second", true, |n| {
    n.batch_per_second
});

/// Runs both sides in turns; neither is always the first.
fn in_turns<T>(
    rounds: usize,
    mut host: impl FnMut() -> Result<T>,
    mut behind: impl FnMut() -> Result<T>,
) -> Result<(Vec<T>, Vec<T>)> {
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for turn in [round % 2, 1 - round % 2] {
            match turn {
                0 => here.push(host()?),
                _ => there.push(behind()?),
            }
        }
    }
    Ok((here, there))
}

pub(crate) fn run(args: &BenchArgs, libraries: Libraries) -> Result<bool> {
    libraries()?;
    let daemon = PrivateDaemon::set_up(1 << 30)?;
    let mut report = Report::new(args.json);
    let wants = |wall: &str| {
        args.only
            .as_ref()
            .is_none_or(|only| wall.contains(only.as_str()))
    };
    if wants("container") {
        container_rows(&daemon, &mut report)?;
    }
    if wants("guest") {
        guest::rows(&daemon, &mut report)?;
    }
    network::rows(&daemon, &wants, &mut report)?;
    report.finish()
}

fn container_rows(daemon: &PrivateDaemon, report: &mut Report) -> Result<()> {
    let asked = container_socket("bench", None);
    let socket = daemon.client.container_socket(&asked).map_err(explain)?;
    let (host, container) = in_turns(
        ROUNDS,
        || program(daemon, &["--without-pinned"]),
        || contained(daemon, &socket.folder),
    )?;
    let goal = format!("×1.00 ± {MOST_DIFFERENCE}");
    let judge = |more_is_better, host: f64, behind: f64| match more_is_better {
        true => (goal.clone(), behind >= host * (1.0 - MOST_DIFFERENCE)),
        false => (goal.clone(), behind <= host * (1.0 + MOST_DIFFERENCE)),
    };
    all_figures("container", [&host, &container], judge, report);
    Ok(())
}

/// A row for each figure. `judge` gives the goal and whether it is reached, from whether more is better and from the
/// figure on the host and behind the wall. Starts have no goal: `mica run` starts a worker before its program, and behind
/// a wall the worker starts with the program.
fn all_figures(
    wall: &str,
    sides: [&[ShimNumbers]; 2],
    judge: impl Fn(bool, f64, f64) -> (String, bool),
    report: &mut Report,
) {
    for (what, unit, more_is_better, figure) in
        [LAUNCH, BATCHES, SYNC, TO_DEVICE, FROM_DEVICE, STARTUP]
    {
        let [host, behind] = sides.map(|side| median(side.iter().map(figure).collect()));
        let (goal, is_reached) = judge(more_is_better, host, behind);
        let (goal, reached) = match what == STARTUP.0 {
            true => ("-".into(), None),
            false => (goal, Some(is_reached)),
        };
        let what = format!("{wall}: {what}");
        let pair = Pair {
            what,
            unit,
            host,
            behind,
            goal,
            reached,
        };
        pair.report(report);
    }
}

/// Runs the program on the host, in isolated mode.
fn program<T: serde::de::DeserializeOwned>(daemon: &PrivateDaemon, words: &[&str]) -> Result<T> {
    let mut command = isolated_run(daemon, &["--memory", "256MiB"])?;
    command.arg(own_path()?).arg("shim-load").args(words);
    numbers(command)
}

/// A socket for containers, which makes a virtual GPU for each.
fn container_socket(name: &str, share_percent: Option<Percent>) -> ContainerSocketSpec {
    let new = VgpuSpec {
        name: Some(name.into()),
        memory_limit_bytes: Some(256 << 20),
        mode: Some(Mode::Isolated),
        share_percent,
        ..VgpuSpec::default()
    };
    ContainerSocketSpec {
        new: Some(new),
        ..ContainerSocketSpec::default()
    }
}

/// Runs the program in a container.
fn contained(daemon: &PrivateDaemon, folder: &str) -> Result<ShimNumbers> {
    let mut command = in_namespaces(daemon, folder)?;
    command
        .arg(own_path()?)
        .args(["shim-load", "--without-pinned"]);
    numbers(command)
}

/// A command that runs a program in namespaces of its own and through the socket of a container.
fn in_namespaces(daemon: &PrivateDaemon, folder: &str) -> Result<Command> {
    let mut command = isolated_run(daemon, &["--memory", "16MiB"])?;
    let socket = format!("MICA_HOST_SOCKET={folder}/host.sock");
    command.args(["env", "-u", "MICA_TOKEN", &socket]);
    command.args(["unshare", "--user", "--map-root-user", "--mount", "--pid"]);
    command.args(["--fork", "--kill-child", "--mount-proc"]);
    Ok(command)
}
