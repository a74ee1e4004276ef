//! Which device addresses are a session's.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use mica_gpu::{Access, Share};

use crate::VgpuError;
use crate::vgpu::Charge;

/// Why a range is the session's.
pub(crate) enum Owner {
    /// `memory_alloc`, with its charge.
    Allocation {
        #[expect(dead_code, reason = "held until the memory is freed")]
        charge: Charge,
        /// A free in stream order is under way.
        freeing: bool,
    },
    /// A variable of the module with this handle.
    Global(u64),
    /// Host memory; the keeper holds its mapping.
    Host {
        /// Where it begins in its file.
        offset: u64,
        /// Its program can bring the file again.
        is_offered: bool,
        #[expect(dead_code, reason = "held until the memory is unregistered")]
        keeper: Box<dyn Any + Send + Sync>,
        charge: Option<Charge>,
        #[expect(dead_code, reason = "held until the memory is unregistered")]
        registered: Share,
    },
    /// A mapped frame; the charge goes with the last of frame and mappings.
    Mapping {
        #[expect(dead_code, reason = "held until the last mapping goes")]
        charge: Arc<Charge>,
        /// The most that kernels may do with it.
        most: Access,
    },
}

pub(crate) struct Range {
    pub(crate) bytes: u64,
    /// Handle of the context; 0 for mappings, which belong to none.
    pub(crate) context: u64,
    pub(crate) owner: Owner,
    #[expect(dead_code, reason = "held until the range goes")]
    pub(crate) share: Share,
}

/// Ranges by first address; they never overlap.
#[derive(Default)]
pub(crate) struct Ranges(pub(crate) BTreeMap<u64, Range>);

impl Ranges {
    /// The range that holds an address, with its first address.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Range)> {
        let (start, range) = self.0.range(..=address).next_back()?;
        (address - start < range.bytes).then_some((*start, range))
    }

    /// Whether all bytes are live memory: one allocation, or neighbouring mappings.
    pub(crate) fn check(&self, address: u64, bytes: u64) -> Result<(), VgpuError> {
        let refused = VgpuError::Range { address, bytes };
        let end = address.checked_add(bytes).ok_or(refused.clone())?;
        let mut at = address;
        loop {
            let Some((start, range)) = self.find(at) else {
                return Err(refused);
            };
            if matches!(range.owner, Owner::Allocation { freeing: true, .. }) {
                return Err(refused);
            }
            let range_end = start + range.bytes;
            if end <= range_end {
                return Ok(());
            }
            if !matches!(range.owner, Owner::Mapping { .. }) {
                return Err(refused);
            }
            at = range_end;
        }
    }
}
