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

/// Shells that completions are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellArg {
    Bash,
    Zsh,
    Fish,
}
