//! Green contexts: parts of a device's primary context. Making one retains that, and so may make it; the memory that is
//! allocated in one is the primary context's.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, PoisonError};

use mica_cuda_abi::{CuStatus, Device, Handle, Symbol, function};

use super::{releasing, retaining};
use crate::direct::driver::real;
use crate::direct::state::making;

#[derive(Default)]
struct Records {
    /// The device of each green context.
    devices: HashMap<usize, Device>,
    /// Green contexts as contexts, each with the primary one that it is a part of.
    primary: HashMap<usize, usize>,
}

/// Never held while the driver is called: who allocates must not wait for a context that ends.
static BOOKS: Mutex<Option<Records>> = Mutex::new(None);
/// Whether there was any: most programs have none.
static ANY: AtomicBool = AtomicBool::new(false);

fn records<R>(change: impl FnOnce(&mut Records) -> R) -> R {
    let mut records = BOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    change(records.get_or_insert_default())
}

/// The primary context that a green one is a part of; any other context itself.
pub(super) fn whole(context: usize) -> usize {
    match ANY.load(Acquire) {
        true => records(|records| records.primary.get(&context).copied()).unwrap_or(context),
        false => context,
    }
}

/// A primary context has ended.
pub(super) fn ended(context: usize) {
    if ANY.load(Acquire) {
        records(|records| records.primary.retain(|_, primary| *primary != context));
    }
}

/// `cuGreenCtxCreate`.
pub(crate) unsafe fn create(
    _: Symbol,
    real: function::cuGreenCtxCreate,
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
        records(|records| records.devices.insert(green, device));
    }
    status
}

/// The primary context of a device, which is active.
fn primary(device: Device) -> usize {
    let retain = real!(cuDevicePrimaryCtxRetain);
    let release = real!(cuDevicePrimaryCtxRelease_v2);
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
    real: function::cuGreenCtxDestroy,
    green: Handle,
) -> CuStatus {
    // SAFETY: the program's argument.
    let call = || unsafe { real(green) };
    let device = records(|records| records.devices.remove(&(green as usize)));
    let Some(device) = device else {
        return call();
    };
    let status = releasing(device, call);
    if status != 0 {
        records(|records| records.devices.insert(green as usize, device));
    }
    status
}

/// `cuCtxFromGreenCtx`.
pub(crate) unsafe fn context(
    _: Symbol,
    real: function::cuCtxFromGreenCtx,
    out: *mut Handle,
    green: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, green) };
    if let (Some(direct), 0) = (making(out), status) {
        // SAFETY: the driver has just written `out`.
        let context = unsafe { out.read() } as usize;
        let device = records(|records| records.devices.get(&(green as usize)).copied());
        let primary =
            device.and_then(|device| direct.contexts.records().primary.get(&device).copied());
        if let Some(primary) = primary {
            records(|records| records.primary.insert(context, primary));
            ANY.store(true, Release);
        }
    }
    status
}
