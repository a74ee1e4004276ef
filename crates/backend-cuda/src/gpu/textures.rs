//! Arrays, texture objects and surface objects.

use mica_cuda_abi::Array3dDescriptor;
use mica_gpu::{ArrayDescriptor, ArrayId, ContextId, Result, TextureDescriptor, TextureResource};

use super::{Address, Array, Context, CudaGpu, invalid, lock, stale};
use crate::driver::{Raw, ResourceDescriptor, TextureDescription};

/// Number of `CUresourcetype`.
const RESOURCE_ARRAY: u32 = 0;
const RESOURCE_LINEAR: u32 = 2;
const RESOURCE_PITCHED: u32 = 3;

impl CudaGpu {
    pub(super) fn make_array(
        &self,
        context: ContextId,
        shape: &ArrayDescriptor,
    ) -> Result<ArrayId> {
        let context = self.context(context)?;
        let descriptor = Array3dDescriptor {
            width: shape.width as usize,
            height: shape.height as usize,
            depth: shape.depth as usize,
            format: shape.format,
            channels: shape.channels,
            flags: shape.flags,
        };
        let mut raw: Raw = std::ptr::null_mut();
        // SAFETY: reads one description, writes one handle.
        self.call(&context, "cuArray3DCreate", || unsafe {
            (self.driver.functions.array_create)(&mut raw, &descriptor)
        })?;
        let raw = raw as Address;
        Ok(ArrayId(self.arrays.add(Array { context, raw })))
    }

    pub(super) fn end_array(&self, id: ArrayId) -> Result<()> {
        let removed = self.arrays.remove(id.0);
        let array = removed.ok_or_else(|| stale("array", id.0))?;
        // SAFETY: made by us and out of the table.
        self.call(&array.context, "cuArrayDestroy", || unsafe {
            (self.driver.functions.array_destroy)(array.raw as Raw)
        })
    }

    pub(super) fn make_texture(
        &self,
        context: ContextId,
        descriptor: &TextureDescriptor,
    ) -> Result<u64> {
        const READ_AS_INTEGER: u32 = 1;
        const NORMALIZED: u32 = 2;
        let context = self.context(context)?;
        let resource = self.resource(&context, descriptor)?;
        let mut flags = 0;
        if descriptor.read_as_integer {
            flags |= READ_AS_INTEGER;
        }
        if descriptor.normalized_coords {
            flags |= NORMALIZED;
        }
        let how = TextureDescription {
            address_mode: descriptor.address_mode,
            filter: descriptor.filter,
            flags,
            border: descriptor.border,
            ..TextureDescription::default()
        };
        let mut handle = 0;
        // SAFETY: reads two descriptions, writes one handle; no view is given.
        self.call(&context, "cuTexObjectCreate", || unsafe {
            let create = self.driver.functions.texture_create;
            create(&mut handle, &resource, &how, std::ptr::null())
        })?;
        lock(&context.textures).insert(handle, false);
        Ok(handle)
    }

    pub(super) fn make_surface(&self, context: ContextId, array: ArrayId) -> Result<u64> {
        let context = self.context(context)?;
        let resource = self.array_resource(array)?;
        let mut handle = 0;
        // SAFETY: reads one description, writes one handle.
        self.call(&context, "cuSurfObjectCreate", || unsafe {
            (self.driver.functions.surface_create)(&mut handle, &resource)
        })?;
        lock(&context.textures).insert(handle, true);
        Ok(handle)
    }

    pub(super) fn end_texture(&self, context: ContextId, handle: u64) -> Result<()> {
        let context = self.context(context)?;
        let removed = lock(&context.textures).remove(&handle);
        let functions = &self.driver.functions;
        let destroy = match removed {
            Some(true) => functions.surface_destroy,
            Some(false) => functions.texture_destroy,
            None => {
                return Err(invalid(format!(
                    "{handle:#x} is not a texture of this context"
                )));
            }
        };
        // SAFETY: made by us, destroyed once.
        self.call(&context, "cuTexObjectDestroy", || unsafe {
            destroy(handle)
        })
    }

    fn array_resource(&self, id: ArrayId) -> Result<ResourceDescriptor> {
        let array = self.arrays.get(id.0).ok_or_else(|| stale("array", id.0))?;
        let mut words = [0; 16];
        words[0] = array.raw as u64;
        Ok(ResourceDescriptor {
            kind: RESOURCE_ARRAY,
            words,
            flags: 0,
        })
    }

    fn resource(
        &self,
        context: &Context,
        descriptor: &TextureDescriptor,
    ) -> Result<ResourceDescriptor> {
        // Format and channel count are two 32-bit fields behind the address.
        let format = u64::from(descriptor.format) | u64::from(descriptor.channels) << 32;
        let mut words = [0; 16];
        let kind = match descriptor.resource {
            TextureResource::Array(id) => return self.array_resource(id),
            TextureResource::Linear(address, bytes) => {
                self.check_range(context, address, bytes)?;
                words[..3].copy_from_slice(&[address.0, format, bytes]);
                RESOURCE_LINEAR
            }
            TextureResource::Pitched(address, width, height, pitch) => {
                // The last row need not be a whole pitch long; the driver knows the texels' size.
                let rows = height.saturating_sub(1).checked_mul(pitch);
                let rows = rows.ok_or_else(|| invalid("a texture passes the end of memory"))?;
                self.check_range(context, address, rows)?;
                words[..5].copy_from_slice(&[address.0, format, width, height, pitch]);
                RESOURCE_PITCHED
            }
        };
        Ok(ResourceDescriptor {
            kind,
            words,
            flags: 0,
        })
    }
}
