//! What ran in a virtual GPU for how long, while it was profiled.

use serde::{Deserialize, Serialize};

/// How much of a virtual GPU's work is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProfileLevel {
    /// Nothing.
    #[default]
    Off,
    /// Sums for each kernel.
    Sums,
    /// Sums, and every single launch and copy, which programs started by `mica profile` write down.
    Spans,
}

/// What a line of a profile is about.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ProfileActivity {
    /// A kernel ran.
    #[default]
    Kernel,
    /// A kernel was compiled for the software GPU.
    Compile,
    /// Bytes were copied.
    Copy,
    /// Bytes were set.
    Fill,
    /// The program waited for the GPU.
    Wait,
    /// Work waited for the virtual GPU's turn.
    Turn,
}

impl std::fmt::Display for ProfileActivity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Kernel => "kernel",
            Self::Compile => "compile",
            Self::Copy => "copy",
            Self::Fill => "fill",
            Self::Wait => "wait",
            Self::Turn => "turn",
        })
    }
}

/// Changes how much is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SetProfile {
    /// The new level. A profile that was off begins anew.
    pub level: ProfileLevel,
    /// Seconds after which the profile ends by itself; absent: it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// All that happened under one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ProfileLine {
    /// What it was.
    pub activity: ProfileActivity,
    /// The kernel, the direction of a copy, or the call that waited; `(others)` for all names beyond the largest.
    pub name: String,
    /// How often.
    pub calls: u64,
    /// Nanoseconds of all together. Kernels that run at the same time count each.
    pub total_ns: u64,
    /// Nanoseconds of the longest.
    pub most_ns: u64,
    /// Bytes moved, where that is known.
    pub bytes: u64,
}

/// The profile of a virtual GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct VgpuProfile {
    /// Name of the virtual GPU.
    pub name: String,
    /// How much is recorded now.
    pub level: ProfileLevel,
    /// Seconds that the profile covers.
    pub seconds: f64,
    /// Lines, those of most time first within each activity; at most 64 names of each, and one for all others.
    pub lines: Vec<ProfileLine>,
}
