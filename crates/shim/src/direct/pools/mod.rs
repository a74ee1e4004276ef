//! Stream-ordered memory: the calls, and which pool each of them means.
//!
//! What a pool is charged lives in [`pool`].

mod pool;

use std::collections::HashMap;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{PoisonError, RwLock};

use mica_cuda_abi::{
    CuStatus, Device, DevicePtr, Handle, MemAllocationProp, MemLocation, Symbol, function,
};

pub(crate) use pool::Pool;

use super::context::single_device;
use super::driver::real;
use super::state::{Direct, making, state};
use super::{capture, streams};

/// All pools that were used.
#[derive(Default)]
pub(crate) struct Pools {
    known: RwLock<HashMap<usize, &'static Pool>>,
    defaults: RwLock<HashMap<Device, &'static Pool>>,
    /// The pool named last, and the only device's default one: found without a lock. Both are
    /// cleared whenever a pool goes or a default changes.
    last: AtomicPtr<Pool>,
    only_default: AtomicPtr<Pool>,
}

/// `cuMemAllocAsync`.
pub(crate) unsafe fn alloc_async(
    symbol: Symbol,
    real: function::cuMemAllocAsync,
    out: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, bytes, stream) };
    let Some(direct) = making(out) else {
        return call();
    };
    if capture::is_capturing(symbol, stream) {
        return captured(direct, bytes, call);
    }
    let own = streams::own_handle(symbol, stream);
    match direct.pools.of_current_device() {
        Some(pool) => pool.alloc(direct, bytes as u64, out, own, call),
        // Without a pool the driver refuses too; let it say how.
        None => call(),
    }
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) unsafe fn alloc_from_pool(
    symbol: Symbol,
    real: function::cuMemAllocFromPoolAsync,
    out: *mut DevicePtr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, bytes, pool, stream) };
    let Some(direct) = making(out).filter(|_| !pool.is_null()) else {
        return call();
    };
    if capture::is_capturing(symbol, stream) {
        return captured(direct, bytes, call);
    }
    let own = streams::own_handle(symbol, stream);
    let handle = pool as usize;
    let known = direct.pools.find(handle);
    let pool = known.unwrap_or_else(|| direct.pools.add(handle, true));
    let status = pool.alloc(direct, bytes as u64, out, own, call);
    if known.is_none() && status != 0 {
        // Perhaps no pool at all, or one that has ended: the driver must not be asked about it later.
        direct.pools.take(handle);
    }
    status
}

/// An allocation that becomes a node of a graph.
fn captured(direct: &Direct, bytes: usize, call: impl FnOnce() -> CuStatus) -> CuStatus {
    let status = call();
    if status == 0 {
        direct.graphs.capturing(bytes as u64);
    }
    status
}

/// `cuMemPoolCreate`.
pub(crate) unsafe fn create(
    _: Symbol,
    real: function::cuMemPoolCreate,
    out: *mut Handle,
    props: *const MemAllocationProp,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, props) };
    // SAFETY: null, or what the driver has just read.
    let props = unsafe { props.as_ref() };
    if let (Some(direct), Some(props), 0) = (making(out), props, status) {
        // SAFETY: the driver has just written `out`.
        let handle = unsafe { out.read() } as usize;
        // Managed memory may come to lie on the device wherever it begins.
        let on_device = !props.location.on_host() || props.kind == MemAllocationProp::MANAGED;
        direct
            .pools
            .add(handle, on_device)
            .holds_at_most(props.flags);
    }
    status
}

/// `cuMemPoolDestroy`.
pub(crate) unsafe fn destroy(
    _: Symbol,
    real: function::cuMemPoolDestroy,
    pool: Handle,
) -> CuStatus {
    // SAFETY: the program's argument.
    let call = || unsafe { real(pool) };
    let Some(direct) = state() else {
        return call();
    };
    // Out of the records first: the driver may give its number to the next pool at once.
    let known = direct.pools.take(pool as usize);
    let status = call();
    match (known, status) {
        (Some(pool), 0) => pool.end(direct),
        (Some(pool), _) => direct.pools.put_back(pool),
        (None, _) => {}
    }
    status
}

/// `cuMemPoolTrimTo`.
pub(crate) unsafe fn trim(
    _: Symbol,
    real: function::cuMemPoolTrimTo,
    pool: Handle,
    keep: usize,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(pool, keep) };
    // Only a pool that the driver knows becomes one of the records.
    if let (Some(direct), 0) = (state(), status) {
        direct.pools.get(pool as usize).reconcile(direct);
    }
    status
}

/// `cuDeviceSetMemPool`.
pub(crate) unsafe fn set_default(
    _: Symbol,
    real: function::cuDeviceSetMemPool,
    device: Device,
    pool: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(device, pool) };
    if let Some(direct) = state() {
        direct.pools.forget_defaults();
    }
    status
}

/// `cuMemSetMemPool`.
pub(crate) unsafe fn set_default_at(
    _: Symbol,
    real: function::cuMemSetMemPool,
    location: *const MemLocation,
    kind: u32,
    pool: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(location, kind, pool) };
    if let Some(direct) = state() {
        direct.pools.forget_defaults();
    }
    status
}

impl Pools {
    fn find(&self, handle: usize) -> Option<&'static Pool> {
        // SAFETY: null, or a pool, which is never freed.
        if let Some(last) = unsafe { self.last.load(Acquire).as_ref() }
            && last.handle == handle
        {
            return Some(last);
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let pool = *known.get(&handle)?;
        self.last
            .store(std::ptr::from_ref(pool).cast_mut(), Release);
        Some(pool)
    }

    fn get(&self, handle: usize) -> &'static Pool {
        self.find(handle).unwrap_or_else(|| self.add(handle, true))
    }

    fn add(&self, handle: usize, on_device: bool) -> &'static Pool {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Never freed: memory in the records may still point to a pool that has ended.
        let fresh = || &*Box::leak(Box::new(Pool::new(handle, on_device)));
        known.entry(handle).or_insert_with(fresh)
    }

    /// Forgets a pool.
    fn take(&self, handle: usize) -> Option<&'static Pool> {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let gone = known.remove(&handle);
        self.last.store(std::ptr::null_mut(), Release);
        drop(known);
        self.forget_defaults();
        gone
    }

    /// A pool that [`Pools::take`] forgot is there still.
    fn put_back(&self, pool: &'static Pool) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(pool.handle, pool);
    }

    fn forget_defaults(&self) {
        let mut defaults = self
            .defaults
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        defaults.clear();
        self.only_default.store(std::ptr::null_mut(), Release);
    }

    /// The pool `cuMemAllocAsync` takes from.
    fn of_current_device(&self) -> Option<&'static Pool> {
        // SAFETY: null, or a pool, which is never freed.
        if let Some(only) = unsafe { self.only_default.load(Acquire).as_ref() } {
            return Some(only);
        }
        let device = super::context::current_device()?;
        let defaults = self.defaults.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = defaults.get(&device) {
            return Some(pool);
        }
        drop(defaults);
        let mut defaults = self
            .defaults
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // Asked under the lock: a default that changes meanwhile is not overwritten by the old one.
        let get = real!(cuDeviceGetMemPool);
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: writes one handle.
        if unsafe { get(&mut handle, device) } != 0 {
            return None;
        }
        let pool = self.get(handle as usize);
        defaults.insert(device, pool);
        if single_device() {
            self.only_default
                .store(std::ptr::from_ref(pool).cast_mut(), Release);
        }
        Some(pool)
    }

    /// Compares every pool with the driver and gives back what they no longer hold.
    pub(crate) fn reconcile(&self, direct: &Direct) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let pools: Vec<_> = known.values().copied().collect();
        drop(known);
        for pool in pools {
            pool.try_reconcile(direct);
        }
    }
}
