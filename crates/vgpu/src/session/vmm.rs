//! Addresses, frames and mappings.

use std::sync::Arc;

use mica_gpu::{Access, DevicePtr, FrameId, GpuError};

use super::{Frame, Session, Tables, table_full};
use crate::handle::ObjectKind;
use crate::ranges::{Owner, Range};
use crate::{Result, VgpuError};

impl Tables {
    fn check_reserved(&self, address: u64, bytes: u64) -> Result<()> {
        let found = self.reserved.range(..=address).next_back();
        match found {
            Some((start, (length, _)))
                if address
                    .checked_add(bytes)
                    .is_some_and(|end| end - start <= *length) =>
            {
                Ok(())
            }
            _ => Err(VgpuError::Range { address, bytes }),
        }
    }

    /// First addresses of the mappings in a range that begins and ends with one.
    fn mappings(&self, address: u64, bytes: u64) -> Result<Vec<u64>> {
        let refused = VgpuError::Range { address, bytes };
        let end = address.checked_add(bytes).ok_or(refused.clone())?;
        let mut at = address;
        let mut starts = Vec::new();
        while at < end {
            match self.ranges.0.get(&at) {
                Some(range) if matches!(range.owner, Owner::Mapping { .. }) => {
                    starts.push(at);
                    at += range.bytes;
                }
                _ => return Err(refused),
            }
        }
        if at == end && !starts.is_empty() {
            Ok(starts)
        } else {
            Err(refused)
        }
    }
}

impl Session {
    /// Reserves device addresses.
    pub fn address_reserve(&self, bytes: u64, align: u64) -> Result<DevicePtr> {
        self.check()?;
        if bytes == 0 {
            return Err(VgpuError::Argument("a reservation of 0 bytes".into()));
        }
        let share = self.object_share()?;
        let mut tables = self.write();
        // A closed session has been emptied: nothing may be added to it.
        self.check()?;
        let address = self.gpu.address_reserve(bytes, align)?;
        tables.reserved.insert(address.0, (bytes, share));
        Ok(address)
    }

    /// Gives reserved addresses back; nothing may be mapped there.
    pub fn address_free(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        self.check()?;
        let mut tables = self.write();
        let end = address.0.saturating_add(bytes);
        let mapped = tables.ranges.0.range(address.0..end).next().is_some();
        let is_whole = |(length, _): &(u64, _)| *length == bytes;
        if !tables.reserved.get(&address.0).is_some_and(is_whole) || mapped {
            let address = address.0;
            return Err(VgpuError::Range { address, bytes });
        }
        self.gpu.address_free(address, bytes)?;
        tables.reserved.remove(&address.0);
        Ok(())
    }

    /// Physical memory without an address.
    pub fn frame_create(&self, bytes: u64) -> Result<u64> {
        self.add_frame(bytes, bytes, Access::ReadWrite, || {
            self.gpu.frame_create(bytes)
        })
    }

    /// Charges so much for a frame, has the device make it, and gives it a handle.
    pub(super) fn add_frame(
        &self,
        bytes: u64,
        charged_bytes: u64,
        most: Access,
        make: impl FnOnce() -> Result<FrameId, GpuError>,
    ) -> Result<u64> {
        self.check()?;
        let unit = self.gpu.properties().frame_bytes.max(1);
        if bytes == 0 || !bytes.is_multiple_of(unit) {
            return Err(VgpuError::Argument(format!(
                "{bytes} bytes are not a multiple of the frame size {unit}"
            )));
        }
        let share = self.object_share()?;
        let charge = Arc::new(self.vgpu.charge(charged_bytes, self)?);
        let mut tables = self.write();
        self.check()?;
        let id = make()?;
        let frame = Frame {
            id,
            bytes,
            charge,
            most,
            share,
        };
        tables.frames.insert(frame).map_err(|frame| {
            let _ = self.gpu.frame_release(frame.id);
            table_full(ObjectKind::Frame)
        })
    }

    /// Drops a frame; its memory goes with the last mapping.
    pub fn frame_release(&self, frame: u64) -> Result<()> {
        self.check()?;
        let gone = self.write().frames.remove(frame)?;
        Ok(self.gpu.frame_release(gone.id)?)
    }

    /// Maps a frame at reserved addresses.
    pub fn frame_map(&self, address: DevicePtr, frame: u64) -> Result<()> {
        self.check()?;
        let share = self.object_share()?;
        let mut tables = self.write();
        let known = tables.frames.get(frame)?;
        let (id, bytes, most) = (known.id, known.bytes, known.most);
        let charge = Arc::clone(&known.charge);
        tables.check_reserved(address.0, bytes)?;
        let end = address.0 + bytes;
        let before = tables.ranges.find(address.0).is_some();
        if before || tables.ranges.0.range(address.0..end).next().is_some() {
            let address = address.0;
            return Err(VgpuError::Range { address, bytes });
        }
        self.gpu.frame_map(address, id)?;
        let range = Range {
            bytes,
            context: 0,
            owner: Owner::Mapping { charge, most },
            share,
        };
        tables.ranges.0.insert(address.0, range);
        Ok(())
    }

    /// Waits for the session's work and unmaps whole mappings.
    pub fn frame_unmap(&self, address: DevicePtr, bytes: u64) -> Result<()> {
        self.check()?;
        self.read().mappings(address.0, bytes)?;
        let contexts: Vec<_> = self.read().contexts.iter().map(|(_, c)| c.id).collect();
        for context in contexts {
            let _ = self.gpu.context_synchronize(context);
        }
        let mut tables = self.write();
        let starts = tables.mappings(address.0, bytes)?;
        self.gpu.frame_unmap(address, bytes)?;
        for start in starts {
            tables.ranges.0.remove(&start);
        }
        Ok(())
    }

    /// Sets who may touch mapped memory.
    pub fn frame_access(&self, address: DevicePtr, bytes: u64, access: Access) -> Result<()> {
        self.check()?;
        let tables = self.read();
        let starts = tables.mappings(address.0, bytes)?;
        let is_read_only = |start: &u64| {
            let most = tables.ranges.0.get(start).map(|range| &range.owner);
            matches!(most, Some(Owner::Mapping { most, .. }) if *most != Access::ReadWrite)
        };
        if access == Access::ReadWrite && starts.iter().any(is_read_only) {
            return Err(VgpuError::Argument(
                "the memory is of a region that may only be read here".into(),
            ));
        }
        Ok(self.gpu.frame_access(address, bytes, access)?)
    }

    /// Gives the device back what belongs to no context.
    pub(super) fn release_frames(&self, tables: &Tables) {
        let warn = |what: &str, error| tracing::warn!(%error, "an ended session's {what} stayed");
        for (address, range) in &tables.ranges.0 {
            if matches!(range.owner, Owner::Mapping { .. })
                && let Err(error) = self.gpu.frame_unmap(DevicePtr(*address), range.bytes)
            {
                warn("mapping", error);
            }
        }
        for (_, frame) in tables.frames.iter() {
            if let Err(error) = self.gpu.frame_release(frame.id) {
                warn("frame", error);
            }
        }
        for (address, (bytes, _)) in &tables.reserved {
            if let Err(error) = self.gpu.address_free(DevicePtr(*address), *bytes) {
                warn("reservation", error);
            }
        }
    }
}
