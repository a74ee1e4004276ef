//! Virtual memory: addresses and memory apart, put together by the program.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;

use mica_cuda_abi::{CuResult, MemAllocationProp, MemLocation};
use mica_wire::session::{
    AddressFree, AddressReserve, FrameAccess, FrameCreate, FrameMap, FrameRelease, FrameUnmap,
    OpenShared, ShareFrame,
};

use super::ipc::{self, Token, What};
use super::{Allocation, AllocationKind};
use crate::isolated::context::check_device;
use crate::isolated::state::{State, state};
use crate::isolated::support::{Answer, driver, entries, get, invalid, lock, not_supported, put};

/// Memory without an address.
#[derive(Clone, Copy)]
struct Frame {
    bytes: u64,
    /// Handles the program holds.
    references: u64,
    mappings: u64,
    /// `CU_MEM_HANDLE_TYPE_*` that it can be exported as.
    handle_types: i32,
}

#[derive(Default)]
struct Frames {
    by_handle: HashMap<u64, Frame>,
    /// Address to frame.
    mapped: HashMap<u64, u64>,
    access: HashMap<u64, u32>,
}

static FRAMES: Mutex<Option<Frames>> = Mutex::new(None);

/// Frees memory that no handle and no mapping leads to.
fn settle(state: &State, frames: &mut Frames, handle: u64) -> Answer {
    match frames.by_handle.get(&handle) {
        Some(frame) if frame.references == 0 && frame.mappings == 0 => {
            frames.by_handle.remove(&handle);
            Ok(state
                .client
                .call(&FrameRelease { frame: handle })
                .map(drop)?)
        }
        _ => Ok(()),
    }
}

fn check_prop(prop: &MemAllocationProp) -> Answer {
    if prop.kind != 1 {
        return invalid();
    }
    if prop.location.kind != MemLocation::DEVICE {
        return not_supported("cuMemCreate in host memory");
    }
    check_device(prop.location.id)?;
    if prop.handle_types & !FILE_DESCRIPTOR != 0 {
        return not_supported("memory that is shared by anything but file descriptors");
    }
    Ok(())
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const FILE_DESCRIPTOR: i32 = 1;

driver! {
    fn address_reserve(out: *mut u64, bytes: usize, align: usize, _hint: u64, flags: u64) {
        let state = state()?;
        let granularity = state.client.snapshot().frame_bytes;
        if out.is_null() || bytes == 0 || flags != 0 || !(bytes as u64).is_multiple_of(granularity)
            || (align != 0 && !align.is_power_of_two()) {
            return invalid();
        }
        let request = AddressReserve { bytes: bytes as u64, align: (align as u64).max(granularity) };
        let address = state.client.call(&request)?.value;
        let id = state.number();
        let made = Allocation::new(AllocationKind::Reserved, address, bytes as u64, state.primary, id);
        state.memory.insert(made);
        put(out, address)
    }

    fn address_free(address: u64, bytes: usize) {
        let state = state()?;
        let found = state.memory.find_device(address);
        if !found.is_some_and(|found| found.device == address && found.bytes == bytes as u64) {
            return invalid();
        }
        state.client.call(&AddressFree { address, bytes: bytes as u64 })?;
        state.memory.take(address, &[AllocationKind::Reserved]);
        Ok(())
    }

    fn create(out: *mut u64, bytes: usize, prop: *const MemAllocationProp, flags: u64) {
        let state = state()?;
        let prop = get(prop)?;
        check_prop(&prop)?;
        let granularity = state.client.snapshot().frame_bytes;
        if out.is_null() || bytes == 0 || flags != 0 || !(bytes as u64).is_multiple_of(granularity) {
            return invalid();
        }
        let handle = state.client.call(&FrameCreate { bytes: bytes as u64 })?.value;
        let frame = Frame { bytes: bytes as u64, references: 1, mappings: 0, handle_types: prop.handle_types };
        lock(&FRAMES).get_or_insert_default().by_handle.insert(handle, frame);
        put(out, handle)
    }

    fn release(handle: u64) {
        let state = state()?;
        let mut frames = lock(&FRAMES);
        let frames = frames.get_or_insert_default();
        match frames.by_handle.get_mut(&handle) {
            Some(frame) if frame.references > 0 => frame.references -= 1,
            _ => return invalid(),
        }
        settle(state, frames, handle)
    }

    fn map(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        let state = state()?;
        let mut frames = lock(&FRAMES);
        let frames = frames.get_or_insert_default();
        let Some(frame) = frames.by_handle.get_mut(&handle) else {
            return invalid();
        };
        if flags != 0 || bytes as u64 != frame.bytes {
            return invalid();
        }
        if offset != 0 {
            return Err(CuResult::NotSupported.into());
        }
        state.client.call(&FrameMap { address, frame: handle })?;
        frame.mappings += 1;
        frames.mapped.insert(address, handle);
        Ok(())
    }

    fn unmap(address: u64, bytes: usize) {
        let state = state()?;
        let mut frames = lock(&FRAMES);
        let frames = frames.get_or_insert_default();
        let end = address.saturating_add(bytes as u64);
        let inside: Vec<(u64, u64)> = frames
            .mapped
            .iter()
            .filter(|(at, _)| (address..end).contains(*at))
            .map(|(at, handle)| (*at, *handle))
            .collect();
        if inside.is_empty() {
            return invalid();
        }
        state.client.call(&FrameUnmap { address, bytes: bytes as u64 })?;
        state.print_output();
        for (at, handle) in inside {
            frames.mapped.remove(&at);
            frames.access.remove(&at);
            if let Some(frame) = frames.by_handle.get_mut(&handle) {
                frame.mappings -= 1;
            }
            settle(state, frames, handle)?;
        }
        Ok(())
    }

    fn set_access(address: u64, bytes: usize, access: *const (MemLocation, u32), count: usize) {
        let state = state()?;
        if count == 0 {
            return invalid();
        }
        for index in 0..count {
            let (location, access) = get(access.add(index))?;
            if location.kind != MemLocation::DEVICE {
                return not_supported("access to device memory from the host");
            }
            check_device(location.id)?;
            state.client.call(&FrameAccess { address, bytes: bytes as u64, access })?;
            let mut frames = lock(&FRAMES);
            let frames = frames.get_or_insert_default();
            let end = address.saturating_add(bytes as u64);
            let inside: Vec<u64> = frames.mapped.keys().copied().filter(|at| (address..end).contains(at)).collect();
            for at in inside {
                frames.access.insert(at, access);
            }
        }
        Ok(())
    }

    fn get_access(out: *mut u64, location: *const MemLocation, address: u64) {
        state()?;
        check_device(get(location)?.id)?;
        let frames = lock(&FRAMES);
        let Some((frames, at)) = frames.as_ref().and_then(|frames| Some((frames, mapping_at(frames, address)?))) else {
            return invalid();
        };
        put(out, frames.access.get(&at).copied().unwrap_or(0).into())
    }

    fn granularity(out: *mut usize, prop: *const MemAllocationProp, _option: u32) {
        let state = state()?;
        check_prop(&get(prop)?)?;
        put(out, state.client.snapshot().frame_bytes as usize)
    }

    fn properties(out: *mut MemAllocationProp, handle: u64) {
        state()?;
        let Some(frame) = lock(&FRAMES).get_or_insert_default().by_handle.get(&handle).copied() else {
            return invalid();
        };
        put(out, MemAllocationProp {
            kind: 1,
            handle_types: frame.handle_types,
            location: MemLocation { kind: MemLocation::DEVICE, id: 0 },
            win32: std::ptr::null(),
            flags: 0,
        })
    }

    fn retain(out: *mut u64, address: u64) {
        state()?;
        let mut frames = lock(&FRAMES);
        let frames = frames.get_or_insert_default();
        let Some(handle) = mapping_at(frames, address).and_then(|at| frames.mapped.get(&at).copied()) else {
            return invalid();
        };
        if let Some(frame) = frames.by_handle.get_mut(&handle) {
            frame.references += 1;
        }
        put(out, handle)
    }

    fn export(out: *mut i32, handle: u64, kind: i32, flags: u64) {
        let state = state()?;
        let frames = lock(&FRAMES);
        let frame = frames.as_ref().and_then(|frames| frames.by_handle.get(&handle));
        let Some(frame) = frame.filter(|frame| frame.handle_types & kind != 0) else {
            return invalid();
        };
        if out.is_null() || kind != FILE_DESCRIPTOR || flags != 0 {
            return invalid();
        }
        let id = state.client.call(&ShareFrame { frame: handle })?.id;
        let token = Token { what: What::Frame, id, slot: 0, offset: 0, bytes: frame.bytes };
        put(out, ipc::into_file(&token)?)
    }

    fn import(out: *mut u64, descriptor: *mut c_void, kind: i32) {
        let state = state()?;
        if out.is_null() || kind != FILE_DESCRIPTOR {
            return invalid();
        }
        let token = ipc::from_file(descriptor as usize as i32, What::Frame)?;
        let opened = state.client.call(&OpenShared { id: token.id })?;
        let frame = Frame { bytes: opened.bytes, references: 1, mappings: 0, handle_types: FILE_DESCRIPTOR };
        lock(&FRAMES).get_or_insert_default().by_handle.insert(opened.frame, frame);
        put(out, opened.frame)
    }
}

fn mapping_at(frames: &Frames, address: u64) -> Option<u64> {
    let holds = |(at, handle): (&u64, &u64)| {
        let frame = frames.by_handle.get(handle)?;
        (address.wrapping_sub(*at) < frame.bytes).then_some(*at)
    };
    frames.mapped.iter().find_map(holds)
}

entries! {
    cuMemAddressReserve = address_reserve;
    cuMemAddressFree = address_free;
    cuMemCreate = create;
    cuMemRelease = release;
    cuMemMap = map;
    cuMemUnmap = unmap;
    cuMemSetAccess = set_access;
    cuMemGetAccess = get_access;
    cuMemGetAllocationGranularity = granularity;
    cuMemGetAllocationPropertiesFromHandle = properties;
    cuMemRetainAllocationHandle = retain;
    cuMemExportToShareableHandle = export;
    cuMemImportFromShareableHandle = import;
}
