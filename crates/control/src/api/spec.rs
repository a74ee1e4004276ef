//! What a virtual GPU can be asked to be.

use serde::{Deserialize, Serialize};

use super::{Percent, Priority, Profile};

/// Where the enforcement engine of a virtual GPU runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// In the program, before the real driver.
    #[default]
    Direct,
    /// In a worker process that owns the device; the program has no access to it.
    Isolated,
}

/// How a GPU is chosen when none is named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct VgpuSpec {
    /// Name; one is made up when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Memory limit. Absent: the configured default, else the share's part of the device, else half of
    /// what is unreserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Memory limit as a part of the memory that the GPU can give out, instead of bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_percent: Option<Percent>,
    /// Guaranteed percent of one GPU's time, 1 to 100. Absent: nothing is reserved and what others do
    /// not reserve is divided evenly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<Percent>,
    /// Never use more than the share, even when the GPU is idle.
    pub cap: bool,
    /// Urgency.
    pub priority: Priority,
    /// Index of the GPU; absent: chosen by `placement`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// How the GPU is chosen.
    pub placement: Placement,
    /// Where the engine runs. Absent: direct on a GPU with a driver, isolated on the software GPU, which
    /// has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
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
    /// Whether its memory may leave the GPU while others need the room; limits of such virtual GPUs may add up to more
    /// than the GPU. Absent: as configured. Isolated mode only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<bool>,
    /// Each allocation ends at an unmapped page, so that a kernel which passes its end faults at once. Isolated mode only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub guard: bool,
    /// Run even when a limit cannot be enforced; the virtual GPU is then marked degraded everywhere.
    pub allow_degraded: bool,
    /// Look for mistakes of kernels: tools separated by commas, as `mica check --tool` has them, and perhaps
    /// `;schedule=SEED`. Software GPU only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// Record which lines of kernels are reached, for `mica cov`. Software GPU only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub coverage: bool,
    /// Run kernels one after the other and their blocks in an order that this number chooses, so that a program computes
    /// the same every time. Software GPU only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Cores that kernels run on, 1 to 1024. Absent: all of the machine, or 1 with `seed`. Software GPU only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Compute capability that the GPU reports: `8.0` or `9.0`. Absent: 8.0. Software GPU only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    /// Free text shown in listings (the command line, for `mica run`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Default for VgpuSpec {
    fn default() -> Self {
        Self {
            name: None,
            memory_limit_bytes: None,
            memory_limit_percent: None,
            share_percent: None,
            cap: false,
            priority: Priority::default(),
            gpu: None,
            placement: Placement::default(),
            mode: None,
            on_full: OnFull::default(),
            max_streams: None,
            profile: None,
            tensor_cores: true,
            precision_policy: PrecisionPolicy::default(),
            ephemeral: false,
            swap: None,
            guard: false,
            allow_degraded: false,
            check: None,
            coverage: false,
            seed: None,
            cores: None,
            capability: None,
            note: None,
        }
    }
}

/// Changes to a running virtual GPU; absent fields stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Resize {
    /// New memory limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// New memory limit as a part of the memory that the GPU can give out, instead of bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_percent: Option<Percent>,
    /// New share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_percent: Option<Percent>,
    /// New cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<bool>,
    /// New urgency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Accept a limit below what is in use: nothing more is granted until use has fallen below it.
    pub drain: bool,
}
