//! What can be set, and what it is if nobody sets it.

use std::collections::BTreeMap;

use mica_control::api::{Percent, Profile};
use serde::Deserialize;

use super::views::{DashboardSection, LogFormat, MetricsSection, OtelSection};

/// Everything that can be set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// About the process.
    pub daemon: DaemonSection,
    /// The processes that serve programs in isolated mode.
    pub workers: WorkersSection,
    /// The software GPU.
    pub software_gpu: SoftwareSection,
    /// Sharing of every GPU.
    pub sharing: SharingSection,
    /// Virtual GPUs whose memory may leave the GPU.
    pub swap: SwapSection,
    /// Use that is warned of.
    pub warnings: WarningsSection,
    /// The web page.
    pub dashboard: DashboardSection,
    /// Metrics on the network or in a file.
    pub metrics: MetricsSection,
    /// Metrics for an OpenTelemetry collector.
    pub otel: OtelSection,
    /// What one user may have; the key is a user number or `default`.
    pub quota: BTreeMap<String, UserQuota>,
}

/// About the process.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DaemonSection {
    /// Seconds without virtual GPUs and requests after which a daemon started on demand ends.
    pub idle_exit_seconds: u64,
    /// Most connections of programs and workers.
    pub max_connections: u32,
    /// Most connections of one user.
    pub max_connections_per_user: u32,
    /// Most connections to the control API; the last sixteenth is for administrators.
    pub max_control_connections: u32,
    /// Most connections of one user to the control API.
    pub max_control_connections_per_user: u32,
    /// Seconds a client of the control API has for a request, and for taking a piece of the answer.
    pub request_seconds: u64,
    /// Command that starts a worker; empty: this program with `worker`.
    pub worker_command: Vec<String>,
    /// Users besides root and the daemon's own who may do everything.
    pub admin_uids: Vec<u32>,
    /// How lines of the log look.
    pub log_format: LogFormat,
}

/// The processes that serve programs in isolated mode.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkersSection {
    /// Whether workers give up every right they do not need before they serve.
    pub confine: bool,
    /// Layers of the confinement without which no worker serves.
    pub require: Vec<String>,
    /// Layers of the confinement that are switched off.
    pub without: Vec<String>,
    /// First user number of workers, where the daemon is root. No account may have a number of this range.
    pub first_uid: u32,
    /// User numbers in the range; the workers of one owner are one user.
    pub uid_count: u32,
}

impl Default for WorkersSection {
    fn default() -> Self {
        Self {
            confine: true,
            require: Vec::new(),
            without: Vec::new(),
            first_uid: 1_900_000_000,
            uid_count: 1 << 27,
        }
    }
}

/// The software GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SoftwareSection {
    /// `auto`: only where there is no other GPU; `always`; `never`.
    pub offer: Offer,
    /// Its memory; 0: half of the host's.
    pub memory_bytes: u64,
    /// How many there are; each runs on all cores, and each has this memory.
    pub count: u32,
}

impl Default for SoftwareSection {
    fn default() -> Self {
        Self {
            offer: Offer::default(),
            memory_bytes: 0,
            count: 1,
        }
    }
}

/// When the software GPU is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offer {
    /// Where there is no other GPU.
    #[default]
    Auto,
    /// Beside other GPUs too.
    Always,
    /// Never.
    Never,
}

/// Sharing of every GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharingSection {
    /// Memory limits may exceed the device.
    pub overcommit_memory: bool,
    /// Guaranteed shares may exceed 100 percent (they are then scaled down).
    pub overcommit_share: bool,
    /// Memory limit of a virtual GPU that names none; 0: derived from its share.
    pub default_memory_bytes: u64,
    /// Part of each NVIDIA GPU's memory kept for the driver itself.
    pub reserve_bytes: u64,
    /// Whether memory the driver reports beyond what was charged counts against the limit.
    pub charge_unattributed: bool,
    /// Cut of the hardware's time for virtual GPUs that name none.
    pub profile: Profile,
    /// Policy of leases: `weighted_fair`, `round_robin`, `strict_priority`, `earliest_deadline`.
    pub policy: Policy,
    /// When leases are used: `auto`, `always`, `never`.
    pub leases: Leases,
    /// Length of a lease.
    pub lease_us: u64,
    /// Longest time a lease's work may take to drain before others go on without it.
    pub drain_limit_us: u64,
    /// Synchronizations a second from which a process counts as bursty.
    pub bursty_drains_per_second: u32,
}

/// Virtual GPUs whose memory may leave the GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SwapSection {
    /// Whether virtual GPUs are swappable that do not say.
    pub default: bool,
    /// All memory limits of a GPU together, as a multiple of its memory.
    pub overcommit: f64,
    /// Host memory for memory that is away; 0: half of the host's.
    pub arena_bytes: u64,
    /// A turn on the GPU is at least this multiple of the time that the exchange takes.
    pub turn_multiple: u64,
    /// A turn on the GPU is at least this long.
    pub least_turn_ms: u64,
    /// Milliseconds without work after which a virtual GPU leaves the GPU at once when another needs room.
    pub idle_ms: u64,
    /// Longest time that an allocation waits for room on the GPU.
    pub wait_seconds: u64,
}

impl Default for SwapSection {
    fn default() -> Self {
        Self {
            default: false,
            overcommit: 4.0,
            arena_bytes: 0,
            turn_multiple: 28,
            least_turn_ms: 1_000,
            idle_ms: 200,
            wait_seconds: 900,
        }
    }
}

/// Policy of leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Least charged for its weight.
    #[default]
    WeightedFair,
    /// Each in turn.
    RoundRobin,
    /// Most urgent first, with aging.
    StrictPriority,
    /// Earliest deadline first, deadlines from shares.
    EarliestDeadline,
}

/// When leases are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leases {
    /// Where they help.
    #[default]
    Auto,
    /// Whenever two processes have work.
    Always,
    /// Only for caps and devices without slices.
    Never,
}

/// Warnings about use: each is an event, a line of the log, and a message to a webhook. 0 switches a warning off.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WarningsSection {
    /// Warn if a virtual GPU uses this part of its memory limit or more.
    pub memory_percent: u32,
    /// Warn if its threads wait for their turn for this part of the time or more, summed over threads.
    pub waiting_percent: u32,
    /// Warn if it has programs and this part of its share or more is not used.
    pub idle_share_percent: u32,
    /// Warn if a GPU is busy for this part of the time or more.
    pub gpu_percent: u32,
    /// Seconds that a condition must last before its warning.
    pub for_seconds: u64,
    /// Where warnings are sent, such as `http://host:8080/path`; empty: nowhere.
    pub webhook: String,
}

impl Default for WarningsSection {
    fn default() -> Self {
        Self {
            memory_percent: 0,
            waiting_percent: 0,
            idle_share_percent: 0,
            gpu_percent: 0,
            for_seconds: 60,
            webhook: String::new(),
        }
    }
}

/// What one user may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserQuota {
    /// Sum of memory limits.
    pub memory_bytes: Option<u64>,
    /// Sum of guaranteed shares, over all GPUs.
    pub share_percent: Option<Percent>,
    /// Virtual GPUs.
    pub vgpus: Option<u32>,
}

impl Default for DaemonSection {
    fn default() -> Self {
        Self {
            idle_exit_seconds: 60,
            max_connections: 16_384,
            max_connections_per_user: 4_096,
            max_control_connections: 2_048,
            max_control_connections_per_user: 1_024,
            request_seconds: 10,
            worker_command: Vec::new(),
            admin_uids: Vec::new(),
            log_format: LogFormat::Text,
        }
    }
}

impl Default for SharingSection {
    fn default() -> Self {
        Self {
            overcommit_memory: false,
            overcommit_share: false,
            default_memory_bytes: 0,
            reserve_bytes: 1 << 30,
            charge_unattributed: true,
            profile: Profile::Balanced,
            policy: Policy::WeightedFair,
            leases: Leases::Auto,
            lease_us: 12_000,
            drain_limit_us: 100_000,
            bursty_drains_per_second: 300,
        }
    }
}
