//! Memory in stream order, and the pools it comes from.
//!
//! The worker allocates and frees in stream order; a pool here is the record of what came from it.

use std::ffi::c_void;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use mica_cuda_abi::{CuResult, Handle, MemAllocationProp, MemLocation, PoolAttribute};
use mica_wire::session::{MemoryAllocAsync, MemoryFreeAsync};

use super::capture;
use super::context::check_device;
use super::graph_ops::Op;
use super::handles::{Kind, Object};
use super::memory::{Allocation, AllocationKind};
use super::state::state;
use super::streams::resolve;
use super::support::{
    Answer, Code, driver, entries, get, invalid, not_supported, put, stream_entries,
};

type Pool = Object<PoolState>;

#[derive(Default)]
struct PoolState {
    is_default: bool,
    /// Reuse policies and release threshold, as the program has set them.
    attributes: [AtomicU64; 5],
    high: AtomicU64,
}

impl Kind for PoolState {
    const MAGIC: u64 = 0x4d49_4341_504f_4f31;
}

static DEFAULT: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
static CURRENT: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

fn new_pool(is_default: bool) -> &'static Pool {
    let pool = Object::leak(PoolState {
        is_default,
        ..PoolState::default()
    });
    for policy in [
        PoolAttribute::ReuseFollowEventDependencies,
        PoolAttribute::ReuseAllowOpportunistic,
        PoolAttribute::ReuseAllowInternalDependencies,
    ] {
        pool.attributes[policy as usize].store(1, Relaxed);
    }
    pool
}

fn default_pool() -> &'static Pool {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let pool = std::ptr::from_ref(new_pool(true)).cast_mut();
        DEFAULT.store(pool, Release);
        CURRENT.store(pool, Release);
    });
    // SAFETY: set above from a reference that lives for ever.
    unsafe { &*DEFAULT.load(Acquire) }
}

fn current_pool() -> &'static Pool {
    let default = default_pool();
    // SAFETY: null or set from a reference that lives for ever.
    unsafe { CURRENT.load(Acquire).as_ref() }.unwrap_or(default)
}

unsafe fn pool_of(handle: Handle) -> Answer<&'static Pool> {
    default_pool();
    // SAFETY: the program's handle.
    unsafe { Pool::find(handle) }.ok_or(Code(CuResult::InvalidValue as u32))
}

unsafe fn allocate<const PT: bool>(
    out: *mut u64,
    bytes: usize,
    pool: &'static Pool,
    stream: Handle,
) -> Answer {
    // SAFETY: the program's handle and pointer.
    unsafe {
        let (state, context, stream) = resolve::<PT>(stream)?;
        if out.is_null() || bytes == 0 {
            return invalid();
        }
        let bytes = bytes as u64;
        if stream.capturing.load(Acquire) {
            let address = capture::graph_of(stream)?.memory(state, context, bytes)?;
            capture::record(stream, Op::MemAlloc(address, bytes))?;
            return put(out, address);
        }
        capture::forbid_legacy(stream)?;
        let request = MemoryAllocAsync {
            stream: stream.wire(),
            bytes,
        };
        let address = context.checked(state.client.call(&request))?.value;
        let mut made = Allocation::new(
            AllocationKind::Pool,
            address,
            bytes,
            context,
            state.number(),
        );
        made.pool = pool.handle() as u64;
        state.memory.insert(made);
        pool.high
            .fetch_max(state.memory.pool_bytes(pool.handle() as u64), Relaxed);
        put(out, address)
    }
}

unsafe fn pool_for(location: *const MemLocation) -> Answer {
    // SAFETY: the program's pointer.
    let location = unsafe { get(location)? };
    if location.kind != MemLocation::DEVICE {
        return not_supported("a memory pool that is not on the device");
    }
    check_device(location.id).map(drop)
}

driver! {
    fn alloc_async<const PT>(out: *mut u64, bytes: usize, stream: Handle) {
        allocate::<PT>(out, bytes, current_pool(), stream)
    }

    fn alloc_from_pool_async<const PT>(out: *mut u64, bytes: usize, pool: Handle, stream: Handle) {
        allocate::<PT>(out, bytes, pool_of(pool)?, stream)
    }

    fn free_async<const PT>(address: u64, stream: Handle) {
        let (state, context, stream) = resolve::<PT>(stream)?;
        if address == 0 {
            return Ok(());
        }
        if stream.capturing.load(Acquire) {
            return match state.memory.find_device(address) {
                Some(found) if found.kind == AllocationKind::Graph && found.device == address => {
                    capture::record(stream, Op::MemFree(address))
                }
                _ => invalid(),
            };
        }
        capture::forbid_legacy(stream)?;
        let kinds = [AllocationKind::Pool, AllocationKind::Device, AllocationKind::Graph];
        let Some(found) = state.memory.take(address, &kinds) else {
            return invalid();
        };
        if found.kind != AllocationKind::Pool {
            // Memory that did not come in stream order: the device is done with it first.
            stream.synchronize(state)?;
            let request = mica_wire::session::MemoryFree { context: found.context.wire(), address };
            return context.checked(state.client.call(&request)).map(drop);
        }
        let request = MemoryFreeAsync { stream: stream.wire(), address };
        context.checked(state.client.post(&request, &[]))
    }

    fn device_default_pool(out: *mut Handle, device: i32) {
        check_device(device)?;
        put(out, default_pool().handle())
    }

    fn device_pool(out: *mut Handle, device: i32) {
        check_device(device)?;
        put(out, current_pool().handle())
    }

    fn device_set_pool(device: i32, pool: Handle) {
        check_device(device)?;
        let pool = pool_of(pool)?;
        CURRENT.store(std::ptr::from_ref(pool).cast_mut(), Release);
        Ok(())
    }

    fn location_default_pool(out: *mut Handle, location: *const MemLocation, _kind: u32) {
        pool_for(location)?;
        put(out, default_pool().handle())
    }

    fn location_pool(out: *mut Handle, location: *const MemLocation, _kind: u32) {
        pool_for(location)?;
        put(out, current_pool().handle())
    }

    fn location_set_pool(location: *const MemLocation, _kind: u32, pool: Handle) {
        pool_for(location)?;
        let pool = pool_of(pool)?;
        CURRENT.store(std::ptr::from_ref(pool).cast_mut(), Release);
        Ok(())
    }

    fn pool_create(out: *mut Handle, props: *const MemAllocationProp) {
        state()?;
        let props = get(props)?;
        if props.kind != 1 {
            return invalid();
        }
        if props.handle_types != 0 || props.location.kind != MemLocation::DEVICE {
            return not_supported("a memory pool to be shared, or not on the device");
        }
        check_device(props.location.id)?;
        put(out, new_pool(false).handle())
    }

    fn pool_destroy(pool: Handle) {
        let pool = pool_of(pool)?;
        if pool.is_default {
            return invalid();
        }
        let _ = CURRENT.compare_exchange(std::ptr::from_ref(pool).cast_mut(), DEFAULT.load(Acquire), Release, Relaxed);
        pool.retire();
        Ok(())
    }

    fn pool_trim(pool: Handle, _keep: usize) {
        // What was freed has gone back already.
        pool_of(pool).map(drop)
    }

    fn pool_get_attribute(pool: Handle, attribute: u32, out: *mut c_void) {
        let state = state()?;
        let pool = pool_of(pool)?;
        let used = || state.memory.pool_bytes(pool.handle() as u64);
        use PoolAttribute::*;
        let Some(attribute) = PoolAttribute::from_number(attribute) else {
            return invalid();
        };
        let set = || pool.attributes[attribute as usize].load(Relaxed);
        match attribute {
            ReuseFollowEventDependencies | ReuseAllowOpportunistic | ReuseAllowInternalDependencies => {
                put(out.cast::<i32>(), set() as i32)
            }
            ReleaseThreshold => put(out.cast::<u64>(), set()),
            ReservedMemCurrent | UsedMemCurrent => put(out.cast::<u64>(), used()),
            ReservedMemHigh | UsedMemHigh => put(out.cast::<u64>(), pool.high.load(Relaxed).max(used())),
            _ => invalid(),
        }
    }

    fn pool_set_attribute(pool: Handle, attribute: u32, value: *const c_void) {
        let pool = pool_of(pool)?;
        use PoolAttribute::*;
        let Some(attribute) = PoolAttribute::from_number(attribute) else {
            return invalid();
        };
        let set = |value| pool.attributes[attribute as usize].store(value, Relaxed);
        match attribute {
            ReuseFollowEventDependencies | ReuseAllowOpportunistic | ReuseAllowInternalDependencies => {
                set(get(value.cast::<u32>())?.into());
            }
            ReleaseThreshold => set(get(value.cast::<u64>())?),
            ReservedMemHigh | UsedMemHigh if get(value.cast::<u64>())? == 0 => pool.high.store(0, Relaxed),
            _ => return invalid(),
        }
        Ok(())
    }

    fn pool_get_access(out: *mut u32, pool: Handle, location: *const MemLocation) {
        pool_of(pool)?;
        pool_for(location)?;
        put(out, 3)
    }

    fn pool_set_access(pool: Handle, access: *const c_void, count: usize) {
        pool_of(pool)?;
        for index in 0..count {
            let location = get(access.cast::<(MemLocation, u32)>().add(index))?.0;
            if location.kind == MemLocation::DEVICE && location.id != 0 {
                return Err(CuResult::InvalidDevice.into());
            }
        }
        Ok(())
    }

    fn pool_share() {
        not_supported("sharing a memory pool between processes")
    }
}

entries! {
    cuDeviceGetDefaultMemPool = device_default_pool;
    cuDeviceGetMemPool = device_pool;
    cuDeviceSetMemPool = device_set_pool;
    cuMemGetDefaultMemPool = location_default_pool;
    cuMemGetMemPool = location_pool;
    cuMemSetMemPool = location_set_pool;
    cuMemPoolCreate = pool_create;
    cuMemPoolDestroy = pool_destroy;
    cuMemPoolTrimTo = pool_trim;
    cuMemPoolGetAttribute = pool_get_attribute;
    cuMemPoolSetAttribute = pool_set_attribute;
    cuMemPoolGetAccess = pool_get_access;
    cuMemPoolSetAccess = pool_set_access;
    cuMemPoolExportPointer = pool_share;
    cuMemPoolExportToShareableHandle = pool_share;
    cuMemPoolImportFromShareableHandle = pool_share;
    cuMemPoolImportPointer = pool_share;
}

stream_entries! {
    cuMemAllocAsync, cuMemAllocAsync_ptsz = alloc_async;
    cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz = alloc_from_pool_async;
    cuMemFreeAsync, cuMemFreeAsync_ptsz = free_async;
}
