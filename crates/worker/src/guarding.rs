//! Devices whose allocations end at unmapped pages (`mica run --guard`), and who is told of kernels that pass an end.

use std::sync::Arc;

use mica_gpu::Gpu;
use mica_limits::HostLink;
use mica_swap::{SwapGpu, Swapper};

use crate::{DeviceSource, OutputBuffer, WorkerError};

/// Devices whose memory is guarded and never leaves.
struct GuardedDevices {
    inner: Arc<dyn DeviceSource>,
    link: Arc<HostLink>,
    swapper: Arc<Swapper>,
}

impl DeviceSource for GuardedDevices {
    fn open(&self, output: Arc<OutputBuffer>) -> Result<Arc<dyn Gpu>, WorkerError> {
        let device = self.inner.open(output)?;
        Ok(guarded(&self.swapper, &self.link, device))
    }
}

/// Guards what the devices allocate.
pub(crate) fn devices(link: &Arc<HostLink>, inner: Arc<dyn DeviceSource>) -> Arc<dyn DeviceSource> {
    Arc::new(GuardedDevices {
        inner,
        link: Arc::clone(link),
        // Nobody has its memory leave.
        swapper: Swapper::new(|| {}),
    })
}

/// Guards what one device allocates. What a kernel touched is told beside the program's own error, as other faults are.
pub(crate) fn guarded(
    swapper: &Swapper,
    link: &Arc<HostLink>,
    device: Arc<dyn Gpu>,
) -> Arc<SwapGpu> {
    let link = Arc::clone(link);
    swapper.wrap_guarded(device, move |text| link.note_kernel_fault(text))
}
