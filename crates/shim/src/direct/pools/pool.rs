//! What one pool is charged: the bytes it reserves.
//!
//! A pool keeps what is freed, so most allocations take nothing from the device. Whether one did is
//! known without asking the driver when the address it returned lay in the pool's cache; else the
//! pool's reserved size is read. Growth is charged before it can happen: the driver grows pools in
//! steps of 32 MiB, or by the allocation if that is larger. A pool that was seen to grow by less is believed.
//!
//! ```text
//!   live + bytes ≤ charged ── call ── address in the cache: done (no lock but the address's own)
//!                                 └─ else: settle, under the pool's lock
//!   otherwise ── charge ahead, call, settle, all under the pool's lock
//! ```

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mica_cuda_abi::{CuResult, CuStatus, DevicePtr, Handle, PoolAttribute};

use crate::direct::allocations::Entry;
use crate::direct::driver::real;
use crate::direct::reconcile;
use crate::direct::state::{Direct, GRANULE, UNIT, footprint};

/// How much a pool grows at once, at least, as far as is known before it has grown.
const GROWTH: u64 = 32 << 20;
const ATTR_RESERVED_CURRENT: u32 = PoolAttribute::ReservedMemCurrent as u32;
const OUT_OF_MEMORY: CuStatus = CuResult::OutOfMemory as CuStatus;
const NOT_READY: CuStatus = CuResult::NotReady as CuStatus;
/// Longest that a refused allocation waits for its stream.
const PATIENCE: Duration = Duration::from_secs(1);

/// One pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(super) handle: usize,
    /// Its memory lies on a device.
    on_device: bool,
    /// Bytes of live allocations.
    live: AtomicU64,
    /// Reserved bytes, all charged. Changed with `changing` held.
    charged: AtomicU64,
    /// The least that it was seen to grow by.
    growth: AtomicU64,
    /// How often the pool was seen to shrink: cached addresses of before are void.
    shrinks: AtomicU64,
    /// Held while what the pool reserves is read and the charge is made equal to it.
    changing: Mutex<()>,
    /// The program has destroyed it; the driver keeps its memory until the last allocation is freed.
    ended: AtomicBool,
}

impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Pool {}

impl Pool {
    pub(super) fn new(handle: usize, on_device: bool) -> Self {
        Self {
            handle,
            on_device,
            live: AtomicU64::new(0),
            charged: AtomicU64::new(0),
            growth: AtomicU64::new(GROWTH),
            shrinks: AtomicU64::new(0),
            changing: Mutex::new(()),
            ended: AtomicBool::new(false),
        }
    }

    /// A pool with a limit of its own grows by no more than that.
    pub(super) fn holds_at_most(&self, bytes: u64) {
        if bytes > 0 {
            self.growth.fetch_min(footprint(bytes).max(GRANULE), SeqCst);
        }
    }

    /// What an address that is freed now is marked with.
    pub(crate) fn shrinks(&self) -> u64 {
        self.shrinks.load(SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserved(&self) -> Option<u64> {
        let get = real!(cuMemPoolGetAttribute);
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

    /// Makes the charge what the pool holds now.
    pub(super) fn reconcile(&self, direct: &Direct) {
        let guard = self.lock();
        self.compare(direct, &guard);
    }

    /// The same, unless it is being done: then it is about to be right anyway.
    pub(super) fn try_reconcile(&self, direct: &Direct) {
        if let Ok(guard) = self.changing.try_lock() {
            self.compare(direct, &guard);
        }
    }

    fn compare(&self, direct: &Direct, _: &MutexGuard<'_, ()>) {
        let Some(reserved) = self.reserved().filter(|_| self.on_device) else {
            return;
        };
        let charged = self.charged.load(SeqCst);
        if reserved > charged && direct.charge_now(reserved - charged) {
            self.charged.store(reserved, SeqCst);
        }
        if reserved >= charged {
            return;
        }
        // Counted before the size is read again: an allocation that still takes its address for a
        // cached one was over before, so its memory is in this reading.
        let shrinks = self.shrinks.fetch_add(1, SeqCst) + 1;
        let reserved = self.reserved().unwrap_or(charged).min(charged);
        self.charged.store(reserved, SeqCst);
        direct.release(charged - reserved);
        direct.linear.remove_all(|entry: &Entry| {
            entry.pool.is_some_and(|pool| pool == self)
                && entry.cached.is_some_and(|at| at < shrinks)
        });
    }

    /// The pool was destroyed: what is still allocated from it, and what it holds beside that, stays charged until
    /// the last of it is freed.
    pub(super) fn end(&self, direct: &Direct) {
        self.ended.store(true, SeqCst);
        direct.linear.remove_all(|entry| {
            entry.pool.is_some_and(|pool| pool == self) && entry.cached.is_some()
        });
        self.release_if_over(direct);
    }

    /// Whether it was destroyed: then nothing that is freed lies in its cache.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Some of its memory was freed.
    pub(crate) fn release_if_over(&self, direct: &Direct) {
        if self.has_ended() && self.live.load(SeqCst) == 0 {
            let _changing = self.lock();
            direct.release(self.charged.swap(0, SeqCst));
        }
    }

    pub(super) fn alloc(
        &'static self,
        direct: &Direct,
        bytes: u64,
        out: *mut DevicePtr,
        stream: Handle,
        call: impl FnOnce() -> CuStatus,
    ) -> CuStatus {
        if !self.on_device {
            return call();
        }
        let Some(bytes) = bytes.checked_next_multiple_of(UNIT) else {
            return call();
        };
        // Counted before the call, so that two threads do not both count on the same room.
        let live = self.live.fetch_add(bytes, SeqCst).saturating_add(bytes);
        if live > self.charged.load(SeqCst) {
            self.live.fetch_sub(bytes, SeqCst);
            return self.alloc_growing(direct, bytes, out, stream, call);
        }
        let status = call();
        if status != 0 {
            self.live.fetch_sub(bytes, SeqCst);
            return status;
        }
        // SAFETY: the driver has just written `out`.
        let pointer = unsafe { out.read() };
        let hit = direct.linear.replace(pointer, self.entry(bytes), |before| {
            before.pool.is_some_and(|pool| pool == self)
                && before.bytes == bytes
                && before.cached == Some(self.shrinks())
        });
        match hit {
            true => 0,
            false => self.settle(direct, self.lock(), 0, pointer, stream),
        }
    }

    fn alloc_growing(
        &'static self,
        direct: &Direct,
        bytes: u64,
        out: *mut DevicePtr,
        stream: Handle,
        call: impl FnOnce() -> CuStatus,
    ) -> CuStatus {
        // Less would have to be taken back from the driver when it has grown by more: too late.
        let ahead = footprint(bytes).max(self.growth.load(SeqCst));
        let (guard, ahead) = loop {
            let guard = self.lock();
            if self.live.load(SeqCst).saturating_add(bytes) <= self.charged.load(SeqCst) {
                // Somebody has freed some, or made the pool grow, meanwhile.
                break (guard, 0);
            }
            if direct.charge_now(ahead) {
                break (guard, ahead);
            }
            drop(guard);
            if direct.make_room(ahead).is_err() {
                return OUT_OF_MEMORY;
            }
        };
        let status = call();
        if status != 0 {
            direct.release(ahead);
            return status;
        }
        // SAFETY: the driver has just written `out`.
        let pointer = unsafe { out.read() };
        self.live.fetch_add(bytes, SeqCst);
        direct.linear.insert(pointer, self.entry(bytes));
        self.settle(direct, guard, ahead, pointer, stream)
    }

    fn entry(&'static self, bytes: u64) -> Entry {
        Entry {
            bytes,
            context: 0,
            pool: Some(self),
            managed: false,
            cached: None,
        }
    }

    /// After an allocation for which `ahead` bytes were charged: charges what the pool really grew
    /// by, or undoes the allocation.
    fn settle(
        &self,
        direct: &Direct,
        guard: MutexGuard<'_, ()>,
        ahead: u64,
        pointer: DevicePtr,
        stream: Handle,
    ) -> CuStatus {
        let charged = self.charged.load(SeqCst);
        let paid = charged + ahead;
        let reserved = self.reserved().unwrap_or(paid);
        if reserved > charged {
            let growth = (reserved - charged).max(GRANULE);
            self.growth.fetch_min(growth, SeqCst);
        }
        if reserved <= paid {
            // No less than before: what was charged then goes back by comparing, not here.
            let now = reserved.max(charged);
            self.charged.store(now, SeqCst);
            direct.release(paid - now);
            return 0;
        }
        if direct.charge_now(reserved - paid) {
            self.charged.store(reserved, SeqCst);
            return 0;
        }
        self.charged.store(paid, SeqCst);
        drop(guard);
        self.undo(direct, pointer, stream, charged);
        OUT_OF_MEMORY
    }

    /// Gives an allocation back that turned out to exceed the limit, and what the pool grew by beyond `keep`.
    fn undo(&self, direct: &Direct, pointer: DevicePtr, stream: Handle, keep: u64) {
        let free = real!(cuMemFreeAsync);
        let done = real!(cuStreamQuery);
        let trim = real!(cuMemPoolTrimTo);
        // SAFETY: allocated a moment ago on this stream, not yet known to the program.
        crate::direct::memory::release(pointer, || unsafe { free(pointer, stream) });
        // The pool has it back when the stream has come so far, and the stream may wait for this very thread.
        let since = Instant::now();
        // SAFETY: the program's own stream, outside any capture.
        while unsafe { done(stream) } == NOT_READY && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(50));
        }
        // SAFETY: a pool the driver has just allocated from.
        unsafe { trim(self.handle as Handle, keep as usize) };
        self.reconcile(direct);
        reconcile::stale();
    }

    /// Memory of this pool went back to its cache.
    pub(crate) fn freed(&self, bytes: u64) {
        self.live.fetch_sub(bytes, SeqCst);
    }

    /// A free that the driver refused.
    pub(crate) fn not_freed(&self, bytes: u64) {
        self.live.fetch_add(bytes, SeqCst);
    }
}
