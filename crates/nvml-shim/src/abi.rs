//! NVML's types and codes, as its header gives them.

use std::ffi::{c_char, c_uint, c_void};

/// What every call returns.
pub(crate) type Return = i32;
/// A device's handle.
pub(crate) type Device = *mut c_void;

pub(crate) const SUCCESS: Return = 0;
pub(crate) const UNINITIALIZED: Return = 1;
pub(crate) const INVALID_ARGUMENT: Return = 2;
pub(crate) const NOT_SUPPORTED: Return = 3;
pub(crate) const NO_PERMISSION: Return = 4;
pub(crate) const NOT_FOUND: Return = 6;
pub(crate) const INSUFFICIENT_SIZE: Return = 7;
pub(crate) const LIBRARY_NOT_FOUND: Return = 12;
pub(crate) const FUNCTION_NOT_FOUND: Return = 13;
pub(crate) const GPU_IS_LOST: Return = 15;
pub(crate) const VERSION_MISMATCH: Return = 25;
pub(crate) const UNKNOWN: Return = 999;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All.
    pub(crate) total: u64,
    /// Not in use.
    pub(crate) free: u64,
    /// In use.
    pub(crate) used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryV2 {
    /// [`MemoryV2::VERSION`].
    pub(crate) version: c_uint,
    /// All.
    pub(crate) total: u64,
    /// Kept by the driver.
    pub(crate) reserved: u64,
    /// Not in use.
    pub(crate) free: u64,
    /// In use.
    pub(crate) used: u64,
}

impl MemoryV2 {
    /// Size and version as NVML packs them.
    pub(crate) const VERSION: c_uint = size_of::<Self>() as c_uint | 2 << 24;
}

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Utilization {
    /// Percent of the time in which a kernel ran.
    pub(crate) gpu: c_uint,
    /// Percent of the time in which memory was used.
    pub(crate) memory: c_uint,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessV1 {
    /// The process.
    pub(crate) pid: c_uint,
    /// Its memory.
    pub(crate) used_bytes: u64,
}

/// `nvmlProcessInfo_v2_t`, also of the third version of the calls.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// The process.
    pub(crate) pid: c_uint,
    /// Its memory.
    pub(crate) used_bytes: u64,
    /// `u32::MAX` without MIG.
    pub(crate) gpu_instance: c_uint,
    /// `u32::MAX` without MIG.
    pub(crate) compute_instance: c_uint,
}

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// The process.
    pub(crate) pid: c_uint,
    /// Microseconds since the epoch.
    pub(crate) timestamp_us: u64,
    /// Percent of the multiprocessors' time.
    pub(crate) sm: c_uint,
    /// Percent of the memory's time.
    pub(crate) memory: c_uint,
    /// Percent of the encoder's time.
    pub(crate) encoder: c_uint,
    /// Percent of the decoder's time.
    pub(crate) decoder: c_uint,
}

/// `nvmlSample_t` with a whole number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Microseconds since the epoch.
    pub(crate) timestamp_us: u64,
    /// The value; narrower ones lie in its first bytes.
    pub(crate) value: u64,
}

/// One domain of `nvmlGpuDynamicPstatesInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Domain {
    /// Whether the rest means anything.
    pub(crate) present: c_uint,
    /// Percent of the last second in which it was busy.
    pub(crate) percent: c_uint,
    /// Where clocks rise.
    pub(crate) rises: c_uint,
    /// Where clocks fall.
    pub(crate) falls: c_uint,
}

/// `nvmlGpuDynamicPstatesInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Reserved.
    pub(crate) flags: c_uint,
    /// Multiprocessors, memory, video, bus; four more are unused.
    pub(crate) domains: [Domain; 8],
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PciInfo {
    /// `0000:00:00.0`.
    pub(crate) legacy: [c_char; 16],
    /// Domain.
    pub(crate) domain: c_uint,
    /// Bus.
    pub(crate) bus: c_uint,
    /// Device.
    pub(crate) device: c_uint,
    /// Device and vendor.
    pub(crate) device_id: c_uint,
    /// Subsystem.
    pub(crate) subsystem_id: c_uint,
    /// `00000000:00:00.0`.
    pub(crate) bus_id: [c_char; 32],
}

const _: () = {
    assert!(size_of::<MemoryV2>() == 40);
    assert!(MemoryV2::VERSION == 0x0200_0028);
    assert!(size_of::<ProcessV1>() == 16);
    assert!(size_of::<Process>() == 24);
    assert!(size_of::<Sample>() == 32);
    assert!(size_of::<Reading>() == 16);
    assert!(size_of::<Load>() == 132);
    assert!(size_of::<PciInfo>() == 68);
};
