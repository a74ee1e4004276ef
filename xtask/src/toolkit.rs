//! The CUDA compiler, installed from PyPI into a virtual environment.
//!
//! NVIDIA's packages come under NVIDIA's own licence and are installed, never shipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{run, target};

/// What nvcc needs to build CUDA C++ with cooperative groups, CUB and Thrust.
const PACKAGES: &[&str] = &[
    "nvidia-cuda-nvcc==13.4.92",
    "nvidia-cuda-cccl==13.3.5.0.6",
    "nvidia-cuda-profiler-api==13.4.92",
    "nvidia-nvtx==13.4.92",
];

/// Path of an nvcc: `MICA_NVCC`, the cached one, one on the `PATH`, or a fresh install.
pub(crate) fn nvcc() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MICA_NVCC") {
        return Ok(path.into());
    }
    let environment = target().join("tools/cuda");
    if let Some(path) = find(&environment) {
        return Ok(path);
    }
    if Command::new("nvcc")
        .arg("--version")
        .output()
        .is_ok_and(|out| out.status.success())
    {
        return Ok("nvcc".into());
    }
    install(&environment)?;
    find(&environment).context("the CUDA packages are installed but hold no nvcc")
}

fn install(environment: &Path) -> Result<()> {
    eprintln!(
        "installing the CUDA compiler from PyPI into {}",
        environment.display()
    );
    run(
        "python3 -m venv",
        Command::new("python3")
            .args(["-m", "venv"])
            .arg(environment),
    )?;
    let pip = environment.join("bin/pip");
    let mut command = Command::new(pip);
    command
        .args(["install", "--quiet", "--disable-pip-version-check"])
        .args(PACKAGES);
    // A registry that stumbles once is no reason to fail.
    for attempt in 1.. {
        match run("pip install (about 350 MB unpacked)", &mut command) {
            Ok(()) => break,
            Err(error) if attempt == 3 => bail!(error),
            Err(_) => std::thread::sleep(std::time::Duration::from_secs(5)),
        }
    }
    Ok(())
}

fn find(environment: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(environment.join("lib")).ok()?;
    versions
        .flatten()
        .map(|entry| entry.path().join("site-packages/nvidia/cu13/bin/nvcc"))
        .find(|path| path.is_file())
}
