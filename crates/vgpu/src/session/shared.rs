//! Memory that other processes have too.
//!
//! Who may have it is not decided here: a file is given to the caller, and taken from it. What is taken in is charged in
//! full, as if it were the session's own: its owner may give its part back at any time. Only memory of a region is not:
//! a region is charged to an account of its own.

use std::os::fd::OwnedFd;

use mica_gpu::{Access, DevicePtr};

use super::Session;
use crate::ranges::Owner;
use crate::{Result, VgpuError};

impl Session {
    /// A file by which another process takes in an allocation, and the bytes of the frame it gets.
    pub fn memory_export(&self, context: u64, address: DevicePtr) -> Result<(OwnedFd, u64)> {
        self.check()?;
        let owner = self.context_id(context)?;
        {
            let tables = self.read();
            let found = tables.ranges.0.get(&address.0);
            let is_live = found.is_some_and(|range| {
                range.context == context
                    && matches!(range.owner, Owner::Allocation { freeing: false, .. })
            });
            if !is_live {
                let (address, bytes) = (address.0, 0);
                return Err(VgpuError::Range { address, bytes });
            }
        }
        // It may wait for kernels to hold still, so no lock is held.
        Ok(self.gpu.memory_export(owner, address)?)
    }

    /// As [`Session::memory_export`], for a frame.
    pub fn frame_export(&self, frame: u64) -> Result<(OwnedFd, u64)> {
        self.check()?;
        let tables = self.read();
        let frame = tables.frames.get(frame)?;
        Ok((self.gpu.frame_export(frame.id)?, frame.bytes))
    }

    /// Takes memory of another process in as a frame.
    pub fn frame_import(&self, file: OwnedFd, bytes: u64) -> Result<u64> {
        self.add_frame(bytes, bytes, Access::ReadWrite, || {
            self.gpu.frame_import(file, bytes)
        })
    }

    /// Takes memory of a region in as a frame. A region has an account of its own, so nothing is charged here.
    pub fn region_import(&self, file: OwnedFd, bytes: u64, most: Access) -> Result<u64> {
        self.add_frame(bytes, 0, most, || self.gpu.frame_import(file, bytes))
    }

    /// Makes the memory of a region, which its own account is charged for, and a file by which others take it in.
    pub fn region_create(&self, bytes: u64) -> Result<(u64, OwnedFd)> {
        let make = || self.gpu.frame_create(bytes);
        let frame = self.add_frame(bytes, 0, Access::ReadWrite, make)?;
        match self.frame_export(frame) {
            Ok((file, _)) => Ok((frame, file)),
            Err(error) => {
                let _ = self.frame_release(frame);
                Err(error)
            }
        }
    }
}
