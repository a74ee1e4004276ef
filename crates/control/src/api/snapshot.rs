//! Snapshots of virtual GPUs.

use serde::{Deserialize, Serialize};

/// A file that was lent to the daemon on its host socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SnapshotFile {
    /// The name that it was lent under: 32 hexadecimal digits.
    pub file: String,
}

/// Where a virtual GPU goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Migration {
    /// Index of the other GPU.
    pub gpu: u32,
}
