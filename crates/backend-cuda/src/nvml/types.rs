//! What readings give, and why they fail.

use super::table::{FUNCTION_NOT_FOUND, NO_PERMISSION, NOT_SUPPORTED};
use crate::library::LibraryError;

/// Why a reading failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// There is no NVML.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// NVML said no.
    #[error("{function} failed with NVML code {code}{}", code_name(*code))]
    Call {
        /// The function.
        function: &'static str,
        /// NVML's code.
        code: i32,
    },
    /// There is no GPU of this index.
    #[error("there is no GPU {index}: this host has {count}")]
    Index {
        /// The index asked for.
        index: u32,
        /// GPUs there are.
        count: usize,
    },
}

impl NvmlError {
    /// Whether the driver or device simply does not offer the reading.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Self::Call {
                code: NOT_SUPPORTED | FUNCTION_NOT_FOUND | NO_PERMISSION,
                ..
            }
        )
    }

    /// Whether the GPU itself is not there any more, or does nothing until it is reset.
    pub fn is_gone(&self) -> bool {
        const NOT_FOUND: i32 = 6;
        const GPU_IS_LOST: i32 = 15;
        const RESET_REQUIRED: i32 = 16;
        matches!(
            self,
            Self::Call {
                code: NOT_FOUND | GPU_IS_LOST | RESET_REQUIRED,
                ..
            }
        )
    }
}

fn code_name(code: i32) -> &'static str {
    match code {
        1 => " (not initialized)",
        2 => " (invalid argument)",
        3 => " (not supported)",
        4 => " (no permission)",
        6 => " (not found)",
        9 => " (driver not loaded)",
        13 => " (function not in this driver)",
        15 => " (the GPU is lost)",
        16 => " (the GPU needs a reset)",
        18 => " (driver and library versions differ: reboot or reload the driver)",
        _ => "",
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlDevice {
    /// Its index in NVML's order, which is that of the PCI bus.
    pub index: u32,
    /// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// `domain:bus:device.function`.
    pub pci: String,
    /// Bytes of memory, those the driver reserves included.
    pub memory_total_bytes: u64,
}

/// Memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// All.
    pub total_bytes: u64,
    /// Not in use.
    pub free_bytes: u64,
    /// In use, the driver's own included.
    pub used_bytes: u64,
}

/// Who may make contexts on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Anybody.
    Shared,
    /// One process.
    Exclusive,
    /// Nobody.
    Prohibited,
}

/// Settings of a GPU that decide whether it can be shared; `None` where the driver does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Who may make contexts.
    pub compute_mode: Option<ComputeMode>,
    /// Whether MIG is on.
    pub mig: Option<bool>,
    /// Whether the driver stays loaded without clients; off makes the first context slow.
    pub persistence: Option<bool>,
}

/// How busy a GPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceActivity {
    /// Percent of the last period in which a kernel ran.
    pub gpu_percent: Option<u32>,
    /// Percent of the last period in which memory was read or written.
    pub memory_percent: Option<u32>,
    /// Degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Milliwatts.
    pub power_mw: Option<u32>,
}
