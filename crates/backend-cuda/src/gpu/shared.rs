//! Memory that other processes have too.
//!
//! The driver's own sharing by `cuIpc*` needs processes that see each other. Workers do not, so files carry memory
//! between them, which the driver makes of frames alone. Allocations of whole frames are therefore frames, mapped
//! where the driver has addresses free.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use mica_cuda_abi::CuResult;
use mica_gpu::{Access, ContextId, DevicePtr, FrameId, GpuError, Result};

use super::{Context, CudaGpu, FILE_DESCRIPTOR, Frame, lock, stale};
use crate::driver::Raw;

impl CudaGpu {
    /// Allocates whole frames; `None` if it is no such size, or the driver refuses: then it is asked in the usual way.
    pub(super) fn alloc_framed(&self, context: &Context, bytes: u64) -> Option<DevicePtr> {
        let unit = self.properties.frame_bytes;
        if self.handle_types == 0 || unit == 0 || bytes == 0 || !bytes.is_multiple_of(unit) {
            return None;
        }
        let frame = self.new_frame(bytes).ok()?;
        let Ok(address) = self.reserve(bytes, unit) else {
            let _ = self.end_frame(frame);
            return None;
        };
        let mapped = self.map_at(address, frame);
        let usable = mapped
            .as_ref()
            .is_ok_and(|()| self.set_access(address, bytes, Access::ReadWrite).is_ok());
        if !usable {
            if mapped.is_ok() {
                let _ = self.unmap(address, bytes);
            }
            let _ = self.unreserve(address, bytes);
            let _ = self.end_frame(frame);
            return None;
        }
        lock(&context.framed).insert(address.0, frame);
        Some(address)
    }

    /// Frees what [`CudaGpu::alloc_framed`] gave.
    pub(super) fn drop_framed(&self, address: u64, frame: Frame) -> Result<()> {
        let address = DevicePtr(address);
        let unmapped = self.unmap(address, frame.bytes);
        let unreserved = self.unreserve(address, frame.bytes);
        let ended = self.end_frame(frame);
        unmapped.and(unreserved).and(ended)
    }

    pub(super) fn export_memory(
        &self,
        context: ContextId,
        address: DevicePtr,
    ) -> Result<(OwnedFd, u64)> {
        let context = self.context(context)?;
        let frame = lock(&context.framed).get(&address.0).copied();
        let frame = frame.ok_or_else(|| {
            let unit = self.properties.frame_bytes;
            let sentence = format!(
                "only allocations of whole {unit} bytes can be shared with other processes"
            );
            GpuError::new(CuResult::NotSupported, sentence)
        })?;
        Ok((self.export(frame)?, frame.bytes))
    }

    pub(super) fn export_frame(&self, id: FrameId) -> Result<OwnedFd> {
        let frame = self.frames.get(id.0).ok_or_else(|| stale("frame", id.0))?;
        self.export(frame)
    }

    fn export(&self, frame: Frame) -> Result<OwnedFd> {
        let mut fd: c_int = -1;
        // SAFETY: writes one descriptor.
        self.without_context("cuMemExportToShareableHandle", || unsafe {
            let export = self.driver.functions.frame_export;
            export((&raw mut fd).cast(), frame.raw, FILE_DESCRIPTOR, 0)
        })?;
        // SAFETY: a new descriptor that the driver has given us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    pub(super) fn import_frame(&self, file: OwnedFd, bytes: u64) -> Result<FrameId> {
        let mut raw = 0;
        // The descriptor travels in a pointer's place, as the driver wants it.
        let descriptor = file.as_raw_fd() as usize as Raw;
        // SAFETY: writes one handle; the driver checks the file.
        self.without_context("cuMemImportFromShareableHandle", || unsafe {
            let import = self.driver.functions.frame_import;
            import(&mut raw, descriptor, FILE_DESCRIPTOR)
        })?;
        Ok(FrameId(self.frames.add(Frame { raw, bytes })))
    }
}
