//! Whether `mica` is one file: a copy of it alone, in an empty folder, runs a CUDA program.

use std::path::{Path, PathBuf};

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
    finds_the_driver(&scratch.0, &home.join("cache"))
}

/// Whether the library that `mica` has unpacked finds a driver by itself. It is linked against stand-ins for an old C
/// library, so it may call other versions of functions than the one that tests load.
fn finds_the_driver(folder: &Path, cache: &Path) -> Result<()> {
    let library = unpacked(cache)?.context("mica has unpacked no libcuda.so.1")?;
    let driver = folder.join("driver");
    std::fs::create_dir(&driver)?;
    let (source, asking) = (folder.join("driver.c"), folder.join("asking.c"));
    std::fs::write(
        &source,
        "int cuInit(unsigned f) { return 0; }\nint cuDriverGetVersion(int *v) { *v = 12345; return 0; }\n",
    )?;
    std::fs::write(
        &asking,
        "int cuDriverGetVersion(int *);\nint main() { int v = 0; return cuDriverGetVersion(&v) != 0 || v != 12345; }\n",
    )?;
    let (found, program) = (driver.join("libcuda.so.1"), folder.join("asking"));
    let cc = || std::process::Command::new("cc");
    run_command(
        "a driver",
        cc().args(["-shared", "-fPIC", "-o"])
            .arg(&found)
            .arg(&source),
    )?;
    run_command(
        "a program",
        cc().arg(&asking).arg(&library).arg("-o").arg(&program),
    )?;
    let beside = library.parent().unwrap_or(folder);
    let path = std::env::join_paths([beside, &driver])?;
    let mut program = std::process::Command::new(&program);
    run_command(
        "the unpacked library finds a driver",
        program.env("LD_LIBRARY_PATH", path),
    )?;
    println!("pass  the unpacked library finds a driver");
    Ok(())
}

/// The `libcuda.so.1` in a folder or one below.
fn unpacked(folder: &Path) -> Result<Option<PathBuf>> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.ends_with("libcuda.so.1") {
            return Ok(Some(path));
        }
        if path.is_dir()
            && let Some(found) = unpacked(&path)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
