//! `cargo xtask measurements`: what `mica bench --json` printed, as a dated section of a page of `docs/measurements`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::root;

/// Sections are put above this line's first match, so that the newest stands first.
const SECTION: &str = "\n## ";

/// Adds a section with the date and the commit of now to `docs/measurements/AREA.md`.
pub(crate) fn add(area: &str, file: &str, machine: &str) -> Result<()> {
    let page = root().join("docs/measurements").join(format!("{area}.md"));
    let text = std::fs::read_to_string(&page)
        .with_context(|| format!("there is no page {}", page.display()))?;
    let json = std::fs::read_to_string(Path::new(file))
        .with_context(|| format!("{file} cannot be read"))?;
    let date = today()?;
    let mut git = Command::new("git");
    git.args(["rev-parse", "--short", "HEAD"])
        .current_dir(root());
    let title = format!("{date}, commit {}, {machine}", answer(&mut git)?);
    let new = insert(&text, &section(&title, &json)?);
    std::fs::write(&page, new)?;
    println!("{}: {title}", page.display());
    Ok(())
}

/// The date, as pages have it.
pub(crate) fn today() -> Result<String> {
    answer(Command::new("date").args(["-u", "+%Y-%m-%d"]))
}

/// The line a program prints.
fn answer(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_owned();
    let output = command
        .output()
        .with_context(|| format!("{} cannot be started", name.display()))?;
    if !output.status.success() {
        bail!("{} failed ({})", name.display(), output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A section with one table from a benchmark's lines.
fn section(title: &str, json: &str) -> Result<String> {
    let lines: Vec<Value> =
        serde_json::from_str(json).context("this is not what `mica bench --json` prints")?;
    if lines.is_empty() {
        bail!("the benchmark measured nothing: its --only matched no scenario");
    }
    let mut text = format!("\n## {title}\n\n| what | without Mica | with Mica | goal | state |\n");
    text += "|---|---|---|---|---|\n";
    for line in &lines {
        let cell = |key: &str| -> Result<String> {
            let value = line[key].as_str();
            let value = value.with_context(|| format!("a line has no {key:?}: {line}"))?;
            Ok(value.replace('|', "\\|"))
        };
        let state = match &line["reached"] {
            Value::Bool(true) => "reached",
            Value::Bool(false) => "**not reached**",
            _ => "",
        };
        writeln!(
            text,
            "| {} | {} | {} | {} | {state} |",
            cell("what")?,
            cell("native")?,
            cell("mica")?,
            cell("goal")?
        )?;
    }
    Ok(text)
}

/// The page with the section above the first one it has.
fn insert(page: &str, section: &str) -> String {
    match page.find(SECTION) {
        Some(at) => format!("{}{section}{}", &page[..at], &page[at..]),
        None => format!("{}\n{section}", page.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"[
        {"what": "empty launch", "native": "–", "mica": "1.7 µs", "goal": "≤ 10 µs", "reached": true},
        {"what": "a|b", "native": "1", "mica": "2", "goal": "none", "reached": null}]"#;

    #[test]
    fn each_line_becomes_a_row() {
        let text = section("today", JSON).unwrap();
        assert!(text.starts_with("\n## today\n"), "{text}");
        assert!(text.contains("| empty launch | – | 1.7 µs | ≤ 10 µs | reached |\n"));
        assert!(text.contains("| a\\|b | 1 | 2 | none |  |\n"), "{text}");
        assert!(section("today", "{}").is_err());
        assert!(section("today", "[]").is_err());
        assert!(section("today", r#"[{"what": "x"}]"#).is_err());
    }

    #[test]
    fn the_newest_section_stands_first() {
        let page = "# Area\n\nWords.\n\n## old\n\nrow\n";
        let new = insert(page, "\n## new\n\ntable\n");
        assert_eq!(
            new,
            "# Area\n\nWords.\n\n## new\n\ntable\n\n## old\n\nrow\n"
        );
        let first = insert("# Area\n", "\n## new\n");
        assert_eq!(first, "# Area\n\n## new\n");
    }
}
