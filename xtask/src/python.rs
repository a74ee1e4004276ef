//! `cargo xtask python`: the Python package, put together and tested with NumPy on the software GPU.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::{cargo, root, run, target};
use crate::packages::Environment;

const NUMPY: &str = "numpy>=2.0,<3";

/// A folder with the package as Python imports it, beside a debug build of the command.
fn package() -> Result<PathBuf> {
    let native = [
        "build",
        "-p",
        "mica-python",
        "-p",
        "mica-cli",
        "-p",
        "mica-shim",
        "-p",
        "mica-nvml-shim",
    ];
    run("build of the Python package", &mut cargo(&native))?;
    let folder = target().join("python");
    let package = folder.join("mica");
    let _ = std::fs::remove_dir_all(&package);
    std::fs::create_dir_all(&package)?;
    let sources = root().join("crates/python/python/mica");
    for entry in std::fs::read_dir(&sources)?.flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), package.join(entry.file_name()))?;
        }
    }
    let built = target().join("debug/libmica_native.so");
    std::fs::copy(&built, package.join("mica_native.abi3.so"))
        .with_context(|| format!("{} cannot be copied", built.display()))?;
    Ok(folder)
}

/// Runs the tests of the package.
pub(crate) fn test() -> Result<()> {
    let folder = package()?;
    let environment = Environment::with("python-numpy", &[NUMPY])?;
    let mut tests = Command::new(environment.python());
    tests
        .arg(root().join("crates/python/tests/test_mica.py"))
        .env("PYTHONPATH", folder)
        .env("MICA_COMMAND", target().join("debug/mica"))
        .env("MICA_OPS_TUNE", "off");
    run("tests of the Python package", &mut tests)
}
