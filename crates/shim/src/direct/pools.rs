//! Stream-ordered memory: pools are charged by the bytes they reserve.
//!
//! A pool keeps what is freed, so most allocations take nothing from the device. Whether one did is
//! known without asking the driver when the address it returned lay in the pool's cache; else the
//! pool's reserved size is read. Growth is charged before it can happen: the driver grows pools in
//! steps of 32 MiB, or by the allocation if that is larger.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use mica_cuda_abi::{
    CuResult, CuStatus, Device, DevicePtr, Handle, MemAllocationProp, MemLocation, Symbol,
};

use super::capture;
use super::driver::real;
use super::ledger::Entry;
use super::state::{Direct, footprint, state};

/// How much a pool grows at once.
const GROWTH: u64 = 32 << 20;
/// What pool allocations are rounded to.
const UNIT: u64 = 512;
const ATTR_RESERVED_CURRENT: u32 = 5;
const OUT_OF_MEMORY: CuStatus = CuResult::OutOfMemory as CuStatus;

/// Grows with each synchronization: a pool may have given memory back to the device then.
pub(crate) static EPOCH: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Books {
    /// Reserved bytes, all charged.
    charged: u64,
    /// Bytes of live allocations.
    live: u64,
    /// The [`EPOCH`] at which `charged` was last compared with the driver.
    epoch: u64,
    /// How often the pool was seen to shrink: cached addresses of before are void.
    shrinks: u64,
}

/// One pool.
pub(crate) struct Pool {
    handle: usize,
    /// Its memory lies on a device.
    on_device: bool,
    books: Mutex<Books>,
}

/// All pools that were used.
#[derive(Default)]
pub(crate) struct Pools {
    known: RwLock<HashMap<usize, Arc<Pool>>>,
    defaults: RwLock<HashMap<Device, usize>>,
}

/// `cuMemAllocAsync`.
pub(crate) unsafe fn alloc_async(
    symbol: Symbol,
    real: unsafe extern "C" fn(*mut DevicePtr, usize, Handle) -> CuStatus,
    out: *mut DevicePtr,
    bytes: usize,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, bytes, stream) };
    let Some(direct) = state() else {
        return call();
    };
    if capture::is_capturing(symbol, stream) {
        direct.graphs.expect(bytes as u64);
        return call();
    }
    match direct.pools.of_current_device() {
        Some(pool) => pool.alloc(direct, bytes as u64, out, stream, call),
        // Without a pool the driver refuses too; let it say how.
        None => call(),
    }
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) unsafe fn alloc_from_pool(
    symbol: Symbol,
    real: unsafe extern "C" fn(*mut DevicePtr, usize, Handle, Handle) -> CuStatus,
    out: *mut DevicePtr,
    bytes: usize,
    pool: Handle,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let call = || unsafe { real(out, bytes, pool, stream) };
    let Some(direct) = state() else {
        return call();
    };
    if capture::is_capturing(symbol, stream) {
        direct.graphs.expect(bytes as u64);
        return call();
    }
    let pool = direct.pools.get(pool as usize);
    pool.alloc(direct, bytes as u64, out, stream, call)
}

/// `cuMemPoolCreate`.
pub(crate) unsafe fn create(
    _: Symbol,
    real: unsafe extern "C" fn(*mut Handle, *const MemAllocationProp) -> CuStatus,
    out: *mut Handle,
    props: *const MemAllocationProp,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, props) };
    if let (Some(direct), 0) = (state(), status) {
        // SAFETY: the driver has just read `props` and written `out`.
        let (handle, location) = unsafe { (out.read() as usize, (*props).location) };
        direct
            .pools
            .add(handle, location.kind == MemLocation::DEVICE);
    }
    status
}

/// `cuMemPoolDestroy`.
pub(crate) unsafe fn destroy(
    _: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    pool: Handle,
) -> CuStatus {
    // SAFETY: the program's argument.
    let status = unsafe { real(pool) };
    if let (Some(direct), 0) = (state(), status) {
        direct.pools.forget(direct, pool as usize);
    }
    status
}

/// `cuMemPoolTrimTo`.
pub(crate) unsafe fn trim(
    _: Symbol,
    real: unsafe extern "C" fn(Handle, usize) -> CuStatus,
    pool: Handle,
    keep: usize,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(pool, keep) };
    if let Some(direct) = state() {
        direct.pools.get(pool as usize).reconcile(direct);
    }
    status
}

/// `cuDeviceSetMemPool`.
pub(crate) unsafe fn set_default(
    _: Symbol,
    real: unsafe extern "C" fn(Device, Handle) -> CuStatus,
    device: Device,
    pool: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(device, pool) };
    if let Some(direct) = state() {
        let mut defaults = direct
            .pools
            .defaults
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        defaults.remove(&device);
    }
    status
}

/// `cuMemSetMemPool`.
pub(crate) unsafe fn set_default_at(
    _: Symbol,
    real: unsafe extern "C" fn(*const MemLocation, u32, Handle) -> CuStatus,
    location: *const MemLocation,
    kind: u32,
    pool: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(location, kind, pool) };
    if let Some(direct) = state() {
        let defaults = direct.pools.defaults.write();
        defaults.unwrap_or_else(PoisonError::into_inner).clear();
    }
    status
}

impl Pools {
    fn get(&self, handle: usize) -> Arc<Pool> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        match known.get(&handle) {
            Some(pool) => pool.clone(),
            None => {
                drop(known);
                self.add(handle, true)
            }
        }
    }

    fn add(&self, handle: usize, on_device: bool) -> Arc<Pool> {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let pool = known.entry(handle).or_insert_with(|| {
            Arc::new(Pool {
                handle,
                on_device,
                books: Mutex::default(),
            })
        });
        pool.clone()
    }

    fn forget(&self, direct: &Direct, handle: usize) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let gone = known.remove(&handle);
        drop(known);
        if let Some(pool) = gone {
            direct.linear.remove_all(|entry| entry.pool == handle);
            direct.release(std::mem::take(&mut pool.books().charged));
        }
    }

    /// The pool `cuMemAllocAsync` takes from.
    fn of_current_device(&self) -> Option<Arc<Pool>> {
        let device = super::context::current_device()?;
        let defaults = self.defaults.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = defaults.get(&device) {
            return Some(self.get(*handle));
        }
        drop(defaults);
        let get =
            real!(cuDeviceGetMemPool as unsafe extern "C" fn(*mut Handle, Device) -> CuStatus);
        let mut pool: Handle = std::ptr::null_mut();
        // SAFETY: writes one handle.
        if unsafe { get(&mut pool, device) } != 0 {
            return None;
        }
        let mut defaults = self
            .defaults
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        defaults.insert(device, pool as usize);
        Some(self.get(pool as usize))
    }

    /// Compares every pool with the driver and gives back what they no longer hold.
    pub(crate) fn reconcile(&self, direct: &Direct) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let pools: Vec<_> = known.values().cloned().collect();
        drop(known);
        for pool in pools {
            // One that is allocating right now is about to be compared anyway.
            if let Ok(mut books) = pool.books.try_lock() {
                pool.compare(direct, &mut books);
            }
        }
    }

    /// Frees memory of a pool: it stays in the pool's cache.
    pub(crate) fn free(
        &self,
        direct: &Direct,
        pointer: DevicePtr,
        call: impl FnOnce() -> CuStatus,
    ) -> CuStatus {
        // Marked first: once the driver has it back, another thread may be given the same address.
        let mut freed = None;
        direct.linear.update(pointer, |entry| {
            if entry.cached.is_none() {
                entry.cached = Some(u64::MAX);
                freed = Some((entry.pool, entry.bytes));
            }
        });
        let Some((pool, bytes)) = freed else {
            return call();
        };
        let pool = self.get(pool);
        {
            let mut books = pool.books();
            books.live = books.live.saturating_sub(bytes);
            let shrinks = books.shrinks;
            direct
                .linear
                .update(pointer, |entry| entry.cached = Some(shrinks));
        }
        let status = call();
        if status != 0 {
            pool.books().live += bytes;
            direct.linear.update(pointer, |entry| entry.cached = None);
        }
        status
    }
}

impl Pool {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserved(&self) -> Option<u64> {
        type Get = unsafe extern "C" fn(Handle, u32, *mut c_void) -> CuStatus;
        let get = real!(cuMemPoolGetAttribute as Get);
        let mut bytes = 0_u64;
        // SAFETY: the attribute is one 64-bit number.
        let status = unsafe {
            get(
                self.handle as Handle,
                ATTR_RESERVED_CURRENT,
                (&raw mut bytes).cast(),
            )
        };
        (status == 0).then_some(bytes)
    }

    fn reconcile(&self, direct: &Direct) {
        self.compare(direct, &mut self.books());
    }

    /// Makes `charged` what the pool holds now.
    fn compare(&self, direct: &Direct, books: &mut Books) {
        let epoch = EPOCH.load(Relaxed);
        let Some(reserved) = self.reserved().filter(|_| self.on_device) else {
            return;
        };
        books.epoch = epoch;
        if reserved < books.charged {
            direct.release(books.charged - reserved);
            books.charged = reserved;
            books.shrinks += 1;
            let (pool, shrinks) = (self.handle, books.shrinks);
            let void =
                |entry: &Entry| entry.pool == pool && entry.cached.is_some_and(|at| at < shrinks);
            direct.linear.remove_all(void);
        } else if reserved > books.charged && direct.quota_only(reserved - books.charged) {
            books.charged = reserved;
        }
    }

    fn alloc(
        &self,
        direct: &Direct,
        bytes: u64,
        out: *mut DevicePtr,
        stream: Handle,
        call: impl FnOnce() -> CuStatus,
    ) -> CuStatus {
        if !self.on_device {
            return call();
        }
        let bytes = bytes.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX);
        let mut books = self.books();
        if books.epoch != EPOCH.load(Relaxed) {
            self.compare(direct, &mut books);
        }
        if books.live.saturating_add(bytes) <= books.charged {
            // Counted before the call, so that two threads do not both count on the same room.
            books.live += bytes;
            drop(books);
            let status = call();
            let mut books = self.books();
            if status != 0 {
                books.live = books.live.saturating_sub(bytes);
                return status;
            }
            // SAFETY: the driver has just written `out`.
            let pointer = unsafe { out.read() };
            let shrinks = books.shrinks;
            let from_cache = direct.linear.update(pointer, |entry| {
                let whole = entry.pool == self.handle && entry.cached == Some(shrinks);
                let hit = whole && entry.bytes == bytes;
                *entry = self.entry(bytes);
                hit
            });
            return match from_cache {
                Some(true) => 0,
                Some(false) => self.settle(direct, books, 0, pointer, stream),
                None => {
                    direct.linear.insert(pointer, self.entry(bytes));
                    self.settle(direct, books, 0, pointer, stream)
                }
            };
        }
        self.alloc_growing(direct, books, bytes, out, stream, call)
    }

    fn alloc_growing(
        &self,
        direct: &Direct,
        mut books: MutexGuard<'_, Books>,
        bytes: u64,
        out: *mut DevicePtr,
        stream: Handle,
        call: impl FnOnce() -> CuStatus,
    ) -> CuStatus {
        let least = footprint(bytes.max(super::state::GRANULE));
        let ahead = if least < GROWTH && direct.quota_only(GROWTH) {
            GROWTH
        } else if direct.charge(least).is_ok() {
            least
        } else {
            return OUT_OF_MEMORY;
        };
        let status = call();
        if status != 0 {
            direct.release(ahead);
            return status;
        }
        // SAFETY: the driver has just written `out`.
        let pointer = unsafe { out.read() };
        books.live += bytes;
        direct.linear.insert(pointer, self.entry(bytes));
        self.settle(direct, books, ahead, pointer, stream)
    }

    fn entry(&self, bytes: u64) -> Entry {
        Entry {
            bytes,
            context: 0,
            pool: self.handle,
            cached: None,
        }
    }

    /// After an allocation for which `ahead` bytes were charged: charges what the pool really grew
    /// by, or undoes the allocation.
    fn settle(
        &self,
        direct: &Direct,
        mut books: MutexGuard<'_, Books>,
        ahead: u64,
        pointer: DevicePtr,
        stream: Handle,
    ) -> CuStatus {
        let reserved = self.reserved().unwrap_or(books.charged + ahead);
        let paid = books.charged + ahead;
        if reserved <= paid {
            direct.release(paid - reserved);
            if reserved < books.charged {
                books.shrinks += 1;
            }
            books.charged = reserved;
            return 0;
        }
        if direct.quota_only(reserved - paid) {
            books.charged = reserved;
            return 0;
        }
        books.charged = paid;
        let keep = books.charged;
        drop(books);
        self.undo(direct, pointer, stream, keep);
        OUT_OF_MEMORY
    }

    /// Gives an allocation back that turned out to exceed the limit.
    fn undo(&self, direct: &Direct, pointer: DevicePtr, stream: Handle, keep: u64) {
        let free = real!(cuMemFreeAsync as unsafe extern "C" fn(DevicePtr, Handle) -> CuStatus);
        let wait = real!(cuStreamSynchronize as unsafe extern "C" fn(Handle) -> CuStatus);
        let trim = real!(cuMemPoolTrimTo as unsafe extern "C" fn(Handle, usize) -> CuStatus);
        // SAFETY: allocated a moment ago on this stream, not yet known to the program.
        direct
            .pools
            .free(direct, pointer, || unsafe { free(pointer, stream) });
        // SAFETY: the program's own stream, outside any capture.
        unsafe { wait(stream) };
        // SAFETY: a pool the driver has just allocated from.
        unsafe { trim(self.handle as Handle, keep as usize) };
        self.reconcile(direct);
    }
}

impl Direct {
    /// Charges without asking the pools to shrink first: they are what is being settled.
    pub(crate) fn quota_only(&self, bytes: u64) -> bool {
        use mica_limits::Quota;
        bytes == 0 || self.quota.charge(bytes).is_ok()
    }
}
