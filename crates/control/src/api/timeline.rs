//! What was measured over time: timelines of GPUs and virtual GPUs, and accounts made from them.

use serde::{Deserialize, Serialize};

/// What a timeline is about.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A virtual GPU.
    #[default]
    Vgpu,
    /// A physical GPU.
    Gpu,
}

/// What was measured between two times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Timelines {
    /// Begin, in seconds since the epoch.
    pub since_seconds: u64,
    /// End, in seconds since the epoch.
    pub until_seconds: u64,
    /// Distance of two points. Finer than the store keeps them, points cover more than one step.
    pub step_seconds: u32,
    /// One for each GPU and each virtual GPU that the asker may see, also of those that were removed.
    pub timelines: Vec<Timeline>,
}

/// One GPU or virtual GPU over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Timeline {
    /// What it is about.
    pub subject: Subject,
    /// Name of the virtual GPU; for a GPU its unique id, or `software`.
    pub name: String,
    /// Index of the GPU.
    pub gpu: u32,
    /// Unique id of the GPU, or `software`.
    pub gpu_uuid: String,
    /// User that owns the virtual GPU; absent for a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_uid: Option<u32>,
    /// Container of its programs, where they run in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Oldest first. Times without a point: it did not exist, or no daemon ran.
    pub points: Vec<Point>,
}

/// One step of a timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Point {
    /// Begin of the step, in seconds since the epoch.
    pub time_seconds: u64,
    /// Seconds of the step that were measured: fewer than the step where it began or ended within.
    pub measured_seconds: f32,
    /// Share in force, on average; of a GPU: the sum of guaranteed shares.
    pub share_asked_percent: f32,
    /// The part of that which nobody reserved: it shrinks when others reserve shares. Of a GPU: 0.
    pub share_unreserved_percent: f32,
    /// Percent of the GPU's time that it had, on average; of a GPU: how busy it was.
    pub share_got_percent: f32,
    /// Time its threads waited for their turn, in percent of the step, summed over threads.
    pub waiting_percent: f32,
    /// Memory in use, on average.
    pub memory_used_bytes: u64,
    /// Most memory in use within the step.
    pub memory_peak_bytes: u64,
    /// Memory limit at the end of the step; of a GPU: its memory.
    pub memory_limit_bytes: u64,
    /// Most processes at once.
    pub processes: u32,
    /// Allocations refused.
    pub alloc_denied: u64,
    /// Submissions.
    pub launches: u64,
}

impl Point {
    /// GPU time within the step.
    pub fn gpu_seconds(&self) -> f64 {
        f64::from(self.share_got_percent) / 100.0 * f64::from(self.measured_seconds)
    }
}

/// What accounts are kept by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum AccountBy {
    /// One account for each user.
    #[default]
    User,
    /// One for each name of a virtual GPU.
    Vgpu,
    /// One for each container; what ran in none has an account with an empty key.
    Container,
}

/// What was used between two times, by account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct UsageReport {
    /// Begin, in seconds since the epoch.
    pub since_seconds: u64,
    /// End, in seconds since the epoch.
    pub until_seconds: u64,
    /// The oldest measurement that is kept, if there is one: a report that begins earlier misses what was before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_seconds: Option<u64>,
    /// What accounts are kept by.
    pub by: AccountBy,
    /// One for each account, the one with the most GPU hours first.
    pub accounts: Vec<UsageAccount>,
}

/// What one account used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct UsageAccount {
    /// User number, name of the virtual GPU, or container.
    pub key: String,
    /// Names of virtual GPUs that the account is made from.
    pub vgpus: u32,
    /// Hours in which the account's virtual GPUs existed and were measured, summed over them.
    pub measured_hours: f64,
    /// Hours of a whole GPU that were used.
    pub gpu_hours: f64,
    /// Hours of a whole GPU that were in force as shares.
    pub share_hours: f64,
    /// The part of those hours that nobody had reserved.
    pub share_unreserved_hours: f64,
    /// Part of the shares in force that was not used, in percent.
    pub idle_percent: f64,
    /// Memory in use times its duration, in GiB hours.
    pub memory_gib_hours: f64,
    /// Memory limits times their duration, in GiB hours.
    pub memory_limit_gib_hours: f64,
    /// Time that threads waited for their turn, in hours, summed over threads.
    pub waiting_hours: f64,
    /// Allocations refused.
    pub alloc_denied: u64,
    /// Submissions.
    pub launches: u64,
}
