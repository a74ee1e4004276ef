//! Running programs, loudly.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The root of the project.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_path_buf)
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A cargo command in the project's root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// Says what runs, runs it, and fails with its name if it fails.
pub(crate) fn run(title: &str, command: &mut Command) -> Result<()> {
    eprintln!("==> {title}");
    let start = Instant::now();
    let status = command
        .status()
        .with_context(|| format!("{title}: cannot start"))?;
    if !status.success() {
        bail!("{title} failed ({status})");
    }
    eprintln!("    {title}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
