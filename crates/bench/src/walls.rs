//! `mica bench walls`: the same program on the host and behind walls, isolated mode, in turns.
//!
//! The container is one of Mica's own making: process, mount and user namespaces, and the socket that `mica cdi generate` gives to
//! containers. `cargo xtask walls` runs the same in Podman, where nothing is measured.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use mica_command::child::own_path;
use mica_command::refusal::explain;
use mica_control::api::{ContainerSocketSpec, Mode, VgpuSpec};

use super::report::{Line, Report};
use super::shim_load::ShimNumbers;
use super::software::median;
use crate::demo::private_daemon::PrivateDaemon;
use crate::{BenchArgs, Libraries};

/// Rounds of each side.
const ROUNDS: usize = 7;
/// Most that the container may differ from the host.
const MOST_DIFFERENCE: f64 = 0.05;

/// A figure: its name, its unit, and whether more is better.
type Figure = (&'static str, &'static str, bool, fn(&ShimNumbers) -> f64);

const FIGURES: [Figure; 6] = [
    ("cuLaunchKernel at its caller", "ns", false, |n| n.launch_ns),
    ("launches in batches of 1,000", "a second", true, |n| {
        n.batch_per_second
    }),
    ("launch + sync", "µs", false, |n| n.launch_sync_us),
    ("cuMemcpyHtoD, 64 MiB", "GiB/s", true, |n| {
        n.to_device_64_gib_per_second
    }),
    ("cuMemcpyDtoH, 64 MiB", "GiB/s", true, |n| {
        n.from_device_64_gib_per_second
    }),
    ("cuInit to the end of the first launch", "ms", false, |n| {
        n.startup_ms
    }),
];

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
    if wants("tls") {
        super::walls_tls::rows(&daemon, &mut report)?;
    }
    report.finish()
}

fn container_rows(daemon: &PrivateDaemon, report: &mut Report) -> Result<()> {
    let new = VgpuSpec {
        name: Some("bench".into()),
        memory_limit_bytes: Some(256 << 20),
        mode: Some(Mode::Isolated),
        ..VgpuSpec::default()
    };
    let asked = ContainerSocketSpec {
        new: Some(new),
        ..ContainerSocketSpec::default()
    };
    let socket = daemon.client.container_socket(&asked).map_err(explain)?;
    let (mut host, mut container) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // Neither side is always the first.
        for turn in [round % 2, 1 - round % 2] {
            match turn {
                0 => host.push(program(daemon, None)?),
                _ => container.push(program(daemon, Some(&socket.folder))?),
            }
        }
    }
    for (what, unit, more_is_better, figure) in FIGURES {
        let of = |side: &[ShimNumbers]| median(side.iter().map(figure).collect());
        let (outside, inside) = (of(&host), of(&container));
        let ratio = inside / outside;
        let reached = match more_is_better {
            true => ratio >= 1.0 - MOST_DIFFERENCE,
            false => ratio <= 1.0 + MOST_DIFFERENCE,
        };
        report.add(Line {
            what: format!("container: {what}"),
            native: format!("{outside:.1} {unit} on the host"),
            mica: format!("{inside:.1} {unit} (×{ratio:.2})"),
            goal: format!("×1.00 ± {MOST_DIFFERENCE}"),
            reached: Some(reached),
        });
    }
    Ok(())
}

/// Runs the program by `mica run`; with the folder of a container's socket, in namespaces of its own and through that socket.
pub(super) fn program(daemon: &PrivateDaemon, container: Option<&str>) -> Result<ShimNumbers> {
    let exe = own_path()?;
    let mut command = Command::new(&exe);
    command.args(["run", "--gpu", "software", "--mode", "isolated"]);
    command.args(["--memory", "256MiB", "--"]);
    if let Some(folder) = container {
        let socket = format!("MICA_HOST_SOCKET={folder}/host.sock");
        command.args(["env", "-u", "MICA_TOKEN", &socket]);
        command.args(["unshare", "--user", "--map-root-user", "--mount", "--pid"]);
        command.args(["--fork", "--kill-child", "--mount-proc"]);
    }
    let output = command
        .arg(&exe)
        .arg("shim-load")
        .env("MICA_RUNTIME_DIR", daemon.folder())
        .env_remove("MICA_STATE_DIR")
        .stdin(Stdio::null())
        .output()
        .context("the program cannot be started")?;
    ensure!(
        output.status.success(),
        "the program failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.trim()).with_context(|| format!("not its numbers: {text}"))
}
