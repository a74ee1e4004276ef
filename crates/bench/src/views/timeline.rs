//! The daemon's turns against what the tenants counted themselves.
//!
//! A tenant knows how many kernels it finished, and how many it finishes in a second when it is alone (on the software GPU:
//! how long its kernel is): the quotient is the time for which it had the GPU. The daemon's turns tell the same from outside. Both are compared as parts of their sums,
//! because time that switching costs is in the turns and in nobody's kernels.

use std::collections::HashMap;
use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mica_command::child::own_path;
use mica_command::refusal::explain;
use mica_control::api::{GpuKind, Turn, TurnKind, Turns};
use mica_control::client::ControlClient;
use mica_load::{Load, Pattern};

use super::TIMELINE;
use super::tenants::{Tenants, report};
use crate::BenchGpuArg;
use crate::demo::private_daemon::PrivateDaemon;
use crate::group::{load, start_time};
use crate::report::Line;

/// Names and shares of the tenants.
const TENANTS: [(&str, u32); 3] = [("bursty-a", 25), ("bursty-b", 25), ("saturating", 50)];
/// Largest difference between the two accounts of a tenant, in points.
const MOST_POINTS: f64 = 2.0;
/// How often the daemon is asked: it remembers 4096 turns.
const EVERY: Duration = Duration::from_millis(200);
/// Longest that a tenant is measured alone.
const ALONE_SECONDS: f64 = 4.0;

/// Measures it on the GPU asked for, or on the software GPU where there is no other.
pub(super) fn run(gpu: Option<BenchGpuArg>, seconds: f64) -> Result<Line> {
    let (tenants, client, stage) = place(gpu)?;
    let is_software = stage.is_some();
    let per_us = tenants.iterations_per_us()?;
    let loads = loads(per_us, is_software, seconds);
    let mut alone = Vec::new();
    for ((name, _), load) in TENANTS.iter().zip(&loads) {
        alone.push(match is_software {
            // Launches take next to nothing beside these kernels, and other programs on the host do not change the ratio.
            true => per_us * 1e6 / f64::from(load.iterations),
            false => alone_rate(&tenants, name, load)?,
        });
    }
    let begin_ms = start_time(TENANTS.len(), Duration::from_millis(2500))?;
    let mut children = Vec::new();
    for ((name, share), load) in TENANTS.iter().zip(&loads) {
        let load = Load {
            start_unix_ms: begin_ms,
            ..load.clone()
        };
        children.push(tenants.start(name, Some(*share), &load)?);
    }
    let seen = watch(&client, tenants.gpu, &mut children)?;
    let mut counted = Vec::new();
    for (child, alone) in children.into_iter().zip(&alone) {
        let report = report(child)?;
        ensure!(
            report.late_ms == 0,
            "a load was ready {} ms too late: is the machine overloaded?",
            report.late_ms
        );
        counted.push(report.kernels / alone);
    }
    let begin_ns = begin_ms as f64 * 1e6 - seen.unix_minus_monotonic_ns;
    let window = (begin_ns, begin_ns + seconds * 1e9);
    let had = |by_clock| -> Vec<f64> {
        let names = TENANTS.iter();
        names
            .map(|(name, _)| seen.seconds_of(name, window, by_clock))
            .collect()
    };
    let mut line = line(is_software, seconds, &had(false), &counted);
    if is_software {
        let clock = words(&parts(&had(true)));
        line.mica += &format!("; leases by the clock {clock}");
    }
    Ok(line)
}

fn words(parts: &[f64]) -> String {
    let texts: Vec<String> = parts.iter().map(|part| format!("{part:.1}")).collect();
    texts.join(" : ")
}

fn line(is_software: bool, seconds: f64, had: &[f64], counted: &[f64]) -> Line {
    let (turns, kernels) = (parts(had), parts(counted));
    let apart = turns.iter().zip(&kernels).map(|(a, b)| (a - b).abs());
    let apart = apart.fold(0.0, f64::max);
    let percent = |all: &[f64]| 100.0 * all.iter().sum::<f64>() / seconds;
    let gpu = if is_software { "software GPU" } else { "GPU" };
    Line {
        what: format!("{TIMELINE}, {gpu}"),
        native: format!(
            "they counted {}, {:.1} % of the time",
            words(&kernels),
            percent(counted)
        ),
        mica: format!(
            "turns {}, {:.1} % of the time; at most {apart:.2} points apart",
            words(&turns),
            percent(had)
        ),
        goal: "≤ 2 points".into(),
        reached: Some(apart <= MOST_POINTS),
    }
}

/// Where the tenants run; with a daemon of its own for the software GPU.
fn place(gpu: Option<BenchGpuArg>) -> Result<(Tenants, ControlClient, Option<PrivateDaemon>)> {
    if gpu != Some(BenchGpuArg::Software) {
        let exe = own_path()?;
        let client = mica_control::ensure_running(&exe)?;
        let gpus = client.gpus().map_err(explain)?;
        if let Some(found) = gpus.iter().find(|gpu| gpu.kind == GpuKind::Nvidia) {
            let tenants = Tenants {
                runtime_dir: None,
                gpu: found.index,
                memory: "2GiB",
            };
            return Ok((tenants, client, None));
        }
        ensure!(gpu.is_none(), "this host has no NVIDIA GPU");
        errln!("no NVIDIA GPU: measured on the software GPU");
    }
    let stage = PrivateDaemon::set_up(1 << 30)?;
    let tenants = Tenants::of(&stage);
    Ok((tenants, stage.client.clone(), Some(stage)))
}

/// Kernels a second of a tenant that is alone, with the time between its kernels.
fn alone_rate(tenants: &Tenants, name: &str, load: &Load) -> Result<f64> {
    let load = Load {
        seconds: load.seconds.min(ALONE_SECONDS),
        ..load.clone()
    };
    Ok(tenants.alone(name, &load)?.rate)
}

/// Two tenants that wait for each kernel, and one that always has more to do.
fn loads(per_us: f64, is_software: bool, seconds: f64) -> [Load; 3] {
    // The software GPU's launches take longer.
    let (burst_us, long_us) = if is_software {
        (2000.0, 4000.0)
    } else {
        (50.0, 400.0)
    };
    let iterations = |us: f64| (us * per_us).max(1.0) as u32;
    let bursty = load(Pattern::Burst, iterations(burst_us), 1, seconds);
    let saturating = load(Pattern::Saturate, iterations(long_us), 8, seconds);
    [bursty.clone(), bursty, saturating]
}

/// Turns that were told, by their numbers.
struct Seen {
    turns: HashMap<u64, Turn>,
    /// The clock of the loads less that of the turns.
    unix_minus_monotonic_ns: f64,
}

impl Seen {
    fn take(&mut self, told: Turns) {
        self.unix_minus_monotonic_ns = told.time_seconds * 1e9 - told.now_ns as f64;
        for turn in told.turns {
            self.turns.insert(turn.sequence, turn);
        }
    }

    /// Seconds for which a tenant had the GPU within a window: the GPU time of its turns where that is measured, or by
    /// the clock.
    fn seconds_of(&self, name: &str, (begin_ns, end_ns): (f64, f64), by_clock: bool) -> f64 {
        let own = self.turns.values().filter(|turn| turn.vgpu == name);
        let within = |turn: &Turn| {
            let end = turn.end_ns.map_or(end_ns, |end| end as f64);
            let length = end.min(end_ns) - begin_ns.max(turn.start_ns as f64);
            // Where gates are open, several have turns at once, and only their GPU time tells them apart. Under a lease a
            // tenant that thinks between two kernels holds the GPU and uses nothing.
            let whole = end - turn.start_ns as f64;
            let part = match (turn.busy_ns, turn.kind) {
                _ if whole <= 0.0 => 1.0,
                (None, _) => 1.0,
                (Some(_), TurnKind::Lease) if by_clock => 1.0,
                // Work may run on after its lease.
                (Some(busy), TurnKind::Lease) => busy as f64 / whole,
                (Some(busy), TurnKind::Open) => (busy as f64 / whole).min(1.0),
            };
            length.max(0.0) * part
        };
        own.map(within).sum::<f64>() / 1e9
    }
}

/// Asks for the turns until all loads have ended.
fn watch(client: &ControlClient, gpu: u32, children: &mut [Child]) -> Result<Seen> {
    let mut seen = Seen {
        turns: HashMap::new(),
        unix_minus_monotonic_ns: 0.0,
    };
    let mut after = client.turns(gpu, 0).map_err(explain)?.next;
    loop {
        std::thread::sleep(EVERY);
        let told = client.turns(gpu, after).map_err(explain)?;
        ensure!(!told.missed, "turns were forgotten before they were read");
        after = told.next;
        seen.take(told);
        let mut ended = 0;
        for child in children.iter_mut() {
            ended += usize::from(child.try_wait().context("a load is lost")?.is_some());
        }
        if ended == children.len() {
            return Ok(seen);
        }
    }
}

/// Percent of the sum.
fn parts(values: &[f64]) -> Vec<f64> {
    let sum: f64 = values.iter().sum();
    values.iter().map(|value| 100.0 * value / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_cut_to_the_window_and_open_ones_count_by_their_gpu_time() {
        let turn = |sequence, start_ns, end_ns, busy_ns| Turn {
            sequence,
            vgpu: "a".into(),
            start_ns,
            end_ns,
            busy_ns,
            ..Turn::default()
        };
        let mut seen = Seen {
            turns: HashMap::new(),
            unix_minus_monotonic_ns: 0.0,
        };
        seen.take(Turns {
            turns: vec![
                turn(1, 0, Some(2_000_000_000), None),
                turn(2, 3_000_000_000, None, None),
                turn(3, 3_000_000_000, Some(4_000_000_000), Some(500_000_000)),
            ],
            ..Turns::default()
        });
        // Told again, as it has ended.
        seen.take(Turns {
            turns: vec![turn(2, 3_000_000_000, Some(3_250_000_000), None)],
            ..Turns::default()
        });
        let seconds = seen.seconds_of("a", (1e9, 4e9), false);
        assert!((seconds - 1.75).abs() < 1e-9, "{seconds}");
        let by_clock = seen.seconds_of("a", (1e9, 4e9), true);
        assert!((by_clock - 2.25).abs() < 1e-9, "{by_clock}");
        assert_eq!(seen.seconds_of("b", (1e9, 4e9), false), 0.0);
    }

    #[test]
    fn accounts_that_differ_by_more_than_two_points_do_not_pass() {
        let good = line(true, 10.0, &[2.5, 2.5, 5.0], &[2.4, 2.4, 4.9]);
        assert_eq!(good.reached, Some(true), "{good:?}");
        let bad = line(true, 10.0, &[3.0, 2.5, 4.5], &[2.5, 2.5, 5.0]);
        assert_eq!(bad.reached, Some(false), "{bad:?}");
    }
}
