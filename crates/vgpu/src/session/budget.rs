//! What is held for a session, and what the device takes on its behalf.

use std::sync::Arc;

use mica_gpu::budget::{Charging, OBJECT_BYTES};
use mica_gpu::{GpuError, SessionBudget, Share};

use super::Session;
use crate::Result;
use crate::vgpu::Vgpu;

/// Charges what a session's device takes to the virtual GPU.
struct ToVgpu(Arc<Vgpu>);

impl Charging for ToVgpu {
    fn charge(&self, bytes: u64) -> Result<(), GpuError> {
        let refused = |error: crate::VgpuError| GpuError::new(error.code(), error.sentence());
        self.0.charge_now(bytes).map_err(refused)
    }

    fn release(&self, bytes: u64) {
        self.0.release_now(bytes);
    }
}

/// The budget of a new session.
pub(super) fn open(vgpu: &Arc<Vgpu>) -> Arc<SessionBudget> {
    let budget = SessionBudget::new(vgpu.spec().host_bytes)
        .within(Arc::clone(vgpu.host_budget()))
        .with_device(Box::new(ToVgpu(Arc::clone(vgpu))));
    Arc::new(budget)
}

impl Session {
    /// What is held for this session; whoever keeps bytes for it takes them here.
    pub fn budget(&self) -> &Arc<SessionBudget> {
        &self.budget
    }

    /// The host bytes of one object.
    pub(super) fn object_share(&self) -> Result<Share> {
        Ok(self.budget.take(OBJECT_BYTES, "an object")?)
    }
}
