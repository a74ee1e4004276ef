//! Questions about the host.

use std::ffi::{c_char, c_int, c_uint};

use super::{answers, put, put_text};
use crate::abi::NOT_FOUND;
use crate::state::View;

/// What the software GPU says its driver is, in the form tools expect.
const SOFTWARE_DRIVER: &str = concat!(env!("CARGO_PKG_VERSION"), "-mica");
/// CUDA 13.0, as 1000 × major + 10 × minor.
const SOFTWARE_CUDA: c_int = 13_000;

answers! {
    fn nvmlSystemGetDriverVersion(buffer: *mut c_char, length: c_uint) |view, real| {
        match view {
            // SAFETY: the caller's own buffer of this length.
            View::Software(_) => unsafe { put_text(buffer, length, SOFTWARE_DRIVER) },
            _ => real(),
        }
    }

    fn nvmlSystemGetNVMLVersion(buffer: *mut c_char, length: c_uint) |view, real| {
        match view {
            // SAFETY: the caller's own buffer of this length.
            View::Software(_) => unsafe { put_text(buffer, length, SOFTWARE_DRIVER) },
            _ => real(),
        }
    }

    fn nvmlSystemGetCudaDriverVersion(place: *mut c_int) |view, real| {
        match view {
            // SAFETY: null is refused; otherwise the caller's own place.
            View::Software(_) => unsafe { put(place, SOFTWARE_CUDA) },
            _ => real(),
        }
    }

    fn nvmlSystemGetCudaDriverVersion_v2(place: *mut c_int) |view, real| {
        match view {
            // SAFETY: null is refused; otherwise the caller's own place.
            View::Software(_) => unsafe { put(place, SOFTWARE_CUDA) },
            _ => real(),
        }
    }

    fn nvmlSystemGetProcessName(pid: c_uint, buffer: *mut c_char, length: c_uint) |view, real| {
        let picture = match &view {
            View::Software(picture) => picture,
            _ => return real(),
        };
        match picture.processes.iter().find(|process| process.pid == pid) {
            // SAFETY: the caller's own buffer of this length.
            Some(process) => unsafe { put_text(buffer, length, &process.name) },
            None => NOT_FOUND,
        }
    }
}
