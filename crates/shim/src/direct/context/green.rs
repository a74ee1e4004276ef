//! Green contexts: parts of a device's primary context. Making one retains that, and so may make it; the memory that is
//! allocated in one is the primary context's.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_cuda_abi::{CuStatus, Device, Handle, Symbol};

use super::{releasing, retaining};
use crate::direct::driver::real;
use crate::direct::state::{making, state};

/// The device of each green context.
static DEVICES: Mutex<Option<HashMap<usize, Device>>> = Mutex::new(None);

fn devices() -> MutexGuard<'static, Option<HashMap<usize, Device>>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `cuGreenCtxCreate`.
pub(crate) unsafe fn create(
    _: Symbol,
    real: unsafe extern "C" fn(*mut Handle, Handle, Device, u32) -> CuStatus,
    out: *mut Handle,
    resources: Handle,
    device: Device,
    flags: u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, resources, device, flags) };
    let status = retaining(making(out), device, call, || primary(device));
    if let (Some(_), 0) = (making(out), status) {
        // SAFETY: the driver has just written `out`.
        let green = unsafe { out.read() } as usize;
        devices().get_or_insert_default().insert(green, device);
    }
    status
}

/// The primary context of a device, which is active.
fn primary(device: Device) -> usize {
    type Retain = unsafe extern "C" fn(*mut Handle, Device) -> CuStatus;
    let retain = real!(cuDevicePrimaryCtxRetain as Retain);
    let release = real!(cuDevicePrimaryCtxRelease_v2 as unsafe extern "C" fn(Device) -> CuStatus);
    let mut context: Handle = std::ptr::null_mut();
    // SAFETY: writes one handle; what was retained is released.
    unsafe {
        if retain(&mut context, device) == 0 {
            release(device);
        }
    }
    context as usize
}

/// `cuGreenCtxDestroy`.
pub(crate) unsafe fn destroy(
    _: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    green: Handle,
) -> CuStatus {
    // SAFETY: the program's argument.
    let call = || unsafe { real(green) };
    let device = devices()
        .as_mut()
        .and_then(|all| all.remove(&(green as usize)));
    let Some(device) = device else {
        return call();
    };
    let status = releasing(device, call);
    if status != 0 {
        devices()
            .get_or_insert_default()
            .insert(green as usize, device);
    }
    status
}

/// `cuCtxFromGreenCtx`.
pub(crate) unsafe fn context(
    _: Symbol,
    real: unsafe extern "C" fn(*mut Handle, Handle) -> CuStatus,
    out: *mut Handle,
    green: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, green) };
    if let (Some(direct), 0) = (state().filter(|_| !out.is_null()), status) {
        let device = devices()
            .as_ref()
            .and_then(|all| all.get(&(green as usize)).copied());
        if let Some(device) = device {
            // SAFETY: the driver has just written `out`.
            let context = unsafe { out.read() } as usize;
            let mut books = direct.contexts.books();
            if let Some(primary) = books.primary.get(&device).copied() {
                books.green.insert(context, primary);
            }
        }
    }
    status
}
