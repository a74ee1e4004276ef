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

impl Session {
    /// Makes an array.
    pub fn array_create(&self, context: u64, descriptor: &ArrayDescriptor) -> Result<u64> {
        self.check()?;
        let owner = self.context_id(context)?;
        let (row, rows, slices) = extent(descriptor)?;
        let bytes = row
            .checked_mul(rows)
            .and_then(|area| area.checked_mul(slices))
            .ok_or_else(|| VgpuError::Argument("an array of more bytes than there are".into()))?;
        let charge = self.vgpu.charge(bytes, self)?;
        let id = self.watch(context, self.gpu.array_create(owner, descriptor))?;
        let array = Array {
            id,
            context,
            descriptor: *descriptor,
            charge,
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
        tables.textures.insert(handle, context);
        Ok(handle)
    }

    /// Makes a surface object over an array.
    pub fn surface_create(&self, context: u64, array: u64) -> Result<u64> {
        self.check()?;
        let mut tables = self.write();
        let owner = tables.contexts.get(context)?.id;
        let array: ArrayId = tables.arrays.get(array)?.id;
        let handle = self.watch(context, self.gpu.surface_create(owner, array))?;
        tables.textures.insert(handle, context);
        Ok(handle)
    }

    /// Destroys a texture or surface object.
    pub fn texture_destroy(&self, context: u64, handle: u64) -> Result<()> {
        self.check()?;
        let mut tables = self.write();
        let owner = tables.contexts.get(context)?.id;
        if tables.textures.get(&handle) != Some(&context) {
            let kind = ObjectKind::Texture;
            return Err(VgpuError::Handle { kind, handle });
        }
        tables.textures.remove(&handle);
        Ok(self.gpu.texture_destroy(owner, handle)?)
    }
}
