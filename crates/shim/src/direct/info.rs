//! How much memory there is: the virtual GPU's, never the device's.

use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuStatus, Device, Symbol};
use mica_limits::Quota;

use super::state::{Direct, state};

/// `cuMemGetInfo_v2`.
pub(crate) unsafe fn memory(
    _: Symbol,
    real: unsafe extern "C" fn(*mut usize, *mut usize) -> CuStatus,
    free: *mut usize,
    total: *mut usize,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(free, total) };
    if let (Some(direct), 0) = (state(), status) {
        // SAFETY: the driver has just written both.
        unsafe {
            let (virtual_free, virtual_total) =
                view(direct, free.read() as u64, total.read() as u64);
            free.write(virtual_free as usize);
            total.write(virtual_total as usize);
        }
    }
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
    if let (Some(direct), 0) = (state(), status) {
        // SAFETY: the driver has just written both.
        unsafe {
            let (virtual_free, virtual_total) =
                view(direct, free.read().into(), total.read().into());
            free.write(virtual_free as u32);
            total.write(virtual_total as u32);
        }
    }
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
        unsafe { bytes.write(bytes.read().min(limit(direct) as usize)) };
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
        let limit = u32::try_from(limit(direct)).unwrap_or(u32::MAX);
        // SAFETY: the driver has just written it.
        unsafe { bytes.write(bytes.read().min(limit)) };
    }
    status
}

fn limit(direct: &Direct) -> u64 {
    match direct.link.page().commands.limit_bytes.load(Relaxed) {
        0 => direct.link.welcome().limit_bytes,
        limit => limit,
    }
}

/// Free and total bytes of the virtual GPU on a device with these.
fn view(direct: &Direct, device_free: u64, device_total: u64) -> (u64, u64) {
    let view = direct.quota.view();
    (
        view.free_bytes().min(device_free),
        view.limit_bytes.min(device_total),
    )
}
