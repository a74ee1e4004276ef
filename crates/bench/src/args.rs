//! The options of `mica bench`.

use clap::{Args, ValueEnum};

/// `mica bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_enum)]
    pub what: BenchArg,
    /// Only scenarios whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Seconds per measurement
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<f64>,
    /// For `mica bench gpu`, `memory` and the timeline of `views`: which GPU (default: nvidia; memory and views: nvidia where there is one)
    #[arg(long, value_enum)]
    pub gpu: Option<BenchGpuArg>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchArg {
    /// A real GPU: shares, bursts, priority, cap, overhead, isolated mode
    Gpu,
    /// The software GPU against gcc and PoCL
    Software,
    /// Launches, copies and the ledger through a worker
    Vgpu,
    /// Unmodified programs through libcuda.so.1
    Shim,
    /// The compute library against PyTorch, or on the software GPU against NumPy and a plain loop
    Ops,
    /// What it costs to be watched, and whether the timeline is right
    Views,
    /// The same program on the host, in a container and over the network
    Walls,
    /// Memory that leaves the GPU and returns: moves, allocations, kernels, tenants in turns
    Memory,
    /// What looking for mistakes of kernels and recording their coverage cost
    Check,
}

/// GPUs that `mica bench gpu` and `mica bench memory` measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchGpuArg {
    /// Every scenario, against the bare driver
    Nvidia,
    /// Calls and copies in isolated mode, against nothing; the timeline
    Software,
}
