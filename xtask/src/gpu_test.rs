//! `cargo xtask gpu-test`: the cases that only a real GPU can decide.

use std::process::Command;

use anyhow::Result;

use crate::command::{cargo, root, run as run_command, target};

/// Builds the release binaries and runs `tests/gpu/run.sh` with them.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    run_command(
        "release build",
        &mut cargo(&["build", "--release", "--workspace"]),
    )?;
    let mut script = Command::new("bash");
    script
        .arg(root().join("tests/gpu/run.sh"))
        .args(arguments)
        .env("MICA_BIN", target().join("release"))
        .current_dir(root());
    run_command("tests/gpu/run.sh", &mut script)
}
