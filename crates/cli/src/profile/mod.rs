//! `mica profile`: which kernels, copies and waits took a program's time.
//!
//! ```text
//!   create an isolated virtual GPU, profile it ─► program ─► lines in a memory file ─► follow
//!                                                     └─► end: table, JSON, trace file; the program's exit code
//! ```
//! The file of lines is anonymous memory of this process, so that nothing stays behind however it ends.

mod follow;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mica_command::progress::Progress;
use mica_command::refusal::explain;
use mica_control::api::{Mode, ProfileLevel, SetProfile};
use mica_views::profile;

use crate::args::{ModeArg, ProfileArgs, WatchArgs};
use crate::follower::file_in_memory;
use crate::{control, program, signals};

/// How long the last word of workers takes at most.
const LAST_WORD: Duration = Duration::from_millis(500);

/// Runs a program and returns its exit code, or looks at what runs in a virtual GPU.
pub(crate) fn run(args: &ProfileArgs) -> Result<i32> {
    match &args.vgpu {
        Some(name) => watch(args, name).map(|()| 0),
        None => run_program(args),
    }
}

fn run_program(args: &ProfileArgs) -> Result<i32> {
    if args.spec.mode == Some(ModeArg::Direct) {
        bail!(
            "mica profile needs isolated mode: in direct mode the driver alone sees kernels, and NVIDIA's nsys and ncu work \
             on the program (mica run -- nsys profile ...)"
        );
    }
    // What would fail at the end fails before the program runs.
    let trace = args.output.as_deref().map(create).transpose()?;
    let (file, path) = file_in_memory("mica-profile")?;
    let follower = follow::start(file)?;
    let watch = WatchArgs {
        profile: Some(path),
        ..WatchArgs::default()
    };
    let code = program::run_profiled(args, &watch);
    let recorded = follower.finish();
    // A program that did not start has no profile.
    let code = code?;
    if args.json {
        outln!("{}", profile::json(&recorded)?);
    } else {
        errln!(
            "mica: profile: {}",
            profile::text(&recorded, args.top).trim_end()
        );
    }
    if let (Some((path, file)), kept) = (trace, recorded.spans.len()) {
        let mut out = BufWriter::new(file);
        (profile::write_trace(&recorded, &mut out).and_then(|()| out.flush()))
            .with_context(|| format!("{} cannot be written", path.display()))?;
        if !args.json {
            errln!(
                "mica: profile: {kept} spans are in {}, which ui.perfetto.dev and chrome://tracing show",
                path.display()
            );
        }
    }
    Ok(code)
}

fn create(path: &Path) -> Result<(&Path, File)> {
    let file = File::create(path);
    let file = file.with_context(|| format!("{} cannot be written", path.display()))?;
    Ok((path, file))
}

/// Profiles what runs in a virtual GPU for a while.
fn watch(args: &ProfileArgs, name: &str) -> Result<()> {
    let client = control::connect()?;
    let before = client.get(name).map_err(explain)?;
    if before.mode == Mode::Isolated && before.processes.is_empty() {
        errln!("mica: no program runs in {name} yet");
    }
    let was_on = before.profiled;
    if !was_on {
        // The daemon ends it, should this process be killed.
        let on = SetProfile {
            level: ProfileLevel::Sums,
            seconds: Some(args.seconds + 5.0),
        };
        client.set_profile(name, &on).map_err(explain)?;
    }
    let seconds = Duration::from_secs_f64(args.seconds);
    let began = Instant::now();
    let interrupted = signals::note_interrupts();
    let progress = Progress::of(&format!("looking at {name}"), Some(seconds));
    while began.elapsed() < seconds && !interrupted() {
        std::thread::sleep(Duration::from_millis(50).min(seconds.saturating_sub(began.elapsed())));
    }
    drop(progress);
    if !was_on {
        let off = SetProfile::default();
        client.set_profile(name, &off).map_err(explain)?;
        std::thread::sleep(LAST_WORD);
    }
    let profile = client.profile(name).map_err(explain)?;
    if args.json {
        outln!("{}", profile::json_of_vgpu(&profile)?);
        return Ok(());
    }
    outln!(
        "{} for {:.1} s{}",
        profile.name,
        profile.seconds,
        if profile.lines.is_empty() {
            ": nothing ran"
        } else {
            ""
        }
    );
    if !profile.lines.is_empty() {
        outln!();
        out!("{}", profile::table(&profile.lines, args.top));
    }
    Ok(())
}
