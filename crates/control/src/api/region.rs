//! Regions: memory that several virtual GPUs share.

use serde::{Deserialize, Serialize};

/// What the programs of a virtual GPU may do with a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RegionAccess {
    /// Read it.
    #[default]
    Read,
    /// Read and write it.
    ReadWrite,
}

impl std::fmt::Display for RegionAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::ReadWrite => "read and write",
        })
    }
}

/// Asks for a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RegionSpec {
    /// Its name, which no other region of the user has.
    pub name: String,
    /// Its size; rounded up to whole frames of 2 MiB.
    pub bytes: u64,
    /// The GPU whose memory it takes; absent: the first with room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
}

/// Asks for a region to be attached to a virtual GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AttachRegion {
    /// What the programs of the virtual GPU may do with it.
    pub access: RegionAccess,
}

/// A virtual GPU that a region is attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RegionAttachment {
    /// Name of the virtual GPU.
    pub vgpu: String,
    /// What its programs may do with the region.
    pub access: RegionAccess,
}

/// A region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RegionInfo {
    /// Name.
    pub name: String,
    /// Size; counted once, for all its users.
    pub bytes: u64,
    /// Index of its GPU.
    pub gpu: u32,
    /// User that owns it.
    pub owner_uid: u32,
    /// When it was made, in seconds since the epoch.
    pub created_at_seconds: u64,
    /// Whether its memory is there. On an NVIDIA GPU the first program that opens the region makes the memory; after
    /// a restart of the daemon the memory is known again as soon as a program that has the region open has returned.
    pub has_memory: bool,
    /// The virtual GPUs that it is attached to.
    pub attached: Vec<RegionAttachment>,
}

/// How a program opens a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RegionHandle {
    /// Name of the region.
    pub name: String,
    /// What `cuIpcOpenMemHandle` takes, as 128 hexadecimal digits.
    pub handle: String,
    /// Size of the region.
    pub bytes: u64,
    /// What may be done with it.
    pub access: RegionAccess,
}

impl RegionHandle {
    /// The environment variable that tells a program the handle: `MICA_REGION_WEIGHTS` for `weights`.
    #[must_use]
    pub fn variable(&self) -> String {
        let name = self.name.split('@').next().unwrap_or_default();
        let upper = |c: char| match c.is_ascii_alphanumeric() {
            true => c.to_ascii_uppercase(),
            false => '_',
        };
        let name: String = name.chars().map(upper).collect();
        format!("MICA_REGION_{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_words_that_shells_accept() {
        let named = |name: &str| RegionHandle {
            name: name.into(),
            ..RegionHandle::default()
        };
        assert_eq!(named("weights").variable(), "MICA_REGION_WEIGHTS");
        assert_eq!(named("llama-3.1_8b").variable(), "MICA_REGION_LLAMA_3_1_8B");
        assert_eq!(named("weights@1000").variable(), "MICA_REGION_WEIGHTS");
    }
}
