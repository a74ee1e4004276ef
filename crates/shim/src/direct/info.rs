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

/// `cuMemGetInfo`, of either size of sizes.
pub(crate) unsafe fn memory<T: Copy + PartialOrd + TryFrom<u64>>(
    _: Symbol,
    real: unsafe extern "C" fn(*mut T, *mut T) -> CuStatus,
    free: *mut T,
    total: *mut T,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(free, total) };
    if let (Some(direct), 0) = (state(), status) {
        let view = direct.quota.view();
        // SAFETY: written by the driver, where not null.
        unsafe {
            lower(free, view.free_bytes());
            lower(total, view.limit_bytes);
        }
    }
    status
}

/// `cuDeviceTotalMem`, of either size of sizes.
pub(crate) unsafe fn total<T: Copy + PartialOrd + TryFrom<u64>>(
    _: Symbol,
    real: unsafe extern "C" fn(*mut T, Device) -> CuStatus,
    bytes: *mut T,
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
