//! The calls that make, end and name contexts.

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;

use mica_cuda_abi::{CuStatus, Device, Handle, Symbol, function};

use super::{
    ONLY, Records, charged_create, current, current_is_only, ended, green, is_only, releasing,
    retaining,
};
use crate::direct::driver::real;
use crate::direct::state::{making, state};
use crate::direct::sync;

/// `cuDevicePrimaryCtxRetain`.
pub(crate) unsafe fn primary_retain(
    _: Symbol,
    real: function::cuDevicePrimaryCtxRetain,
    out: *mut Handle,
    device: Device,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, device) };
    // SAFETY: the driver has written `out` by then.
    retaining(making(out), device, call, || unsafe { out.read() } as usize)
}

/// `cuDevicePrimaryCtxRelease` and `cuDevicePrimaryCtxReset`.
pub(crate) unsafe fn primary_release(
    _: Symbol,
    real: function::cuDevicePrimaryCtxRelease,
    device: Device,
) -> CuStatus {
    // SAFETY: the program's argument.
    releasing(device, || unsafe { real(device) })
}

/// `cuCtxCreate` and `cuCtxCreate_v2`.
pub(crate) unsafe fn create(
    _: Symbol,
    real: function::cuCtxCreate,
    out: *mut Handle,
    flags: u32,
    device: Device,
) -> CuStatus {
    // SAFETY: the program's arguments.
    unsafe { charged_create(out, || real(out, flags, device)) }
}

/// `cuCtxCreate_v3`.
pub(crate) unsafe fn create_v3(
    _: Symbol,
    real: function::cuCtxCreate_v3,
    out: *mut Handle,
    params: *mut c_void,
    count: i32,
    flags: u32,
    device: Device,
) -> CuStatus {
    // SAFETY: the program's arguments.
    unsafe { charged_create(out, || real(out, params, count, flags, device)) }
}

/// `cuCtxCreate_v4`.
pub(crate) unsafe fn create_v4(
    _: Symbol,
    real: function::cuCtxCreate_v4,
    out: *mut Handle,
    params: *mut c_void,
    flags: u32,
    device: Device,
) -> CuStatus {
    // SAFETY: the program's arguments.
    unsafe { charged_create(out, || real(out, params, flags, device)) }
}

/// `cuVDPAUCtxCreate` and `cuVDPAUCtxCreate_v2`.
pub(crate) unsafe fn create_vdpau(
    _: Symbol,
    real: function::cuVDPAUCtxCreate,
    out: *mut Handle,
    flags: u32,
    device: Device,
    vdp_device: u32,
    vdp_address: *mut c_void,
) -> CuStatus {
    // SAFETY: the program's arguments.
    unsafe { charged_create(out, || real(out, flags, device, vdp_device, vdp_address)) }
}

/// `cuCtxDestroy`.
pub(crate) unsafe fn destroy(_: Symbol, real: function::cuCtxDestroy, context: Handle) -> CuStatus {
    // SAFETY: the program's argument.
    unsafe { ending(real, context, |_, _| true) }
}

/// A call that ends a context if it succeeds and `ends` says so; nobody else looks at the records meanwhile.
///
/// # Safety
/// As `real`.
unsafe fn ending(
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    context: Handle,
    ends: impl FnOnce(&mut Records, usize) -> bool,
) -> CuStatus {
    let Some(direct) = state() else {
        // SAFETY: as the caller promises.
        return unsafe { real(context) };
    };
    let mut records = direct.contexts.records();
    // SAFETY: as the caller promises.
    let status = unsafe { real(context) };
    if status == 0 && ends(&mut records, context as usize) {
        ended(direct, records, context as usize);
    }
    status
}

/// `cuCtxAttach`: the current context is to be detached from once more.
pub(crate) unsafe fn attach(
    _: Symbol,
    real: function::cuCtxAttach,
    out: *mut Handle,
    flags: u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, flags) };
    if let (Some(direct), 0) = (making(out), status) {
        // SAFETY: the driver has just written `out`.
        let context = unsafe { out.read() } as usize;
        *direct
            .contexts
            .records()
            .attached
            .entry(context)
            .or_default() += 1;
    }
    status
}

/// `cuCtxDetach`: ends a context that nobody else is attached to.
pub(crate) unsafe fn detach(_: Symbol, real: function::cuCtxDetach, context: Handle) -> CuStatus {
    let is_last = |records: &mut Records, context| {
        // A primary context ends by its own calls.
        if records.primary.values().any(|primary| *primary == context) {
            return false;
        }
        match records.attached.get_mut(&context) {
            Some(times @ 1..) => {
                *times -= 1;
                false
            }
            _ => true,
        }
    };
    // SAFETY: the program's argument.
    unsafe { ending(real, context, is_last) }
}

/// Whether the second version of a call was given a context at all.
///
/// Some programs take the version with the longest name for the newest of the same signature (Numba's
/// own binding does) and pass none: the driver would follow whatever stands in the register. Contexts
/// are made through hooks or are current; where none is, the driver decides.
fn names_a_context(context: Handle) -> bool {
    let now = current();
    let address = context as usize;
    now == 0
        || address == 0
        || address == now
        || green::whole(address) != address
        || state().is_none_or(|direct| direct.contexts.records().bytes.contains_key(&address))
}

/// `cuCtxGetDevice_v2`.
pub(crate) unsafe fn device_of(
    _: Symbol,
    real: function::cuCtxGetDevice_v2,
    out: *mut Device,
    context: Handle,
) -> CuStatus {
    if names_a_context(context) {
        // SAFETY: the program's arguments.
        return unsafe { real(out, context) };
    }
    let get = real!(cuCtxGetDevice);
    // SAFETY: the program's argument.
    unsafe { get(out) }
}

/// `cuCtxSynchronize_v2`.
pub(crate) unsafe fn synchronize(
    _: Symbol,
    real: function::cuCtxSynchronize_v2,
    context: Handle,
) -> CuStatus {
    if names_a_context(context) {
        // SAFETY: the program's argument.
        return sync::waiting(
            || is_only() && ONLY.load(Relaxed) == context as usize,
            || unsafe { real(context) },
        );
    }
    let wait = real!(cuCtxSynchronize);
    // SAFETY: takes no arguments.
    sync::waiting(current_is_only, || unsafe { wait() })
}
