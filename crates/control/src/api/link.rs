//! The way between a virtual GPU and programs on another machine.

use serde::{Deserialize, Serialize};

/// What the way to a virtual GPU's programs is like, as the machine that they run on measures it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct LinkInfo {
    /// The machine: its name and address.
    pub peer: String,
    /// Microseconds of the last round trip; 0 while unknown.
    pub round_trip_us: u64,
    /// Bytes a second that the way took lately, towards the GPU; 0 while unknown.
    pub bytes_per_second: u64,
    /// Broken connections that were replaced without losing a call.
    pub resumed_total: u64,
    /// Bytes of uploads that were not sent, because this machine had kept them.
    pub saved_bytes_total: u64,
}

/// A new measurement of a link, told by the process that serves the other machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct LinkReport {
    /// Token of the virtual GPU: another one may have its name by now.
    pub token: String,
    /// The measurement.
    pub link: LinkInfo,
}
