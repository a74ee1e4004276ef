//! Loads that compete: started together, counted over the same window.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use mica_load::{Load, LoadReport, Pattern};
use serde::de::DeserializeOwned;

use mica_command::child::{ends_with_us, own_path};

/// One competitor.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    /// Options of `mica run`, such as `--share 30`; unused natively.
    pub(crate) options: Vec<String>,
    /// What it runs.
    pub(crate) load: Load,
}

impl Tenant {
    /// A tenant with a share.
    pub(crate) fn with_share(share: u32, load: Load) -> Self {
        Self {
            options: ["--memory", "2GiB", "--share", &share.to_string()]
                .map(str::to_owned)
                .to_vec(),
            load,
        }
    }

    /// The same with one more option.
    pub(crate) fn option(mut self, words: &[&str]) -> Self {
        self.options
            .extend(words.iter().map(|word| (*word).to_owned()));
        self
    }
}

/// How the competitors are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Straight on the driver.
    Native,
    /// Each in a virtual GPU.
    Mica,
}

/// A load with the usual shape.
pub(crate) fn load(pattern: Pattern, iterations: u32, depth: u32, seconds: f64) -> Load {
    Load {
        pattern,
        iterations,
        depth,
        start_unix_ms: 0,
        seconds,
        hold_mib: 0,
    }
}

/// Runs all tenants at once and returns their reports in order. Whoever is late leaves the GPU to the others for a
/// moment, so then all of it is done again.
pub(crate) fn compete(side: Side, tenants: &[Tenant]) -> Result<Vec<LoadReport>> {
    let mut late_ms = 0;
    for ahead_ms in [2500, 5000, 10_000] {
        let reports = compete_once(side, tenants, Duration::from_millis(ahead_ms))?;
        late_ms = reports
            .iter()
            .map(|report| report.late_ms)
            .max()
            .unwrap_or(0);
        if late_ms == 0 {
            return Ok(reports);
        }
        errln!("a load was ready {late_ms} ms too late: measured again, with more time before");
    }
    bail!("a load was ready {late_ms} ms too late three times: is the machine overloaded?")
}

fn compete_once(side: Side, tenants: &[Tenant], ahead: Duration) -> Result<Vec<LoadReport>> {
    let start_unix_ms = start_time(tenants.len(), ahead)?;
    let exe = own_path()?;
    let mut programs = Vec::new();
    for tenant in tenants {
        let mut load = tenant.load.clone();
        load.start_unix_ms = start_unix_ms;
        programs.push(Program {
            options: tenant.options.clone(),
            command: vec![
                exe.clone().into(),
                "load".into(),
                serde_json::to_string(&load)?.into(),
            ],
        });
    }
    run_together(side, &programs)
}

/// A command and the options of `mica run` for it.
pub(crate) struct Program {
    /// Options of `mica run`; unused natively.
    pub(crate) options: Vec<String>,
    /// The program and its arguments.
    pub(crate) command: Vec<OsString>,
}

impl Program {
    /// What to start for it, its output read by the caller.
    pub(super) fn command(&self, side: Side) -> Result<Command> {
        let mut words: Vec<OsString> = Vec::new();
        if side == Side::Mica {
            words.extend([own_path()?.into(), "run".into()]);
            words.extend(self.options.iter().map(OsString::from));
            words.push("--".into());
        }
        words.extend(self.command.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdout(Stdio::piped());
        ends_with_us(&mut command, libc::SIGTERM);
        Ok(command)
    }
}

/// Runs all programs at once and returns, in order, the JSON each printed as its last line.
pub(crate) fn run_together<T: DeserializeOwned>(
    side: Side,
    programs: &[Program],
) -> Result<Vec<T>> {
    let mut children = Vec::new();
    for program in programs {
        let mut command = program.command(side)?;
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        children.push(command.spawn().context("a load cannot be started")?);
    }
    let mut reports = Vec::new();
    for child in children {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!(
                "a load failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().last().unwrap_or_default();
        reports.push(serde_json::from_str(line).with_context(|| format!("not a report: {line}"))?);
    }
    Ok(reports)
}

/// Far enough ahead that every competitor has its context by then, and has warmed up.
pub(crate) fn start_time(tenants: usize, warm_up: Duration) -> Result<u64> {
    let ahead = warm_up + Duration::from_millis(300 * tenants as u64);
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok((now + ahead).as_millis() as u64)
}
