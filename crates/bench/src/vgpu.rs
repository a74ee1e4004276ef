//! `mica bench vgpu`: what a virtual GPU costs over the same engine in the same process.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::decision::decision_ns;
use crate::session::{SessionNumbers, session_numbers, telemetry_cost};
use anyhow::{Context, Result, ensure};
use mica_scheduler::policy::PolicyKind;
use mica_worker::SoftwareDevices;

use super::report::{Line, Report};
use super::software::median;
use crate::demo::private_daemon::PrivateDaemon;
use crate::{BenchArgs, Libraries};
use mica_command::child::own_path;

/// Programs started on each side.
const STARTS: usize = 15;
/// Windows of launches that are compared with their neighbours.
const TELEMETRY_WINDOWS: usize = 60;

pub(crate) fn run(args: &BenchArgs, libraries: Libraries) -> Result<bool> {
    let only = args.only.clone().unwrap_or_default();
    let wanted = |name: &str| name.contains(&only);
    let mut report = Report::new(args.json);
    if wanted("session") {
        let devices = SoftwareDevices::new(0, Some(1 << 30), None);
        session(&session_numbers(&devices, 2)?, &mut report);
    }
    if wanted("telemetry") {
        report.add(telemetry()?);
    }
    if wanted("priority") {
        report.add(super::priority::run()?);
    }
    if wanted("scheduler") {
        decisions(&mut report);
    }
    if wanted("daemon") {
        report.add(daemon_memory()?);
    }
    if wanted("worker start") {
        super::confined::run(&mut report)?;
    }
    if wanted("start-up") {
        start_up(&mut report, libraries)?;
        at_once(&mut report, libraries)?;
    }
    report.finish()
}

fn telemetry() -> Result<Line> {
    let gpu = mica_backend_software::SoftwareGpu::new(mica_backend_software::Config {
        memory_bytes: Some(1 << 30),
        ..Default::default()
    })?;
    let gpu: std::sync::Arc<dyn mica_gpu::Gpu> = std::sync::Arc::new(gpu);
    let cost = telemetry_cost(&gpu, TELEMETRY_WINDOWS)?;
    Ok(Line {
        what: "telemetry, of a launch-bound program".into(),
        native: format!(
            "{:.0} launches a second (against itself {:+.2} %)",
            cost.unwatched_per_second, cost.nothing_percent
        ),
        mica: format!(
            "{:.0} a second ({:.2} % lost, ±{:.2}; a look takes {:.1} µs)",
            cost.watched_per_second, cost.lost_percent, cost.uncertain_percent, cost.look_us
        ),
        goal: "≤ 1 %".into(),
        // A machine that is used by others tells nothing.
        reached: (cost.uncertain_percent <= 0.5).then_some(cost.lost_percent <= 1.0),
    })
}

fn decisions(report: &mut Report) {
    for (name, policy) in [
        ("weighted fair", PolicyKind::WeightedFair),
        ("strict priority", PolicyKind::StrictPriority),
        ("earliest deadline", PolicyKind::EarliestDeadline),
    ] {
        let few = decision_ns(policy, 2, 200_000);
        let many = decision_ns(policy, 1000, 200_000);
        report.add(Line {
            what: format!("scheduler decision, {name}, 1,000 tenants"),
            native: format!("{few:.0} ns with 2"),
            mica: format!("{many:.0} ns"),
            goal: "≤ 1 µs".into(),
            reached: Some(many <= 1000.0),
        });
    }
}

fn session(n: &SessionNumbers, report: &mut Report) {
    report.row(
        "launch at its caller (posted)",
        format!("{:.0} ns in process", n.launch_direct_ns),
        format!(
            "{:.0} ns (p99 {:.0})",
            n.launch_post_ns, n.launch_post_p99_ns
        ),
        "≤ 1 µs",
        Some(n.launch_post_ns <= 1000.0),
    );
    let over = n.launch_sync_over_us();
    report.row(
        "launch + sync",
        format!("{:.1} µs in process", n.launch_sync_direct_us),
        format!("{:.1} µs ({over:+.1})", n.launch_sync_us),
        "≤ +20 µs",
        Some(over <= 20.0),
    );
    let part = 100.0 * n.batch_per_second / n.batch_direct_per_second;
    report.row(
        "launches in batches of 1,000",
        format!("{:.0} a second in process", n.batch_direct_per_second),
        format!("{:.0} a second ({part:.0} %)", n.batch_per_second),
        "-",
        None,
    );
    let (small, large) = (n.memcpy_gib_per_second, n.memcpy_64_gib_per_second);
    report.copies([
        (
            "copy 1 MiB to the device",
            n.to_device_gib_per_second,
            small,
        ),
        (
            "copy 1 MiB from the device",
            n.from_device_gib_per_second,
            small,
        ),
        (
            "copy 64 MiB to the device",
            n.to_device_64_gib_per_second,
            large,
        ),
        (
            "copy 64 MiB from the device",
            n.from_device_64_gib_per_second,
            large,
        ),
    ]);
    report.row(
        "first copy of 64 MiB into untouched memory",
        format!("{:.1} ms memcpy", n.memcpy_fresh_ms),
        format!("{:.1} ms", n.to_device_fresh_ms),
        "-",
        None,
    );
    report.row(
        "charge and release of memory, hot path",
        "-".into(),
        format!("{:.0} ns", n.quota_ns),
        "≤ 200 ns",
        Some(n.quota_ns <= 200.0),
    );
}

fn daemon_memory() -> Result<Line> {
    let daemon = PrivateDaemon::set_up(1 << 30)?;
    // Start-up is over when the first answer has come; let what it needed for that settle.
    std::thread::sleep(Duration::from_millis(500));
    let resident = super::resident_bytes_of(daemon.daemon_pid())? as f64 / 1e6;
    Ok(Line {
        what: "memory of an idle daemon".into(),
        native: "-".into(),
        mica: format!("{resident:.1} MB"),
        goal: "≤ 30 MB".into(),
        reached: Some(resident <= 30.0),
    })
}

/// What `mica run` adds to the start and end of a program, with the daemon up and not up.
fn start_up(report: &mut Report, libraries: Libraries) -> Result<()> {
    if let Err(error) = libraries() {
        errln!("start-up is not measured: {error:#}");
        return Ok(());
    }
    let daemon = PrivateDaemon::set_up(1 << 30)?;
    let (mut bare, mut up, mut down) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=STARTS {
        let plain = timed(Command::new("true"))?;
        let with_daemon = timed(mica_run(daemon.folder())?)?;
        let empty = tempfile::tempdir()?;
        let without = timed(mica_run(empty.path())?)?;
        stop_daemon(empty.path())?;
        if round > 0 {
            bare.push(plain);
            up.push(with_daemon);
            down.push(without);
        }
    }
    let what = "start-up through mica run";
    add_starts(report, what, median(bare), [up, down], "");
    Ok(())
}

/// What a start costs more than a bare one, with a daemon that is up and with one that has to be started.
fn add_starts(report: &mut Report, what: &str, bare: f64, times: [Vec<f64>; 2], also: &str) {
    for (times, (daemon, most)) in times.into_iter().zip([("up", 50.0), ("not up", 300.0)]) {
        let time = median(times);
        let over = time - bare;
        report.add(Line {
            what: format!("{what}, daemon {daemon}"),
            native: format!("{bare:.1} ms bare"),
            mica: format!("{time:.1} ms ({over:+.1}){also}"),
            goal: format!("≤ +{most} ms"),
            reached: Some(over <= most),
        });
    }
}

/// Programs that start at once.
const AT_ONCE: usize = 64;

/// What each of many programs that start at once costs more than as many bare ones.
fn at_once(report: &mut Report, libraries: Libraries) -> Result<()> {
    if let Err(error) = libraries() {
        errln!("starting many at once is not measured: {error:#}");
        return Ok(());
    }
    let daemon = PrivateDaemon::set_up(4 << 30)?;
    let (mut bare, mut up, mut down) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..3 {
        bare.push(all_at_once(|| Ok(Command::new("true")))?);
        up.push(all_at_once(|| mica_run(daemon.folder()))?);
        let empty = tempfile::tempdir()?;
        down.push(all_at_once(|| mica_run(empty.path()))?);
        stop_daemon(empty.path())?;
    }
    let what = "64 programs at once, each";
    add_starts(report, what, median(bare), [up, down], ", none failed");
    Ok(())
}

/// Milliseconds from the first start to the last end, for each.
fn all_at_once(command: impl Fn() -> Result<Command>) -> Result<f64> {
    let began = Instant::now();
    let mut children = Vec::new();
    for _ in 0..AT_ONCE {
        let mut command = command()?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        children.push(command.spawn().context("a program cannot be started")?);
    }
    for mut child in children {
        let status = child.wait()?;
        ensure!(
            status.success(),
            "one of {AT_ONCE} programs failed: {status}"
        );
    }
    Ok(began.elapsed().as_secs_f64() * 1e3 / AT_ONCE as f64)
}

fn mica_run(runtime_dir: &Path) -> Result<Command> {
    let mut command = Command::new(own_path()?);
    command
        .args(["run", "--memory", "64MiB", "--", "true"])
        .env("MICA_RUNTIME_DIR", runtime_dir)
        .env_remove("MICA_STATE_DIR");
    Ok(command)
}

fn stop_daemon(runtime_dir: &Path) -> Result<()> {
    Command::new(own_path()?)
        .args(["daemon", "--stop"])
        .env("MICA_RUNTIME_DIR", runtime_dir)
        .stdout(Stdio::null())
        .status()
        .context("the daemon cannot be stopped")?;
    // The folder goes with the daemon in it only when the daemon has gone.
    let socket = runtime_dir.join("control.sock");
    let began = Instant::now();
    while UnixStream::connect(&socket).is_ok() && began.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Milliseconds from the start of a program to its end.
fn timed(mut command: Command) -> Result<f64> {
    let began = Instant::now();
    let output = command
        .stdin(Stdio::null())
        .output()
        .context("a program cannot be started")?;
    let time = began.elapsed().as_secs_f64() * 1e3;
    ensure!(
        output.status.success(),
        "{:?} failed: {}",
        command.get_program(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(time)
}
