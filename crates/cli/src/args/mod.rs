//! The words people type: one definition for parsing, help, man pages and completions.

mod cdi;
mod program;
mod region;
mod remote;
pub(crate) mod texts;
mod values;
mod vgpu;
mod vm;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use cdi::{CdiArgs, CdiCommand, CdiGenerateArgs, CdiRemoveArgs};
use mica_views::args::{ReportArgs, SmiArgs, TopArgs, WhyArgs};
pub(crate) use program::{CheckArgs, CovArgs, ExecArgs, ProfileArgs, RunArgs, SpecArgs, WatchArgs};
pub(crate) use region::{RegionAttachArgs, RegionCommand, RegionCreateArgs, RegionUse};
pub(crate) use remote::{InviteArgs, PairArgs, RemoteAddArgs, RemoteCommand, ServeArgs};
pub(crate) use values::{
    ModeArg, OutputArg, PlacementArg, PrecisionArg, PriorityArg, ProfileArg, ShellArg,
};
pub(crate) use vgpu::{
    CreateArgs, DoctorArgs, EventsArgs, JsonArgs, ListArgs, MemoryArgs, MigrateArgs, NameArgs,
    RemoveArgs, ResizeArgs, RestoreArgs, SnapshotArgs, StatsArgs, SuspendArgs,
};
pub(crate) use vm::{IvshmemArgs, VmArgs, VmAttachArgs, VmCommand, VmServeArgs};

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
    /// Show which lines of a program's kernels were reached, without a GPU
    ///
    /// Runs the program, and all processes that it starts, on a software GPU that records which lines of device code are
    /// reached: source lines of code that was built with -lineinfo, else lines of the PTX text. A line is reached if any copy
    /// of it is. Kernels of a module that was loaded and never launched count as not reached.
    #[command(
        after_help = texts::COV
    )]
    Cov(CovArgs),
    /// Show which kernels, copies and waits take a program's time
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
    /// Manage memory that several virtual GPUs share, such as weights
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
    /// Print GPUs in nvidia-smi's layout, or single fields for scripts
    #[command(
        after_help = texts::SMI
    )]
    Smi(SmiArgs),
    /// Find out why a virtual GPU is slow, and what to change
    Why(WhyArgs),
    /// Print what users, virtual GPUs or containers used, for a bill
    #[command(after_help = "Example: mica report --by user --month --csv")]
    Report(ReportArgs),
    /// Print what happened, newest last; follow with -f
    Events(EventsArgs),
    /// Check that every limit is in force; says how it knows
    Doctor(DoctorArgs),
    /// Show what Mica promises, with proof (about 40 seconds)
    Demo(JsonArgs),
    /// Give virtual GPUs to containers (Docker, Podman, containerd)
    #[command(
        after_help = texts::CDI
    )]
    Cdi(CdiArgs),
    /// Give a virtual GPU to a virtual machine
    Vm(VmArgs),
    /// Measure Mica against what is there without it
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
        /// The machine's ivshmem files.
        ivshmem: Vec<PathBuf>,
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
        /// Bytes of a client's uploads that are kept.
        #[arg(long)]
        keep_uploads: u64,
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
        /// Upload weights, instead.
        #[arg(long)]
        uploads: bool,
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
    /// Check this file instead of printing the documented defaults; fails if something in it is wrong
    pub(crate) file: Option<PathBuf>,
    /// Check FILE, which FILE alone does too
    #[arg(long, requires = "file")]
    pub(crate) check: bool,
    /// Make a token for the web page or the metrics, and what the configuration keeps of it
    #[arg(long, conflicts_with = "file")]
    pub(crate) new_token: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
