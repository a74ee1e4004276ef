//! Linear memory: cuMemAlloc and its kin, and what frees it.

use mica_cuda_abi::{CuResult, CuStatus, DevicePtr, Handle, Symbol, function};

use super::allocations::Entry;
use super::context::{notice, owner};
use super::state::{Direct, footprint, making, state};

/// Rows of pitched memory begin at multiples of this on every device so far.
const PITCH: u64 = 512;

/// `cuMemAlloc_v2`.
pub(crate) unsafe fn alloc(
    _: Symbol,
    real: function::cuMemAlloc_v2,
    out: *mut DevicePtr,
    bytes: usize,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, bytes) };
    match making(out) {
        // SAFETY: the driver has just written `out`.
        Some(direct) => own(direct, bytes as u64, call, || unsafe { out.read() }),
        None => call(),
    }
}

/// `cuMemAlloc`, with 32-bit addresses.
pub(crate) unsafe fn alloc_v1(
    _: Symbol,
    real: function::cuMemAlloc,
    out: *mut u32,
    bytes: u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, bytes) };
    match making(out) {
        // SAFETY: the driver has just written `out`.
        Some(direct) => own(direct, bytes.into(), call, || unsafe { out.read() }.into()),
        None => call(),
    }
}

/// `cuMemAllocManaged`: charged in full, as all of it may come to lie on the device.
pub(crate) unsafe fn alloc_managed(
    _: Symbol,
    real: function::cuMemAllocManaged,
    out: *mut DevicePtr,
    bytes: usize,
    flags: u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, bytes, flags) };
    let Some(direct) = making(out) else {
        return call();
    };
    // SAFETY: the driver has just written `out`.
    let status = own(direct, bytes as u64, call, || unsafe { out.read() });
    if status == 0 {
        // SAFETY: as above.
        let charged = direct.linear.update(unsafe { out.read() }, |entry| {
            entry.managed = true;
            entry.bytes
        });
        direct.uncount(charged.unwrap_or(0), true);
    }
    status
}

/// `cuMemAllocPitch_v2`.
pub(crate) unsafe fn alloc_pitch(
    _: Symbol,
    real: function::cuMemAllocPitch_v2,
    out: *mut DevicePtr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, pitch, width, height, element) };
    let Some(direct) = making(out).filter(|_| !pitch.is_null()) else {
        return call();
    };
    let bytes = pitched_bytes(width as u64, height as u64);
    // SAFETY: the driver has just written `out` and `pitch`.
    let status = own(direct, bytes, call, || unsafe { out.read() });
    if status != 0 {
        return status;
    }
    // SAFETY: as above.
    let (pointer, real_bytes) = unsafe { (out.read(), (pitch.read() * height) as u64) };
    settle_pitch(direct, pointer, bytes, real_bytes)
}

/// `cuMemAllocPitch`, with 32-bit addresses.
pub(crate) unsafe fn alloc_pitch_v1(
    _: Symbol,
    real: function::cuMemAllocPitch,
    out: *mut u32,
    pitch: *mut u32,
    width: u32,
    height: u32,
    element: u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, pitch, width, height, element) };
    let Some(direct) = making(out).filter(|_| !pitch.is_null()) else {
        return call();
    };
    let bytes = pitched_bytes(width.into(), height.into());
    // SAFETY: the driver has just written `out`.
    own(direct, bytes, call, || unsafe { out.read() }.into())
}

/// `cuMemFree_v2`.
pub(crate) unsafe fn free(_: Symbol, real: function::cuMemFree_v2, pointer: DevicePtr) -> CuStatus {
    // SAFETY: the program's argument.
    release(pointer, || unsafe { real(pointer) })
}

/// `cuMemFree`, with 32-bit addresses.
pub(crate) unsafe fn free_v1(_: Symbol, real: function::cuMemFree, pointer: u32) -> CuStatus {
    // SAFETY: the program's argument.
    release(pointer.into(), || unsafe { real(pointer) })
}

/// `cuMemFreeAsync`.
pub(crate) unsafe fn free_async(
    _: Symbol,
    real: function::cuMemFreeAsync,
    pointer: DevicePtr,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    release(pointer, || unsafe { real(pointer, stream) })
}

/// Charges and records memory of its own.
fn own(
    direct: &Direct,
    bytes: u64,
    call: impl FnOnce() -> CuStatus,
    pointer: impl FnOnce() -> DevicePtr,
) -> CuStatus {
    let bytes = footprint(bytes);
    let status = direct.charged(bytes, call);
    if status == 0 {
        notice(direct);
        direct.linear.insert(pointer(), Entry::own(bytes, owner()));
    }
    status
}

/// Frees: memory of its own is given back, pool memory stays with its pool.
pub(crate) fn release(pointer: DevicePtr, call: impl FnOnce() -> CuStatus) -> CuStatus {
    let Some(direct) = state() else {
        return call();
    };
    // Out of the records first: once the driver has freed it, another thread may be given the same
    // address.
    let entry = direct.linear.free(pointer);
    if let Some(Entry {
        pool: Some(pool),
        bytes,
        ..
    }) = entry
    {
        pool.freed(bytes);
    }
    let status = call();
    match (entry, status) {
        (
            Some(Entry {
                pool: Some(pool), ..
            }),
            0,
        ) => pool.release_if_over(direct),
        (None, _) => {}
        (Some(entry), 0) => {
            if entry.managed {
                direct.uncount(entry.bytes, false);
            }
            direct.release(entry.bytes);
        }
        (Some(entry), _) => {
            if let Some(pool) = entry.pool {
                pool.not_freed(entry.bytes);
            }
            direct.linear.insert(pointer, entry);
        }
    }
    status
}

fn pitched_bytes(width: u64, height: u64) -> u64 {
    width
        .checked_next_multiple_of(PITCH)
        .and_then(|pitch| pitch.checked_mul(height))
        .unwrap_or(u64::MAX)
}

/// Charges what a pitch larger than foreseen takes, or gives the memory back.
fn settle_pitch(direct: &Direct, pointer: DevicePtr, bytes: u64, real_bytes: u64) -> CuStatus {
    let (charged, needed) = (footprint(bytes), footprint(real_bytes));
    if needed > charged {
        if direct.charge(needed - charged).is_err() {
            let free = super::driver::real!(cuMemFree_v2);
            // SAFETY: allocated a moment ago and not yet known to the program.
            release(pointer, || unsafe { free(pointer) });
            return CuResult::OutOfMemory as CuStatus;
        }
        direct.linear.update(pointer, |entry| entry.bytes = needed);
    }
    CuResult::Success as CuStatus
}
