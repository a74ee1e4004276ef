//! `cargo xtask header`: writes the C header of `libmica` anew from the source of `crates/capi`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::command::{self, cargo, root, target};

/// The version that writes the header; another one may order or space it differently.
const CBINDGEN: &str = "0.29.4";

/// Writes `crates/capi/include/mica.h`.
pub(crate) fn run() -> Result<()> {
    let of = root().join("crates/capi");
    let mut write = Command::new(cbindgen()?);
    write.arg("--config").arg(of.join("cbindgen.toml"));
    write.arg("--output").arg(of.join("include/mica.h"));
    write.arg(&of);
    command::run("header", &mut write)
}

/// The pinned cbindgen, installed where it is missing.
fn cbindgen() -> Result<PathBuf> {
    let tools = target().join("tools");
    let path = tools.join("bin/cbindgen");
    let answer = Command::new(&path).arg("--version").output();
    if answer.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(CBINDGEN)) {
        return Ok(path);
    }
    eprintln!("there is no cbindgen {CBINDGEN}: it is installed into target/tools");
    let mut install = cargo(&["install", "cbindgen", "--locked"]);
    install.args(["--version", CBINDGEN, "--root"]).arg(&tools);
    command::run("cbindgen", &mut install)?;
    Ok(path)
}
