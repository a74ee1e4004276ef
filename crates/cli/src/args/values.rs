//! The words that options take.

use clap::ValueEnum;

/// Priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PriorityArg {
    High,
    Normal,
    Low,
}

/// Modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeArg {
    Direct,
    Isolated,
}

/// Profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileArg {
    Throughput,
    Balanced,
    Latency,
}

/// Precision policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrecisionArg {
    /// Whatever the program asks for
    AsAsked,
    /// No TF32
    Full,
    /// Reduced precision wherever a library offers it
    Reduced,
}

/// Placement strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlacementArg {
    Fit,
    Spread,
    Pack,
    LeastLoaded,
}

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputArg {
    Wide,
    Json,
}

/// Benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchArg {
    /// A real GPU: shares, bursts, priority, cap, overhead, isolated mode
    Gpu,
    /// The software GPU against gcc and PoCL
    Software,
    /// Launches, copies and the ledger through a worker
    Vgpu,
    /// Unmodified programs through libcuda.so.1
    Shim,
}

/// GPUs that `mica bench gpu` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchGpuArg {
    /// Every scenario, against the bare driver
    Nvidia,
    /// Calls and copies in isolated mode, against nothing
    Software,
}

/// Shells that completions are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellArg {
    Bash,
    Zsh,
    Fish,
}
