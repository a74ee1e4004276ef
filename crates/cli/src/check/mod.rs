//! `mica check`: runs a program on a software GPU that looks for mistakes of kernels, and tells what was found.
//!
//! ```text
//!   create a checked virtual GPU ─► program ── records ──► memory file ──► follow: text as it comes
//!                                                                  └────► end: summary, JSON, SARIF, exit code
//! ```
//! The file of records is anonymous memory of this process, so that nothing stays behind however it ends.

mod follow;
mod frames;
pub(crate) mod leaks;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use mica_check::report::{Suppressions, sarif, summary, text};
use mica_check::{CheckSettings, Finding, Severity};

use crate::args::{CheckArgs, WatchArgs};
use crate::follower::file_in_memory;
use crate::program;

/// What the library in the program must know.
#[derive(Clone, Debug)]
pub(crate) struct CheckEnvironment {
    pub(crate) tools: String,
    pub(crate) report: PathBuf,
}

/// Runs a program and returns its exit code, or the code for mistakes.
pub(crate) fn run(args: &CheckArgs) -> Result<i32> {
    let suppressions = suppressions(args.suppress.as_deref())?;
    let settings = CheckSettings {
        tools: args.tool,
        schedule: args.schedule,
    };
    if let Some(path) = &args.sarif {
        // What would fail at the end fails before the program runs.
        write(path, "")?;
    }
    let (file, environment) = report_file(settings.tools.to_string())?;
    let quiet = args.json;
    let follower = follow::start(file, suppressions, move |finding: &Finding| {
        if !quiet {
            errln!("{}", marked(&text(finding)));
        }
    })?;
    let watch = WatchArgs {
        check: Some(environment),
        ..WatchArgs::default()
    };
    let code = program::run_checked(args, &settings, &watch);
    let seen = follower.finish();
    // A program that did not start has no report.
    let code = code?;
    tell(args, &seen)?;
    let errors = seen
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error);
    Ok(match errors.count() {
        0 => code,
        _ => args.error_exitcode,
    })
}

/// Memory that the program appends its records to, and what its library must know to do so.
fn report_file(tools: String) -> Result<(File, CheckEnvironment)> {
    let (file, report) = file_in_memory("mica-check")?;
    Ok((file, CheckEnvironment { tools, report }))
}

/// Lines with Mica's mark before the first.
fn marked(text: &str) -> String {
    format!("mica: {}", text.trim_end())
}

fn suppressions(path: Option<&Path>) -> Result<Suppressions> {
    let Some(path) = path else {
        return Ok(Suppressions::default());
    };
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("{shown} cannot be read"))?;
    match Suppressions::parse(&text) {
        Ok(rules) => Ok(rules),
        Err(error) => bail!("{shown}: {error}"),
    }
}

fn tell(args: &CheckArgs, seen: &follow::Seen) -> Result<()> {
    let line = summary(&seen.findings, seen.suppressed);
    if args.json {
        let report = serde_json::json!({
            "tools": args.tool.to_string(),
            "kernels": seen.kernels,
            "suppressed": seen.suppressed,
            "findings": seen.findings,
        });
        outln!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        let kernels = match seen.kernels {
            1 => "1 launch".to_owned(),
            n => format!("{n} launches"),
        };
        errln!("mica: check: {line} in {kernels} ({})", args.tool);
        if seen.kernels == 0 && seen.findings.is_empty() {
            errln!("mica: check: the program launched no kernel that ended");
        }
    }
    if seen.unreadable > 0 {
        errln!(
            "mica: check: {} lines of the report make no sense",
            seen.unreadable
        );
    }
    if let Some(path) = &args.sarif {
        let log = sarif(&seen.findings, env!("CARGO_PKG_VERSION"));
        write(path, &serde_json::to_string_pretty(&log)?)?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    let to = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(text.as_bytes())
    };
    to().with_context(|| format!("{} cannot be written", path.display()))
}
