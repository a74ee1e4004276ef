//! Calls about regions.

use super::{ControlClient, ControlError, NOTHING, escape};
use crate::api::{AttachRegion, Done, RegionAccess, RegionInfo, RegionSpec};

impl ControlClient {
    /// Makes memory that several virtual GPUs can share.
    ///
    /// # Errors
    /// The daemon's refusal, or why it cannot be asked.
    pub fn create_region(&self, spec: &RegionSpec) -> Result<RegionInfo, ControlError> {
        self.json("POST", "/v1/regions", Some(spec))
    }

    /// The caller's regions; all of them for an administrator.
    ///
    /// # Errors
    /// As [`ControlClient::create_region`].
    pub fn regions(&self) -> Result<Vec<RegionInfo>, ControlError> {
        self.json("GET", "/v1/regions", NOTHING)
    }

    /// Removes a region; with `force` also one that is attached.
    ///
    /// # Errors
    /// As [`ControlClient::create_region`].
    pub fn remove_region(&self, name: &str, force: bool) -> Result<Done, ControlError> {
        let path = format!("/v1/regions/{}?force={force}", escape(name));
        self.json("DELETE", &path, NOTHING)
    }

    /// Lets the programs of a virtual GPU open a region.
    ///
    /// # Errors
    /// As [`ControlClient::create_region`].
    pub fn attach_region(
        &self,
        region: &str,
        vgpu: &str,
        access: RegionAccess,
    ) -> Result<RegionInfo, ControlError> {
        let how = AttachRegion { access };
        self.json("PUT", &attachment(region, vgpu), Some(&how))
    }

    /// Lets the programs of a virtual GPU open a region no more.
    ///
    /// # Errors
    /// As [`ControlClient::create_region`].
    pub fn detach_region(&self, region: &str, vgpu: &str) -> Result<RegionInfo, ControlError> {
        self.json("DELETE", &attachment(region, vgpu), NOTHING)
    }
}

fn attachment(region: &str, vgpu: &str) -> String {
    format!("/v1/regions/{}/vgpus/{}", escape(region), escape(vgpu))
}
