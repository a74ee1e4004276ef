//! Whether `mica` is one file: a copy of it alone, in an empty folder, runs a CUDA program.

use anyhow::{Context, Result};

use crate::bounded::Scratch;
use crate::command::{cargo, root, run as run_command, target};
use crate::suite;

/// Builds `mica` as README's first command does, and runs a program with a copy.
pub(crate) fn check() -> Result<()> {
    run_command("release build", &mut cargo(&["build", "--release"]))?;
    let program = suite::build_program(&root().join("tests/programs/vector_add.cu"))?;
    let scratch = Scratch::new("alone")?;
    let mica = scratch.0.join("mica");
    std::fs::copy(target().join("release/mica"), &mica)?;
    // Only the sticky folder itself may be written by others.
    let home = scratch.0.join("home");
    std::fs::create_dir(&home)?;
    let command = |words: &[&str]| {
        let mut command = std::process::Command::new("timeout");
        command.arg("300").arg(&mica).args(words);
        command.env("MICA_RUNTIME_DIR", home.join("run"));
        command.env("XDG_CACHE_HOME", home.join("cache"));
        command.env_remove("MICA_LIB_DIR");
        command
    };
    let words = ["run", "--memory", "256MiB", "--gpu", "software", "--"];
    let ran = command(&words).arg(&program).output();
    let stopped = command(&["daemon", "--stop"]).output();
    suite::must_be_ok(&ran.context("mica cannot start")?).context("mica alone")?;
    stopped.context("mica cannot start")?;
    println!("pass  mica alone in a folder");
    Ok(())
}
