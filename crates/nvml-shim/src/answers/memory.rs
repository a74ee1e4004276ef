//! Memory and load of the virtual GPU.

use super::{answers, check, put};
use crate::abi::{
    Device, INVALID_ARGUMENT, Memory, MemoryV2, SUCCESS, Utilization, VERSION_MISMATCH,
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
        let gpu = picture.utilization_percent.round() as u32;
        // SAFETY: null is refused; otherwise the caller's own structure.
        unsafe { put(place, Utilization { gpu, memory }) }
    }
}
