//! `cargo xtask docs`: the guide as a book, and the test that its commands print what it says.

mod blocks;
mod compare;
mod machines;
#[cfg(test)]
mod stale;
mod transcript;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bounded;
use crate::command::{self, cargo, root, target};
use crate::toolkit;
use transcript::Machine;

/// The tool that makes the book.
const MDBOOK: &str = "0.5.4";

/// Whether commands that need the CUDA compiler are run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compiler {
    Use,
    Without,
}

/// `docs`, `docs --test [PAGE]`.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    match words {
        [] => build(),
        ["--test"] => test("", Compiler::Use),
        ["--test", page] => test(page, Compiler::Use),
        other => bail!(
            "unknown words {:?}: write docs, docs --test or docs --test PAGE",
            other.join(" ")
        ),
    }
}

/// The commands of a page in blocks that need something which the test of the guide has not.
pub(crate) fn commands_that_need(page: &str, need: &str) -> Result<Vec<String>> {
    let file = root().join("docs/guide/src").join(page);
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("{} cannot be read", file.display()))?;
    let blocks = blocks::blocks(&text);
    let wanted = blocks.iter().filter(|b| b.attribute("needs") == Some(need));
    let steps = wanted.flat_map(blocks::steps);
    Ok(steps.map(|step| step.command).collect())
}

/// The text of the block of a page in a language that needs something.
pub(crate) fn text_that_needs(page: &str, language: &str, need: &str) -> Result<String> {
    let file = root().join("docs/guide/src").join(page);
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("{} cannot be read", file.display()))?;
    let blocks = blocks::blocks(&text);
    let is_wanted = |block: &&blocks::Block| {
        block.attribute("needs") == Some(need) && block.language() == language
    };
    let block = blocks.iter().find(is_wanted);
    let block = block.with_context(|| format!("{page} has no {language} that needs {need}"))?;
    Ok(block.lines.join("\n"))
}

/// Writes the book to `target/guide`.
fn build() -> Result<()> {
    let mut book = Command::new(mdbook()?);
    book.arg("build").arg(root().join("docs/guide"));
    book.arg("--dest-dir").arg(target().join("guide"));
    command::run("guide", &mut book)?;
    println!("{}", target().join("guide/index.html").display());
    Ok(())
}

/// mdbook: one on the `PATH`, or the pinned one, installed where it is missing.
fn mdbook() -> Result<PathBuf> {
    let tools = target().join("tools");
    for path in [PathBuf::from("mdbook"), tools.join("bin/mdbook")] {
        let answer = Command::new(&path).arg("--version").output();
        if answer.is_ok_and(|output| output.status.success()) {
            return Ok(path);
        }
    }
    eprintln!("there is no mdbook: {MDBOOK} is installed into target/tools, which takes minutes");
    let words = ["install", "mdbook", "--locked", "--no-default-features"];
    let mut install = cargo(&words);
    install.args(["--version", MDBOOK, "--root"]).arg(&tools);
    command::run("mdbook", &mut install)?;
    Ok(tools.join("bin/mdbook"))
}

/// Runs the commands of the pages whose name contains `filter`. With `BLESS=1` pages are rewritten instead.
pub(crate) fn test(filter: &str, compiler: Compiler) -> Result<()> {
    let packages = [
        "build",
        "-p",
        "mica-cli",
        "-p",
        "mica-shim",
        "-p",
        "mica-nvml-shim",
    ];
    command::run("build", &mut cargo(&packages))?;
    let nvcc = match compiler {
        Compiler::Use => Some(toolkit::nvcc()?),
        Compiler::Without => None,
    };
    bounded::catch_interrupts();
    let bless = std::env::var_os("BLESS").is_some_and(|value| value == "1");
    let machine = Machine { nvcc };
    let (mut ran, mut skipped, mut failures) = (0, Vec::new(), Vec::new());
    for path in pages()? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.contains(filter) {
            continue;
        }
        let page = std::fs::read_to_string(&path)?;
        let verdict = transcript::run(&name, &page, &machine).context(name.into_owned())?;
        ran += verdict.run;
        skipped.extend(verdict.skipped);
        match verdict.blessed {
            Some(text) if bless => std::fs::write(&path, text)?,
            _ => failures.extend(verdict.failures),
        }
    }
    for block in &skipped {
        println!("not run: {block}");
    }
    for failure in &failures {
        println!("FAIL  {failure}");
    }
    println!(
        "guide: {} of {ran} commands as written, {} blocks not run",
        ran - failures.len(),
        skipped.len()
    );
    if !failures.is_empty() {
        bail!(
            "{} commands of the guide print something else (BLESS=1 cargo xtask docs --test rewrites)",
            failures.len()
        );
    }
    Ok(())
}

/// The pages of the guide, in the order of their names.
fn pages() -> Result<Vec<PathBuf>> {
    let folder = root().join("docs/guide/src");
    let mut found = Vec::new();
    for entry in
        std::fs::read_dir(&folder).with_context(|| format!("{} is missing", folder.display()))?
    {
        found.push(entry?.path());
    }
    found.retain(|path| path.extension().is_some_and(|ext| ext == "md"));
    found.sort();
    Ok(found)
}
