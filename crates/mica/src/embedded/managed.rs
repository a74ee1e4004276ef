//! Memory of this process that kernels use in place.

use std::sync::Arc;

use mica_gpu::{DevicePtr, HostSpan};
use mica_vgpu::Session;
use mica_wire::session::{MappedBytes, Mapping, create_sealed};

use crate::backend::ManagedMemory;
use crate::{Error, Result};

struct Managed {
    session: Arc<Session>,
    context: u64,
    device: DevicePtr,
    /// The session keeps it too, until the device has let go of it.
    mapping: Arc<MappedBytes>,
}

/// Pages that the device maps where kernels can reach them.
pub(super) fn alloc(
    session: &Arc<Session>,
    context: u64,
    bytes: u64,
) -> Result<Box<dyn ManagedMemory>> {
    let no_memory = |error| {
        Error::Argument(format!(
            "{bytes} bytes of managed memory cannot be made: {error}"
        ))
    };
    let file = create_sealed("mica-managed", bytes).map_err(no_memory)?;
    let (mapping, file) = Mapping::new(file, 0, bytes as usize)
        .map_err(no_memory)?
        .into_parts();
    let mapping = Arc::new(mapping);
    let keeper = Box::new(Arc::clone(&mapping));
    let file = std::os::fd::AsFd::as_fd(&file);
    // SAFETY: the span is the whole mapping, which `keeper` keeps.
    let device = unsafe {
        let span = HostSpan::new(mapping.as_ptr(), bytes);
        session.host_register(context, span, Some((file, 0)), true, keeper)?
    };
    Ok(Box::new(Managed {
        session: Arc::clone(session),
        context,
        device,
        mapping,
    }))
}

impl ManagedMemory for Managed {
    fn device(&self) -> u64 {
        self.device.0
    }

    fn host(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// The device uses the pages where they are.
    fn prefetch(&self, stream: u64, _: u64, _: u64, _: bool) -> Result<()> {
        self.session.stream_query(stream)?;
        Ok(())
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        // Fails only if the context is gone, and what the device has of the memory with it.
        let _ = self.session.host_unregister(self.context, self.device);
    }
}
