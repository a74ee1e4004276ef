//! How much memory there is: the virtual GPU's, never the device's.

use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuStatus, Device, Symbol};
use mica_limits::Quota;

use super::state::{Direct, state};

/// Lowers what the driver has told to what the virtual GPU has. Null where nobody asked: the driver answers the rest
/// of such a call, and so does this.
///
/// # Safety
/// `told` is null, or the driver has just written it.
unsafe fn lower<T: Copy + PartialOrd + TryFrom<u64>>(told: *mut T, most: u64) {
    // SAFETY: our contract.
    let told = unsafe { told.as_mut() };
    // What does not fit is more than was told.
    if let (Some(told), Ok(most)) = (told, T::try_from(most))
        && most < *told
    {
        *told = most;
    }
}

/// # Safety
/// As [`lower`], of both.
unsafe fn lower_both<T: Copy + PartialOrd + TryFrom<u64>>(
    status: CuStatus,
    free: *mut T,
    total: *mut T,
) {
    if let (Some(direct), 0) = (state(), status) {
        let view = direct.quota.view();
        // SAFETY: our contract.
        unsafe {
            lower(free, view.free_bytes());
            lower(total, view.limit_bytes);
        }
    }
}

/// `cuMemGetInfo_v2`.
pub(crate) unsafe fn memory(
    _: Symbol,
    real: unsafe extern "C" fn(*mut usize, *mut usize) -> CuStatus,
    free: *mut usize,
    total: *mut usize,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(free, total) };
    // SAFETY: written by the driver, where not null.
    unsafe { lower_both(status, free, total) };
    status
}

/// `cuMemGetInfo`, with 32-bit sizes.
pub(crate) unsafe fn memory_v1(
    _: Symbol,
    real: unsafe extern "C" fn(*mut u32, *mut u32) -> CuStatus,
    free: *mut u32,
    total: *mut u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(free, total) };
    // SAFETY: written by the driver, where not null.
    unsafe { lower_both(status, free, total) };
    status
}

/// `cuDeviceTotalMem_v2`.
pub(crate) unsafe fn total(
    _: Symbol,
    real: unsafe extern "C" fn(*mut usize, Device) -> CuStatus,
    bytes: *mut usize,
    device: Device,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(bytes, device) };
    if let (Some(direct), 0) = (state(), status) {
        // SAFETY: the driver has just written it.
        unsafe { lower(bytes, limit(direct)) };
    }
    status
}

/// `cuDeviceTotalMem`, with a 32-bit size.
pub(crate) unsafe fn total_v1(
    _: Symbol,
    real: unsafe extern "C" fn(*mut u32, Device) -> CuStatus,
    bytes: *mut u32,
    device: Device,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(bytes, device) };
    if let (Some(direct), 0) = (state(), status) {
        // SAFETY: the driver has just written it.
        unsafe { lower(bytes, limit(direct)) };
    }
    status
}

fn limit(direct: &Direct) -> u64 {
    match direct.link.page().commands.limit_bytes.load(Relaxed) {
        0 => direct.link.welcome().limit_bytes,
        limit => limit,
    }
}
