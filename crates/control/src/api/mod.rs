//! What the control API says and understands.
//!
//! Every type that crosses the control socket, and nothing else. Keys carry their units and match the
//! names of the metrics. The types are additive: a field that is not sent has the default named here,
//! so that an older tool can talk to a newer daemon.

mod container;
mod link;
mod live;
mod memory;
mod percent;
mod profile;
mod program;
mod region;
mod report;
mod snapshot;
mod spec;
mod timeline;

use serde::{Deserialize, Serialize};

pub use container::{ContainerInfo, ContainerSocket, ContainerSocketSpec};
pub use link::{LinkInfo, LinkReport};
pub use live::{Dashboard, Session, Turn, TurnKind, Turns};
pub use memory::{MemoryMap, MemoryPiece, PieceKind, PoolFigures, ProgramMemory};
pub use mica_scheduler::Priority;
pub use mica_scheduler::slices::Profile;
pub use percent::Percent;
pub use profile::{ProfileActivity, ProfileLevel, ProfileLine, SetProfile, VgpuProfile};
pub use program::{ProgramEnd, ProgramReport, signal_name};
pub use region::{
    AttachRegion, RegionAccess, RegionAttachment, RegionHandle, RegionInfo, RegionSpec,
};
pub use report::{
    ConfinementInfo, GpuInfo, GpuKind, History, MissingLayer, ProcessInfo, ResidencyInfo,
    ResidencyState, Sample, VgpuInfo, VgpuState,
};
pub use snapshot::{Migration, SnapshotFile};
pub use spec::{Mode, OnFull, Placement, PrecisionPolicy, Resize, VgpuSpec};
pub use timeline::{AccountBy, Point, Subject, Timeline, Timelines, UsageAccount, UsageReport};

/// How to join a virtual GPU: the answer to create and join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Created {
    /// Name.
    pub name: String,
    /// Capability to join, in hex, for `MICA_TOKEN`.
    pub token: String,
    /// The socket for `MICA_HOST_SOCKET`.
    pub host_socket: String,
    /// Where the engine runs.
    pub mode: Mode,
    /// Index of its GPU.
    pub gpu: u32,
    /// Kind of its GPU.
    pub gpu_kind: GpuKind,
    /// Unique id of its GPU; empty for the software GPU.
    pub gpu_uuid: String,
    /// Memory limit in force.
    pub memory_limit_bytes: u64,
    /// Share in force.
    pub share_percent: Percent,
    /// Whether the share is a guarantee; else it is what the virtual GPU is owed now.
    #[serde(default)]
    pub share_reserved: bool,
    /// Whether each allocation ends at an unmapped page.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guard: bool,
    /// The regions that are attached to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<RegionHandle>,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[error("{error}")]
pub struct ApiError {
    /// What happened, in a sentence.
    pub error: String,
    /// A word for programs: `not_found`, `exists`, `invalid`, `no_memory`, `no_share`, `permission`,
    /// `busy`, `quota`, `state`, `enforcement`, `config`, `internal`; `snapshotted` where a program was left waiting for the
    /// file that was lent for a migration.
    pub reason: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// How bad an event is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing.
    #[default]
    Info,
    /// Something is not as asked.
    Warning,
    /// Something failed.
    Error,
}

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Event {
    /// Grows by one per event.
    pub sequence: u64,
    /// Seconds since the epoch.
    pub time_seconds: f64,
    /// How bad.
    pub severity: Severity,
    /// A word for programs: `vgpu_created`, `vgpu_removed`, `vgpu_resized`, `vgpu_suspended`, `vgpu_snapshotted`,
    /// `vgpu_resumed`, `vgpu_degraded`, `process_joined`, `process_left`, `process_refused`,
    /// `process_outside`, `program_started`, `program_ended`, `kernels_cancelled`, `worker_died`, `memory_denied`, `config_reloaded`, `config_refused`, `kernel_fault`, `module_refused`, `call_refused`,
    /// `swapped_out`, `swapped_in`, `swap_began`, `swap_slow`, `note`, …
    pub kind: String,
    /// The virtual GPU it concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<String>,
    /// The process it concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// A sentence.
    pub message: String,
}

/// The daemon and all it knows, in one answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Stats {
    /// The daemon.
    pub daemon: DaemonInfo,
    /// Its GPUs.
    pub gpus: Vec<GpuInfo>,
    /// Virtual GPUs the asker may see.
    pub vgpus: Vec<VgpuInfo>,
}

/// About the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct DaemonInfo {
    /// Version.
    pub version: String,
    /// Process number.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: f64,
    /// Socket of the programs.
    pub host_socket: String,
    /// Whether it was started on demand and ends when idle.
    pub on_demand: bool,
    /// Configuration file in force, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_file: Option<String>,
    /// Connections now.
    pub connections: u32,
}

/// Verdict of one check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// In force, and known how.
    Ok,
    /// Nothing to check yet.
    #[default]
    Unknown,
    /// Works, with something to know.
    Warning,
    /// Not in force.
    Failed,
}

/// One check of the doctor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Check {
    /// What was checked.
    pub what: String,
    /// The virtual GPU it concerns; absent for the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vgpu: Option<String>,
    /// Verdict.
    pub verdict: Verdict,
    /// How it is known.
    pub evidence: String,
}

/// The doctor's findings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Doctor {
    /// Whether nothing failed.
    pub healthy: bool,
    /// Every check.
    pub checks: Vec<Check>,
}

impl Doctor {
    /// A report of these checks.
    pub fn of(checks: Vec<Check>) -> Self {
        Self {
            healthy: !checks.iter().any(|c| c.verdict == Verdict::Failed),
            checks,
        }
    }
}

/// What was cancelled in a virtual GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Cancelled {
    /// What was done, in a sentence.
    pub done: String,
    /// Kernels that were ended, running and queued.
    pub kernels: u64,
    /// Copies and fills that were ended with them.
    pub copies: u64,
    /// Programs that were told.
    pub programs: u32,
    /// Programs whose workers did not answer in time.
    pub unanswered: u32,
}

/// An answer with nothing to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Done {
    /// What was done, in a sentence.
    #[serde(default)]
    pub done: String,
}
