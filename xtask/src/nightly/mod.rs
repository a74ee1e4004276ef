//! `cargo xtask nightly [--minutes N] [--record] [TARGET]`: each fuzz target for N minutes, then test suites, all with the
//! address sanitizer.
//!
//! Owns the order, the table at the end and the folder `target/nightly`: `corpus` is kept and grows from night to
//! night, `findings` has a folder for each target that failed, `logs` is written anew. With `--record` the time of each
//! target goes into `docs/measurements/fuzzing.md`.

mod fingerprint;
mod fuzz;
mod progress;
mod record;
mod suites;
mod toolchain;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::bounded::{self, Scratch};
use crate::command::{minutes_and_name, target};
use crate::measurements::today;
use fingerprint::Packages;
use fuzz::{Fuzzed, Target};
use record::Run;
use suites::Suite;
use toolchain::Toolchain;

/// Where results go, and how long each target runs.
struct Night {
    folder: PathBuf,
    scratch: Scratch,
    limit: Duration,
    toolchain: Toolchain,
}

/// The word by which times are recorded.
const RECORD: &str = "--record";

/// A line of the table.
struct Row {
    name: &'static str,
    /// Inputs that were run, or tests that passed.
    tried: String,
    time: Duration,
    /// Why it failed and where that was put; empty when it passed.
    findings: Vec<String>,
}

impl Night {
    /// A folder of `target/nightly`, made when it is missing.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("{}", path.display()))?;
        Ok(path)
    }

    /// An empty file for a target's output.
    fn log(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder("logs")?.join(format!("{name}.log"));
        std::fs::write(&path, "").with_context(|| format!("{}", path.display()))?;
        Ok(path)
    }
}

/// Runs everything, or the one target or suite that is named.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let is_recorded = words.contains(&RECORD);
    let others: Vec<&str> = words.iter().copied().filter(|w| *w != RECORD).collect();
    let (limit, name) = minutes_and_name(&others, 60)?;
    let fuzzed: Vec<&Target> = fuzz::TARGETS
        .iter()
        .filter(|t| name.is_none_or(|n| n == t.name))
        .collect();
    let suites: Vec<&Suite> = suites::SUITES
        .iter()
        .filter(|s| name.is_none_or(|n| n == s.name))
        .collect();
    if fuzzed.is_empty() && suites.is_empty() {
        let known = fuzz::TARGETS.iter().map(|t| t.name);
        let known: Vec<&str> = known.chain(suites::SUITES.iter().map(|s| s.name)).collect();
        bail!("no target {:?}: {}", name.unwrap_or(""), known.join(", "));
    }
    bounded::catch_interrupts();
    let night = Night {
        folder: target().join("nightly"),
        scratch: Scratch::new("nightly")?,
        limit,
        toolchain: Toolchain::find()?,
    };
    let mut rows = Vec::new();
    let outcome = codes(&night, &fuzzed, is_recorded)
        .and_then(|codes| all(&night, &fuzzed, &codes, &suites, &mut rows));
    // What was found before an error or an interruption is shown too.
    print(&rows);
    outcome?;
    let failed = rows.iter().filter(|r| !r.findings.is_empty()).count();
    println!("{} passed, {failed} failed", rows.len() - failed);
    match failed {
        0 => Ok(()),
        _ => bail!("findings are in {}", night.folder("findings")?.display()),
    }
}

/// The hash of the code of each target, before it is built; none if nothing is recorded.
fn codes(night: &Night, fuzzed: &[&Target], is_recorded: bool) -> Result<Vec<String>> {
    if !is_recorded || fuzzed.is_empty() {
        return Ok(Vec::new());
    }
    let packages = Packages::read(&night.toolchain.triple)?;
    let code = |target: &&Target| packages.fingerprint(target.name);
    fuzzed.iter().map(code).collect()
}

fn all(
    night: &Night,
    fuzzed: &[&Target],
    codes: &[String],
    suites: &[&Suite],
    rows: &mut Vec<Row>,
) -> Result<()> {
    if !fuzzed.is_empty() {
        fuzz::build(night, fuzzed)?;
    }
    for (at, target) in fuzzed.iter().enumerate() {
        let Fuzzed {
            row,
            inputs,
            processor_time,
        } = fuzz::run(night, target)?;
        let has_found = !row.findings.is_empty();
        rows.push(row);
        if let Some(code) = codes.get(at) {
            let run = Run {
                target: target.name,
                code,
                time: processor_time,
                inputs,
                has_found,
            };
            record::add(&run, &today()?)?;
        }
        stop_if_interrupted(night)?;
    }
    for suite in suites {
        rows.push(suites::run(night, suite)?);
        stop_if_interrupted(night)?;
    }
    Ok(())
}

fn stop_if_interrupted(night: &Night) -> Result<()> {
    if bounded::interrupted() {
        bail!(
            "interrupted; the corpus is kept in {}",
            night.folder.display()
        );
    }
    Ok(())
}

fn print(rows: &[Row]) {
    println!("{:<14} {:>24} {:>9}  verdict", "target", "tried", "time");
    for row in rows {
        let verdict = match row.findings.as_slice() {
            [] => "passed".to_string(),
            findings => format!("FAILED: {}", findings.join(", ")),
        };
        let seconds = row.time.as_secs_f64();
        println!(
            "{:<14} {:>24} {seconds:>7.0} s  {verdict}",
            row.name, row.tried
        );
    }
}
