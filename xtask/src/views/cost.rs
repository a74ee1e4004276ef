//! `cargo xtask views cost`: what it costs to be watched, both sides by turns, in one run.
//!
//! First `mica bench views`: the daemon's processor time and memory, a tenant's throughput, the timeline. Then frames of the
//! page with a hundred tenants beside frames of an empty page in the same browser, because both depend on what else the
//! machine does. Against a release build, or the `mica` that `MICA_BINARY` names. `cargo xtask views frames` counts frames
//! alone.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::browser::{Browser, Tab};
use super::frames::{self, Look};
use super::stage::Stage;
use crate::command::{self, cargo, target};

/// Rounds, each with a look at both pages.
const ROUNDS: usize = 6;
const IDLE_TENANTS: u32 = 94;
const BUSY_TENANTS: u32 = 6;
/// How long tenants work: longer than everything takes.
const SECONDS: u32 = 600;
/// Frames of the page for each frame of an empty page.
const LEAST_PART: f64 = 0.98;
const LEAST_FRAMES: f64 = 59.0;

/// Runs everything, or counts frames alone.
pub(super) fn run(chromium: Option<PathBuf>, folder: &Path, only_frames: bool) -> Result<()> {
    let mica = binary()?;
    let is_well = only_frames || {
        let mut bench = Command::new(&mica);
        let status = bench.args(["bench", "views"]).status();
        status
            .with_context(|| mica.display().to_string())?
            .success()
    };
    let Some(chromium) = chromium else {
        bail!("there is no Chromium, so frames were not counted");
    };
    let mut browser = Browser::start(&chromium, &folder.join("cost-profile"))?;
    let stage = crowd(&mica, &folder.join("cost"))?;
    println!(
        "frames of an empty page and of the page with {} tenants by turns, {} s each; processor time is of the page's main thread",
        IDLE_TENANTS + BUSY_TENANTS,
        frames::LOOK.as_secs()
    );
    let tab = browser.tab(1440, 900)?;
    let (mut empty, mut page) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        // Each is the first in half of the rounds: what changes with time is on neither side.
        for is_page in [round % 2 == 0, round % 2 != 0] {
            let (name, looks) = match is_page {
                true => ("page      ", &mut page),
                false => ("empty page", &mut empty),
            };
            match is_page {
                true => open(&mut browser, &tab, &stage)?,
                false => browser.open(&tab, "about:blank")?,
            }
            let look = frames::look(&mut browser, &tab)?;
            println!("    round {round}: {name} {look}");
            looks.push(look);
        }
    }
    let reached = verdict(&empty, &page);
    ensure!(reached && is_well, "not all goals were reached");
    Ok(())
}

/// Tells the medians of both sides and whether the goal is reached.
fn verdict(empty: &[Look], page: &[Look]) -> bool {
    let (was, is) = (frames::median(empty), frames::median(page));
    let reached = is.rate >= LEAST_FRAMES || is.rate >= LEAST_PART * was.rate;
    println!("    medians: empty page {was}\n    medians: page       {is}");
    println!(
        "{} frames a second with 100 tenants: {:.1}, empty page {:.1}, {:.1} % of it; script {:.2} ms a frame, main thread {:.2} ms a \
         frame; frames missed by the page's own work: {} of {} (goal: 60 a second, or 98 % of an empty page)",
        if reached { "reached" } else { "not reached" },
        is.rate,
        was.rate,
        is.rate * 100.0 / was.rate.max(0.1),
        is.script_ms,
        is.main_ms,
        page.iter().map(|look| look.own_missed).sum::<u64>(),
        page.iter().map(|look| look.frames).sum::<u64>(),
    );
    reached
}

/// A release build of `mica`.
pub(super) fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MICA_BINARY") {
        return Ok(path.into());
    }
    let words = ["build", "--release", "-p", "mica-cli"];
    command::run("release build", &mut cargo(&words))?;
    Ok(target().join("release/mica"))
}

/// A daemon with a hundred virtual GPUs, of which a few have many short turns and leave the processors to the browser.
fn crowd(mica: &Path, folder: &Path) -> Result<Stage> {
    let mut stage = Stage::start(mica, folder, "[sharing]\novercommit_memory = true\n")?;
    for number in 0..IDLE_TENANTS {
        let name = format!("idle-{number:02}");
        stage.run(&["create", &name, "-m", "8MiB"])?;
    }
    let load = json!({
        "pattern": "latency", "iterations": 200, "depth": 1, "start_unix_ms": 0, "seconds": SECONDS,
    });
    for number in 0..BUSY_TENANTS {
        let name = format!("busy-{number}");
        let run = ["run", "--name", &name, "-m", "64MiB", "--", "mica", "load"];
        stage.begin(&[&run[..], &[load.to_string().as_str()]].concat())?;
    }
    Ok(stage)
}

fn open(browser: &mut Browser, tab: &Tab, stage: &Stage) -> Result<()> {
    browser.open(tab, &stage.page()?)?;
    browser.until(
        tab,
        "live",
        "document.querySelector('.status.live') !== null",
    )?;
    let full = format!(
        "(async () => {{ const {{ store }} = await import('/js/store.js'); return store.vgpus.length >= {} \
         && (store.turns.get(0)?.turns.length ?? 0) > 50; }})()",
        IDLE_TENANTS + BUSY_TENANTS
    );
    browser.until(tab, "all tenants and their turns", &full)?;
    // The first figures draw everything anew.
    std::thread::sleep(Duration::from_secs(3));
    Ok(())
}
