//! `mica bench`: the specification's numbers, both sides and their ratio from one run; `mica demo`.
//!
//! Owns what is measured and shown. Loads that run as ordinary CUDA programs are in `mica-load`.
#![deny(clippy::unwrap_used, clippy::expect_used)]

// `out!`, `outln!` and `errln!`.
#[macro_use]
extern crate mica_command;

mod args;

mod check;
mod confined;
mod decision;
pub mod demo;
mod gpu;
mod group;
mod isolated;
mod memory;
mod ops;
mod overhead;
mod priority;
mod programs;
mod pytorch;
mod report;
mod session;
mod shim;
mod shim_load;
mod software;
mod speed;
mod speed_rows;
mod urgent;
mod vgpu;
mod views;
mod walls;

use anyhow::{Context, Result, ensure};

pub use crate::args::{BenchArg, BenchArgs, BenchGpuArg};
use crate::demo::processor::Processor;
pub use crate::shim_load::{CopyDirection, ShimTask};

/// Percent of the processor from which on other programs are worth a word.
const DISTURBED_PERCENT: f64 = 10.0;

/// Tells why programs cannot load Mica's libraries, if they cannot.
pub type Libraries<'a> = &'a dyn Fn() -> Result<()>;

/// Runs the load of `mica bench shim`, as an ordinary CUDA program.
///
/// # Errors
/// A call of the driver fails.
pub fn run_shim_load(task: ShimTask) -> Result<()> {
    shim_load::run(task)
}

/// Runs a benchmark; `false` if a number that is promised was not reached.
///
/// # Errors
/// The benchmark does not fit the options, or a part of it cannot run.
pub fn run(args: &BenchArgs, libraries: Libraries) -> Result<bool> {
    ensure!(
        matches!(
            args.what,
            BenchArg::Gpu | BenchArg::Memory | BenchArg::Views
        ) || args.gpu.is_none(),
        "--gpu is for `mica bench gpu`, `mica bench memory` and `mica bench views`"
    );
    let processor = || Processor::now(&[std::process::id()]);
    let before = processor();
    let reached = match args.what {
        BenchArg::Gpu => gpu::run(args),
        BenchArg::Software => software::run(args),
        BenchArg::Vgpu => vgpu::run(args, libraries),
        BenchArg::Shim => shim::run(args, libraries),
        BenchArg::Ops => ops::run(args),
        BenchArg::Views => views::run(args, libraries),
        BenchArg::Walls => walls::run(args, libraries),
        BenchArg::Memory => memory::run(args),
        BenchArg::Check => check::run(args),
    }?;
    let others = processor().others_percent_since(&before);
    if others >= DISTURBED_PERCENT {
        errln!(
            "other programs used {others:.0} % of this processor meanwhile: the numbers are worse for it"
        );
    }
    Ok(reached)
}

/// Resident memory of a process.
fn resident_bytes_of(pid: u32) -> Result<u64> {
    let file = format!("/proc/{pid}/statm");
    let text = std::fs::read_to_string(&file).with_context(|| format!("{file} cannot be read"))?;
    let pages: u64 = text
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse().ok())
        .with_context(|| format!("{file} has no resident size"))?;
    // SAFETY: a plain query.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Ok(pages * u64::try_from(page_bytes).unwrap_or(4096))
}
