//! `cargo xtask attack [--minutes N] [FILTER]`: the tests in which something hostile is tried, by family, in ten minutes.
//!
//! Owns the order, the time limit and the verdicts. `families` names the tests; `cargo xtask test` runs them too.

mod families;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bounded::{self, Outcome, Scratch};
use crate::command::{self, cargo, minutes_and_name, target};
use crate::executables::{self, Executable, counts};
use families::{FAMILIES, Family, Step};

/// Longest that all families together run, builds apart, when nothing else is said. A machine that does other things
/// meanwhile needs more.
const MINUTES: u64 = 10;
/// Lines of a failed family's output that are shown.
const SHOWN_LINES: usize = 40;

/// What became of a family.
struct Report {
    tests: usize,
    time: Duration,
    /// Why steps failed.
    failures: Vec<String>,
}

/// Tries the families whose name contains the filter.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let (limit, filter) = minutes_and_name(words, MINUTES)?;
    let filter = filter.unwrap_or("");
    let chosen: Vec<&Family> = FAMILIES
        .iter()
        .filter(|f| f.name.contains(filter))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = FAMILIES.iter().map(|f| f.name).collect();
        bail!("no family has {filter:?} in its name: {}", names.join(", "));
    }
    bounded::catch_interrupts();
    let scratch = Scratch::new("attack")?;
    let programs = build()?;
    let logs = target().join("attack");
    std::fs::create_dir_all(&logs).with_context(|| format!("{}", logs.display()))?;
    if !is_root(&scratch.0)? {
        println!("not root: attacks by another user of the machine are left out");
    }
    let start = Instant::now();
    let (mut passed, mut failed) = (0, 0);
    for family in chosen {
        let left = limit.saturating_sub(start.elapsed());
        let log = logs.join(format!("{}.log", family.name.replace(' ', "-")));
        let report = attempt(family, &programs, &log, left, &scratch.0)?;
        if bounded::interrupted() {
            bail!("interrupted; output is in {}", logs.display());
        }
        print(family, &report, &log);
        match report.failures.is_empty() {
            true => passed += 1,
            false => failed += 1,
        }
    }
    println!("{passed} passed, {failed} failed");
    match failed {
        0 => Ok(()),
        _ => bail!("attacks failed; output is in {}", logs.display()),
    }
}

/// Builds what the tests load as files, then the tests. The whole workspace, as `cargo xtask test` does: for another choice cargo
/// would build dependencies with other features again.
fn build() -> Result<Vec<Executable>> {
    command::run("build", &mut cargo(&["build", "--workspace"]))?;
    executables::build("tests", &mut cargo(&["test", "--workspace"]))
}

/// Whether files that this process makes belong to root.
fn is_root(own: &Path) -> Result<bool> {
    Ok(std::fs::metadata(own)?.uid() == 0)
}

/// Runs the steps of a family, those after one that failed too.
fn attempt(
    family: &Family,
    programs: &[Executable],
    log: &PathBuf,
    limit: Duration,
    scratch: &Path,
) -> Result<Report> {
    std::fs::write(log, "").with_context(|| format!("{}", log.display()))?;
    let start = Instant::now();
    let (mut tests, mut failures) = (0, Vec::new());
    for step in family.steps {
        let program = programs
            .iter()
            .find(|p| p.package == step.package && p.target == step.target);
        let program = program.with_context(|| format!("there is no test {step}"))?;
        let before = std::fs::read_to_string(log)?.len();
        let mut command = program.command();
        command.args(step.only).env("TMPDIR", scratch);
        command.envs(step.environment.iter().copied());
        let left = limit.saturating_sub(start.elapsed());
        let outcome = bounded::run(&mut command, log, left, |_| ())?;
        let output = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
        let (passed, _) = counts(output.get(before..).unwrap_or_default());
        tests += passed;
        failures.extend(judge(step, outcome, passed));
        if outcome == Outcome::Interrupted {
            break;
        }
    }
    let time = start.elapsed();
    Ok(Report {
        tests,
        time,
        failures,
    })
}

/// Why a step failed. One that ran no test has failed: the test was renamed.
fn judge(step: &Step, outcome: Outcome, passed: usize) -> Option<String> {
    match outcome {
        Outcome::Ended(status) if status.success() && passed >= step.only.len().max(1) => None,
        Outcome::Ended(status) if status.success() => {
            Some(format!("{step}: {passed} tests ran, fewer than are named"))
        }
        Outcome::Ended(status) => Some(format!("{step}: {status}")),
        Outcome::OutOfTime => Some(format!("{step}: not done in time, see --minutes")),
        Outcome::Interrupted => Some(format!("{step}: interrupted")),
    }
}

fn print(family: &Family, report: &Report, log: &Path) {
    let (tests, seconds) = (report.tests, report.time.as_secs_f64());
    let verdict = match report.failures.as_slice() {
        [] => "passed".to_string(),
        reasons => {
            let text = std::fs::read(log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
                println!("    {line}");
            }
            format!("FAILED: {}", reasons.join(", "))
        }
    };
    println!(
        "{:<16} {:<78} {tests:>3} tests {seconds:>6.1} s  {verdict}",
        family.name, family.tried
    );
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_step_without_its_tests_has_failed() {
        let step = Step {
            only: &["one", "two"],
            ..families::whole("worker", "jail")
        };
        let ended = |raw| Outcome::Ended(ExitStatus::from_raw(raw));
        assert_eq!(judge(&step, ended(0), 2), None);
        assert!(judge(&step, ended(0), 1).is_some_and(|r| r.contains("fewer")));
        assert!(judge(&families::whole("worker", "jail"), ended(0), 0).is_some());
        assert!(judge(&step, ended(11), 2).is_some_and(|r| r.contains("signal: 11")));
        assert!(judge(&step, Outcome::OutOfTime, 2).is_some_and(|r| r.contains("not done")));
    }

    /// Packages and targets of the tests in the last column of the threat model's table.
    fn promised() -> Vec<(String, String)> {
        let text = std::fs::read_to_string(command::root().join("THREAT_MODEL.md")).unwrap();
        let rows = text.lines().filter(|line| line.starts_with("| "));
        let cells = rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit('|').next());
        let mut found = Vec::new();
        for cell in cells {
            // A file without a folder is in the folder of the file before.
            let mut package = String::new();
            let files = cell.split('`').filter(|word| word.ends_with(".rs"));
            for file in files {
                let parts: Vec<&str> = file.trim_end_matches(".rs").split('/').collect();
                let targets = match parts[..] {
                    [_, "src", ..] => "lib",
                    [_, "tests", test, ..] | [test] => test.trim_matches(['{', '}']),
                    _ => panic!("{file} is no test"),
                };
                if parts.len() > 1 {
                    package = parts[0].into();
                }
                let targets = targets.split(',');
                found.extend(targets.map(|target| (package.clone(), target.trim().into())));
            }
        }
        found
    }

    #[test]
    fn every_test_that_the_threat_model_names_is_run() {
        let promised = promised();
        assert!(promised.len() > 30, "{promised:?}");
        for (package, target) in promised {
            let mut steps = FAMILIES.iter().flat_map(|f| f.steps);
            // The command has no library: its own tests are those of its program.
            let target = match (package.as_str(), target.as_str()) {
                ("cli", "lib") => "bin",
                (_, target) => target,
            };
            let is_run = steps.any(|s| s.package == package && s.target == target);
            assert!(is_run, "no family runs {target} of {package}");
        }
    }

    #[test]
    fn every_test_that_a_family_names_is_a_file() {
        let root = command::root();
        for step in FAMILIES.iter().flat_map(|f| f.steps) {
            let package = root.join("crates").join(step.package);
            let tests = package.join("tests");
            let one = tests.join(format!("{}.rs", step.target));
            let several = tests.join(step.target).join("main.rs");
            let found = ["lib", "bin"].contains(&step.target) || one.is_file() || several.is_file();
            assert!(package.is_dir() && found, "{step}");
        }
    }
}
