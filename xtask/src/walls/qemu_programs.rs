//! The CUDA programs that run in a QEMU guest, and what its console says of them.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::Options;
use crate::suite::{must_know_of_memory, tail};

/// Programs that run in the guest, where no others are chosen: its processor is emulated and slow.
const FEW: [&str; 9] = [
    "callbacks",
    "graph_capture",
    "malloc_async",
    "matmul_tiled",
    "printf_device",
    "streams_events",
    "texture_2d",
    "vector_add",
    "zero_copy",
];
/// Programs that cannot pass in this guest, and why.
const CANNOT: [(&str, &str); 0] = [];

/// The programs to run: those that a filter names, all that can run, or a few.
pub(super) fn chosen(options: Options) -> Result<Vec<PathBuf>> {
    let mut programs = super::containers::programs(options.programs)?;
    let is_of = |program: &Path, name: &str| program.ends_with(name);
    if options.all {
        for (name, why) in CANNOT {
            println!("      {name} is left out: {why}");
        }
        programs.retain(|program| !CANNOT.iter().any(|(name, _)| is_of(program, name)));
    } else if options.programs.is_empty() {
        programs.retain(|program| FEW.iter().any(|name| is_of(program, name)));
    }
    ensure!(
        !programs.is_empty(),
        "no CUDA program is built: `cargo xtask suite` builds them"
    );
    Ok(programs)
}

/// What a guest said of one program.
struct Program {
    name: String,
    text: String,
    began: Instant,
    /// Its exit code, once it has ended.
    code: Option<i32>,
}

/// What a guest's console has said.
#[derive(Default)]
pub(super) struct Said {
    /// Shared-memory devices that it has found.
    pub(super) devices: Option<u32>,
    programs: Vec<Program>,
    /// What came before the first program.
    boot: String,
    has_ended: bool,
}

impl Said {
    /// Takes a line of the console; tells of the program that has ended with it.
    pub(super) fn line(&mut self, line: &str) -> Option<String> {
        if let Some(number) = line.strip_prefix("shared-memory devices: ") {
            self.devices = number.parse().ok();
        } else if line == "== end" {
            self.has_ended = true;
        } else if let Some(name) = line.strip_prefix("== ") {
            self.programs.push(Program {
                name: name.rsplit('/').next().unwrap_or(name).to_owned(),
                text: String::new(),
                began: Instant::now(),
                code: None,
            });
        } else if let Some(program) = self.programs.last_mut() {
            if let Some(code) = line.strip_prefix("=> ") {
                program.code = code.parse().ok();
                let seconds = program.began.elapsed().as_secs_f64();
                return Some(format!("{}, exit {code}, {seconds:.1} s", program.name));
            }
            program.text.push_str(line);
            program.text.push('\n');
        } else {
            self.boot.push_str(line);
            self.boot.push('\n');
        }
        None
    }

    /// The end of what came before the first program: also what the agent says of itself.
    pub(super) fn boot(&self) -> &str {
        tail(&self.boot)
    }

    /// How many programs have begun.
    pub(super) fn count(&self) -> usize {
        self.programs.len()
    }

    /// How many passed, if all of them did.
    pub(super) fn verdict(&self, expected: &[PathBuf], is_shared: bool) -> Result<usize> {
        let judged = self.programs.iter().map(|program| {
            (program.judge(is_shared)).with_context(|| format!("{} failed", program.name))
        });
        let mut failed: Vec<String> = judged
            .filter_map(|judged| Some(format!("{:#}", judged.err()?)))
            .collect();
        if !self.has_ended {
            let last = self.programs.last();
            let text = last.map_or(self.boot.as_str(), |program| &program.text);
            failed.push(format!("the guest did not end: {:?}", tail(text)));
        }
        let has_run = |path: &PathBuf| {
            let mut names = self.programs.iter().map(|program| program.name.as_str());
            names.any(|name| path.ends_with(name))
        };
        let missing = expected.iter().filter(|path| !has_run(path));
        failed.extend(missing.map(|path| format!("{} did not run", path.display())));
        if !failed.is_empty() {
            let all = expected.len() + 1;
            bail!(
                "{} of {all} failed, after {:?}:\n{}",
                failed.len(),
                self.boot(),
                failed.join("\n")
            );
        }
        Ok(self.programs.len())
    }
}

impl Program {
    fn judge(&self, is_shared: bool) -> Result<()> {
        let code = self.code.context("it did not end")?;
        // The console has both outputs in one.
        let bytes = self.text.clone().into_bytes();
        let output = Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: bytes.clone(),
            stderr: bytes,
        };
        ensure!(
            code == 0 && self.text.lines().any(|line| line == "ok"),
            "exit {code}; printed {:?}",
            tail(&self.text)
        );
        must_know_of_memory(&self.name, &output, is_shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Said {
        let mut said = Said::default();
        for line in text.lines() {
            said.line(line);
        }
        said
    }

    #[test]
    fn a_program_passes_that_says_ok_and_ends_well() {
        let text = "boots\nshared-memory devices: 2\n\n== /programs/one\nok\n\n=> 0\n== end\n";
        let said = said(text);
        assert_eq!(said.devices, Some(2));
        let one = [PathBuf::from("/target/programs/one")];
        assert_eq!(said.verdict(&one, true).unwrap(), 1);
    }

    #[test]
    fn whatever_failed_is_named() {
        let names = ["one", "two", "three", "four"].map(PathBuf::from);
        let text =
            "== /programs/one\nok\n=> 1\n== /programs/two\nnothing\n=> 0\n== /programs/three\nok\n";
        let error = format!("{:#}", said(text).verdict(&names, true).unwrap_err());
        for part in [
            "one failed: exit 1",
            "two failed: exit 0; printed \"nothing",
            "three failed: it did not end",
            "the guest did not end",
            "four did not run",
        ] {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }

    #[test]
    fn without_shared_memory_a_program_must_know_that() {
        let named = [PathBuf::from("managed_concurrent")];
        let text = "== /programs/managed_concurrent\nok\n=> 0\n== end\n";
        assert!(said(text).verdict(&named, true).is_ok());
        assert!(said(text).verdict(&named, false).is_err());
    }
}
