//! The words of commands about virtual GPUs that exist, or come to exist.

use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use mica_command::size::{Memory, Share};
use mica_command::when::Since;

use super::{OutputArg, PriorityArg, SpecArgs};

/// `mica create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Name of the virtual GPU
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
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `mica memory`.
#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    #[command(flatten)]
    pub(crate) vgpu: NameArgs,
    /// First give back what pools and host memory keep for later (swappable virtual GPUs)
    #[arg(long)]
    pub(crate) compact: bool,
}

/// `mica suspend`.
#[derive(Debug, Args)]
pub(crate) struct SuspendArgs {
    #[command(flatten)]
    pub(crate) vgpu: NameArgs,
    /// Take its memory off the GPU until it is resumed (needs --swap when it is made)
    #[arg(long)]
    pub(crate) free: bool,
}

/// `mica snapshot`.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    /// The virtual GPU
    #[arg(required_unless_present = "inspect", value_parser = NonEmptyStringValueParser::new())]
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
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: String,
    /// Which GPU it is to be on: its index
    #[arg(long, value_name = "GPU")]
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
    #[command(flatten)]
    pub(crate) vgpu: NameArgs,
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
}

/// `mica rm`.
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// The virtual GPUs
    #[arg(required = true, value_parser = NonEmptyStringValueParser::new())]
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
    /// Only this virtual GPU, which may have been removed with --since
    #[arg(conflicts_with = "prometheus", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the metrics in Prometheus's format
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
    /// Print what was measured since then: 10m, 2h, 3d, 14:30, 2026-01-31 or "2026-01-31 14:30"
    #[arg(long, value_name = "WHEN", conflicts_with = "prometheus")]
    pub(crate) since: Option<Since>,
}

/// `mica events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only events of this virtual GPU, which may have been removed
    #[arg(value_parser = NonEmptyStringValueParser::new())]
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
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) name: Option<String>,
    /// Also have a process in each virtual GPU ask the GPU for more than the limit; it needs room for a
    /// context there
    #[arg(long)]
    pub(crate) probe: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
