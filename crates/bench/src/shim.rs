//! `mica bench shim`: the calls of an ordinary CUDA program through `libcuda.so.1` in isolated mode,
//! against the same engine in this process.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::session::{SessionNumbers, session_numbers};
use anyhow::{Context, Result, ensure};
use mica_load::{Load, LoadReport, Pattern};
use mica_worker::SoftwareDevices;

use super::group::{load, start_time};
use super::report::Report;
use super::shim_load::ShimNumbers;
use super::software::median;
use crate::demo::private_daemon::PrivateDaemon;
use crate::programs::{isolated_run, last_line, mica, numbers};
use crate::{BenchArgs, Libraries};
use mica_command::child::own_path;
use mica_command::refusal::explain;

/// Rounds of both sides.
const ROUNDS: usize = 5;
/// What the two programs at once ask for, in percent.
const SHARES: [u32; 2] = [70, 30];
/// Length of their kernels alone, and of the window they are counted in.
const KERNEL_US: f64 = 1000.0;
const SHARE_SECONDS: f64 = 8.0;
/// Programs killed in the middle of a copy.
const KILLS: usize = 7;

pub(crate) fn run(args: &BenchArgs, libraries: Libraries) -> Result<bool> {
    libraries()?;
    let daemon = PrivateDaemon::set_up(1 << 30)?;
    let devices = SoftwareDevices::new(0, Some(1 << 30), None);
    let (mut engine, mut shim) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        engine.push(session_numbers(&devices, 1)?);
        shim.push(program(&daemon)?);
    }
    let mut report = Report::new(args.json);
    launches(&engine, &shim, &mut report);
    memory(&shim, &mut report);
    programs(&daemon, &mut report)?;
    let startup = median_of(&shim, |n| n.startup_ms);
    report.row(
        "cuInit to the end of the first launch",
        "-".into(),
        format!("{startup:.1} ms"),
        "≤ 60 ms",
        Some(startup <= 60.0),
    );
    report.finish()
}

/// The median of one figure over all rounds.
fn median_of<T>(rounds: &[T], figure: fn(&T) -> f64) -> f64 {
    median(rounds.iter().map(figure).collect())
}

/// Launches, against the engine in the same process.
fn launches(engine: &[SessionNumbers], shim: &[ShimNumbers], report: &mut Report) {
    let direct = |figure| median_of(engine, figure);
    let through = |figure| median_of(shim, figure);
    let launch = through(|n| n.launch_ns);
    report.row(
        "cuLaunchKernel at its caller",
        format!("{:.0} ns", direct(|n| n.launch_direct_ns)),
        format!("{launch:.0} ns"),
        "≤ 1 µs",
        Some(launch <= 1000.0),
    );
    let (before, after) = (
        direct(|n| n.batch_direct_per_second),
        through(|n| n.batch_per_second),
    );
    let part = 100.0 * after / before;
    report.row(
        "launches in batches of 1,000",
        format!("{before:.0} a second"),
        format!("{after:.0} a second ({part:.0} %)"),
        "≥ 90 %",
        Some(part >= 90.0),
    );
    let (before, after) = (
        direct(|n| n.launch_sync_direct_us),
        through(|n| n.launch_sync_us),
    );
    let over = after - before;
    report.row(
        "launch + sync",
        format!("{before:.1} µs"),
        format!("{after:.1} µs ({over:+.1})"),
        "≤ +20 µs",
        Some(over <= 20.0),
    );
}

/// Copies and memory that both sides use.
fn memory(shim: &[ShimNumbers], report: &mut Report) {
    let through = |figure| median_of(shim, figure);
    report.copies([
        (
            "cuMemcpyHtoD, 1 MiB",
            through(|n| n.to_device_gib_per_second),
            through(|n| n.memcpy_gib_per_second),
        ),
        (
            "cuMemcpyDtoH, 1 MiB",
            through(|n| n.from_device_gib_per_second),
            through(|n| n.memcpy_gib_per_second),
        ),
        (
            "cuMemcpyHtoD, 64 MiB",
            through(|n| n.to_device_64_gib_per_second),
            through(|n| n.memcpy_64_gib_per_second),
        ),
        (
            "cuMemcpyDtoH, 64 MiB",
            through(|n| n.from_device_64_gib_per_second),
            through(|n| n.memcpy_64_gib_per_second),
        ),
    ]);
    let (small, large) = (
        through(|n| n.pinned_small_us),
        through(|n| n.pinned_large_us),
    );
    report.row(
        "host write, kernel, host read in 64 MiB of pinned memory",
        format!("{small:.1} µs in 4 KiB"),
        format!("{large:.1} µs"),
        "no copy: the same",
        // A copy of so much takes milliseconds.
        Some(large <= 2.0 * small + 20.0),
    );
}

/// Programs that are killed, and programs that compete.
fn programs(daemon: &PrivateDaemon, report: &mut Report) -> Result<()> {
    let back = killed_while_copying(daemon)?;
    report.row(
        "killed in the middle of a copy: all is back",
        "-".into(),
        format!(
            "{:.1} ms, at most {:.1}",
            median(back.clone()),
            back.iter().fold(0.0, |most: f64, ms| most.max(*ms))
        ),
        "≤ 100 ms",
        Some(back.iter().all(|ms| *ms <= 100.0)),
    );
    let got = shares(daemon)?;
    report.row(
        "two saturating programs at once, 70/30",
        "-".into(),
        format!("{:.1} / {:.1} of the kernels", got[0], got[1]),
        "error ≤ 1",
        Some((got[0] - f64::from(SHARES[0])).abs() <= 1.0),
    );
    Ok(())
}

/// Runs the program in a virtual GPU of the private daemon.
fn program(daemon: &PrivateDaemon) -> Result<ShimNumbers> {
    let mut command = isolated_run(daemon, &["--memory", "256MiB"])?;
    command.arg(own_path()?).arg("shim-load");
    numbers(command)
}

/// Percent of all kernels that each of two programs got done in the same window, both started by
/// `mica run` as people would.
fn shares(daemon: &PrivateDaemon) -> Result<[f64; 2]> {
    let calibrate = load(Pattern::Calibrate, 0, 1, 0.0);
    let alone: LoadReport = started(daemon, 50, &calibrate)?.join()?;
    // Its virtual GPU goes a moment after its process, and then its share.
    let asked = Instant::now();
    while !daemon.client.list().map_err(explain)?.is_empty() {
        ensure!(
            asked.elapsed() < Duration::from_secs(10),
            "a virtual GPU stays after its program"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    let iterations = (alone.iterations_per_us * KERNEL_US).clamp(1.0, 1e9) as u32;
    let mut saturate = load(Pattern::Saturate, iterations, 8, SHARE_SECONDS);
    saturate.start_unix_ms = start_time(SHARES.len(), Duration::from_millis(2500))?;
    let programs = SHARES.map(|share| started(daemon, share, &saturate));
    let mut kernels = [0.0; SHARES.len()];
    for (program, kernels) in programs.into_iter().zip(&mut kernels) {
        *kernels = program?.join()?.kernels;
    }
    let all: f64 = kernels.iter().sum();
    ensure!(all > 0.0, "no program finished a kernel");
    Ok(kernels.map(|kernels| 100.0 * kernels / all))
}

/// A load that runs in a virtual GPU of its own.
struct Started(std::process::Child);

fn started(daemon: &PrivateDaemon, share: u32, load: &Load) -> Result<Started> {
    let share = share.to_string();
    let child = isolated_run(daemon, &["--memory", "128MiB", "--share", &share])?
        .arg(own_path()?)
        .args(["load", &serde_json::to_string(load)?])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("a load cannot be started")?;
    Ok(Started(child))
}

impl Started {
    /// Waits for its end and reads what it reports.
    fn join(self) -> Result<LoadReport> {
        let output = self.0.wait_with_output()?;
        ensure!(
            output.status.success(),
            "a load failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        last_line(&String::from_utf8_lossy(&output.stdout))
    }
}

/// Milliseconds from a program's SIGKILL to the daemon's books being empty, as a client polls them.
fn killed_while_copying(daemon: &PrivateDaemon) -> Result<Vec<f64>> {
    const NAME: &str = "copier";
    daemon.vgpu(NAME, 128 << 20, 50)?;
    let exe = own_path()?;
    let used =
        || Ok::<_, anyhow::Error>(daemon.client.get(NAME).map_err(explain)?.memory_used_bytes);
    let mut back = Vec::new();
    for round in 0..KILLS {
        let mut child = mica(daemon, &["exec", NAME, "--"])?
            .arg(&exe)
            .args(["shim-load", "--copy-for-ever"])
            .stdout(Stdio::piped())
            .spawn()
            .context("the program cannot be started")?;
        let mut line = String::new();
        let output = child.stdout.take().context("no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let pid: i32 = line.trim().parse().context("the program did not start")?;
        // Not always at the same point of a copy.
        std::thread::sleep(Duration::from_millis(3 + 7 * round as u64));
        ensure!(used()? >= 64 << 20, "the program holds too little");
        let killed = Instant::now();
        // SAFETY: ends a program that this function has started and not waited for.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        while used()? > 0 {
            ensure!(
                killed.elapsed() < Duration::from_secs(10),
                "memory stays charged"
            );
            std::thread::sleep(Duration::from_micros(500));
        }
        back.push(killed.elapsed().as_secs_f64() * 1e3);
        child.wait()?;
    }
    // Its share is wanted next.
    daemon.client.remove(NAME, true).map_err(explain)?;
    Ok(back)
}
