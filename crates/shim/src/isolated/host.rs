//! Host memory that the device uses in place: pinned, registered and managed.
//!
//! Pinned and managed memory is a file that both processes map, here at the address the device uses
//! wherever that is free. Memory that the program registers is already somewhere: its pages are
//! exchanged for pages of such a file with the same contents, at the same address. What another
//! thread writes to these pages while `cuMemHostRegister` runs may be lost, and after a `fork` parent
//! and child share them; neither is so with a real driver.

use std::ffi::c_void;

use mica_cuda_abi::CuResult;
use mica_wire::session::{HostUnregister, create_sealed};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap, mmap_anonymous, mremap_fixed, munmap};

use super::context::{Context, current};
use super::memory::{Allocation, AllocationKind};
use super::state::State;
use super::support::{Answer, Code, driver, entries, invalid, put};
use crate::log;

const PAGE: u64 = 4096;
/// `CU_MEMHOSTALLOC_*` and `CU_MEMHOSTREGISTER_*` flags.
const ALLOC_FLAGS: u32 = 0x7;
const REGISTER_FLAGS: u32 = 0xf;

fn allocate(
    state: &'static State,
    context: &'static Context,
    bytes: usize,
    kind: AllocationKind,
    flags: u32,
) -> Answer<u64> {
    if bytes == 0 {
        return invalid();
    }
    let room = (bytes as u64)
        .checked_next_multiple_of(PAGE)
        .ok_or(Code(CuResult::OutOfMemory as u32))?;
    let is_managed = kind == AllocationKind::Managed;
    let shared = context.checked(state.client.host_alloc(context.wire(), room, is_managed))?;
    let (host, device) = (shared.as_ptr() as u64, shared.device());
    let id = state.number();
    let mut made = Allocation::new(kind, device, bytes as u64, context, id);
    made.host = host;
    made.flags = flags;
    made.shared = Some(shared);
    if is_managed && host != device {
        // One pointer must serve both sides.
        log::line("managed memory cannot have the device's address in this process");
        release(state, &made)?;
        return Err(CuResult::OutOfMemory.into());
    }
    state.memory.insert(made);
    Ok(host)
}

/// Memory for a variable that both sides use.
pub(super) fn allocate_managed(
    state: &'static State,
    context: &'static Context,
    bytes: usize,
) -> Answer<u64> {
    allocate(state, context, bytes, AllocationKind::Managed, 1)
}

/// Ends the device's use of shared memory; the mapping goes with the allocation.
pub(super) fn release(state: &State, found: &Allocation) -> Answer {
    let request = HostUnregister {
        context: found.context.wire(),
        address: found.device & !(PAGE - 1),
    };
    let done = state.client.call(&request);
    state.print_output();
    found.context.checked(done).map(drop)
}

/// Exchanges whole pages for pages of a file with the same contents; answers the file.
fn exchange(first: u64, bytes: u64) -> Answer<std::os::fd::OwnedFd> {
    let system = |error: rustix::io::Errno| {
        log::line(&format!("memory cannot be registered: {error}"));
        Code(CuResult::OutOfMemory as u32)
    };
    let fd = create_sealed("mica-registered", bytes).map_err(system)?;
    let len = bytes as usize;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let copy = unsafe {
        mmap(
            std::ptr::null_mut(),
            len,
            protection,
            MapFlags::SHARED,
            &fd,
            0,
        )
    }
    .map_err(system)?;
    // SAFETY: the program says that this memory is its own; the exchange puts the same bytes in the
    // same place, in one step.
    let moved = unsafe {
        std::ptr::copy_nonoverlapping(first as *const u8, copy.cast::<u8>(), len);
        mremap_fixed(copy, len, len, MremapFlags::MAYMOVE, first as *mut c_void)
    };
    if let Err(error) = moved {
        // SAFETY: made above, and nobody knows of it.
        let _ = unsafe { munmap(copy, len) };
        return Err(system(error));
    }
    Ok(fd)
}

/// Gives the program private pages again.
fn restore(first: u64, bytes: u64) {
    let len = bytes as usize;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: as in `exchange`. If there is no memory for a copy, the shared pages stay.
    unsafe {
        let Ok(copy) = mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE)
        else {
            return;
        };
        std::ptr::copy_nonoverlapping(first as *const u8, copy.cast::<u8>(), len);
        if mremap_fixed(copy, len, len, MremapFlags::MAYMOVE, first as *mut c_void).is_err() {
            let _ = munmap(copy, len);
        }
    }
}

fn register(pointer: u64, bytes: usize, flags: u32) -> Answer {
    let (state, context) = current()?;
    if pointer == 0 || bytes == 0 || flags & !REGISTER_FLAGS != 0 {
        return invalid();
    }
    let Some(end) = pointer.checked_add(bytes as u64) else {
        return invalid();
    };
    if state
        .memory
        .find_host(pointer)
        .or_else(|| state.memory.find_host(end - 1))
        .is_some()
    {
        return Err(CuResult::HostMemoryAlreadyRegistered.into());
    }
    let first = pointer & !(PAGE - 1);
    let room = end.next_multiple_of(PAGE) - first;
    // Another registration may share the first or last page: those pages are a file already.
    if state.memory.overlaps_pages(first, room) {
        log::line("two registered ranges share a page, which isolated mode cannot do");
        return Err(CuResult::NotSupported.into());
    }
    let fd = exchange(first, room)?;
    let device = state
        .client
        .host_register(context.wire(), &fd, 0, room, false);
    let device = match context.checked(device) {
        Ok(device) => device,
        Err(error) => {
            restore(first, room);
            return Err(error);
        }
    };
    let id = state.number();
    let mut made = Allocation::new(
        AllocationKind::Registered,
        device + (pointer - first),
        bytes as u64,
        context,
        id,
    );
    made.host = pointer;
    made.flags = flags;
    state.memory.insert(made);
    Ok(())
}

driver! {
    fn host_alloc(out: *mut u64, bytes: usize, flags: u32) {
        if out.is_null() || flags & !ALLOC_FLAGS != 0 {
            return invalid();
        }
        let (state, context) = current()?;
        put(out, allocate(state, context, bytes, AllocationKind::Pinned, flags)?)
    }

    fn alloc_host(out: *mut u64, bytes: usize) {
        if out.is_null() {
            return invalid();
        }
        let (state, context) = current()?;
        put(out, allocate(state, context, bytes, AllocationKind::Pinned, 0)?)
    }

    fn free_host(pointer: u64) {
        let (state, _) = current()?;
        if pointer == 0 {
            return Ok(());
        }
        let Some(found) = state.memory.take_host(pointer, &[AllocationKind::Pinned]) else {
            return invalid();
        };
        release(state, &found)
    }

    fn host_device_pointer(out: *mut u64, pointer: u64, flags: u32) {
        let (state, _) = current()?;
        if flags != 0 {
            return invalid();
        }
        match state.memory.find_host(pointer) {
            Some(found) => put(out, pointer - found.host + found.device),
            None => invalid(),
        }
    }

    fn host_flags(out: *mut u32, pointer: u64) {
        let (state, _) = current()?;
        match state.memory.find_host(pointer) {
            // Pinned memory is always mapped and portable here.
            Some(found) if found.kind == AllocationKind::Pinned => put(out, found.flags | 2),
            Some(found) if found.kind == AllocationKind::Registered => put(out, found.flags | 2),
            _ => invalid(),
        }
    }

    fn host_register(pointer: u64, bytes: usize, flags: u32) {
        register(pointer, bytes, flags)
    }

    fn host_unregister(pointer: u64) {
        let (state, _) = current()?;
        let Some(found) = state.memory.take_host(pointer, &[AllocationKind::Registered]) else {
            return Err(CuResult::HostMemoryNotRegistered.into());
        };
        let done = release(state, &found);
        let first = pointer & !(PAGE - 1);
        restore(first, (pointer + found.bytes).next_multiple_of(PAGE) - first);
        done
    }

    fn alloc_managed(out: *mut u64, bytes: usize, flags: u32) {
        // Global or host; single is for a stream.
        if out.is_null() || !matches!(flags, 1 | 2) {
            return invalid();
        }
        let (state, context) = current()?;
        put(out, allocate(state, context, bytes, AllocationKind::Managed, flags)?)
    }
}

entries! {
    cuMemHostAlloc = host_alloc;
    cuMemAllocHost_v2 = alloc_host;
    cuMemFreeHost = free_host;
    cuMemHostGetDevicePointer_v2 = host_device_pointer;
    cuMemHostGetFlags = host_flags;
    cuMemHostRegister = host_register;
    cuMemHostRegister_v2 = host_register;
    cuMemHostUnregister = host_unregister;
    cuMemAllocManaged = alloc_managed;
}
