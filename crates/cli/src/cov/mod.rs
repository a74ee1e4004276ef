//! `mica cov`: which lines of device code a program's kernels reached.
//!
//! ```text
//!   create a virtual GPU that records coverage ─► program ─► lines in a memory file ─► follow: report
//!                            tracefiles of other runs ─► report ─► table, JSON, lcov; exit code
//! ```
//! The file of lines is anonymous memory of this process, so that nothing stays behind however it ends.

mod follow;
mod show;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use mica_coverage::{Report, Tracefile, lcov, percent};

use crate::args::{CovArgs, ModeArg, WatchArgs};
use crate::follower::file_in_memory;
use crate::program;

/// Most bytes of a tracefile that is added.
const MOST_TRACEFILE: u64 = 1 << 30;

/// Runs a program and returns its exit code, or 1 if less was reached than asked for; without a program, adds up
/// tracefiles.
pub(crate) fn run(args: &CovArgs) -> Result<i32> {
    if args.spec.mode == Some(ModeArg::Direct) {
        bail!(
            "mica cov runs on the software GPU: in direct mode a GPU's own driver runs kernels, and it does not record which \
             lines they reach"
        );
    }
    // What would fail at the end fails before the program runs. A file that is read too keeps its text until then.
    let added = args.add_tracefile.iter().map(|path| read(path));
    let added: Vec<Tracefile> = added.collect::<Result<_>>()?;
    if let Some(path) = &args.lcov {
        writable(path)?;
    }
    let (code, mut report) = match args.command.is_empty() {
        true => (0, Report::default()),
        false => run_program(args)?,
    };
    added
        .into_iter()
        .for_each(|tracefile| report.add(tracefile));
    report.retain(|path| is_wanted(args, path));
    let launched = report.kernels.values().any(|kernel| kernel.launches > 0);
    if !args.command.is_empty() && !launched {
        errln!("mica: cov: the program launched no kernel that ended");
    }
    if args.json {
        let json = mica_coverage::json(&report);
        outln!("{}", serde_json::to_string_pretty(&json)?);
    } else {
        show::tell(&report, !args.command.is_empty());
    }
    say_losses(&report);
    if let Some(path) = &args.lcov {
        std::fs::write(path, lcov::write(&report))
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    Ok(match (code, args.fail_under) {
        (0, Some(least)) => judge(&report, least),
        _ => code,
    })
}

fn run_program(args: &CovArgs) -> Result<(i32, Report)> {
    let (file, path) = file_in_memory("mica-cov")?;
    let follower = follow::start(file)?;
    let watch = WatchArgs {
        profile: Some(path),
        loads_all: true,
        ..WatchArgs::default()
    };
    let code = program::run_covered(args, &watch);
    let report = follower.finish();
    // A program that did not start has no coverage.
    Ok((code?, report))
}

/// The exit code, where a part of the lines must be reached.
fn judge(report: &Report, least: f64) -> i32 {
    let (found, reached) = report.totals();
    let part = percent(found, reached);
    if part >= least {
        return 0;
    }
    errln!("mica: cov: {part:.1} % of the lines were reached, and --fail-under asks for {least} %");
    1
}

fn say_losses(report: &Report) {
    if report.lost > 0 {
        errln!(
            "mica: cov: the report is not whole: {} modules or functions were too many",
            report.lost
        );
    }
    if report.unreadable > 0 {
        let lines = report.unreadable;
        errln!("mica: cov: {lines} lines of what was recorded make no sense");
    }
}

fn is_wanted(args: &CovArgs, path: &str) -> bool {
    let any = |patterns: &[String]| patterns.iter().any(|pattern| is_like(pattern, path));
    (args.include.is_empty() || any(&args.include)) && !any(&args.exclude)
}

/// Whether a path is like a pattern, in which `*` stands for any text.
fn is_like(pattern: &str, path: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = path.strip_prefix(first) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else {
        return rest.is_empty();
    };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn read(path: &Path) -> Result<Tracefile> {
    let shown = path.display();
    let size = std::fs::metadata(path).with_context(|| format!("{shown} cannot be read"))?;
    if size.len() > MOST_TRACEFILE {
        bail!("{shown} is too large for a tracefile: {} bytes", size.len());
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("{shown} cannot be read"))?;
    let read = Tracefile::parse(&text).with_context(|| format!("{shown} is not a tracefile"))?;
    if read.left_out > 0 {
        let records = read.left_out;
        errln!(
            "mica: cov: {shown}: {records} records are left out: only lines and functions are added"
        );
    }
    Ok(read)
}

/// Whether a file can be written, without a change to it.
fn writable(path: &Path) -> Result<()> {
    let is_new = !path.exists();
    let open = File::options().append(true).create(true).open(path);
    let mut file = open.with_context(|| format!("{} cannot be written", path.display()))?;
    file.flush()?;
    if is_new {
        // A program that does not start leaves no empty report.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_for_whole_paths() {
        assert!(is_like("*/cub/*", "/opt/cuda/include/cub/block.cuh"));
        assert!(is_like("src/*.cu", "src/a.cu"));
        assert!(is_like("a.cu", "a.cu"));
        assert!(!is_like("a.cu", "b/a.cu"));
        assert!(!is_like("src/*.cu", "src/a.cuh"));
    }
}
