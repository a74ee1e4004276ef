//! An NVIDIA GPU behind a worker: the same sessions and the same engine, on the real driver.
//!
//! The worker alone opens the device. Its share is kept by the hardware's time slices on its own channel
//! groups and by leases (`gated`), as in direct mode. What the driver takes beyond what the engine charges
//! (contexts, code) the daemon sees from the driver's own figure for the worker, and counts.

use std::sync::Arc;

use mica_backend_cuda::{CudaDriver, CudaGpu, Printed};
use mica_cuda_abi::DeviceAttribute;
use mica_gpu::Gpu;

use crate::{DeviceSource, OutputBuffer, WorkerError, program_addresses};

/// The one GPU of a worker, whose kernels print for the program that came last: a worker has one.
pub(crate) struct NvidiaDevice(Arc<CudaGpu>);

impl DeviceSource for NvidiaDevice {
    fn open(&self, output: Arc<OutputBuffer>) -> Result<Arc<dyn Gpu>, WorkerError> {
        let sink = move |kind, bytes: &[u8]| output.add(kind, bytes);
        self.0.set_output(Box::new(sink));
        let gpu: Arc<dyn Gpu> = Arc::clone(&self.0) as _;
        Ok(gpu)
    }
}

/// The one GPU that the environment shows this worker.
///
/// # Errors
/// There is no driver, it cannot share the GPU, or kernels could reach the worker's own memory.
pub(crate) fn device() -> Result<NvidiaDevice, WorkerError> {
    program_addresses::reserve();
    let failed = |error: mica_backend_cuda::DriverError| WorkerError::Device(error.to_string());
    // Before the driver is loaded, which may keep what it finds.
    let printed = Printed::catch().map_err(|error| WorkerError::Device(error.to_string()))?;
    mica_rm::keep_kernels_from_host_memory();
    let driver = CudaDriver::load().map_err(failed)?;
    let gpu = CudaGpu::open(driver, 0).map_err(failed)?;
    // Kernels would reach whatever the process has mapped.
    if gpu.attribute(DeviceAttribute::PageableMemoryAccess) == Some(1) {
        let text = "kernels on this GPU could read and write the worker's own memory: load the kernel module \
                    nvidia-uvm with uvm_disable_hmm=1";
        return Err(WorkerError::Device(text.into()));
    }
    gpu.hand_on_output(printed);
    Ok(NvidiaDevice(Arc::new(gpu)))
}
