//! Memory and events that programs of one virtual GPU share.
//!
//! A handle is 64 bytes, or a file with those bytes: it names what the worker of the other program shares. The worker of
//! this one gets it from the daemon, if both are of one virtual GPU; whatever else a handle says opens nothing. Memory of
//! another program is a frame here, mapped at an address of this program's own.

use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::Mutex;

use mica_cuda_abi::{CuResult, Handle};
use mica_wire::session::{
    AddressFree, AddressReserve, FrameAccess, FrameMap, FrameRelease, FrameUnmap, OpenShared,
    OpenSharedEvent, ShareEvent, ShareMemory, create_sealed,
};

use super::{Allocation, AllocationKind};
use crate::isolated::context::{Context, current};
use crate::isolated::state::State;
use crate::isolated::streams::events::{Event, open_event, shareable_event};
use crate::isolated::support::{Answer, Code, driver, entries, invalid, lock, put, room_for};
use crate::log;

/// `CUipcMemHandle`, `CUipcEventHandle` and `CUmemPoolPtrExportData`.
pub(crate) type IpcHandle = [u8; 64];

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_ENABLE_PEER_ACCESS: u32 = 1;

pub(crate) use mica_wire::session::{SharedHandle as Token, SharedKind as What};

/// What a handle says, if it is one of `what`.
pub(crate) fn decode(handle: &IpcHandle, what: What) -> Answer<Token> {
    Token::decode(handle, what).map_or_else(invalid, Ok)
}

/// A file that says the same as a handle, as a descriptor of the program's.
pub(crate) fn into_file(token: &Token) -> Answer<i32> {
    let refused = |error: rustix::io::Errno| {
        log::line(&format!("no file for a shareable handle: {error}"));
        Code(CuResult::OperatingSystem as u32)
    };
    let file = create_sealed("mica-shared", 64).map_err(refused)?;
    rustix::io::pwrite(&file, &token.encode(), 0).map_err(refused)?;
    Ok(file.into_raw_fd())
}

/// What a file of the program says, if it is one of `what`.
pub(crate) fn from_file(descriptor: i32, what: What) -> Answer<Token> {
    if descriptor < 0 {
        return invalid();
    }
    let mut handle = [0; 64];
    // SAFETY: the program says that this is an open descriptor of its own; it is only read from.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    match rustix::io::pread(file, &mut handle, 0) {
        Ok(64) => decode(&handle, what),
        _ => invalid(),
    }
}

/// Memory of another program.
struct Import {
    id: [u8; 16],
    address: u64,
    bytes: u64,
    users: u32,
    epoch: u64,
}

static IMPORTS: Mutex<Vec<Import>> = Mutex::new(Vec::new());

/// Names an allocation for other programs, by its first address in the worker.
pub(crate) fn share(state: &State, context: &Context, address: u64) -> Answer<[u8; 16]> {
    let request = ShareMemory {
        context: context.wire(),
        address,
    };
    Ok(context.checked(state.client.call(&request))?.id)
}

/// Takes part of another program's memory in; its address here.
fn import(
    state: &'static State,
    context: &'static Context,
    token: &Token,
    pool: u64,
) -> Answer<u64> {
    let mut imports = lock(&IMPORTS);
    let epoch = context.epoch();
    let known = |import: &&mut Import| import.id == token.id && import.epoch == epoch;
    let (address, bytes) = match imports.iter_mut().find(known) {
        Some(import) => {
            import.users += 1;
            (import.address, import.bytes)
        }
        None => {
            let (address, bytes) = map_shared(state, context, token.id)?;
            imports.push(Import {
                id: token.id,
                address,
                bytes,
                users: 1,
                epoch,
            });
            (address, bytes)
        }
    };
    drop(imports);
    let inside = token.offset.checked_add(token.bytes);
    if token.bytes == 0 || inside.is_none_or(|end| end > bytes) {
        close(state, address)?;
        return invalid();
    }
    let at = address + token.offset;
    if state.memory.find_device(at).is_none() {
        let id = state.number();
        let mut made = Allocation::new(AllocationKind::Imported, at, token.bytes, context, id);
        made.pool = pool;
        state.memory.insert(made);
    }
    Ok(at)
}

/// Maps what is shared under a name at addresses of its own.
fn map_shared(state: &State, context: &Context, id: [u8; 16]) -> Answer<(u64, u64)> {
    let client = &state.client;
    let opened = context.checked(client.call(&OpenShared { id }))?;
    let (frame, bytes) = (opened.frame, opened.bytes);
    let align = client.snapshot().frame_bytes;
    let reserved = client.call(&AddressReserve { bytes, align });
    let mapped = reserved.and_then(|reserved| {
        let address = reserved.value;
        let access = FrameAccess {
            address,
            bytes,
            access: opened.access,
        };
        let mapped = client.call(&FrameMap { address, frame });
        match mapped.and_then(|_| client.call(&access)) {
            Ok(_) => Ok(address),
            Err(error) => {
                let _ = client.call(&FrameUnmap { address, bytes });
                let _ = client.call(&AddressFree { address, bytes });
                Err(error)
            }
        }
    });
    // From here on the mapping alone holds it.
    let released = client.call(&FrameRelease { frame });
    let address = context.checked(mapped)?;
    context.checked(released)?;
    Ok((address, bytes))
}

fn unmap(state: &State, import: &Import) -> Answer {
    let (address, bytes) = (import.address, import.bytes);
    state.client.call(&FrameUnmap { address, bytes })?;
    state.print_output();
    Ok(state
        .client
        .call(&AddressFree { address, bytes })
        .map(drop)?)
}

/// Ends one use of the memory around an address.
fn close(state: &State, address: u64) -> Answer {
    let mut imports = lock(&IMPORTS);
    let holds = |import: &Import| address.wrapping_sub(import.address) < import.bytes;
    let Some(index) = imports.iter().position(holds) else {
        return invalid();
    };
    imports[index].users -= 1;
    match imports[index].users {
        0 => unmap(state, &imports.swap_remove(index)),
        _ => Ok(()),
    }
}

/// Ends the imports of a life of a context that is over.
pub(crate) fn forget_epoch(state: &State, epoch: u64) {
    let mut imports = lock(&IMPORTS);
    for import in imports.extract_if(.., |import| import.epoch == epoch) {
        if unmap(state, &import).is_err() {
            log::line("memory of another program stays mapped");
        }
    }
}

/// Frees a pointer of an imported pool; `None` if it is none.
pub(crate) fn free_pool_pointer(state: &State, address: u64) -> Option<Answer> {
    let found = state.memory.find_device(address)?;
    let is_pointer = found.kind == AllocationKind::Imported && found.pool != 0;
    if !is_pointer || found.device != address {
        return None;
    }
    state.memory.take(address, &[AllocationKind::Imported]);
    Some(
        (found.context)
            .synchronize(state)
            .and_then(|()| close(state, address)),
    )
}

/// Takes a pointer of another program's pool in.
pub(crate) fn import_pool_pointer(
    state: &'static State,
    context: &'static Context,
    handle: &IpcHandle,
    pool: u64,
) -> Answer<u64> {
    let token = decode(handle, What::PoolPointer)?;
    import(state, context, &token, pool)
}

driver! {
    fn get_memory(out: *mut IpcHandle, pointer: u64) {
        let (state, _) = current()?;
        room_for(out)?;
        let Some(found) = state.memory.find_device(pointer).filter(|found| found.kind == AllocationKind::Device) else {
            return invalid();
        };
        let id = share(state, found.context, found.device)?;
        let what = What::Allocation;
        put(out, Token { what, id, slot: 0, offset: 0, bytes: found.bytes }.encode())
    }

    fn open_memory(out: *mut u64, handle: IpcArgument, flags: u32) {
        let (state, context) = current()?;
        if out.is_null() || flags & !LAZY_ENABLE_PEER_ACCESS != 0 {
            return invalid();
        }
        let token = decode(&handle.0, What::Allocation)?;
        put(out, import(state, context, &token, 0)?)
    }

    fn close_memory(pointer: u64) {
        let (state, _) = current()?;
        let found = state.memory.find_device(pointer);
        let Some(found) = found.filter(|found| found.kind == AllocationKind::Imported && found.pool == 0) else {
            return invalid();
        };
        found.context.synchronize(state)?;
        close(state, found.device)?;
        let open = lock(&IMPORTS).iter().any(|import| import.address == found.device);
        if !open {
            state.memory.take(found.device, &[AllocationKind::Imported]);
        }
        Ok(())
    }

    fn get_event(out: *mut IpcHandle, event: Handle) {
        let (state, _) = current()?;
        room_for(out)?;
        let (event, context) = shareable_event(event)?;
        let shared = context.checked(state.client.call(&ShareEvent { event: event.wire() }))?;
        let what = What::Event;
        put(out, Token { what, id: shared.id, slot: shared.slot, offset: 0, bytes: 0 }.encode())
    }

    fn open_event_handle(out: *mut Handle, handle: IpcArgument) {
        let (state, context) = current()?;
        room_for(out)?;
        let token = decode(&handle.0, What::Event)?;
        let request = OpenSharedEvent { context: context.wire(), id: token.id, slot: token.slot };
        let wire = context.checked(state.client.call(&request))?.value;
        let event: &'static Event = open_event(context, wire);
        put(out, event.handle())
    }
}

/// A handle as an argument by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct IpcArgument(IpcHandle);

entries! {
    cuIpcGetMemHandle = get_memory;
    cuIpcOpenMemHandle = open_memory;
    cuIpcOpenMemHandle_v2 = open_memory;
    cuIpcCloseMemHandle = close_memory;
    cuIpcGetEventHandle = get_event;
    cuIpcOpenEventHandle = open_event_handle;
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;

    const TOKEN: Token = Token {
        what: What::PoolPointer,
        id: [3; 16],
        slot: 4,
        offset: 5 << 40,
        bytes: 6,
    };

    #[test]
    fn files_carry_handles() {
        let descriptor = into_file(&TOKEN).unwrap();
        assert_eq!(from_file(descriptor, What::PoolPointer), Ok(TOKEN));
        assert!(from_file(descriptor, What::Frame).is_err());
        // SAFETY: made above, and the test's own.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        assert!(from_file(-1, What::Frame).is_err());
        let other = std::fs::File::open("/dev/null").unwrap();
        let other = std::os::fd::AsRawFd::as_raw_fd(&other);
        assert!(from_file(other, What::Frame).is_err());
    }
}
