//! Three tenants at once, each behind another wall: the shares hold whatever is between a program and its GPU.

use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mica_command::child::own_path;
use mica_command::refusal::explain;
use mica_control::api::Percent;
use mica_load::{Load, LoadReport, Pattern};

use super::guest::Guest;
use super::network::Network;
use super::{container_socket, in_namespaces};
use crate::demo::private_daemon::PrivateDaemon;
use crate::group::{load, start_time};
use crate::programs::{isolated_run, last_line, numbers};
use crate::report::{Line, Report};

/// The walls, and what the tenant behind each asks for, in percent.
const TENANTS: [(&str, u32); 3] = [("container", 50), ("guest", 30), ("TLS", 20)];
/// Length of a kernel alone, and of the window in which kernels are counted.
const KERNEL_US: f64 = 1000.0;
const WINDOW_SECONDS: f64 = 8.0;
/// Kernels that each keeps submitted.
const DEPTH: u32 = 8;
/// How far a tenant's part may be from its share, in percent of the GPU.
const MOST_ERROR: f64 = 2.0;

/// Adds the row.
pub(super) fn rows(daemon: &PrivateDaemon, network: &Network, report: &mut Report) -> Result<()> {
    let calibrate = load(Pattern::Calibrate, 0, 1, 0.0);
    let mut command = isolated_run(daemon, &["--memory", "128MiB"])?;
    command.arg(own_path()?).args(words(&calibrate)?);
    let alone: LoadReport = numbers(command)?;
    let iterations = (alone.iterations_per_us * KERNEL_US).clamp(1.0, 1e9) as u32;
    let part = |share: u32| Percent::from_f64(f64::from(share)).context("no share");
    let [_, (_, guest_share), _] = TENANTS;
    let guest = Guest::start(daemon, Some(part(guest_share)?))?;
    let mut saturate = load(Pattern::Saturate, iterations, DEPTH, WINDOW_SECONDS);
    saturate.start_unix_ms = start_time(TENANTS.len(), Duration::from_millis(4000))?;
    let program = words(&saturate)?;
    let mut started = Vec::new();
    for (wall, share) in TENANTS {
        let mut command = match wall {
            "container" => {
                let socket = container_socket("tenant", Some(part(share)?));
                let socket = daemon.client.container_socket(&socket).map_err(explain)?;
                in_namespaces(daemon, &socket.folder)?
            }
            "guest" => guest.command()?,
            _ => network.run(
                "server",
                &["--memory", "128MiB", "--share", &share.to_string()],
            )?,
        };
        command.arg(own_path()?).args(&program);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        started.push(command.spawn().context("a tenant cannot be started")?);
    }
    let kernels: Vec<f64> = started.into_iter().map(kernels_of).collect::<Result<_>>()?;
    let all: f64 = kernels.iter().sum();
    ensure!(all > 0.0, "no tenant finished a kernel");
    let parts: Vec<f64> = kernels
        .iter()
        .map(|kernels| 100.0 * kernels / all)
        .collect();
    let told = |value: &dyn Fn(usize) -> String| {
        let each = TENANTS.iter().enumerate();
        let each = each.map(|(at, (wall, _))| format!("{wall} {}", value(at)));
        each.collect::<Vec<_>>().join(", ")
    };
    let error = parts.iter().zip(TENANTS);
    let error = error.map(|(part, (_, share))| (part - f64::from(share)).abs());
    report.add(Line {
        what: "three tenants behind three walls at once".into(),
        native: told(&|at| format!("{} %", TENANTS[at].1)),
        mica: told(&|at| format!("{:.1} %", parts[at])),
        goal: format!("error ≤ {MOST_ERROR}"),
        reached: Some(error.fold(0.0, f64::max) <= MOST_ERROR),
    });
    Ok(())
}

fn words(load: &Load) -> Result<[String; 2]> {
    Ok(["load".into(), serde_json::to_string(load)?])
}

fn kernels_of(child: Child) -> Result<f64> {
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "a tenant failed: {}", said.trim());
    let report: LoadReport = last_line(&String::from_utf8_lossy(&output.stdout))?;
    Ok(report.kernels)
}
