//! Physical memory by handle: charged when made, given back when it is neither held nor mapped.
//!
//! Charged by where it lives, not by the current device: handles of host memory cost nothing.
//! Imported handles are free, their exporter has paid.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_cuda_abi::{
    AllocationHandle, CuResult, CuStatus, DevicePtr, MemAllocationProp, MemLocation, Symbol,
};

use super::state::{Direct, footprint, making, state};

/// One piece of physical memory.
struct Memory {
    bytes: u64,
    held: u64,
    mapped: u64,
}

#[derive(Default)]
struct Books {
    memory: HashMap<AllocationHandle, Memory>,
    /// Where handles are mapped.
    mappings: BTreeMap<DevicePtr, AllocationHandle>,
}

/// All handles made here.
#[derive(Default)]
pub(crate) struct Handles {
    books: Mutex<Books>,
}

impl Handles {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Drops the memory if nothing holds it; returns the bytes to give back.
    fn drop_unused(&mut self, handle: AllocationHandle) -> u64 {
        match self.memory.get(&handle) {
            Some(memory) if memory.held == 0 && memory.mapped == 0 => {
                self.memory.remove(&handle).map_or(0, |memory| memory.bytes)
            }
            _ => 0,
        }
    }
}

/// `cuMemCreate`.
pub(crate) unsafe fn create(
    _: Symbol,
    real: unsafe extern "C" fn(
        *mut AllocationHandle,
        usize,
        *const MemAllocationProp,
        u64,
    ) -> CuStatus,
    out: *mut AllocationHandle,
    bytes: usize,
    props: *const MemAllocationProp,
    flags: u64,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, bytes, props, flags) };
    // SAFETY: null, or the program's properties.
    let location = unsafe { props.as_ref() }.map(|props| props.location.kind);
    let (Some(direct), Some(MemLocation::DEVICE)) = (making(out), location) else {
        return call();
    };
    let bytes = footprint(bytes as u64);
    let status = direct.charged(bytes, call);
    if status == CuResult::Success as CuStatus {
        let memory = Memory {
            bytes,
            held: 1,
            mapped: 0,
        };
        // SAFETY: the driver has just written `out`.
        let handle = unsafe { out.read() };
        direct.handles.books().memory.insert(handle, memory);
    }
    status
}

/// `cuMemRelease`.
pub(crate) unsafe fn release(
    _: Symbol,
    real: unsafe extern "C" fn(AllocationHandle) -> CuStatus,
    handle: AllocationHandle,
) -> CuStatus {
    let Some(direct) = state() else {
        // SAFETY: the program's argument.
        return unsafe { real(handle) };
    };
    // Under the lock: the driver may hand the same number out again at once.
    let mut books = direct.handles.books();
    // SAFETY: the program's argument.
    let status = unsafe { real(handle) };
    if status == 0 {
        if let Some(memory) = books.memory.get_mut(&handle) {
            memory.held = memory.held.saturating_sub(1);
        }
        let bytes = books.drop_unused(handle);
        direct.release(bytes);
    }
    status
}

/// `cuMemRetainAllocationHandle`: one more hold on what is mapped at an address.
pub(crate) unsafe fn retain(
    _: Symbol,
    real: unsafe extern "C" fn(*mut AllocationHandle, *mut c_void) -> CuStatus,
    out: *mut AllocationHandle,
    address: *mut c_void,
) -> CuStatus {
    // SAFETY: the program's arguments.
    unsafe { one_more(out, || real(out, address)) }
}

/// `cuMemImportFromShareableHandle`: of our own memory, one more hold on it.
pub(crate) unsafe fn import(
    _: Symbol,
    real: unsafe extern "C" fn(*mut AllocationHandle, *mut c_void, u32) -> CuStatus,
    out: *mut AllocationHandle,
    handle: *mut c_void,
    kind: u32,
) -> CuStatus {
    // SAFETY: the program's arguments.
    unsafe { one_more(out, || real(out, handle, kind)) }
}

/// # Safety
/// `call` writes a handle to `out` when it succeeds.
unsafe fn one_more(out: *mut AllocationHandle, call: impl FnOnce() -> CuStatus) -> CuStatus {
    let Some(direct) = making(out) else {
        return call();
    };
    // Under the lock, as releasing is: what is held again must not be given back meanwhile.
    let mut books = direct.handles.books();
    let status = call();
    if status == 0 {
        // SAFETY: our contract.
        let handle = unsafe { out.read() };
        if let Some(memory) = books.memory.get_mut(&handle) {
            memory.held += 1;
        }
    }
    status
}

/// `cuMemMap`.
pub(crate) unsafe fn map(
    _: Symbol,
    real: unsafe extern "C" fn(DevicePtr, usize, usize, AllocationHandle, u64) -> CuStatus,
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
    let mut books = direct.handles.books();
    let status = call();
    if status == 0
        && let Some(memory) = books.memory.get_mut(&handle)
    {
        memory.mapped += 1;
        books.mappings.insert(address, handle);
    }
    status
}

/// `cuMemUnmap`: may span several mappings.
pub(crate) unsafe fn unmap(
    _: Symbol,
    real: unsafe extern "C" fn(DevicePtr, usize) -> CuStatus,
    address: DevicePtr,
    bytes: usize,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(address, bytes) };
    let Some(direct) = state() else {
        return call();
    };
    let mut books = direct.handles.books();
    let status = call();
    if status == 0 {
        unmap_range(direct, &mut books, address, bytes as u64);
    }
    status
}

fn unmap_range(direct: &Direct, books: &mut Books, address: DevicePtr, bytes: u64) {
    let end = address.saturating_add(bytes);
    let gone: Vec<_> = books
        .mappings
        .range(address..end)
        .map(|(at, handle)| (*at, *handle))
        .collect();
    for (at, handle) in gone {
        books.mappings.remove(&at);
        if let Some(memory) = books.memory.get_mut(&handle) {
            memory.mapped = memory.mapped.saturating_sub(1);
        }
        let bytes = books.drop_unused(handle);
        direct.release(bytes);
    }
}
