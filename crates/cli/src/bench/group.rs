//! Loads that compete: started together, counted over the same window.

use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use mica_load::{Load, LoadReport, Pattern};

use crate::program::own_path;

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
            options: vec!["--share".into(), share.to_string()],
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
    }
}

/// Runs all tenants at once and returns their reports in order.
pub(crate) fn compete(side: Side, tenants: &[Tenant]) -> Result<Vec<LoadReport>> {
    let start_unix_ms = start_time(tenants.len())?;
    let mut children = Vec::new();
    for tenant in tenants {
        let mut load = tenant.load.clone();
        load.start_unix_ms = start_unix_ms;
        let json = serde_json::to_string(&load)?;
        let exe = own_path()?;
        let mut command = Command::new(&exe);
        if side == Side::Mica {
            command
                .arg("run")
                .args(&tenant.options)
                .args(["--memory", "2GiB", "--"])
                .arg(&exe);
        }
        command
            .arg("load")
            .arg(json)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command.stderr(Stdio::piped());
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
fn start_time(tenants: usize) -> Result<u64> {
    let ahead = Duration::from_millis(2500 + 300 * tenants as u64);
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok((now + ahead).as_millis() as u64)
}
