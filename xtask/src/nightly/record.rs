//! `docs/measurements/fuzzing.md`: how long each target has run without a finding since the code that it exercises changed.
//!
//! Owns the table of that page. Several runs add up, of this machine and of others, as long as the code is the same: an
//! hour need not be one run. A finding puts the time back to nothing.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::command::root;

/// The line above the rows.
const RULE: &str = "|---|---|---|---|---|";

/// What a run of a target came to.
pub(super) struct Run<'a> {
    pub(super) target: &'a str,
    /// The hash of the code it ran.
    pub(super) code: &'a str,
    /// Time of processors.
    pub(super) time: Duration,
    pub(super) inputs: u64,
    pub(super) has_found: bool,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    target: String,
    code: String,
    seconds: u64,
    inputs: u64,
    last: String,
}

impl Entry {
    fn read(line: &str) -> Option<Self> {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').collect();
        let [target, code, seconds, inputs, last] = cells[..] else {
            return None;
        };
        Some(Self {
            target: target.trim().trim_matches('`').into(),
            code: code.trim().into(),
            seconds: seconds.trim().parse().ok()?,
            inputs: inputs.trim().parse().ok()?,
            last: last.trim().into(),
        })
    }

    fn line(&self) -> String {
        let Self {
            target,
            code,
            seconds,
            inputs,
            last,
        } = self;
        format!("| `{target}` | {code} | {seconds} | {inputs} | {last} |\n")
    }

    fn add(&mut self, run: &Run<'_>, today: &str) {
        if self.code != run.code || run.has_found {
            (self.seconds, self.inputs) = (0, 0);
        }
        self.code = run.code.into();
        self.last = match run.has_found {
            true => format!("{today}, with a finding"),
            false => today.into(),
        };
        if !run.has_found {
            self.seconds += run.time.as_secs();
            self.inputs += run.inputs;
        }
    }
}

fn page() -> PathBuf {
    root().join("docs/measurements/fuzzing.md")
}

/// Adds a run to the page.
pub(super) fn add(run: &Run<'_>, today: &str) -> Result<()> {
    add_to(&page(), run, today)
}

fn add_to(page: &Path, run: &Run<'_>, today: &str) -> Result<()> {
    let shown = || page.display().to_string();
    let mut file = File::options().read(true).write(true).open(page);
    let file = file
        .as_mut()
        .map_err(|e| std::io::Error::new(e.kind(), e.to_string()));
    let file = file.with_context(shown)?;
    // Two nights may end at once.
    file.lock().with_context(shown)?;
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(shown)?;
    let new = with_run(&text, run, today)?;
    file.rewind()?;
    file.write_all(new.as_bytes()).with_context(shown)?;
    file.set_len(new.len() as u64).with_context(shown)
}

/// The page with a run in its table, rows in the order of their names.
fn with_run(text: &str, run: &Run<'_>, today: &str) -> Result<String> {
    let Some((head, rows)) = text.split_once(&format!("{RULE}\n")) else {
        bail!("docs/measurements/fuzzing.md has no table");
    };
    let lines = rows.lines().take_while(|line| line.starts_with('|'));
    let mut entries = Vec::new();
    let mut length = 0;
    for line in lines {
        length += line.len() + 1;
        let entry = Entry::read(line);
        entries.push(entry.with_context(|| format!("this is not a row of a target: {line}"))?);
    }
    let rest = rows.get(length..).unwrap_or_default();
    if !entries.iter().any(|entry| entry.target == run.target) {
        entries.push(Entry {
            target: run.target.into(),
            code: run.code.into(),
            seconds: 0,
            inputs: 0,
            last: String::new(),
        });
    }
    let own = entries
        .iter_mut()
        .filter(|entry| entry.target == run.target);
    own.for_each(|entry| entry.add(run, today));
    entries.sort_by(|a, b| a.target.cmp(&b.target));
    let rows: String = entries.iter().map(Entry::line).collect();
    Ok(format!("{head}{RULE}\n{rows}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Page\n\n| target | code | seconds | inputs | last run |\n|---|---|---|---|---|\n\nEnd.\n";

    fn run<'a>(target: &'a str, code: &'a str, seconds: u64) -> Run<'a> {
        Run {
            target,
            code,
            time: Duration::from_secs(seconds),
            inputs: 10,
            has_found: false,
        }
    }

    #[test]
    fn runs_of_the_same_code_add_up_until_it_changes_or_something_is_found() {
        let add = |text: &str, run: &Run<'_>| with_run(text, run, "today").unwrap();
        let row = |text: &str| {
            text.lines()
                .find(|l| l.contains("`jit`"))
                .unwrap()
                .to_string()
        };
        let one = add(PAGE, &run("jit", "aa", 60));
        assert_eq!(row(&one), "| `jit` | aa | 60 | 10 | today |");
        assert!(one.ends_with("|\n\nEnd.\n"), "{one}");
        let two = add(&one, &run("jit", "aa", 5));
        assert_eq!(row(&two), "| `jit` | aa | 65 | 20 | today |");
        let other = add(&two, &run("calls", "cc", 7));
        assert!(other.find("`calls`").unwrap() < other.find("`jit`").unwrap());
        assert_eq!(row(&other), row(&two));
        let changed = add(&other, &run("jit", "bb", 3));
        assert_eq!(row(&changed), "| `jit` | bb | 3 | 10 | today |");
        let found = Run {
            has_found: true,
            ..run("jit", "bb", 9)
        };
        let found = add(&changed, &found);
        assert_eq!(
            row(&found),
            "| `jit` | bb | 0 | 0 | today, with a finding |"
        );
        assert_eq!(
            row(&add(&found, &run("jit", "bb", 4))),
            "| `jit` | bb | 4 | 10 | today |"
        );
    }

    #[test]
    fn a_page_of_another_form_is_left_alone() {
        assert!(with_run("# Page\n", &run("jit", "aa", 1), "today").is_err());
        let foreign = PAGE.replace("\n\nEnd", "\n| jit | many |\n\nEnd");
        assert!(with_run(&foreign, &run("jit", "aa", 1), "today").is_err());
    }

    #[test]
    fn the_page_of_the_repository_has_a_table_and_keeps_its_text() {
        let path = std::env::temp_dir().join(format!("mica-fuzzing-{}.md", std::process::id()));
        std::fs::copy(page(), &path).unwrap();
        add_to(&path, &run("zzz", "aa", 2), "today").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let added = "| `zzz` | aa | 2 | 10 | today |\n";
        assert_eq!(
            text.replace(added, ""),
            std::fs::read_to_string(page()).unwrap()
        );
        assert!(text.contains(added));
    }
}
