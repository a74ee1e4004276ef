//! Arrays, textures and surfaces.

use mica_gpu::{ArrayDescriptor, ArrayId, TextureDescriptor, TextureResource};

use super::{Array, Session, table_full};
use crate::handle::ObjectKind;
use crate::{Result, VgpuError};

/// Bytes of one channel of a `CUarray_format`.
fn channel_bytes(format: u32) -> Option<u64> {
    match format {
        1 | 8 => Some(1),
        2 | 9 | 16 => Some(2),
        3 | 10 | 32 => Some(4),
        _ => None,
    }
}

/// Bytes per row, rows and slices of an array.
pub(super) fn extent(descriptor: &ArrayDescriptor) -> Result<(u64, u64, u64)> {
    let texel = channel_bytes(descriptor.format)
        .filter(|_| matches!(descriptor.channels, 1 | 2 | 4))
        .map(|bytes| bytes * u64::from(descriptor.channels));
    let row = texel.and_then(|texel| texel.checked_mul(descriptor.width));
    match row {
        Some(row) if row > 0 => Ok((row, descriptor.height.max(1), descriptor.depth.max(1))),
        _ => Err(VgpuError::Argument(format!(
            "{descriptor:?} describes no array"
        ))),
    }
}

/// Rows of arrays begin at multiples of this, where the device does not say what it takes.
const ROW_ALIGN: u64 = 512;

impl Session {
    /// What the device takes for an array: rows and slices are padded, so it is more than its texels.
    fn array_bytes(&self, descriptor: &ArrayDescriptor) -> Result<u64> {
        let (row, rows, slices) = extent(descriptor)?;
        let padded = row
            .checked_next_multiple_of(ROW_ALIGN)
            .and_then(|row| row.checked_mul(rows)?.checked_mul(slices))
            .ok_or_else(|| VgpuError::Argument("an array of more bytes than there are".into()))?;
        Ok(self.gpu.array_bytes(descriptor).unwrap_or(padded))
    }

    /// Makes an array.
    pub fn array_create(&self, context: u64, descriptor: &ArrayDescriptor) -> Result<u64> {
        self.check()?;
        let owner = self.context_id(context)?;
        let bytes = self.array_bytes(descriptor)?;
        let share = self.object_share()?;
        let charge = self.vgpu.charge(bytes, self)?;
        let id = self.watch(context, self.gpu.array_create(owner, descriptor))?;
        let array = Array {
            id,
            context,
            descriptor: *descriptor,
            charge,
            share,
        };
        let mut tables = self.write();
        if tables.contexts.get(context).is_err() {
            return Err(VgpuError::Closed);
        }
        tables.arrays.insert(array).map_err(|array| {
            let _ = self.gpu.array_destroy(array.id);
            table_full(ObjectKind::Array)
        })
    }

    /// Waits for the context's work and frees an array.
    pub fn array_destroy(&self, array: u64) -> Result<()> {
        self.check()?;
        let owner = {
            let tables = self.read();
            let array = tables.arrays.get(array)?;
            tables.contexts.get(array.context)?.id
        };
        let _ = self.gpu.context_synchronize(owner);
        let gone = self.write().arrays.remove(array)?;
        let freed = self.gpu.array_destroy(gone.id);
        drop(gone);
        Ok(freed?)
    }

    /// Makes a texture object; an array in it is named by its session handle.
    pub fn texture_create(&self, context: u64, descriptor: &TextureDescriptor) -> Result<u64> {
        self.check()?;
        let share = self.object_share()?;
        let mut tables = self.write();
        let owner = tables.contexts.get(context)?.id;
        let mut device = *descriptor;
        match descriptor.resource {
            TextureResource::Array(handle) => {
                device.resource = TextureResource::Array(tables.arrays.get(handle.0)?.id);
            }
            TextureResource::Linear(address, bytes) => tables.ranges.check(address.0, bytes)?,
            TextureResource::Pitched(address, width, height, pitch) => {
                let texel = channel_bytes(descriptor.format).unwrap_or(1)
                    * u64::from(descriptor.channels.max(1));
                let rows = height.saturating_sub(1).checked_mul(pitch);
                let bytes = rows.and_then(|rows| rows.checked_add(width.checked_mul(texel)?));
                let bytes =
                    bytes.ok_or_else(|| VgpuError::Argument("a texture that wraps".into()))?;
                tables.ranges.check(address.0, bytes)?;
            }
        }
        let handle = self.watch(context, self.gpu.texture_create(owner, &device))?;
        tables.textures.insert(handle, (context, share));
        Ok(handle)
    }

    /// Makes a surface object over an array.
    pub fn surface_create(&self, context: u64, array: u64) -> Result<u64> {
        self.check()?;
        let share = self.object_share()?;
        let mut tables = self.write();
        let owner = tables.contexts.get(context)?.id;
        let array: ArrayId = tables.arrays.get(array)?.id;
        let handle = self.watch(context, self.gpu.surface_create(owner, array))?;
        tables.textures.insert(handle, (context, share));
        Ok(handle)
    }

    /// Destroys a texture or surface object.
    pub fn texture_destroy(&self, context: u64, handle: u64) -> Result<()> {
        self.check()?;
        let mut tables = self.write();
        let owner = tables.contexts.get(context)?.id;
        let is_own = |(owner, _): &(u64, _)| *owner == context;
        if !tables.textures.get(&handle).is_some_and(is_own) {
            let kind = ObjectKind::Texture;
            return Err(VgpuError::Handle { kind, handle });
        }
        tables.textures.remove(&handle);
        Ok(self.gpu.texture_destroy(owner, handle)?)
    }
}
