//! Devices that virtual GPUs are made on.

use std::sync::Arc;

pub use mica_backend_software::Capability;
use mica_backend_software::{Config, SoftwareGpu};
use mica_gpu::{DeviceProperties, Gpu};

use crate::arbiter::Arbiter;
use crate::{Error, Result};

/// What a device is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// Bytes of memory: the device's, or a virtual GPU's limit.
    pub total_memory: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Most threads per block.
    pub max_threads_per_block: u32,
    /// Most shared memory per block.
    pub max_shared_per_block: u32,
    /// Least and most important stream priority.
    pub stream_priorities: (i32, i32),
}

impl DeviceInfo {
    /// Whether a processor computes what it is told, not a card.
    pub fn is_software(&self) -> bool {
        self.name.starts_with("Mica Software GPU")
    }

    pub(crate) fn new(p: &DeviceProperties) -> Self {
        Self {
            name: p.name.clone(),
            uuid: p.uuid,
            compute_capability: p.compute_capability,
            total_memory: p.total_memory,
            multiprocessors: p.multiprocessors,
            max_threads_per_block: p.max_threads_per_block,
            max_shared_per_block: p.max_shared_per_block,
            stream_priorities: p.stream_priorities,
        }
    }
}

/// How a software device is made.
#[derive(Clone, Debug, Default)]
pub struct SoftwareOptions {
    /// Bytes of memory; by default half of the machine's.
    pub memory_bytes: Option<u64>,
    /// Threads that run kernels; by default the cores this process may use.
    pub workers: Option<usize>,
    /// Number of the device, part of its UUID.
    pub ordinal: u32,
    /// What it says that it is; by default compute capability 8.0.
    pub capability: Capability,
}

/// A device in this process. Virtual GPUs on it share its memory and its time.
#[derive(Clone)]
pub struct Device {
    options: SoftwareOptions,
    info: DeviceInfo,
    arbiter: Arc<Arbiter>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

impl Device {
    /// The software GPU with its defaults.
    pub fn software() -> Result<Self> {
        Self::software_with(SoftwareOptions::default())
    }

    /// The software GPU as asked.
    ///
    /// # Errors
    /// If this process may not have the address space for it.
    pub fn software_with(options: SoftwareOptions) -> Result<Self> {
        // A device of its own for each virtual GPU keeps their memory in different address spaces;
        // this one is only asked what it is.
        let gpu = open(&options, None)?;
        let info = DeviceInfo::new(gpu.properties());
        let arbiter = Arbiter::new(info.total_memory);
        Ok(Self {
            options,
            info,
            arbiter,
        })
    }

    /// Devices that this process can make virtual GPUs on.
    pub fn all() -> Result<Vec<Self>> {
        Ok(vec![Self::software()?])
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    pub(crate) fn arbiter(&self) -> &Arc<Arbiter> {
        &self.arbiter
    }

    pub(crate) fn open(
        &self,
        gate: Arc<dyn mica_backend_software::ExecutionGate>,
    ) -> Result<Arc<dyn Gpu>> {
        open(&self.options, Some(gate))
    }
}

fn open(
    options: &SoftwareOptions,
    gate: Option<Arc<dyn mica_backend_software::ExecutionGate>>,
) -> Result<Arc<dyn Gpu>> {
    let config = Config {
        memory_bytes: options.memory_bytes,
        workers: options.workers,
        ordinal: options.ordinal,
        capability: options.capability,
        gate,
        ..Config::default()
    };
    match SoftwareGpu::new(config) {
        Ok(gpu) => Ok(Arc::new(gpu)),
        Err(error) => Err(Error::Gpu {
            code: error.code,
            message: error.message,
        }),
    }
}
