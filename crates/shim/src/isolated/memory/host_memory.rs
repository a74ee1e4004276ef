//! Host memory that the device uses in place: pinned, registered and managed.
//!
//! Pinned and managed memory is a file that both processes map, here at the address the device uses
//! wherever that is free. Memory that the program registers is already somewhere:
//! [`super::registered`] makes it such a file.

use mica_cuda_abi::{CuResult, host_alloc_flags, host_register_flags, mem_attach_flags};
use mica_wire::session::HostUnregister;
use rustix::mm::{Advice, madvise};

use super::registered;
use super::{Allocation, AllocationKind};
use crate::isolated::context::{Context, current};
use crate::isolated::state::State;
use crate::isolated::support::{Answer, Code, driver, entries, invalid, put};
use crate::log;

const PAGE: u64 = 4096;
/// Pinned memory from this size on is compared with what there is.
const LARGE: u64 = 64 << 20;
/// Addresses that a program can have.
const ADDRESSES: u64 = 1 << 47;

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
    if !is_managed && room >= LARGE && available().is_some_and(|most| room > most / 16 * 15) {
        log::line(&format!(
            "{room} bytes of pinned memory are more than there are"
        ));
        return Err(CuResult::OutOfMemory.into());
    }
    let shared = context.checked(state.client.host_alloc(context.wire(), room, is_managed))?;
    let (host, device) = (shared.as_ptr() as u64, shared.device());
    if !is_managed {
        // Pinned memory is there from the beginning. A kernel that cannot be asked for that gives it later.
        // SAFETY: a mapping of our own.
        let _ = unsafe { madvise(host as *mut _, room as usize, Advice::LinuxPopulateWrite) };
    }
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

/// Bytes of memory that programs could have now, as far as the system says.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Memory for a variable that both sides use.
pub(crate) fn allocate_managed(
    state: &'static State,
    context: &'static Context,
    bytes: usize,
) -> Answer<u64> {
    allocate(state, context, bytes, AllocationKind::Managed, 1)
}

/// Ends the device's use of shared memory; the mapping goes with the allocation.
pub(crate) fn release(state: &State, found: &Allocation) -> Answer {
    let request = HostUnregister {
        context: found.context.wire(),
        address: found.device & !(PAGE - 1),
    };
    let done = state.client.call(&request);
    state.print_output();
    found.context.checked(done).map(drop)
}

fn register(pointer: u64, bytes: usize, flags: u32) -> Answer {
    let (state, context) = current()?;
    if pointer == 0 || bytes == 0 || flags & !host_register_flags::ALL != 0 {
        return invalid();
    }
    let end = pointer.checked_add(bytes as u64);
    let Some(end) = end.filter(|end| *end <= ADDRESSES) else {
        return invalid();
    };
    match state.memory.in_host(pointer..end).map(|found| found.kind) {
        Some(AllocationKind::Registered) => {
            return Err(CuResult::HostMemoryAlreadyRegistered.into());
        }
        // What the driver has allocated itself is no memory to register.
        Some(_) => return invalid(),
        None => {}
    }
    let may_be_read_only = flags & host_register_flags::READ_ONLY != 0;
    let device = registered::register(state, context, (pointer, bytes as u64), may_be_read_only)?;
    let id = state.number();
    let mut made = Allocation::new(
        AllocationKind::Registered,
        device,
        bytes as u64,
        context,
        id,
    );
    made.host = pointer;
    made.flags = flags;
    state.memory.insert(made);
    if flags & host_register_flags::DEVICEMAP != 0 {
        state.copied.mapped();
    }
    Ok(())
}

driver! {
    fn host_alloc(out: *mut u64, bytes: usize, flags: u32) {
        if out.is_null() || flags & !host_alloc_flags::ALL != 0 {
            return invalid();
        }
        let (state, context) = current()?;
        put(out, allocate(state, context, bytes, AllocationKind::Pinned, flags)?)?;
        if flags & host_alloc_flags::DEVICEMAP != 0 {
            state.copied.mapped();
        }
        Ok(())
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
            Some(found) => {
                put(out, pointer - found.host + found.device)?;
                state.copied.mapped();
                Ok(())
            }
            None => invalid(),
        }
    }

    fn host_flags(out: *mut u32, pointer: u64) {
        let (state, _) = current()?;
        match state.memory.find_host(pointer) {
            // Pinned memory is always mapped and portable here.
            Some(found) if found.kind == AllocationKind::Pinned => {
                put(out, found.flags | host_alloc_flags::DEVICEMAP)
            },
            Some(found) if found.kind == AllocationKind::Registered => {
                put(out, found.flags | host_register_flags::DEVICEMAP)
            },
            _ => invalid(),
        }
    }

    fn host_register(pointer: u64, bytes: usize, flags: u32) {
        register(pointer, bytes, flags)
    }

    fn host_unregister(pointer: u64) {
        let (state, _) = current()?;
        let Some(found) = state.memory.take_host(pointer, &[AllocationKind::Registered]) else {
            let held = state.memory.find_host(pointer);
            let allocated = held.is_some_and(|held| held.kind != AllocationKind::Registered);
            return match pointer == 0 || allocated {
                true => invalid(),
                false => Err(CuResult::HostMemoryNotRegistered.into()),
            };
        };
        registered::unregister(state, found.host, found.bytes)
    }

    fn alloc_managed(out: *mut u64, bytes: usize, flags: u32) {
        // Global or host; single is for a stream.
        if out.is_null() || !matches!(flags, mem_attach_flags::GLOBAL | mem_attach_flags::HOST) {
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
