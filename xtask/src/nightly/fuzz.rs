//! The fuzz targets, and how each is run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Night, Row, progress};
use crate::bounded::{self, Outcome};
use crate::command::{self, root, target};

/// A program of `fuzz/fuzz_targets`.
pub(super) struct Target {
    pub(super) name: &'static str,
    /// Folders of `fuzz/corpus` with seeds.
    seeds: &'static [&'static str],
    /// A dictionary in `fuzz`.
    dictionary: Option<&'static str>,
    /// Longest input; 0: libFuzzer's choice.
    max_len: u32,
    environment: &'static [(&'static str, &'static str)],
    /// Whether its input is text or bytes that are compared with something, and not choices of a generator: following
    /// comparisons takes two thirds of the time of a compiler.
    compares: bool,
}

const fn plain(name: &'static str, seeds: &'static [&'static str]) -> Target {
    Target {
        name,
        seeds,
        dictionary: None,
        max_len: 0,
        environment: &[],
        compares: true,
    }
}

/// All of them, as `fuzz/README.md` says.
pub(super) const TARGETS: &[Target] = &[
    Target {
        dictionary: Some("ptx.dict"),
        max_len: 16_384,
        ..plain("jit", &["jit", "ptx"])
    },
    Target {
        max_len: 512,
        environment: &[("MICA_JIT_RECHECK", "1")],
        compares: false,
        ..plain("calls", &[])
    },
    Target {
        max_len: 1024,
        environment: &[("MICA_JIT_RECHECK", "1")],
        compares: false,
        ..plain("warps", &[])
    },
    Target {
        dictionary: Some("ptx.dict"),
        ..plain("ptx", &["ptx"])
    },
    plain("fatbin", &["fatbin"]),
    plain("wire_session", &[]),
    Target {
        max_len: 8192,
        ..plain("host", &["host"])
    },
    Target {
        dictionary: Some("control.dict"),
        ..plain("web", &["web"])
    },
    Target {
        dictionary: Some("control.dict"),
        ..plain("control", &["control"])
    },
    plain("config", &["config"]),
    plain("history", &["history"]),
    plain("kernel_log", &["kernel_log"]),
    plain("profile", &["profile"]),
    Target {
        max_len: 8192,
        ..plain("coverage", &["coverage"])
    },
    plain("containers", &["containers"]),
    Target {
        max_len: 8192,
        ..plain("files", &[])
    },
    Target {
        max_len: 8192,
        ..plain("snapshot", &["snapshot"])
    },
    plain("guest_hello", &["guest_hello"]),
    Target {
        max_len: 8192,
        ..plain("net", &["net"])
    },
];

/// Longest that one input may take, on a machine that does other things too.
const INPUT_SECONDS: u32 = 60;
/// Time for reading the corpus and for the last input.
const GRACE: Duration = Duration::from_secs(180);

/// Where targets are built that follow comparisons, and others.
fn folder(compares: bool) -> PathBuf {
    target().join(if compares { "fuzz" } else { "fuzz-plain" })
}

/// Builds the targets with libFuzzer and the address sanitizer.
pub(super) fn build(night: &Night, targets: &[&Target]) -> Result<()> {
    for target in targets {
        let mut build = Command::new(night.toolchain.cargo_fuzz()?);
        build.arg("build").current_dir(root());
        build.arg("--target-dir").arg(folder(target.compares));
        if !target.compares {
            build.arg("--no-trace-compares");
        }
        build.arg(target.name);
        command::run("fuzz target", night.toolchain.prepare(&mut build))?;
    }
    Ok(())
}

/// What became of a target.
pub(super) struct Fuzzed {
    pub(super) row: Row,
    pub(super) inputs: u64,
    /// Time that it had processors.
    pub(super) processor_time: Duration,
}

/// Runs a target for the night's time, or until it finds something.
pub(super) fn run(night: &Night, target: &Target) -> Result<Fuzzed> {
    let findings = night.folder(&format!("findings/{}", target.name))?;
    let log = night.log(target.name)?;
    let before = files(&findings)?;
    let mut program = command(night, target, &findings)?;
    println!("{}: {} s", target.name, night.limit.as_secs());
    let (start, processor_start) = (Instant::now(), bounded::processor_time_of_children()?);
    let tick = progress::each_minute(target.name, &log, "#");
    let outcome = bounded::run(&mut program, &log, night.limit + GRACE, tick)?;
    let mut found: Vec<String> = files(&findings)?
        .difference(&before)
        .map(|p| p.display().to_string())
        .collect();
    let failure = match outcome {
        Outcome::Ended(status) if status.success() => None,
        Outcome::Ended(status) => Some(status.to_string()),
        Outcome::OutOfTime => Some("did not end in time".to_string()),
        Outcome::Interrupted => None,
    };
    if let Some(reason) = failure {
        let kept = findings.join("output.log");
        std::fs::copy(&log, &kept).with_context(|| format!("{}", kept.display()))?;
        found.push(format!("{reason}, see {}", kept.display()));
    }
    let processor_time = bounded::processor_time_of_children()?.saturating_sub(processor_start);
    let output = std::fs::read(&log)?;
    let inputs = executed(&String::from_utf8_lossy(&output));
    let row = Row {
        name: target.name,
        tried: format!("{inputs} inputs"),
        time: start.elapsed(),
        findings: found,
    };
    Ok(Fuzzed {
        row,
        inputs,
        processor_time,
    })
}

fn command(night: &Night, target: &Target, findings: &Path) -> Result<Command> {
    let fuzz = root().join("fuzz");
    let built = folder(target.compares);
    let built = built.join(&night.toolchain.triple).join("release");
    let mut command = Command::new(built.join(target.name));
    command.current_dir(&fuzz).env("TMPDIR", &night.scratch.0);
    command.envs(target.environment.iter().copied());
    // New inputs go into the first folder.
    command.arg(night.folder(&format!("corpus/{}", target.name))?);
    command.args(target.seeds.iter().map(|s| fuzz.join("corpus").join(s)));
    command.arg(format!("-max_total_time={}", night.limit.as_secs()));
    command.arg(format!("-timeout={INPUT_SECONDS}"));
    command.arg(format!("-artifact_prefix={}/", findings.display()));
    command.arg("-print_final_stats=1");
    if let Some(name) = target.dictionary {
        command.arg(format!("-dict={}", fuzz.join(name).display()));
    }
    if target.max_len > 0 {
        command.arg(format!("-max_len={}", target.max_len));
    }
    if !target.compares {
        // A generator whose bytes end makes the same choice for ever, and libFuzzer begins with four bytes.
        command.arg("-len_control=0");
    }
    Ok(command)
}

/// How many inputs were run, by libFuzzer's own count.
fn executed(output: &str) -> u64 {
    let counted = output
        .lines()
        .find_map(|l| l.strip_prefix("stat::number_of_executed_units:"));
    counted.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

fn files(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
    let paths = entries.flatten().map(|e| e.path());
    Ok(paths.filter(|p| !p.ends_with("output.log")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_of_the_folder_is_run_with_what_it_needs() {
        let fuzz = root().join("fuzz");
        let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
        let names = manifest
            .lines()
            .filter(|l| l.starts_with("path = \"fuzz_targets/"));
        assert_eq!(names.count(), TARGETS.len());
        for target in TARGETS {
            let source = format!("path = \"fuzz_targets/{}.rs\"", target.name);
            assert!(manifest.contains(&source), "{source}");
            assert!(target.dictionary.is_none_or(|d| fuzz.join(d).is_file()));
            for seeds in target.seeds {
                assert!(fuzz.join("corpus").join(seeds).is_dir(), "{seeds}");
            }
        }
    }

    #[test]
    fn the_count_of_inputs_is_read() {
        let text = "Done 12 runs\nstat::number_of_executed_units: 4711\nstat::new_units_added: 3\n";
        assert_eq!(executed(text), 4711);
        assert_eq!(executed("ERROR"), 0);
    }
}
