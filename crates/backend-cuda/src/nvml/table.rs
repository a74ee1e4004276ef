//! The functions of `libnvidia-ml.so.1` that Mica calls, with their C types.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::library::{Library, LibraryError};

pub(super) type Return = c_int;
pub(super) type Device = *mut c_void;

pub(super) const SUCCESS: Return = 0;
pub(super) const NOT_SUPPORTED: Return = 3;
pub(super) const NO_PERMISSION: Return = 4;
pub(super) const NOT_FOUND: Return = 6;
pub(super) const INSUFFICIENT_SIZE: Return = 7;
pub(super) const FUNCTION_NOT_FOUND: Return = 13;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Memory {
    pub(super) total: u64,
    pub(super) free: u64,
    pub(super) used: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PciInfo {
    pub(super) legacy: [u8; 16],
    pub(super) domain: c_uint,
    pub(super) bus: c_uint,
    pub(super) device: c_uint,
    pub(super) device_id: c_uint,
    pub(super) subsystem_id: c_uint,
    pub(super) bus_id: [u8; 32],
}

/// `nvmlProcessInfo_v2_t`, which the third version of the calls fills.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ProcessInfo {
    pub(super) pid: c_uint,
    pub(super) used_bytes: u64,
    pub(super) gpu_instance: c_uint,
    pub(super) compute_instance: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ProcessSample {
    pub(super) pid: c_uint,
    pub(super) timestamp_us: u64,
    pub(super) sm: c_uint,
    pub(super) memory: c_uint,
    pub(super) encoder: c_uint,
    pub(super) decoder: c_uint,
}

/// `nvmlEventData_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct EventData {
    pub(super) device: Device,
    pub(super) kind: u64,
    pub(super) data: u64,
    pub(super) gpu_instance: c_uint,
    pub(super) compute_instance: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Utilization {
    pub(super) gpu: c_uint,
    pub(super) memory: c_uint,
}

macro_rules! table {
    (
        required { $($field:ident = $name:literal : fn($($argument:ty),*);)* }
        optional { $($late:ident = $late_name:literal : fn($($late_argument:ty),*);)* }
    ) => {
        /// The functions; optional ones are absent from older drivers.
        pub(super) struct Table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> Return,)*
            $(pub(super) $late: Option<unsafe extern "C" fn($($late_argument),*) -> Return>,)*
        }

        impl Table {
            pub(super) fn of(library: &Library) -> Result<Self, LibraryError> {
                Ok(Self {
                    $($field: {
                        let address = library.require($name)?;
                        // SAFETY: NVML's header gives the function this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> Return,
                            >(address)
                        }
                    },)*
                    $($late: library.symbol($late_name).map(|address| {
                        // SAFETY: NVML's header gives the function this type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($late_argument),*) -> Return,
                            >(address)
                        }
                    }),)*
                })
            }
        }
    };
}

table! {
    required {
        init = "nvmlInit_v2": fn();
        count = "nvmlDeviceGetCount_v2": fn(*mut c_uint);
        by_index = "nvmlDeviceGetHandleByIndex_v2": fn(c_uint, *mut Device);
        uuid = "nvmlDeviceGetUUID": fn(Device, *mut c_char, c_uint);
        name = "nvmlDeviceGetName": fn(Device, *mut c_char, c_uint);
        pci = "nvmlDeviceGetPciInfo_v3": fn(Device, *mut PciInfo);
        memory = "nvmlDeviceGetMemoryInfo": fn(Device, *mut Memory);
        driver_version = "nvmlSystemGetDriverVersion": fn(*mut c_char, c_uint);
    }
    optional {
        cuda_version = "nvmlSystemGetCudaDriverVersion_v2": fn(*mut c_int);
        compute_processes = "nvmlDeviceGetComputeRunningProcesses_v3":
            fn(Device, *mut c_uint, *mut ProcessInfo);
        process_utilization = "nvmlDeviceGetProcessUtilization":
            fn(Device, *mut ProcessSample, *mut c_uint, u64);
        utilization = "nvmlDeviceGetUtilizationRates": fn(Device, *mut Utilization);
        compute_mode = "nvmlDeviceGetComputeMode": fn(Device, *mut c_int);
        mig_mode = "nvmlDeviceGetMigMode": fn(Device, *mut c_uint, *mut c_uint);
        persistence = "nvmlDeviceGetPersistenceMode": fn(Device, *mut c_int);
        temperature = "nvmlDeviceGetTemperature": fn(Device, c_int, *mut c_uint);
        power = "nvmlDeviceGetPowerUsage": fn(Device, *mut c_uint);
        event_set_create = "nvmlEventSetCreate": fn(*mut *mut c_void);
        register_events = "nvmlDeviceRegisterEvents": fn(Device, u64, *mut c_void);
        event_set_wait = "nvmlEventSetWait_v2": fn(*mut c_void, *mut EventData, c_uint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn layouts_are_the_headers_own() {
        assert_eq!(size_of::<Memory>(), 24);
        assert_eq!(size_of::<PciInfo>(), 68);
        assert_eq!(size_of::<ProcessInfo>(), 24);
        assert_eq!(offset_of!(ProcessInfo, used_bytes), 8);
        assert_eq!(size_of::<ProcessSample>(), 32);
        assert_eq!(offset_of!(ProcessSample, sm), 16);
        assert_eq!(size_of::<EventData>(), 32);
    }
}
