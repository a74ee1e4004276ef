//! The words people type: one definition for parsing, help, man pages and completions.

mod cdi;
mod region;
mod remote;
mod texts;
mod values;
mod vm;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use cdi::{CdiArgs, CdiCommand, CdiGenerateArgs, CdiRemoveArgs};
use mica_command::size::{Memory, Share};
use mica_command::when::Since;
use mica_views::args::{ReportArgs, SmiArgs, TopArgs, WhyArgs};
pub(crate) use region::{RegionAttachArgs, RegionCommand, RegionCreateArgs, RegionUse};
pub(crate) use remote::{InviteArgs, PairArgs, RemoteAddArgs, RemoteCommand, ServeArgs};
pub(crate) use values::{
    ModeArg, OutputArg, PlacementArg, PrecisionArg, PriorityArg, ProfileArg, ShellArg,
};
pub(crate) use vm::{IvshmemArgs, VmArgs, VmAttachArgs, VmCommand, VmServeArgs};

use crate::check::CheckEnvironment;

/// Split a GPU into virtual GPUs with a memory limit and a compute share that hold.
#[derive(Debug, Parser)]
#[command(
    name = "mica",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
#[command(
    after_help = texts::MICA,
    max_term_width = 80
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program in a virtual GPU of its own
    #[command(
        after_help = texts::RUN
    )]
    Run(RunArgs),
    /// Run a program in an existing virtual GPU
    Exec(ExecArgs),
    /// Find mistakes of a program's kernels, without a GPU
    ///
    /// Runs the program on a software GPU that watches every access of every thread: accesses outside
    /// allocations and of freed memory, races, reads of memory that nobody wrote, barriers and masks used
    /// as they must not be, memory never freed. The same program gives the same report every time.
    #[command(
        after_help = texts::CHECK
    )]
    Check(CheckArgs),
    /// Which lines of a program's kernels were reached, without a GPU
    ///
    /// Runs the program, and all processes that it starts, on a software GPU that records which lines of device code are
    /// reached: source lines of code that was built with -lineinfo, else lines of the PTX text. A line is reached if any copy
    /// of it is. Kernels of a module that was loaded and never launched count as not reached.
    #[command(
        after_help = texts::COV
    )]
    Cov(CovArgs),
    /// Which kernels, copies and waits take a program's time
    ///
    /// Runs the program in an isolated virtual GPU that records every kernel, copy and wait: exact times on the
    /// software GPU, those of the driver's events on an NVIDIA GPU. With --vgpu nothing is started: what runs in
    /// that virtual GPU is looked at for a while.
    #[command(
        after_help = texts::PROFILE
    )]
    Profile(ProfileArgs),
    /// Make a virtual GPU that stays until it is removed
    Create(CreateArgs),
    /// List virtual GPUs and their limits
    #[command(visible_alias = "list", alias = "ps")]
    Ls(ListArgs),
    /// Show all about one virtual GPU and its programs
    Show(NameArgs),
    /// Change limits of a virtual GPU while it runs
    Resize(ResizeArgs),
    /// Remove a virtual GPU
    Rm(RemoveArgs),
    /// Hold everything that runs in a virtual GPU
    Suspend(SuspendArgs),
    /// Let a suspended virtual GPU run again
    Resume(NameArgs),
    /// Save a virtual GPU to a file; its program waits
    ///
    /// All that the running program has on the GPU goes into the file: contexts, streams, events,
    /// modules, memory. Then its worker ends and the program waits, in its next call to the GPU,
    /// until `mica restore` brings everything back at the same addresses. The worker, the daemon
    /// and other programs may end and start meanwhile; the program itself must live. Needs --swap
    /// when the virtual GPU is made, and the software GPU so far. What cannot be saved is refused
    /// by name before anything is written, and the program goes on.
    Snapshot(SnapshotArgs),
    /// Restore a virtual GPU from a file; its program goes on
    Restore(RestoreArgs),
    /// Move a virtual GPU to another GPU; its program waits meanwhile
    ///
    /// As a snapshot that is restored on another GPU at once, by way of memory. Where the virtual
    /// GPU does not fit there, it goes on where it was. Software GPUs so far
    /// (software_gpu.count in the configuration).
    Migrate(MigrateArgs),
    /// End queued and running kernels of a virtual GPU
    ///
    /// Programs are told as when a driver's watchdog ends a kernel: the context that it ran in is
    /// broken, and every later call in it returns CUDA_ERROR_LAUNCH_TIMEOUT (702,
    /// cudaErrorLaunchTimeout) until the program resets the device or ends. What the kernel has
    /// written so far is undefined. Contexts without queued or running kernels do not notice.
    /// Works for isolated virtual GPUs.
    Cancel(NameArgs),
    /// Show where the memory of a virtual GPU is, and what cannot leave
    Memory(MemoryArgs),
    /// Memory that several virtual GPUs share, such as weights
    #[command(
        subcommand,
        after_help = texts::REGION
    )]
    Region(RegionCommand),
    /// List this host's GPUs
    Gpus(JsonArgs),
    /// Print what virtual GPUs use, or what they used since a time
    Stats(StatsArgs),
    /// Watch GPUs, virtual GPUs and their programs, and act on them
    #[command(
        after_help = texts::TOP
    )]
    Top(TopArgs),
    /// A picture in nvidia-smi's layout, and its queries for scripts
    #[command(
        after_help = texts::SMI
    )]
    Smi(SmiArgs),
    /// Why is a virtual GPU slow? Measures, and says what to change
    Why(WhyArgs),
    /// What was used by users, virtual GPUs or containers, for a bill
    #[command(after_help = "Example: mica report --by user --month --csv")]
    Report(ReportArgs),
    /// Print what happened, newest last; follow with -f
    Events(EventsArgs),
    /// Is every limit in force? Says how it knows
    Doctor(DoctorArgs),
    /// A tour of what Mica promises, with proof (about 40 seconds)
    Demo(JsonArgs),
    /// Give virtual GPUs to containers (Docker, Podman, containerd)
    #[command(
        after_help = texts::CDI
    )]
    Cdi(CdiArgs),
    /// Give a virtual GPU to a virtual machine
    Vm(VmArgs),
    /// Measure: both sides and their ratio, from one run
    Bench(mica_bench::BenchArgs),
    /// Open the web page: who has the GPU, live
    #[command(
        after_help = texts::DASHBOARD
    )]
    Dashboard(JsonArgs),
    /// Own this host's GPUs
    Daemon(DaemonArgs),
    /// Let paired machines use this host's GPUs over the network
    #[command(after_help = "Example: mica serve --listen 0.0.0.0:9731\nThen: mica remote invite")]
    Serve(ServeArgs),
    /// Pair machines, list paired machines, and remove them
    #[command(subcommand)]
    Remote(RemoteCommand),
    /// Show the kernels in a PTX or fatbin file, and what cannot be run
    Ptx(PtxArgs),
    /// Print or check the configuration
    Config(ConfigArgs),
    /// Print a shell's completions
    #[command(
        after_help = texts::COMPLETIONS
    )]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: ShellArg,
    },
    /// Print what could be typed next (called by the shells' completions)
    #[command(hide = true, name = "__complete")]
    Complete {
        /// The words after `mica`, the last one being typed.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Write the man pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder.
        folder: PathBuf,
    },
    /// Write the libraries for machines without `mica` into a folder, by C library
    #[command(hide = true)]
    Libraries {
        /// The folder.
        folder: PathBuf,
    },
    /// Serve one stream of a virtual machine (started by `mica vm serve`)
    #[command(hide = true)]
    VmStream {
        /// The socket that leads to the virtual GPU.
        socket: PathBuf,
        /// The machine's regions.
        regions: Vec<PathBuf>,
    },
    /// Serve one virtual GPU (started by the daemon)
    #[command(hide = true)]
    Worker {
        /// For listings of processes; the environment says what to serve.
        label: Vec<String>,
    },
    /// Serve one connection of the network, which is the standard input (started by `mica serve`)
    #[command(hide = true)]
    ServeConnection {
        /// It wants to be paired.
        #[arg(long)]
        pair: bool,
        /// Seconds that a broken connection is waited for.
        #[arg(long)]
        resume: u32,
    },
    /// Be one tenant of the demo
    #[command(hide = true)]
    DemoTenant,
    /// Measure calls as an ordinary CUDA program
    #[command(hide = true)]
    ShimLoad {
        /// Copy until killed, instead.
        #[arg(long)]
        copy_for_ever: bool,
        /// Measure the steps of a training loop, instead.
        #[arg(long)]
        train: bool,
        /// Leave out what uses pinned memory in place.
        #[arg(long)]
        without_pinned: bool,
        /// Load a large module, instead.
        #[arg(long)]
        large_module: bool,
        /// Copy a while in one direction, instead.
        #[arg(long)]
        copies: Option<mica_bench::CopyDirection>,
    },
    /// Ask for more than the limit as an ordinary CUDA program
    #[command(hide = true)]
    LimitProbe {
        /// The limit in bytes.
        limit: usize,
        /// Join this virtual GPU first.
        #[arg(long = "in", value_name = "NAME")]
        vgpu: Option<String>,
    },
    /// Run a benchmark load as an ordinary CUDA program
    #[command(hide = true)]
    Load {
        /// The load as JSON.
        load: String,
    },
}

/// What a virtual GPU should be.
#[derive(Clone, Debug, Args)]
pub(crate) struct SpecArgs {
    /// Most memory it may use, such as 8GiB or 50% of the GPU (default: the share's part of the GPU)
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
    #[arg(long, value_name = "NAME", conflicts_with = "command")]
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
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `mica exec`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExecArgs {
    /// The virtual GPU
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) watch: WatchArgs,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `mica create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Its name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) spec: SpecArgs,
    /// Print the answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica ls`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// More columns
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<OutputArg>,
}

/// A name and a format.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The virtual GPU
    pub(crate) name: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica memory`.
#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// The virtual GPU
    pub(crate) name: String,
    /// First give back what pools and host memory keep for later (swappable virtual GPUs)
    #[arg(long)]
    pub(crate) compact: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica suspend`.
#[derive(Debug, Args)]
pub(crate) struct SuspendArgs {
    /// The virtual GPU
    pub(crate) name: String,
    /// Take its memory off the GPU until it is resumed (needs --swap when it is made)
    #[arg(long)]
    pub(crate) free: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica snapshot`.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    /// The virtual GPU
    #[arg(required_unless_present = "inspect")]
    pub(crate) name: Option<String>,
    /// The file to make
    #[arg(required_unless_present = "inspect")]
    pub(crate) file: Option<PathBuf>,
    /// Show what is in a snapshot, and check all of it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "file"])]
    pub(crate) inspect: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica migrate`.
#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// The virtual GPU
    pub(crate) name: String,
    /// The GPU it is to be on
    #[arg(long, value_name = "INDEX")]
    pub(crate) gpu: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The file that `mica snapshot` made
    pub(crate) file: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Only a format.
#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica resize`.
#[derive(Debug, Args)]
#[command(
    override_usage = "mica resize [-m SIZE] [-s PERCENT] [--cap|--no-cap] [--priority P] NAME"
)]
#[command(group(
    // Not the group that all arguments are in by themselves: the name alone changes nothing.
    clap::ArgGroup::new("changes").required(true).multiple(true).args(["memory", "share", "cap", "no_cap", "priority"])
))]
pub(crate) struct ResizeArgs {
    /// The virtual GPU
    pub(crate) name: String,
    /// Most memory it may use from now on, such as 8GiB or 50% of the GPU
    #[arg(short, long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) memory: Option<Memory>,
    /// Guaranteed percent of one GPU's time from now on, such as 30 or 33.3
    #[arg(short, long, value_name = "PERCENT", allow_negative_numbers = true)]
    pub(crate) share: Option<Share>,
    /// Never exceed the share, even when the GPU is idle
    #[arg(long)]
    pub(crate) cap: bool,
    /// Let it exceed its share when the GPU is idle
    #[arg(long, conflicts_with = "cap")]
    pub(crate) no_cap: bool,
    /// Who goes first
    #[arg(long, value_enum)]
    pub(crate) priority: Option<PriorityArg>,
    /// Accept a memory limit below what is in use, and let use drain
    #[arg(long)]
    pub(crate) drain: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica rm`.
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// The virtual GPUs
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
    /// End what runs in them
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica stats`.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the metrics in Prometheus's format
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
    /// Print what was measured since then: 10m, 2h, 3d, 14:30, 2026-01-31 or "2026-01-31 14:30"
    #[arg(long, value_name = "WHEN", conflicts_with = "prometheus")]
    pub(crate) since: Option<Since>,
    /// Only this virtual GPU, which may have been removed (with --since)
    #[arg(long = "vgpu", id = "name", value_name = "NAME", requires = "since")]
    pub(crate) vgpu: Option<String>,
}

/// `mica events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only events of this virtual GPU, which may have been removed
    pub(crate) name: Option<String>,
    /// Keep printing events as they happen
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only the last N events
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) last: Option<usize>,
    /// Only events since then: 10m, 2h, 3d, 14:30, 2026-01-31 or "2026-01-31 14:30"
    #[arg(long, value_name = "WHEN")]
    pub(crate) since: Option<Since>,
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Only this virtual GPU
    pub(crate) name: Option<String>,
    /// Also have a process in each virtual GPU ask the GPU for more than the limit; it needs room for a
    /// context there
    #[arg(long)]
    pub(crate) probe: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica daemon`.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Tell the running daemon to read its configuration again
    #[arg(long, conflicts_with = "stop")]
    pub(crate) reload: bool,
    /// Stop the running daemon; programs run on
    #[arg(long)]
    pub(crate) stop: bool,
}

/// `mica ptx`.
#[derive(Debug, Args)]
pub(crate) struct PtxArgs {
    /// PTX, fatbin, cubin, or a program, object or archive that holds one
    pub(crate) file: PathBuf,
    /// Compile every kernel for this machine; fail if the software GPU cannot run one
    #[arg(long)]
    pub(crate) check: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica config`.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// Check this file instead of printing the documented defaults
    #[arg(requires = "check")]
    pub(crate) file: Option<PathBuf>,
    /// Fail if something in the file is wrong
    #[arg(long, requires = "file")]
    pub(crate) check: bool,
    /// Make a token for the web page or the metrics, and what the configuration keeps of it
    #[arg(long, conflicts_with = "check")]
    pub(crate) new_token: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
