//! An NVIDIA GPU behind a worker: the same sessions and the same engine, on the real driver.
//!
//! The worker alone opens the device. Its share is kept by the hardware's time slices on its own channel
//! groups and by leases (`gated`), as in direct mode. What the driver takes beyond what the engine charges
//! (contexts, code) the daemon sees from the driver's own figure for the worker, and counts.

use std::sync::Arc;

use mica_backend_cuda::{CudaDriver, CudaGpu, Printed};
use mica_cuda_abi::DeviceAttribute;
use mica_gpu::Gpu;
use mica_limits::HostLink;

use crate::{DeviceSource, OutputBuffer, WorkerError, program_addresses};

/// The one GPU of a worker, whose kernels print for the program that came last: a worker has one.
pub(crate) struct NvidiaDevice(Arc<CudaGpu>);

impl DeviceSource for NvidiaDevice {
    fn open(&self, output: Arc<OutputBuffer>) -> Result<Arc<dyn Gpu>, WorkerError> {
        self.0.attach_recorder(output.recorder());
        let sink = move |kind, bytes: &[u8]| output.add(kind, bytes);
        self.0.set_output(Box::new(sink));
        let gpu: Arc<dyn Gpu> = Arc::clone(&self.0) as _;
        Ok(gpu)
    }

    fn open_at(
        &self,
        output: Arc<OutputBuffer>,
        address_space: (u64, u64),
    ) -> Result<Arc<dyn Gpu>, WorkerError> {
        let continued = self.0.continue_in(address_space);
        continued.map_err(|error| WorkerError::Device(error.to_string()))?;
        self.open(output)
    }
}

/// The one GPU that the environment shows this worker; `continuable` where programs may be saved, so that another worker can go
/// on with them.
///
/// # Errors
/// There is no driver, it cannot share the GPU, or kernels could reach the worker's own memory.
pub(crate) fn device(continuable: bool) -> Result<NvidiaDevice, WorkerError> {
    program_addresses::reserve();
    let failed = |error: mica_backend_cuda::DriverError| WorkerError::Device(error.to_string());
    // Before the driver is loaded, which may keep what it finds.
    let printed = Printed::catch().map_err(|error| WorkerError::Device(error.to_string()))?;
    mica_rm::keep_kernels_from_host_memory();
    let driver = CudaDriver::load().map_err(failed)?;
    let gpu = CudaGpu::open(driver, 0).map_err(failed)?;
    refuse_host_memory(|attribute| gpu.attribute(attribute))?;
    gpu.hand_on_output(printed);
    if continuable {
        gpu.make_continuable();
    }
    Ok(NvidiaDevice(Arc::new(gpu)))
}

/// Refuses a GPU whose kernels reach whatever this process has mapped.
fn refuse_host_memory(
    attribute: impl Fn(DeviceAttribute) -> Option<i32>,
) -> Result<(), WorkerError> {
    let telling = [
        DeviceAttribute::PageableMemoryAccess,
        DeviceAttribute::PageableMemoryAccessUsesHostPageTables,
    ];
    match telling.into_iter().any(|a| attribute(a).unwrap_or(0) != 0) {
        false => Ok(()),
        true => Err(WorkerError::Device(
            "kernels on this GPU could read and write the worker's own memory: load the kernel module nvidia-uvm with \
             uvm_disable_hmm=1"
                .into(),
        )),
    }
}

/// Tells the daemon of requests of the driver that the worker's filter refused, each once.
#[derive(Default)]
pub(crate) struct RefusedRequests {
    told: Vec<u32>,
}

impl RefusedRequests {
    /// Tells what is new.
    pub(crate) fn tell(&mut self, link: &HostLink) {
        for request in mica_rm::refused_requests() {
            // The driver itself refuses some of those that the filter lets through.
            if self.told.contains(&request) || mica_jail::driver_request(request).is_some() {
                continue;
            }
            self.told.push(request);
            link.note_request_refused(&refusal_of(request));
        }
    }
}

fn refusal_of(request: u32) -> String {
    format!(
        "{request:#x} is a request of the driver that the worker's filter does not permit: a call of the program \
         failed or took another way"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_whose_kernels_reach_host_memory_is_refused_with_the_remedy() {
        assert!(refuse_host_memory(|_| None).is_ok());
        assert!(refuse_host_memory(|_| Some(0)).is_ok());
        for which in [
            DeviceAttribute::PageableMemoryAccess,
            DeviceAttribute::PageableMemoryAccessUsesHostPageTables,
        ] {
            let refused = refuse_host_memory(|a| Some((a == which).into())).unwrap_err();
            assert!(refused.to_string().contains("uvm_disable_hmm=1"));
        }
    }

    #[test]
    fn a_refusal_begins_with_the_number_of_the_request() {
        assert!(refusal_of(0xc010_46d3).starts_with("0xc01046d3 "));
    }
}
