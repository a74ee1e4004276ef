//! Shares, leases, caps and priorities as pure policy.
//!
//! Owns the decisions: how long each process's hardware slice is ([`slices`]), who may submit now and
//! until when ([`arbiter`]), and whose turn is next ([`policy`]). Time comes in as numbers and decisions
//! go out as values: nothing here sleeps, reads a clock or touches a GPU.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used)]

pub mod arbiter;
pub mod policy;
pub mod slices;

/// How urgent a virtual GPU's work is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Priority {
    /// Runs when nobody else has work, and is kept from starving.
    Low,
    /// Shares by weight.
    #[default]
    Normal,
    /// Goes first and waits at most one slice.
    High,
}
