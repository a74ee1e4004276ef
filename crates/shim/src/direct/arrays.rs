//! Arrays, mipmapped arrays, and the end of everything booked by handle.

use mica_cuda_abi::{Array3dDescriptor, CuStatus, Handle, Symbol, function};

use super::allocations::Entry;
use super::context::owner;
use super::state::{footprint, making, state};

/// `cuArrayCreate` and `cuArray3DCreate`, each also as before CUDA 3.2, with sizes of 32 bits.
pub(crate) unsafe fn create<D: Copy + Into<Array3dDescriptor>>(
    _: Symbol,
    real: unsafe extern "C" fn(*mut Handle, *const D) -> CuStatus,
    out: *mut Handle,
    descriptor: *const D,
) -> CuStatus {
    // SAFETY: null, or the program's descriptor.
    let bytes = unsafe { descriptor.as_ref() }.map_or(0, |array| (*array).into().bytes());
    // SAFETY: the program's arguments.
    unsafe { booked(bytes, out, || real(out, descriptor)) }
}

/// `cuMipmappedArrayCreate`.
pub(crate) unsafe fn create_mipmapped(
    _: Symbol,
    real: function::cuMipmappedArrayCreate,
    out: *mut Handle,
    descriptor: *const Array3dDescriptor,
    levels: u32,
) -> CuStatus {
    // SAFETY: null, or the program's descriptor.
    let bytes = unsafe { descriptor.as_ref() }.map_or(0, |base| base.mipmapped_bytes(levels));
    // SAFETY: the program's arguments.
    unsafe { booked(bytes, out, || real(out, descriptor, levels)) }
}

/// `cuArrayDestroy`, `cuMipmappedArrayDestroy`, `cuDestroyExternalMemory`.
pub(crate) unsafe fn destroy(
    _: Symbol,
    real: function::cuArrayDestroy,
    object: Handle,
) -> CuStatus {
    let Some(direct) = state() else {
        // SAFETY: the program's argument.
        return unsafe { real(object) };
    };
    let entry = direct.objects.remove(object as u64);
    // SAFETY: the program's argument.
    let status = unsafe { real(object) };
    match (entry, status) {
        (Some(entry), 0) => direct.release(entry.bytes),
        (Some(entry), _) => direct.objects.insert(object as u64, entry),
        (None, _) => {}
    }
    if status == 0 {
        direct.handles.array_ended(direct, object);
    }
    status
}

/// Charges for and records an object that `call` makes at `out`.
///
/// # Safety
/// `call` writes a handle to `out` when it succeeds.
pub(crate) unsafe fn booked(
    bytes: u64,
    out: *mut Handle,
    call: impl FnOnce() -> CuStatus,
) -> CuStatus {
    let Some(direct) = making(out) else {
        return call();
    };
    let bytes = footprint(bytes);
    let status = direct.charged(bytes, call);
    if status == 0 {
        // SAFETY: our contract.
        let handle = unsafe { out.read() };
        direct
            .objects
            .insert(handle as u64, Entry::own(bytes, owner()));
    }
    status
}
