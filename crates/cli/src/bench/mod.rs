//! `mica bench`: the specification's numbers, both sides and their ratio from one run.

mod gpu;
mod group;
mod report;

use anyhow::{Result, bail};

use crate::args::{BenchArg, BenchArgs};

/// Runs a benchmark; `false` if a number that is promised was not reached.
pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    match args.what {
        BenchArg::Gpu => gpu::run(args),
        BenchArg::Software | BenchArg::Vgpu | BenchArg::Shim => {
            bail!("this benchmark is not in this build yet")
        }
    }
}
