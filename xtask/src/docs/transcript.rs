//! Runs the commands of one page of the guide and compares what they print.
//!
//! A page is one session of a shell: `cd`, variables and `$?` carry over from command to command. Its home, its runtime
//! directory and so its daemon are its own, and an NVIDIA GPU is hidden, so that the software GPU runs everything.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::blocks::{Block, Step, blocks, steps};
use super::compare;
use super::machines::{Machines, Place};
use crate::bounded::{self, Outcome, Scratch};
use crate::command::target;

/// Begins the line after each command's output.
const MARK: &str = "@@mica-docs";
/// Most time for the commands of one page.
const LIMIT: Duration = Duration::from_secs(300);

/// What became of a page.
#[derive(Default)]
pub(super) struct Verdict {
    pub(super) run: usize,
    /// Blocks that were not run, and why.
    pub(super) skipped: Vec<String>,
    pub(super) failures: Vec<String>,
    /// The page with the expectations that the output asks for.
    pub(super) blessed: Option<String>,
}

/// What the machine has for commands that need it.
pub(super) struct Machine {
    /// The CUDA compiler.
    pub(super) nvcc: Option<PathBuf>,
}

impl Machine {
    fn has(&self, need: &str) -> bool {
        need == "nvcc" && self.nvcc.is_some()
    }
}

/// Runs a page.
pub(super) fn run(name: &str, page: &str, machine: &Machine) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let mut wanted = Vec::new();
    let all = blocks(page);
    for block in all.iter().filter(|block| block.language() == "console") {
        match block.attribute("needs") {
            Some(need) if !machine.has(need) => {
                let line = block.first;
                verdict
                    .skipped
                    .push(format!("{name}:{line} (needs {need})"));
            }
            _ => {
                let place = Place::of(block);
                wanted.extend(steps(block).into_iter().map(|step| (step, place.clone())));
            }
        }
    }
    if wanted.is_empty() {
        return Ok(verdict);
    }
    let scratch = Scratch::new("docs")?;
    let machines = Machines::new()?;
    let home = prepare(&scratch, &all, machine)?;
    let outputs = execute(&scratch, &home, &machines, &wanted)?;
    let hidden = scratch.0.display().to_string();
    let mut replaced = Vec::new();
    for ((step, place), output) in wanted.iter().zip(&outputs) {
        let output = machines.output(output, place);
        verdict.run += 1;
        let actual: Vec<&str> = output.lines().collect();
        if compare::matches(&trimmed(&step.expected), &actual) {
            continue;
        }
        verdict
            .failures
            .push(difference(name, step, output.as_str()));
        let blessed = compare::bless(&trimmed(&step.expected), &actual);
        let blessed = blessed.iter().map(|line| line.replace(&hidden, "..."));
        replaced.push((step, blessed.collect()));
    }
    if !replaced.is_empty() {
        verdict.blessed = Some(rewrite(page, &replaced));
    }
    Ok(verdict)
}

/// The expectation without the empty lines that separate commands.
fn trimmed(expected: &[String]) -> Vec<String> {
    let length = expected.iter().rposition(|line| !line.trim().is_empty());
    expected[..length.map_or(0, |last| last + 1)].to_vec()
}

/// Makes the page's home with its files, and the commands it finds.
fn prepare(scratch: &Scratch, all: &[Block<'_>], machine: &Machine) -> Result<PathBuf> {
    let (home, bin) = (scratch.0.join("home"), scratch.0.join("bin"));
    let named = all.iter().filter_map(|block| block.attribute("on"));
    let homes: BTreeSet<PathBuf> = named.map(|name| scratch.0.join(name)).collect();
    std::fs::create_dir(&bin)?;
    std::os::unix::fs::symlink(target().join("debug/mica"), bin.join("mica"))?;
    if let Some(nvcc) = machine.nvcc.as_ref().filter(|path| path.is_absolute()) {
        // The compiler finds its parts beside the name it is called by, so a link would not do.
        let script = format!("#!/bin/sh\nexec {} \"$@\"\n", nvcc.display());
        std::fs::write(bin.join("nvcc"), script)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(bin.join("nvcc"), mode)?;
    }
    for home in homes.iter().chain([&home]) {
        std::fs::create_dir(home)?;
        for block in all {
            if let Some(name) = block.attribute("file") {
                std::fs::write(home.join(name), block.lines.join("\n") + "\n")?;
            }
        }
    }
    Ok(home)
}

/// What each step printed, on either output. Steps that were not reached printed nothing.
fn execute(
    scratch: &Scratch,
    home: &Path,
    machines: &Machines,
    wanted: &[(Step, Place)],
) -> Result<Vec<String>> {
    let mut script = String::from("exec 2>&1\n");
    script += &Machines::prologue(&scratch.0.display().to_string());
    let mut on = &None;
    for (step, place) in wanted {
        // A page without machines stays in the folder to which it went.
        let is_elsewhere = place.on != *on || place.stays;
        on = &place.on;
        let command = match is_elsewhere || place.on.is_some() {
            true => machines.command(&step.command, place, step.expected.len()),
            false => step.command.clone(),
        };
        // The last line hands the command's own status on to the next one's `$?`.
        script += &format!("{command}\n__status=$?; printf '\\n{MARK}\\n'; (exit $__status)\n");
    }
    let named: BTreeSet<&str> = wanted.iter().filter_map(|(_, p)| p.on.as_deref()).collect();
    for name in named.into_iter().chain(["home"]) {
        script += &format!("__on {name}; mica daemon --stop >/dev/null 2>&1\n");
    }
    let file = scratch.0.join("script");
    std::fs::write(&file, script)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell
        .arg(&file)
        .current_dir(home)
        .env_clear()
        .env(
            "PATH",
            format!("{}:{path}", scratch.0.join("bin").display()),
        )
        .env("HOME", home)
        .env("LANG", "C.UTF-8")
        .env("MICA_RUNTIME_DIR", scratch.0.join("home-run"))
        .env("MICA_REMOTE_DIR", scratch.0.join("home-keys"))
        .env("MICA_LIBNVML", "/nonexistent");
    let log = scratch.0.join("log");
    match bounded::run(&mut shell, &log, LIMIT, |_| ())? {
        Outcome::Ended(_) => {}
        Outcome::OutOfTime => bail!("the commands took more than {} s", LIMIT.as_secs()),
        Outcome::Interrupted => bail!("interrupted"),
    }
    let text = std::fs::read(&log).with_context(|| format!("{} cannot be read", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let mut outputs: Vec<String> = text
        .split(&format!("\n{MARK}\n"))
        .map(|output| output.trim_end().to_owned())
        .collect();
    outputs.truncate(wanted.len());
    outputs.resize(wanted.len(), String::new());
    Ok(outputs)
}

fn difference(name: &str, step: &Step, output: &str) -> String {
    let indented = |text: &str| {
        let lines = text.lines().map(|line| format!("        {line}\n"));
        lines.collect::<String>()
    };
    format!(
        "{name}:{}: $ {}\n    expected\n{}    printed\n{}",
        step.first,
        step.command,
        indented(&step.expected.join("\n")),
        indented(output)
    )
}

/// The page with other expectations for some steps.
fn rewrite(page: &str, replaced: &[(&Step, Vec<String>)]) -> String {
    let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
    // From the end, so that earlier line numbers stay true.
    for (step, blessed) in replaced.iter().rev() {
        let end = step.first + trimmed(&step.expected).len();
        lines.splice(step.first..end, blessed.iter().cloned());
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blessing_changes_only_the_expectation_of_the_step() {
        let page = "intro\n```console\n$ a\nold\n\n$ b\nkeep\n```\nend\n";
        let all = blocks(page);
        let found = steps(&all[0]);
        let new = vec!["one".to_owned(), "two".to_owned()];
        let text = rewrite(page, &[(&found[0], new)]);
        assert_eq!(
            text,
            "intro\n```console\n$ a\none\ntwo\n\n$ b\nkeep\n```\nend\n"
        );
    }

    #[test]
    fn a_page_is_one_session_and_a_wrong_line_is_found() {
        let machine = Machine { nvcc: None };
        let page = "```console\n$ x=5; false\n$ echo $? $x\n1 5\n$ cat note\nhi\n```\n\
            ```text file=note\nhi\n```\n```console needs=gpu\n$ exit 9\n```\n";
        let verdict = run("page", page, &machine).unwrap();
        assert_eq!((verdict.run, verdict.skipped.len()), (3, 1));
        assert!(verdict.failures.is_empty(), "{:?}", verdict.failures);
        let wrong = page.replace("1 5", "0 5");
        let verdict = run("page", &wrong, &machine).unwrap();
        assert_eq!(verdict.failures.len(), 1);
        assert_eq!(verdict.blessed.as_deref(), Some(page));
    }
}
