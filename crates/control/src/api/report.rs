//! What virtual GPUs and GPUs are found to be.

use serde::{Deserialize, Serialize};

use super::{ContainerInfo, LinkInfo, Mode, OnFull, Percent, PrecisionPolicy, Priority, Profile};

/// Condition of a virtual GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum VgpuState {
    /// No process uses it.
    #[default]
    Ready,
    /// Processes use it.
    Active,
    /// Its processes are held.
    Suspended,
    /// It was saved to a file, and its program waits until that is restored.
    Snapshotted,
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
            Self::Snapshotted => "snapshotted",
            Self::Degraded => "degraded",
            Self::Lost => "lost",
        })
    }
}

/// A process in a virtual GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ProcessInfo {
    /// Process number as the daemon sees it.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Command line, as the command that started the program reported it: at most 256 characters, empty without a report.
    pub command: String,
    /// `direct`; `program` for one that a worker serves, with the worker's figures; or `worker` for a worker whose
    /// program is not known.
    pub role: String,
    /// User that it runs as, where the daemon can tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Container that it runs in: its name, or the first 12 characters of its id where the name is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Process number of the worker that serves this program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_pid: Option<u32>,
    /// Percent of the GPU's time over the last reading, as far as the driver tells.
    pub utilization_percent: f64,
    /// Memory in use: charged, and what the driver reports beyond that.
    pub memory_used_bytes: u64,
    /// Memory charged before it was taken.
    pub memory_charged_bytes: u64,
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
    /// Leases it was given.
    pub leases_total: u64,
    /// Time it held them and was charged for.
    pub lease_seconds: f64,
    /// Its work does not end when its leases do (kernels that wait for the host, say), so it is given none for
    /// a while: hardware slices alone divide its time.
    pub does_not_drain: bool,
    /// Leases that were taken away because its work ran on.
    pub overruns_total: u64,
    /// GPU time, as far as it can be measured.
    pub gpu_seconds: f64,
    /// Allocations refused.
    pub alloc_denied_total: u64,
    /// Bytes copied from the host to the device; not counted in direct mode.
    pub to_device_bytes_total: u64,
    /// Bytes copied from the device to the host; not counted in direct mode.
    pub from_device_bytes_total: u64,
    /// Contexts that faulted; not counted in direct mode.
    pub faults_total: u64,
    /// Entry points it looked up that Mica does not know and that may allocate or launch.
    pub unknown_symbols: u32,
    /// Their names, as far as they were told.
    pub unknown_symbol_names: Vec<String>,
    /// Driver's version number, 0 before it is known.
    pub driver_version: u32,
    /// Result of the last slice control: 0, or the driver's status, or a negative errno.
    pub slice_status: i32,
    /// What a worker has given up before it served; nothing for other processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confinement: Option<ConfinementInfo>,
}

impl ProcessInfo {
    /// The worker behind this entry, if there is one.
    pub fn worker(&self) -> Option<u32> {
        self.worker_pid
            .or((self.role == "worker").then_some(self.pid))
    }
}

/// The layers of a worker's confinement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ConfinementInfo {
    /// Layers in force.
    pub applied: Vec<String>,
    /// Layers that are not.
    pub missing: Vec<MissingLayer>,
}

/// A layer of confinement that is not in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct MissingLayer {
    /// Name of the layer.
    pub layer: String,
    /// Why it is not in force.
    pub reason: String,
}

/// Where the memory of a swappable virtual GPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ResidencyState {
    /// On the GPU.
    #[default]
    Resident,
    /// On its way to host memory.
    Leaving,
    /// In host memory.
    Away,
    /// On its way back.
    Returning,
}

impl std::fmt::Display for ResidencyState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Resident => "resident",
            Self::Leaving => "leaving",
            Self::Away => "away",
            Self::Returning => "returning",
        })
    }
}

/// The memory of a swappable virtual GPU, on its GPU and off it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ResidencyInfo {
    /// On the GPU or not.
    pub state: ResidencyState,
    /// Bytes of the GPU that it has, or that are kept for its return.
    pub resident_bytes: u64,
    /// Bytes in host memory.
    pub away_bytes: u64,
    /// Bytes on the GPU that cannot leave, as its workers told last.
    pub pinned_bytes: u64,
    /// Bytes that a move which is under way has still to move.
    pub to_move_bytes: u64,
    /// Bytes moved so far, in both directions together.
    pub moved_bytes_total: u64,
    /// How often it was told to leave.
    pub exchanges_total: u64,
    /// Time for which it was not on the GPU as a whole.
    pub away_seconds: f64,
    /// Time for which it has waited for the GPU now.
    pub waits_seconds: f64,
}

/// A virtual GPU now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
    /// Memory in use by all its processes: charged, and what the driver reports beyond that.
    pub memory_used_bytes: u64,
    /// Memory charged before it was taken.
    pub memory_charged_bytes: u64,
    /// Most ever in use.
    pub memory_peak_bytes: u64,
    /// What the driver reports beyond what was charged.
    pub memory_unattributed_bytes: u64,
    /// Where its memory is, if it is swappable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub residency: Option<ResidencyInfo>,
    /// Share in force (a virtual GPU that reserved none shows what it is owed now).
    pub share_percent: Percent,
    /// Whether the share is a guarantee.
    pub share_reserved: bool,
    /// Percent of the GPU's time it had over the last seconds.
    pub share_measured_percent: f64,
    /// Percent of the time of the software GPU's turns over the last seconds in which the host gave it processors: other
    /// programs had them for the rest, and a share is a part of what was left. Absent where nothing is divided by turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processors_percent: Option<f64>,
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
    /// Bytes copied from the host to the device; not counted in direct mode.
    pub to_device_bytes_total: u64,
    /// Bytes copied from the device to the host; not counted in direct mode.
    pub from_device_bytes_total: u64,
    /// Contexts that faulted; not counted in direct mode.
    pub faults_total: u64,
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
    /// Whether tensor cores may be used.
    pub tensor_cores: bool,
    /// Which arithmetic may be used.
    pub precision_policy: PrecisionPolicy,
    /// Cut of the hardware's time.
    pub profile: Profile,
    /// Whether its kernels are being profiled.
    pub profiled: bool,
    /// Seconds since the epoch at which it was made.
    pub created_at_seconds: u64,
    /// Free text from its creator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The container that it was made for and ends with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made_for: Option<ContainerInfo>,
    /// The way to its programs, if those run on another machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkInfo>,
    /// Its processes.
    pub processes: Vec<ProcessInfo>,
}

impl VgpuInfo {
    /// Names of the containers that use it, each once.
    pub fn containers(&self) -> Vec<&str> {
        let of_processes = self.processes.iter().filter_map(|p| p.container.as_deref());
        let made_for = self
            .made_for
            .as_ref()
            .map(|container| container.name.as_str());
        let names: std::collections::BTreeSet<&str> =
            made_for.into_iter().chain(of_processes).collect();
        names.into_iter().collect()
    }
}

/// Kind of a physical GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
    pub share_reserved_percent: Percent,
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
    /// Faults that the driver has reported (Xid) since the daemon started; each is an event, too.
    pub xid_errors_total: u64,
    /// Why it cannot be used, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
    /// Why it cannot be shared, if its settings forbid that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unshareable: Option<String>,
    /// Why it takes no new programs, if it takes none: it must be reset, or a worker on it does not end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drained: Option<String>,
}

/// One second in the life of a virtual GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct History {
    /// Name of the virtual GPU.
    pub name: String,
    /// One per second.
    pub samples: Vec<Sample>,
}
