//! Arrays, textures, copies of boxes and managed memory.

use std::ffi::c_int;
use std::sync::Arc;

use mica_cuda_abi::Array3dDescriptor;
use mica_gpu::{ArrayDescriptor, HostSpan, Place, TextureDescriptor};

use super::Driven;
use super::functions::{Functions, Raw, check};
use super::structs::{BoxCopy, Resource, TextureReading};
use crate::Result;
use crate::backend::{Backend as _, DeviceSide, ManagedMemory};

/// `CU_DEVICE_CPU`.
const HOST: c_int = -1;
/// `CU_MEM_ATTACH_GLOBAL`.
const GLOBAL: u32 = 1;

impl Driven {
    /// Copies rows and slices; returns when the stream has passed the copy.
    pub(super) fn copy_rows(
        &self,
        stream: u64,
        side: &DeviceSide,
        host: (*mut u8, usize),
        to_device: bool,
    ) -> Result<()> {
        // SAFETY: the caller borrows the memory for this call, which waits for the copy below.
        let span = unsafe { HostSpan::new(host.0, host.1 as u64) };
        let copy = BoxCopy::of(&side.copy(Place::Host(span), to_device));
        // SAFETY: live handles; the driver refuses ranges of the device that are no memory.
        self.call("cuMemcpy3DAsync", |f| unsafe {
            (f.copy_3d)(&copy, stream as Raw)
        })?;
        self.stream_synchronize(stream)
    }

    pub(super) fn make_array(&self, array: &ArrayDescriptor) -> Result<u64> {
        let descriptor = Array3dDescriptor {
            width: array.width as usize,
            height: array.height as usize,
            depth: array.depth as usize,
            format: array.format,
            channels: array.channels,
            flags: array.flags,
        };
        let mut made: Raw = std::ptr::null_mut();
        // SAFETY: writes one handle.
        self.call("cuArray3DCreate", |f| unsafe {
            (f.array_create)(&mut made, &descriptor)
        })?;
        Ok(made as u64)
    }

    pub(super) fn make_texture(&self, texture: &TextureDescriptor) -> Result<u64> {
        let (resource, reading) = (Resource::of(texture), TextureReading::of(texture));
        let mut made = 0;
        // SAFETY: writes one handle; arrays are live, and the driver refuses addresses that are no memory.
        self.call("cuTexObjectCreate", |f| unsafe {
            (f.texture_create)(&mut made, &resource, &reading, std::ptr::null())
        })?;
        Ok(made)
    }

    pub(super) fn make_surface(&self, array: u64) -> Result<u64> {
        let resource = Resource::array(array);
        let mut made = 0;
        // SAFETY: writes one handle; the array is live.
        self.call("cuSurfObjectCreate", |f| unsafe {
            (f.surface_create)(&mut made, &resource)
        })?;
        Ok(made)
    }

    pub(super) fn make_managed(&self, bytes: u64) -> Result<Box<dyn ManagedMemory>> {
        let mut address = 0;
        // SAFETY: writes one address.
        self.call("cuMemAllocManaged", |f| unsafe {
            (f.managed_alloc)(&mut address, bytes as usize, GLOBAL)
        })?;
        Ok(Box::new(Managed {
            functions: Arc::clone(&self.functions),
            context: self.context,
            device: self.device,
            address,
        }))
    }
}

/// Managed memory has one address for host and device.
struct Managed {
    functions: Arc<Functions>,
    context: usize,
    device: c_int,
    address: u64,
}

impl ManagedMemory for Managed {
    fn device(&self) -> u64 {
        self.address
    }

    fn host(&self) -> *mut u8 {
        self.address as *mut u8
    }

    fn prefetch(&self, stream: u64, offset: u64, bytes: u64, to_device: bool) -> Result<()> {
        let place = if to_device { self.device } else { HOST };
        let _entered = super::Entered::new(&self.functions, self.context)?;
        // SAFETY: live handles; the driver refuses ranges that are no managed memory.
        check("cuMemPrefetchAsync", unsafe {
            (self.functions.prefetch)(self.address + offset, bytes as usize, place, stream as Raw)
        })
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        if let Ok(_entered) = super::Entered::new(&self.functions, self.context) {
            // SAFETY: allocated once by `make_managed`; the driver waits for work that uses it.
            unsafe { (self.functions.memory_free)(self.address) };
        }
    }
}

/// A pointer to memory that is only read.
pub(super) fn source(bytes: &[u8]) -> (*mut u8, usize) {
    (bytes.as_ptr().cast_mut(), bytes.len())
}
