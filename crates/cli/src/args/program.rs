//! The words of commands that start a program: `run`, `exec`, `check`, `cov`, `profile`, and what a virtual GPU should be.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use mica_command::size::{Memory, Share};

use super::{ModeArg, PlacementArg, PrecisionArg, PriorityArg, ProfileArg, RegionUse};
use crate::check::CheckEnvironment;

/// What a virtual GPU should be.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Virtual GPU")]
pub(crate) struct SpecArgs {
    /// Most memory that programs may use, such as 8GiB or 50% of the GPU (default: the share's part of the GPU)
    #[arg(short, long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) memory: Option<Memory>,
    /// Guaranteed percent of one GPU's time, such as 30 or 33.3 (default: an even part of what is free, not reserved)
    #[arg(short, long, value_name = "PERCENT", allow_negative_numbers = true)]
    pub(crate) share: Option<Share>,
    /// Never exceed the share, even when the GPU is idle
    #[arg(long)]
    pub(crate) cap: bool,
    /// Who goes first
    #[arg(long, value_enum, default_value_t = PriorityArg::Normal)]
    pub(crate) priority: PriorityArg,
    /// Which GPU: its index, "nvidia" or "software" (default: chosen by --placement)
    #[arg(long, value_name = "GPU", allow_negative_numbers = true)]
    pub(crate) gpu: Option<String>,
    /// How a GPU is chosen
    #[arg(long, value_enum, default_value_t = PlacementArg::Fit)]
    pub(crate) placement: PlacementArg,
    /// Where limits are enforced (default: direct on NVIDIA, isolated on the software GPU)
    #[arg(long, value_enum)]
    pub(crate) mode: Option<ModeArg>,
    /// How the GPU's time is cut
    #[arg(long, value_enum)]
    pub(crate) profile: Option<ProfileArg>,
    /// When memory is full, wait up to this many seconds instead of failing
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) wait: Option<f64>,
    /// Let its memory leave the GPU while it is idle or its turn is over; limits may then exceed the GPU (isolated mode)
    #[arg(long, overrides_with = "no_swap")]
    pub(crate) swap: bool,
    /// Keep its memory on the GPU, whatever the configuration says
    #[arg(long, overrides_with = "swap")]
    pub(crate) no_swap: bool,
    /// End each allocation at an unmapped page, so that a kernel which passes the end faults at once and the allocation is
    /// named; slower, and at least 2 MiB an allocation (isolated mode)
    #[arg(long)]
    pub(crate) guard: bool,
    /// Most streams at once
    #[arg(long, value_name = "N")]
    pub(crate) max_streams: Option<u32>,
    /// Refuse code that uses tensor cores
    #[arg(long)]
    pub(crate) no_tensor_cores: bool,
    /// Which arithmetic may be used
    #[arg(long, value_enum, default_value_t = PrecisionArg::AsAsked)]
    pub(crate) precision: PrecisionArg,
    /// Run even if a limit cannot be enforced, marked degraded
    #[arg(long)]
    pub(crate) allow_degraded: bool,
}

/// How closely a program is watched.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct WatchArgs {
    /// Write one line per driver call to this file, and a summary
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Check every access of a kernel against the exact bounds of its allocation (software GPU, slower)
    #[arg(long)]
    pub(crate) memcheck: bool,
    /// The file that `mica profile` reads.
    #[arg(skip)]
    pub(crate) profile: Option<PathBuf>,
    /// Load all modules of the program, for `mica cov`: what is never used is part of its report.
    #[arg(skip)]
    pub(crate) loads_all: bool,
    /// List what the program has not freed or destroyed when it ends, when it was made and by whom (isolated mode)
    #[arg(long)]
    pub(crate) leaks: bool,
    /// Write the list of --leaks as JSON to this file too
    #[arg(long, value_name = "FILE", requires = "leaks")]
    pub(crate) leaks_json: Option<PathBuf>,
    /// Exit code if something was left, or that is not known, and the program itself ended with 0
    #[arg(long, value_name = "CODE", requires = "leaks", value_parser = clap::value_parser!(i32).range(1..=255))]
    pub(crate) leaks_exitcode: Option<i32>,
    /// What `mica check` and `--leaks` ask for.
    #[arg(skip)]
    pub(crate) check: Option<CheckEnvironment>,
}

impl WatchArgs {
    pub(crate) fn with_check(&self, check: CheckEnvironment) -> Self {
        let check = Some(check);
        Self {
            check,
            ..self.clone()
        }
    }
}

/// `mica check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// What to look for, separated by commas: memcheck, racecheck, initcheck, synccheck, leakcheck or all
    #[arg(long, value_name = "TOOLS", default_value = "all")]
    pub(crate) tool: mica_check::Tools,
    /// Print the report as JSON on standard output when the program has ended
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the report to this file as SARIF 2.1.0, which code hosts show beside the lines
    #[arg(long, value_name = "FILE")]
    pub(crate) sarif: Option<PathBuf>,
    /// Leave out what this file lists: lines such as "racecheck kernel=scan* file=*/scan.cu:120"
    #[arg(long, value_name = "FILE")]
    pub(crate) suppress: Option<PathBuf>,
    /// Exit code if mistakes were found
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(i32).range(0..=255))]
    pub(crate) error_exitcode: i32,
    /// Run threads in another order, chosen by this number, the same every time
    #[arg(long, value_name = "SEED")]
    pub(crate) schedule: Option<u64>,
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `mica cov`.
#[derive(Debug, Args)]
pub(crate) struct CovArgs {
    /// Write the report to this file as a tracefile of lcov, which genhtml, Codecov and others read
    #[arg(long, value_name = "FILE")]
    pub(crate) lcov: Option<PathBuf>,
    /// Add the results in this tracefile of lcov; can be given again, and can be the file of --lcov
    #[arg(long, short = 'a', value_name = "FILE", visible_alias = "append")]
    pub(crate) add_tracefile: Vec<PathBuf>,
    /// Fail if less than this part of the lines was reached
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) fail_under: Option<f64>,
    /// Report only files whose path is like this, where * stands for any text; can be given again
    #[arg(long, value_name = "PATTERN")]
    pub(crate) include: Vec<String>,
    /// Leave out files whose path is like this; can be given again
    #[arg(long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<String>,
    /// Print the report as JSON on standard output when the program has ended
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    /// The program and its arguments
    #[arg(
        required_unless_present = "add_tracefile",
        trailing_var_arg = true,
        value_name = "CMD"
    )]
    pub(crate) command: Vec<OsString>,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(part) if (0.0..=100.0).contains(&part) => Ok(part),
        _ => Err("write a percentage from 0 to 100".to_owned()),
    }
}

/// `mica profile`.
#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// Write every single kernel, copy and wait to this file, for ui.perfetto.dev or chrome://tracing
    #[arg(
        long = "trace",
        short_alias = 'o',
        value_name = "FILE",
        conflicts_with = "vgpu"
    )]
    pub(crate) output: Option<PathBuf>,
    /// Print the report as JSON on standard output when the program has ended
    #[arg(long)]
    pub(crate) json: bool,
    /// Kernels and copies that are shown
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
    /// Look at what runs in this virtual GPU instead of starting a program
    #[arg(long, value_name = "NAME", conflicts_with = "command", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) vgpu: Option<String>,
    /// How long to look, with --vgpu
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    /// The program and its arguments
    #[arg(
        required_unless_present = "vgpu",
        trailing_var_arg = true,
        value_name = "CMD"
    )]
    pub(crate) command: Vec<OsString>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("write seconds from 0.1 to 86400".to_owned()),
    }
}

/// `mica run`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    /// Name of the virtual GPU (default: made up)
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Use a GPU of another machine: its name in `mica remote ls`, or its address
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) on: Option<String>,
    /// Attach a region, to be read, or with :rw also written; can be given again
    #[arg(long, value_name = "REGION[:rw]")]
    pub(crate) region: Vec<RegionUse>,
    /// Run blocks in the order that this number chooses, the same every time; 0 is the usual order (software GPU)
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Cores that kernels run on: multiprocessors of the GPU (software GPU; default: all, or 1 with --seed)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) cores: Option<u32>,
    /// Compute capability that the GPU reports: with 9.0, libraries take their code for Hopper (software GPU; default: 8.0)
    #[arg(long, value_name = "X.Y", value_parser = ["8.0", "9.0"])]
    pub(crate) capability: Option<String>,
    #[command(flatten, next_help_heading = "Looking into the program")]
    pub(crate) watch: WatchArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `mica exec`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExecArgs {
    /// The virtual GPU
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
