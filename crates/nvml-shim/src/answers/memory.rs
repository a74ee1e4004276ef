//! Memory and load of the virtual GPU.

use std::ffi::c_uint;

use super::processes::seen;
use super::{answers, check, microseconds_now, put, put_list};
use crate::abi::{
    Device, INVALID_ARGUMENT, Load, Memory, MemoryV2, NOT_SUPPORTED, Reading, SUCCESS, Utilization,
    VERSION_MISMATCH,
};
use crate::state::View;
use crate::vgpu::Picture;

fn memory(picture: &Picture) -> Memory {
    let total = picture.memory_limit_bytes;
    // Usage may stand above a limit that was just lowered.
    let used = picture.memory_used_bytes.min(total);
    Memory {
        total,
        free: total - used,
        used,
    }
}

/// `NVML_GPU_UTILIZATION_SAMPLES`, `NVML_MEMORY_UTILIZATION_SAMPLES`.
const GPU_LOAD: c_uint = 1;
const MEMORY_LOAD: c_uint = 2;
/// `NVML_VALUE_TYPE_UNSIGNED_INT`.
const WHOLE_NUMBER: c_uint = 1;

fn load_percent(picture: &Picture) -> c_uint {
    picture.utilization_percent.round() as c_uint
}

answers! {
    fn nvmlDeviceGetMemoryInfo(device: Device, place: *mut Memory) |view, real| {
        let picture = match &view {
            View::Outside => return real(),
            View::Real(picture) => {
                // The real library checks the handle and the pointer.
                match real() {
                    SUCCESS => picture,
                    code => return code,
                }
            }
            View::Software(picture) => match check(device) {
                Ok(()) => picture,
                Err(code) => return code,
            },
        };
        // SAFETY: null is refused; otherwise the caller's own structure.
        unsafe { put(place, memory(picture)) }
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Device, place: *mut MemoryV2) |view, real| {
        let picture = match &view {
            View::Outside => return real(),
            View::Real(picture) => match real() {
                SUCCESS => picture,
                code => return code,
            },
            View::Software(picture) => match check(device) {
                Ok(()) => picture,
                Err(code) => return code,
            },
        };
        // SAFETY: null gives none; otherwise the caller's own structure.
        let Some(place) = (unsafe { place.as_mut() }) else {
            return INVALID_ARGUMENT;
        };
        if place.version != MemoryV2::VERSION {
            return VERSION_MISMATCH;
        }
        let Memory { total, free, used } = memory(picture);
        *place = MemoryV2 {
            version: place.version,
            total,
            reserved: 0,
            free,
            used,
        };
        SUCCESS
    }

    fn nvmlDeviceGetUtilizationRates(device: Device, place: *mut Utilization) |view, real| {
        let (picture, memory) = match &view {
            View::Outside => return real(),
            View::Real(picture) => {
                let code = real();
                if code != SUCCESS {
                    return code;
                }
                (picture, 0)
            }
            View::Software(picture) => match check(device) {
                Ok(()) => (picture, 0),
                Err(code) => return code,
            },
        };
        let gpu = load_percent(picture);
        // SAFETY: null is refused; otherwise the caller's own structure.
        unsafe { put(place, Utilization { gpu, memory }) }
    }

    // The virtual GPU's load is known as one figure, so that is the only sample.
    fn nvmlDeviceGetSamples(
        device: Device,
        kind: c_uint,
        after_us: u64,
        value_type: *mut c_uint,
        count: *mut c_uint,
        list: *mut Reading,
    ) |view, real| {
        let picture = match (&view, kind) {
            (_, GPU_LOAD | MEMORY_LOAD) => match seen(&view, device) {
                Ok(picture) => picture,
                Err(code) => return code,
            },
            (View::Software(_), _) => return NOT_SUPPORTED,
            // Power and clocks are the physical GPU's.
            _ => return real(),
        };
        if count.is_null() {
            return INVALID_ARGUMENT;
        }
        if list.is_null() {
            // SAFETY: not null; the caller asks how much room is needed.
            return unsafe { put(count, 1) };
        }
        let value = match kind {
            GPU_LOAD => load_percent(picture).into(),
            _ => 0,
        };
        let timestamp_us = microseconds_now().max(after_us.saturating_add(1));
        // SAFETY: null is refused; otherwise the caller's own number.
        match unsafe { put(value_type, WHOLE_NUMBER) } {
            // SAFETY: the caller's own counter and list.
            SUCCESS => unsafe { put_list(count, list, &[Reading { timestamp_us, value }]) },
            code => code,
        }
    }

    fn nvmlDeviceGetDynamicPstatesInfo(device: Device, place: *mut Load) |view, real| {
        let picture = match &view {
            View::Outside => return real(),
            View::Real(picture) => match real() {
                SUCCESS => picture,
                code => return code,
            },
            View::Software(_) => return check(device).err().unwrap_or(NOT_SUPPORTED),
        };
        // SAFETY: the real library has just written it.
        if let Some(load) = unsafe { place.as_mut() } {
            load.domains.iter_mut().for_each(|domain| domain.percent = 0);
            load.domains[0].percent = load_percent(picture);
        }
        SUCCESS
    }
}
