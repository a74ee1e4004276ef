//! Memory in stream order, and the pools it comes from.
//!
//! On the software GPU the worker allocates and frees in stream order, and a pool here is the record of what came
//! from it. On a real GPU a pool cuts chunks into blocks itself (`blocks`).

pub(crate) mod blocks;
pub(crate) mod shared;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

use mica_cuda_abi::{CuResult, Handle, MemAllocationProp, MemLocation, PoolAttribute};
use mica_wire::session::{MemoryAlloc, MemoryAllocAsync, MemoryFree, MemoryFreeAsync};

use crate::isolated::capture;
use crate::isolated::check::objects::{self, ObjectKind};
use crate::isolated::context::{Context, check_device};
use crate::isolated::graphs::operations::Op;
use crate::isolated::handles::{Kind, Object};
use crate::isolated::memory::ipc;
use crate::isolated::memory::slabs;
use crate::isolated::memory::vmm::FILE_DESCRIPTOR;
use crate::isolated::memory::{Allocation, AllocationKind};
use crate::isolated::state::{State, state};
use crate::isolated::streams::{Stream, resolve};
use crate::isolated::support::{
    Answer, Code, driver, entries, get, invalid, lock, not_supported, put, stream_entries,
};
use crate::log;
use blocks::PoolMemory;

pub(crate) type Pool = Object<PoolState>;

/// What a pool keeps in any case, until it is told to trim.
const KEPT: u64 = 64 << 20;

#[derive(Default)]
pub(crate) struct PoolState {
    is_default: bool,
    /// `CU_MEM_HANDLE_TYPE_*` that it can be exported as.
    pub(crate) handle_types: i32,
    /// Whether it is another program's: pointers come from there alone.
    pub(crate) is_imported: bool,
    /// Reuse policies and release threshold, as the program has set them.
    attributes: [AtomicU64; 5],
    high: AtomicU64,
    reserved_high: AtomicU64,
    /// Its memory in each life of a context, where chunks are cut here.
    pub(crate) memory: Mutex<HashMap<u64, PoolMemory>>,
}

impl Kind for PoolState {
    const MAGIC: u64 = 0x4d49_4341_504f_4f31;
}

/// All pools that were ever made: memory may outlive its pool.
static ALL: Mutex<Vec<&'static Pool>> = Mutex::new(Vec::new());
/// Whether there ever was a block to give back, so that waits need not look otherwise.
static ANY_BLOCK: AtomicBool = AtomicBool::new(false);

static DEFAULT: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());
static CURRENT: AtomicPtr<Pool> = AtomicPtr::new(std::ptr::null_mut());

/// A pool of another program.
pub(crate) fn imported_pool() -> &'static Pool {
    new_pool(PoolState {
        is_imported: true,
        ..PoolState::default()
    })
}

fn new_pool(state: PoolState) -> &'static Pool {
    let pool = Object::leak(state);
    for policy in [
        PoolAttribute::ReuseFollowEventDependencies,
        PoolAttribute::ReuseAllowOpportunistic,
        PoolAttribute::ReuseAllowInternalDependencies,
    ] {
        pool.attributes[policy as usize].store(1, Relaxed);
    }
    lock(&ALL).push(pool);
    pool
}

impl Pool {
    /// Takes a block for a stream, with a new chunk where no free block fits.
    fn take_block(
        &self,
        state: &State,
        context: &'static Context,
        stream: &Stream,
        bytes: u64,
    ) -> Answer<u64> {
        let full = || Code(CuResult::OutOfMemory as u32);
        let block = blocks::block_bytes(bytes).ok_or_else(full)?;
        let epoch = context.epoch();
        let take = || {
            let mut memory = lock(&self.memory);
            let memory = memory.entry(epoch).or_default();
            let taken = memory.take(block, stream.wire());
            self.high.fetch_max(memory.used(), Relaxed);
            taken
        };
        if let Some(address) = take() {
            return Ok(address);
        }
        let roomy = blocks::chunk_bytes(block).ok_or_else(full)?;
        let least = blocks::least_chunk_bytes(block).ok_or_else(full)?;
        let mut chunk = self.add_chunk(state, context, roomy);
        if chunk.is_err() && least < roomy {
            chunk = self.add_chunk(state, context, least);
        }
        if chunk.is_err() {
            // Blocks of other streams may be free when all work is done, and whole chunks may go back.
            context.synchronize(state)?;
            let all = lock(&ALL).clone();
            all.iter().for_each(|pool| pool.trim(state, 0));
            if let Some(address) = take() {
                return Ok(address);
            }
            chunk = self.add_chunk(state, context, least);
        }
        chunk?;
        take().ok_or_else(full)
    }

    fn add_chunk(&self, state: &State, context: &'static Context, bytes: u64) -> Answer {
        let request = MemoryAlloc {
            context: context.wire(),
            bytes,
        };
        let address = context.checked(state.client.call(&request))?.value;
        let mut memory = lock(&self.memory);
        let memory = memory.entry(context.epoch()).or_default();
        memory.add_chunk(address, bytes);
        self.reserved_high.fetch_max(memory.reserved(), Relaxed);
        Ok(())
    }

    /// Bytes in use and reserved, in all contexts.
    fn bytes(&self) -> (u64, u64) {
        let memory = lock(&self.memory);
        let used = memory.values().map(PoolMemory::used).sum();
        (used, memory.values().map(PoolMemory::reserved).sum())
    }

    /// What it keeps when a stream was waited for: freeing a chunk waits for the whole context.
    fn threshold(&self) -> u64 {
        self.attributes[PoolAttribute::ReleaseThreshold as usize]
            .load(Relaxed)
            .max(KEPT)
    }

    /// Gives chunks back that nobody uses while more than `keep` bytes are reserved.
    fn trim(&self, state: &State, keep: u64) {
        let gone: Vec<(u64, u64)> = {
            let mut memory = lock(&self.memory);
            let trimmed = memory.iter_mut();
            let trimmed = trimmed.flat_map(|(epoch, memory)| {
                let gone = memory.trim(keep);
                gone.into_iter().map(|address| (*epoch, address))
            });
            trimmed.collect()
        };
        for (epoch, address) in gone {
            let Some(context) = Context::of_epoch(epoch) else {
                continue;
            };
            let request = MemoryFree {
                context: context.wire(),
                address,
            };
            if let Err(error) = state.client.call(&request) {
                log::line(&format!("a pool's memory was not given back: {error}"));
            }
        }
    }
}

/// The pool that an allocation came from, also if it was destroyed.
pub(crate) fn pool_of_block(handle: u64) -> Option<&'static Pool> {
    let all = lock(&ALL);
    all.iter()
        .find(|pool| pool.handle() as u64 == handle)
        .copied()
}

/// Gives a block back that no work uses any more.
pub(crate) fn give_idle_block(state: &State, found: &Allocation) {
    let (Some(pool), Some(block)) = (pool_of_block(found.pool), blocks::block_bytes(found.bytes))
    else {
        return;
    };
    if let Some(memory) = lock(&pool.memory).get_mut(&found.epoch) {
        memory.give_idle(found.device, block);
    }
    pool.trim(state, pool.threshold());
}

/// How far the frees of a stream have come in each pool: see [`stream_waited`].
pub(crate) type Frees = Vec<(&'static Pool, u64)>;

/// To be called before a stream is waited for.
pub(crate) fn before_wait(stream: &Stream, epoch: u64) -> Frees {
    if !ANY_BLOCK.load(Acquire) {
        return Vec::new();
    }
    let frees = |pool: &&'static Pool| {
        let memory = lock(&pool.memory);
        let frees = memory.get(&epoch)?.frees_of(stream.wire());
        (frees > 0).then_some((*pool, frees))
    };
    lock(&ALL).iter().filter_map(frees).collect()
}

/// A stream was waited for: what it freed before is everybody's, and what pools do not keep goes back.
pub(crate) fn after_wait(state: &State, stream: &Stream, epoch: u64, frees: Frees) {
    for (pool, frees) in frees {
        if let Some(memory) = lock(&pool.memory).get_mut(&epoch) {
            memory.passed(stream.wire(), frees);
        }
        pool.trim(state, pool.threshold());
    }
}

/// A context was waited for. What was freed meanwhile may be in use, so only streams that freed nothing since are
/// looked at: the caller passes what [`before_context_wait`] gave.
pub(crate) fn after_context_wait(state: &State, epoch: u64, passed: ContextFrees) {
    for (pool, streams) in passed {
        if let Some(memory) = lock(&pool.memory).get_mut(&epoch) {
            for (stream, frees) in streams {
                memory.passed(stream, frees);
            }
        }
        pool.trim(state, pool.threshold());
    }
}

/// How far the frees of all streams of a context have come.
pub(crate) type ContextFrees = Vec<(&'static Pool, Vec<(u64, u64)>)>;

/// To be called before a context is waited for.
pub(crate) fn before_context_wait(epoch: u64) -> ContextFrees {
    if !ANY_BLOCK.load(Acquire) {
        return Vec::new();
    }
    let frees = |pool: &&'static Pool| {
        let frees = lock(&pool.memory).get(&epoch)?.all_frees();
        (!frees.is_empty()).then_some((*pool, frees))
    };
    lock(&ALL).iter().filter_map(frees).collect()
}

/// Forgets what was in a life of a context that is over: the worker has freed it.
pub(crate) fn forget_epoch(epoch: u64) {
    for pool in lock(&ALL).iter() {
        lock(&pool.memory).remove(&epoch);
    }
}

fn default_pool() -> &'static Pool {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let state = PoolState {
            is_default: true,
            ..PoolState::default()
        };
        let pool = std::ptr::from_ref(new_pool(state)).cast_mut();
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

pub(crate) unsafe fn pool_of(handle: Handle) -> Answer<&'static Pool> {
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
        if out.is_null() || bytes == 0 || pool.is_imported {
            return invalid();
        }
        let bytes = bytes as u64;
        if stream.capturing.load(Acquire) {
            let address = capture::graph_of(stream)?.memory(state, context, bytes)?;
            capture::record(stream, Op::MemAlloc(address, bytes))?;
            return put(out, address);
        }
        capture::forbid_legacy(stream)?;
        let address = match state.client.snapshot().has_driver {
            true => pool.take_block(state, context, stream, bytes)?,
            false => {
                let request = MemoryAllocAsync {
                    stream: stream.wire(),
                    bytes,
                };
                context.checked(state.client.call(&request))?.value
            }
        };
        let mut made = Allocation::new(
            AllocationKind::Pool,
            address,
            bytes,
            context,
            state.number(),
        );
        made.pool = pool.handle() as u64;
        state.memory.insert(made);
        if !state.client.snapshot().has_driver {
            pool.high
                .fetch_max(state.memory.pool_bytes(pool.handle() as u64), Relaxed);
        }
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
        if let Some(freed) = ipc::free_pool_pointer(state, address) {
            return freed;
        }
        let kinds = [AllocationKind::Pool, AllocationKind::Device, AllocationKind::Graph];
        let Some(found) = state.memory.take(address, &kinds) else {
            return invalid();
        };
        if found.kind != AllocationKind::Pool {
            if slabs::is_piece(&found) {
                return slabs::free(state, &found);
            }
            // Memory that did not come in stream order: the device is done with it first.
            stream.synchronize(state)?;
            if found.kind == AllocationKind::Graph {
                return crate::isolated::graphs::memory::free(state, &found);
            }
            let request = MemoryFree { context: found.context.wire(), address };
            return context.checked(state.client.call(&request)).map(drop);
        }
        if state.client.snapshot().has_driver {
            let (Some(pool), Some(block)) = (pool_of_block(found.pool), blocks::block_bytes(found.bytes)) else {
                return invalid();
            };
            ANY_BLOCK.store(true, Release);
            if let Some(memory) = lock(&pool.memory).get_mut(&found.epoch) {
                memory.give(address, block, stream.wire());
            }
            return context.check(state);
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
        if props.handle_types & !FILE_DESCRIPTOR != 0 || props.location.kind != MemLocation::DEVICE {
            return not_supported("a memory pool that is shared by anything but file descriptors, or not on the device");
        }
        check_device(props.location.id)?;
        let pool = new_pool(PoolState { handle_types: props.handle_types, ..PoolState::default() }).handle();
        objects::made(ObjectKind::Pool, pool as u64, 0, 0);
        put(out, pool)
    }

    fn pool_destroy(pool: Handle) {
        let pool = pool_of(pool)?;
        if pool.is_default {
            return invalid();
        }
        let _ = CURRENT.compare_exchange(std::ptr::from_ref(pool).cast_mut(), DEFAULT.load(Acquire), Release, Relaxed);
        pool.retire();
        objects::gone(ObjectKind::Pool, pool.handle() as u64);
        pool.trim(state()?, 0);
        Ok(())
    }

    fn pool_trim(pool: Handle, keep: usize) {
        let pool = pool_of(pool)?;
        pool.trim(state()?, keep as u64);
        Ok(())
    }

    fn pool_get_attribute(pool: Handle, attribute: u32, out: *mut c_void) {
        use PoolAttribute::*;
        let state = state()?;
        let pool = pool_of(pool)?;
        let Some(attribute) = PoolAttribute::from_number(attribute) else {
            return invalid();
        };
        let used = match state.client.snapshot().has_driver {
            true => pool.bytes().0,
            false => state.memory.pool_bytes(pool.handle() as u64),
        };
        let reserved = match state.client.snapshot().has_driver {
            true => pool.bytes().1,
            false => used,
        };
        let set = || pool.attributes[attribute as usize].load(Relaxed);
        match attribute {
            ReuseFollowEventDependencies | ReuseAllowOpportunistic | ReuseAllowInternalDependencies => {
                put(out.cast::<i32>(), set() as i32)
            }
            ReleaseThreshold => put(out.cast::<u64>(), set()),
            ReservedMemCurrent => put(out.cast::<u64>(), reserved),
            ReservedMemHigh => put(out.cast::<u64>(), pool.reserved_high.load(Relaxed).max(pool.high.load(Relaxed)).max(reserved)),
            UsedMemCurrent => put(out.cast::<u64>(), used),
            UsedMemHigh => put(out.cast::<u64>(), pool.high.load(Relaxed).max(used)),
            _ => invalid(),
        }
    }

    fn pool_set_attribute(pool: Handle, attribute: u32, value: *const c_void) {
        use PoolAttribute::*;
        let pool = pool_of(pool)?;
        let Some(attribute) = PoolAttribute::from_number(attribute) else {
            return invalid();
        };
        let set = |value| pool.attributes[attribute as usize].store(value, Relaxed);
        match attribute {
            ReuseFollowEventDependencies | ReuseAllowOpportunistic | ReuseAllowInternalDependencies => {
                set(get(value.cast::<u32>())?.into());
            }
            ReleaseThreshold => set(get(value.cast::<u64>())?),
            ReservedMemHigh if get(value.cast::<u64>())? == 0 => {
                pool.reserved_high.store(pool.bytes().1, Relaxed);
            }
            UsedMemHigh if get(value.cast::<u64>())? == 0 => pool.high.store(pool.bytes().0, Relaxed),
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
}

stream_entries! {
    cuMemAllocAsync, cuMemAllocAsync_ptsz = alloc_async;
    cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz = alloc_from_pool_async;
    cuMemFreeAsync, cuMemFreeAsync_ptsz = free_async;
}
