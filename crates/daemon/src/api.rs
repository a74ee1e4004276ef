//! What the control API says and understands.
//!
//! Every type that crosses the control socket, and nothing else. Keys carry their units and match the
//! names of the metrics. The types are additive: a field that is not sent has the default named here,
//! so that an older tool can talk to a newer daemon.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How urgent a virtual GPU's work is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Goes first and waits at most one slice.
    High,
    /// Shares by weight.
    #[default]
    Normal,
    /// Runs when nobody else has work, and is kept from starving.
    Low,
}

/// Where the enforcement engine of a virtual GPU runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In the program, before the real driver.
    #[default]
    Direct,
    /// In a worker process that owns the device; the program has no access to it.
    Isolated,
}

/// How the hardware's time is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Long slices: least time lost to switching.
    Throughput,
    /// The default.
    #[default]
    Balanced,
    /// Short slices: least waiting.
    Latency,
}

/// How a GPU is chosen when none is named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// The first GPU with room.
    #[default]
    Fit,
    /// The GPU with the fewest virtual GPUs.
    Spread,
    /// The GPU that is left with the least unreserved memory.
    Pack,
    /// The GPU with the least measured use.
    LeastLoaded,
}

/// What happens when memory beyond the limit is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// The allocation fails with OUT_OF_MEMORY.
    #[default]
    Fail,
    /// The allocation waits until memory is given back, at most this long, then fails.
    Wait {
        /// Longest wait.
        timeout_ms: u64,
    },
}

/// Which arithmetic a program may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PrecisionPolicy {
    /// Whatever the program asks for.
    #[default]
    AsAsked,
    /// No reduced precision behind the program's back (TF32 off).
    Full,
    /// Reduced precision allowed wherever a library offers it.
    Reduced,
}

/// What a virtual GPU should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VgpuSpec {
    /// Name; one is made up when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Memory limit. Absent: the configured default, else the share's part of the device, else half of
    /// what is unreserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Guaranteed percent of one GPU's time, 1 to 100. Absent: nothing is reserved and what others do
    /// not reserve is divided evenly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<u32>,
    /// Never use more than the share, even when the GPU is idle.
    pub cap: bool,
    /// Urgency.
    pub priority: Priority,
    /// Index of the GPU; absent: chosen by `placement`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// How the GPU is chosen.
    pub placement: Placement,
    /// Where the engine runs. The software GPU is always isolated from the program's view of a driver.
    pub mode: Mode,
    /// When memory runs out.
    pub on_full: OnFull,
    /// Most streams at once; absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_streams: Option<u32>,
    /// Cut of the hardware's time; absent: the GPU's configured profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Whether tensor cores may be used.
    pub tensor_cores: bool,
    /// Which arithmetic may be used.
    pub precision_policy: PrecisionPolicy,
    /// Removed when the process that created it and all its programs have ended.
    pub ephemeral: bool,
    /// Run even when a limit cannot be enforced; the virtual GPU is then marked degraded everywhere.
    pub allow_degraded: bool,
    /// Free text shown in listings (the command line, for `mica run`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Default for VgpuSpec {
    fn default() -> Self {
        Self {
            name: None,
            memory_limit_bytes: None,
            share_percent: None,
            cap: false,
            priority: Priority::default(),
            gpu: None,
            placement: Placement::default(),
            mode: Mode::default(),
            on_full: OnFull::default(),
            max_streams: None,
            profile: None,
            tensor_cores: true,
            precision_policy: PrecisionPolicy::default(),
            ephemeral: false,
            allow_degraded: false,
            note: None,
        }
    }
}

/// Changes to a running virtual GPU; absent fields stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Resize {
    /// New memory limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// New share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<u32>,
    /// New cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<bool>,
    /// New urgency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Accept a limit below what is in use: nothing more is granted until use has fallen below it.
    pub drain: bool,
}

/// Condition of a virtual GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VgpuState {
    /// No process uses it.
    #[default]
    Ready,
    /// Processes use it.
    Active,
    /// Its processes are held.
    Suspended,
    /// Something configured is not in force; `reasons` says what.
    Degraded,
    /// Its GPU is gone.
    Lost,
}

impl std::fmt::Display for VgpuState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Ready => "ready",
            Self::Active => "active",
            Self::Suspended => "suspended",
            Self::Degraded => "degraded",
            Self::Lost => "lost",
        })
    }
}

/// A process in a virtual GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ProcessInfo {
    /// Process number as the daemon sees it.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// `direct`, `worker` or `program` (a program served by a worker).
    pub role: String,
    /// Percent of the GPU's time over the last reading, as far as the driver tells.
    pub utilization_percent: f64,
    /// Charged memory in use.
    pub memory_used_bytes: u64,
    /// Most ever in use.
    pub memory_peak_bytes: u64,
    /// Granted and not in use.
    pub memory_credit_bytes: u64,
    /// What the driver reports beyond what was charged.
    pub memory_unattributed_bytes: u64,
    /// Hardware slice asked for, 0 when none.
    pub slice_us: u64,
    /// Hardware slice read back from the driver, 0 when never read.
    pub slice_read_us: u64,
    /// What divides this process's time: `hardware slices`, `leases`, `alone` or `none`.
    pub mechanism: String,
    /// Submissions so far.
    pub launches_total: u64,
    /// Synchronizations that left the GPU idle of this process.
    pub drains_total: u64,
    /// Time its threads waited at the gate.
    pub gate_wait_seconds: f64,
    /// GPU time, as far as it can be measured.
    pub gpu_seconds: f64,
    /// Allocations refused.
    pub alloc_denied_total: u64,
    /// Entry points it looked up that Mica does not know and that may allocate or launch.
    pub unknown_symbols: u32,
    /// Their names, as far as they were told.
    pub unknown_symbol_names: Vec<String>,
    /// Driver's version number, 0 before it is known.
    pub driver_version: u32,
    /// Result of the last slice control: 0, or the driver's status, or a negative errno.
    pub slice_status: i32,
}

/// A virtual GPU now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct VgpuInfo {
    /// Name.
    pub name: String,
    /// Condition.
    pub state: VgpuState,
    /// Why it is degraded or lost.
    pub reasons: Vec<String>,
    /// Index of its GPU.
    pub gpu: u32,
    /// Kind of that GPU.
    pub gpu_kind: GpuKind,
    /// Unique id of that GPU; left out for the software GPU.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gpu_uuid: String,
    /// Where the engine runs.
    pub mode: Mode,
    /// User that owns it.
    pub owner_uid: u32,
    /// Memory limit.
    pub memory_limit_bytes: u64,
    /// Charged memory in use by all its processes.
    pub memory_used_bytes: u64,
    /// Most ever in use.
    pub memory_peak_bytes: u64,
    /// What the driver reports beyond what was charged.
    pub memory_unattributed_bytes: u64,
    /// Share in force (a virtual GPU that reserved none shows what it is owed now).
    pub share_percent: u32,
    /// Whether the share is a guarantee.
    pub share_reserved: bool,
    /// Percent of the GPU's time it had over the last seconds.
    pub share_measured_percent: f64,
    /// Whether it may never exceed its share.
    pub cap: bool,
    /// Urgency.
    pub priority: Priority,
    /// GPU time so far.
    pub gpu_seconds: f64,
    /// Time its threads waited at the gate.
    pub throttled_seconds: f64,
    /// Allocations refused.
    pub alloc_denied_total: u64,
    /// Submissions so far.
    pub launches_total: u64,
    /// What divides time among virtual GPUs here: `hardware slices`, `leases`,
    /// `hardware slices and leases`, `alone` or `none`.
    pub mechanism: String,
    /// How GPU time was measured: `driver`, `worker`, `leases` or `none`.
    pub time_source: String,
    /// Removed when its last process ends.
    pub ephemeral: bool,
    /// When memory runs out.
    pub on_full: OnFull,
    /// Most streams at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_streams: Option<u32>,
    /// Cut of the hardware's time.
    pub profile: Profile,
    /// Seconds since the epoch at which it was made.
    pub created_at_seconds: u64,
    /// Free text from its creator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Its processes.
    pub processes: Vec<ProcessInfo>,
}

/// Kind of a physical GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuKind {
    /// An NVIDIA card through its driver.
    Nvidia,
    /// The CPU device.
    #[default]
    Software,
}

impl std::fmt::Display for GpuKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Nvidia => "nvidia",
            Self::Software => "software",
        })
    }
}

/// A physical GPU now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GpuInfo {
    /// Index in this daemon.
    pub index: u32,
    /// Kind.
    pub kind: GpuKind,
    /// Product name.
    pub name: String,
    /// Unique id of the card; empty for the software GPU.
    pub uuid: String,
    /// Memory of the device.
    pub memory_total_bytes: u64,
    /// Memory limits given out.
    pub memory_reserved_bytes: u64,
    /// Charged memory in use by virtual GPUs.
    pub memory_used_bytes: u64,
    /// Free as the driver reports it, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_free_bytes: Option<u64>,
    /// Sum of guaranteed shares.
    pub share_reserved_percent: u32,
    /// Busy percent as the driver reports it, or as leases measured it.
    pub utilization_percent: f64,
    /// Whether limits may exceed the device.
    pub overcommit: bool,
    /// What divides time now: `open` or `leases`.
    pub lease_state: String,
    /// Virtual GPUs on it.
    pub vgpus: u32,
    /// Driver version where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Temperature where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    /// Power where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// Why it cannot be used, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// How to join a virtual GPU: the answer to create and join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
    pub share_percent: u32,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{error}")]
pub struct ApiError {
    /// What happened, in a sentence.
    pub error: String,
    /// A word for programs: `not_found`, `exists`, `invalid`, `no_memory`, `no_share`, `permission`,
    /// `busy`, `quota`, `state`, `enforcement`, `config`, `internal`.
    pub reason: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// How bad an event is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Event {
    /// Grows by one per event.
    pub sequence: u64,
    /// Seconds since the epoch.
    pub time_seconds: f64,
    /// How bad.
    pub severity: Severity,
    /// A word for programs: `vgpu_created`, `vgpu_removed`, `vgpu_resized`, `vgpu_suspended`,
    /// `vgpu_resumed`, `vgpu_degraded`, `process_joined`, `process_left`, `process_refused`,
    /// `process_outside`, `worker_died`, `memory_denied`, `config_reloaded`, `config_refused`, `note`, …
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

/// One second in the life of a virtual GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Sample {
    /// Seconds since the epoch.
    pub time_seconds: u64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Percent of the GPU's time.
    pub share_measured_percent: f32,
    /// Submissions in this second.
    pub launches: u32,
    /// Part of the second its threads waited at the gate, in percent, summed over threads.
    pub gate_wait_percent: f32,
    /// Processes.
    pub processes: u16,
}

/// History of a virtual GPU, oldest first, at most ten minutes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct History {
    /// Name of the virtual GPU.
    pub name: String,
    /// One per second.
    pub samples: Vec<Sample>,
}

/// The daemon and all it knows, in one answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
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

/// An answer with nothing to say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Done {
    /// What was done, in a sentence.
    #[serde(default)]
    pub done: String,
}
