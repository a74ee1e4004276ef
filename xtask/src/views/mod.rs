//! `cargo xtask views`: what people watch, as they see it.
//!
//! A real daemon with six tenants under load on the software GPU, a real Chromium on its page, a real Prometheus on its
//! metrics. Pictures of every view are in `target/views`, to be looked at.

mod acts;
mod browser;
mod cast;
mod checks;
mod cost;
mod faults;
mod frames;
mod prometheus;
mod stage;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{self, cargo, root, target};
use browser::Browser;
use prometheus::Door;
use stage::Stage;

/// axe, which looks for what a screen reader or weak eyes stumble over. Installed, never shipped.
const AXE: &str = "axe-core@4.10.3";
/// How long the tenants work: longer than everything takes on a busy machine.
const SECONDS: u32 = 1200;

/// Runs all of it but `cost`, or what is named: `page`, `metrics`, `pictures`, `cost`, `frames`.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let (page, metrics, pictures) = match words {
        [] => (true, true, false),
        ["page"] => (true, false, false),
        ["metrics"] => (false, true, false),
        ["pictures"] => (false, false, true),
        ["cost" | "frames"] => {
            let folder = target().join("views");
            std::fs::create_dir_all(&folder)?;
            let chromium = tool("chromium", "MICA_CHROMIUM");
            return cost::run(chromium, &folder, words == ["frames"]);
        }
        other => bail!(
            "unknown part {:?}: write page, metrics, pictures, cost or frames",
            other.join(" ")
        ),
    };
    // Pictures show what users have, so they are taken of a release build.
    let mica = match pictures {
        true => cost::binary()?,
        false => build()?,
    };
    let folder = target().join("views");
    std::fs::create_dir_all(&folder)?;
    let chromium = (page || pictures)
        .then(|| tool("chromium", "MICA_CHROMIUM"))
        .flatten();
    let has_prometheus = metrics && tool("prometheus", "MICA_PROMETHEUS").is_some();
    let door = Door::make(&folder.join("prometheus")).context("a certificate for the metrics")?;
    let mut stage = Stage::start(&mica, &folder.join("stage"), &door.section())?;
    stage.fill(SECONDS)?;
    if let Some(chromium) = &chromium {
        let mut browser = Browser::start(chromium, &folder.join("profile"))?;
        if pictures {
            let folder = root().join("docs/pictures");
            acts::pictures(&mut browser, &stage, &folder)?;
            return cast::film(&stage, &folder.join("top.svg"));
        }
        let axe = axe();
        checks::all(&mut browser, &mut stage, &folder, axe.as_deref())?;
    }
    if has_prometheus {
        println!("==> Prometheus");
        prometheus::check(&mut stage, &door)?;
    }
    println!(
        "views: all that was tried holds; pictures are in {}",
        folder.display()
    );
    Ok(())
}

fn build() -> Result<PathBuf> {
    let words = [
        "build",
        "-p",
        "mica-cli",
        "-p",
        "mica-shim",
        "-p",
        "mica-nvml-shim",
    ];
    command::run("build", &mut cargo(&words))?;
    Ok(target().join("debug/mica"))
}

/// Path of a program, installed by the system's packages if need be; `None`, with the reason told, if it cannot be had.
fn tool(name: &str, variable: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Some(path.into());
    }
    let find = || {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&folders)
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
    };
    find().or_else(|| {
        eprintln!("installing {name}, with apt-get");
        let installed = Command::new("apt-get")
            .args(["install", "-y", "--no-install-recommends", name, "fonts-dejavu-core"])
            .stdout(std::process::Stdio::null())
            .status();
        let found = installed.is_ok_and(|status| status.success()).then(find).flatten();
        if found.is_none() {
            println!("skipped: {name} is not installed and apt-get does not install it; {variable} can name it");
        }
        found
    })
}

/// The text of axe; `None`, with the reason told, if it cannot be had.
fn axe() -> Option<String> {
    let folder = target().join("tools/axe");
    let file = folder.join("node_modules/axe-core/axe.min.js");
    let read = |file: &Path| std::fs::read_to_string(file).ok();
    read(&file).or_else(|| {
        eprintln!("installing {AXE} into {}", folder.display());
        let installed = Command::new("npm")
            .args([
                "install",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
                "--prefix",
            ])
            .arg(&folder)
            .arg(AXE)
            .stdout(std::process::Stdio::null())
            .status();
        let found = installed
            .is_ok_and(|status| status.success())
            .then(|| read(&file))
            .flatten();
        if found.is_none() {
            println!("skipped: npm does not install {AXE}, so accessibility is not checked");
        }
        found
    })
}
