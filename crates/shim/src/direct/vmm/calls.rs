//! The calls that make, share, map and end physical memory.

use std::ffi::c_void;

use mica_cuda_abi::{
    AllocationHandle, CuResult, CuStatus, DevicePtr, Handle, MemAllocationProp, Symbol, function,
};

use super::{Mapping, Piece, Records, Sparse};
use crate::direct::context::owner;
use crate::direct::state::{footprint, making, state};
use crate::direct::submission::submit;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR` and `CU_MEM_HANDLE_TYPE_FABRIC`, which is 64 bytes.
const DESCRIPTOR: u32 = 1;
const FABRIC: u32 = 8;
const FABRIC_BYTES: usize = 64;

/// `cuMemCreate`.
pub(crate) unsafe fn create(
    _: Symbol,
    real: function::cuMemCreate,
    out: *mut AllocationHandle,
    bytes: usize,
    props: *const MemAllocationProp,
    flags: u64,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, bytes, props, flags) };
    // SAFETY: null, or the program's properties.
    let on_device = unsafe { props.as_ref() }.is_some_and(|props| !props.location.on_host());
    let Some(direct) = making(out).filter(|_| on_device) else {
        return call();
    };
    let bytes = footprint(bytes as u64);
    let status = direct.charged(bytes, call);
    if status == CuResult::Success as CuStatus {
        // SAFETY: the driver has just written `out`.
        let handle = unsafe { out.read() };
        direct.handles.records().made(handle, bytes);
    }
    status
}

/// `cuMemRelease`.
pub(crate) unsafe fn release(
    _: Symbol,
    real: function::cuMemRelease,
    handle: AllocationHandle,
) -> CuStatus {
    let Some(direct) = state() else {
        // SAFETY: the program's argument.
        return unsafe { real(handle) };
    };
    // Under the lock: the driver may hand the same number out again at once.
    let mut records = direct.handles.records();
    // SAFETY: the program's argument.
    let status = unsafe { real(handle) };
    if status == 0
        && let Some(held) = records.handles.get_mut(&handle)
    {
        held.times -= 1;
        let (piece, last) = (held.piece, held.times == 0);
        if last {
            records.handles.remove(&handle);
        }
        records.change(direct, piece, |memory| memory.held -= 1);
    }
    status
}

/// `cuMemRetainAllocationHandle`: one more hold on what is mapped at an address.
pub(crate) unsafe fn retain(
    _: Symbol,
    real: function::cuMemRetainAllocationHandle,
    out: *mut AllocationHandle,
    address: *mut c_void,
) -> CuStatus {
    let of = |records: &Records| records.mapped_at(address as DevicePtr);
    // SAFETY: the program's arguments.
    unsafe { one_more(out, of, || real(out, address)) }
}

/// `cuMemImportFromShareableHandle`: of our own memory, one more hold on it.
pub(crate) unsafe fn import(
    _: Symbol,
    real: function::cuMemImportFromShareableHandle,
    out: *mut AllocationHandle,
    exported: *mut c_void,
    kind: u32,
) -> CuStatus {
    let of = |records: &Records| {
        let name = match kind {
            // A descriptor is passed as such, and was written as a number.
            DESCRIPTOR => (exported as usize as i32).to_ne_bytes().to_vec(),
            // SAFETY: the driver has just read it.
            _ => unsafe { exported_as(kind, exported) }?,
        };
        records.exported.get(&name).copied()
    };
    // SAFETY: the program's arguments.
    unsafe { one_more(out, of, || real(out, exported, kind)) }
}

/// `cuMemExportToShareableHandle`: by this, memory may come back.
pub(crate) unsafe fn export(
    _: Symbol,
    real: function::cuMemExportToShareableHandle,
    out: *mut c_void,
    handle: AllocationHandle,
    kind: u32,
    flags: u64,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, handle, kind, flags) };
    if let (Some(direct), 0) = (making(out), status)
        // SAFETY: the driver has just written `out`.
        && let Some(name) = unsafe { exported_as(kind, out) }
    {
        let mut records = direct.handles.records();
        if let Some(piece) = records.piece(handle) {
            records.exported.insert(name, piece);
        }
    }
    status
}

/// What stands at `at`, where the driver wrote or read what memory is exported as.
///
/// # Safety
/// `at` is null or holds it.
unsafe fn exported_as(kind: u32, at: *const c_void) -> Option<Vec<u8>> {
    let bytes = match kind {
        DESCRIPTOR => size_of::<i32>(),
        FABRIC => FABRIC_BYTES,
        _ => return None,
    };
    // SAFETY: our contract.
    (!at.is_null()).then(|| unsafe { std::slice::from_raw_parts(at.cast::<u8>(), bytes) }.to_vec())
}

/// # Safety
/// `call` writes a handle to `out` when it succeeds; `of` says which memory of ours it is then, if its number does not.
unsafe fn one_more(
    out: *mut AllocationHandle,
    of: impl FnOnce(&Records) -> Option<Piece>,
    call: impl FnOnce() -> CuStatus,
) -> CuStatus {
    let Some(direct) = making(out) else {
        return call();
    };
    // Under the lock, as releasing is: what is held again must not be given back meanwhile.
    let mut records = direct.handles.records();
    let status = call();
    if status == 0 {
        // SAFETY: our contract.
        let handle = unsafe { out.read() };
        if let Some(piece) = records.piece(handle).or_else(|| of(&records)) {
            records.hold(handle, piece);
        }
    }
    status
}

/// `cuMemMap`.
pub(crate) unsafe fn map(
    _: Symbol,
    real: function::cuMemMap,
    address: DevicePtr,
    bytes: usize,
    offset: usize,
    handle: AllocationHandle,
    flags: u64,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(address, bytes, offset, handle, flags) };
    let Some(direct) = state() else {
        return call();
    };
    let mut records = direct.handles.records();
    let status = call();
    if status == 0
        && let Some(piece) = records.piece(handle)
    {
        records.change(direct, piece, |memory| memory.mapped += 1);
        let bytes = bytes as u64;
        records.mappings.insert(address, Mapping { bytes, piece });
    }
    status
}

/// `cuMemUnmap`: may span several mappings.
pub(crate) unsafe fn unmap(
    _: Symbol,
    real: function::cuMemUnmap,
    address: DevicePtr,
    bytes: usize,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(address, bytes) };
    let Some(direct) = state() else {
        return call();
    };
    let mut records = direct.handles.records();
    let status = call();
    if status == 0 {
        let end = address.saturating_add(bytes as u64);
        let gone = records.mappings.range(address..end).map(|(at, _)| *at);
        for at in gone.collect::<Vec<_>>() {
            if let Some(mapping) = records.mappings.remove(&at) {
                records.change(direct, mapping.piece, |memory| memory.mapped -= 1);
            }
        }
    }
    status
}

/// `CUarrayMapInfo`.
#[repr(C)]
pub(crate) struct ArrayMapping {
    resource_kind: u32,
    array: Handle,
    part_kind: u32,
    part: [u64; 4],
    operation: u32,
    handle_kind: u32,
    handle: AllocationHandle,
    offset: u64,
    devices: u32,
    flags: u32,
    reserved: [u32; 2],
}

const _: () = {
    assert!(std::mem::offset_of!(ArrayMapping, handle) == 64);
    assert!(size_of::<ArrayMapping>() == 96);
};

/// `CU_MEM_OPERATION_TYPE_MAP`.
const OPERATION_MAP: u32 = 1;

/// `cuMemMapArrayAsync`: the GPU changes the mappings of sparse arrays itself, in the stream's order. What was mapped
/// once counts as mapped until the array ends: parts come and go, and when is the stream's affair.
pub(crate) unsafe fn map_arrays(
    symbol: Symbol,
    real: function::cuMemMapArrayAsync,
    maps: *mut c_void,
    count: u32,
    stream: Handle,
) -> CuStatus {
    submit(symbol, stream);
    // SAFETY: the program's arguments.
    let call = || unsafe { real(maps, count, stream) };
    let Some(direct) = making(maps) else {
        return call();
    };
    let mut records = direct.handles.records();
    let status = call();
    if status == 0 {
        // SAFETY: the program's list, which the driver has just read.
        let maps =
            unsafe { std::slice::from_raw_parts(maps.cast::<ArrayMapping>(), count as usize) };
        for map in maps {
            let mapped = records.piece(map.handle);
            let Some(piece) = mapped.filter(|_| map.operation == OPERATION_MAP) else {
                continue;
            };
            let array = records.arrays.entry(map.array as usize);
            let sparse = array.or_insert_with(|| Sparse {
                pieces: Vec::new(),
                context: owner(),
            });
            if !sparse.pieces.contains(&piece) {
                sparse.pieces.push(piece);
                records.change(direct, piece, |memory| memory.mapped += 1);
            }
        }
    }
    status
}
