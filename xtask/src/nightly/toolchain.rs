//! A compiler with the address sanitizer, and cargo-fuzz.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{self, cargo, target};

const CARGO_FUZZ: &str = "0.13.2";

/// What builds instrumented programs.
pub(super) struct Toolchain {
    /// The target triple of this machine.
    pub(super) triple: String,
}

impl Toolchain {
    /// The compiler in use, where it comes with the sanitizer's library.
    pub(super) fn find() -> Result<Toolchain> {
        let version = rustc(&["-vV"])?;
        let host = version.lines().find_map(|l| l.strip_prefix("host: "));
        let triple = host.context("rustc does not name its host")?.to_string();
        let libraries = rustc(&["--print", "target-libdir"])?;
        let files = std::fs::read_dir(libraries.trim())
            .with_context(|| format!("{} cannot be read", libraries.trim()))?;
        let mut names = files.flatten().map(|f| f.file_name());
        if !names.any(|n| n.to_string_lossy().ends_with("_rt.asan.a")) {
            bail!(
                "the compiler for {triple} has no address sanitizer in {}",
                libraries.trim()
            );
        }
        Ok(Toolchain { triple })
    }

    /// Lets a stable compiler take the options of a nightly one.
    pub(super) fn prepare<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("RUSTC_BOOTSTRAP", "1")
    }

    /// cargo-fuzz: one on the `PATH`, or the pinned one.
    pub(super) fn cargo_fuzz(&self) -> Result<PathBuf> {
        let found = |path: &Path| {
            let output = Command::new(path).arg("--version").output();
            output.is_ok_and(|o| o.status.success())
        };
        let tools = target().join("tools");
        for path in [PathBuf::from("cargo-fuzz"), tools.join("bin/cargo-fuzz")] {
            if found(&path) {
                return Ok(path);
            }
        }
        eprintln!(
            "there is no cargo-fuzz: {CARGO_FUZZ} is installed from crates.io into target/tools"
        );
        let mut install = cargo(&["install", "--locked", "--version", CARGO_FUZZ, "cargo-fuzz"]);
        install.arg("--root").arg(&tools);
        command::run("cargo-fuzz", &mut install)?;
        Ok(tools.join("bin/cargo-fuzz"))
    }
}

fn rustc(arguments: &[&str]) -> Result<String> {
    let program = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(program).args(arguments).output();
    let output = output.context("rustc cannot be started")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
