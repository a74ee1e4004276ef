//! What the hooks share: the connection, the quota, the gate, the records.
//!
//! Published once `cuInit` has succeeded under limits, never taken back but in a forked child, where
//! CUDA does not work either.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr};

use mica_cuda_abi::{CuResult, CuStatus};
use mica_limits::{Gate, HostLink, PageQuota, Quota};
use mica_wire::host::page::ClientPage;

use super::allocations::Allocations;
use super::context::Contexts;
use super::graphs::GraphMemory;
use super::launch::SUBMISSION;
use super::pools::Pools;
use super::reconcile;
use super::stacks::Stacks;
use super::vmm::Handles;
use crate::log;

/// The driver hands out larger pieces of device memory in these steps.
pub(crate) const GRANULE: u64 = 2 << 20;
/// And smaller ones in these, those of pools too: addresses are multiples of it.
pub(crate) const UNIT: u64 = 512;

/// Everything a hook needs.
pub(crate) struct Direct {
    pub(crate) link: Arc<HostLink>,
    pub(crate) quota: PageQuota,
    pub(crate) gate: Gate,
    /// Linear memory by address.
    pub(crate) linear: Allocations,
    /// Arrays and imported memory by handle.
    pub(crate) objects: Allocations,
    pub(crate) pools: Pools,
    pub(crate) handles: Handles,
    pub(crate) contexts: Contexts,
    pub(crate) graphs: GraphMemory,
    pub(crate) stacks: Stacks,
}

static STATE: AtomicPtr<Direct> = AtomicPtr::new(std::ptr::null_mut());
static FORKED: AtomicBool = AtomicBool::new(false);

/// The state, or `None` before `cuInit`, without limits and in a forked child.
#[inline(always)]
pub(crate) fn state() -> Option<&'static Direct> {
    // SAFETY: null, or leaked by `publish` and so valid for good.
    unsafe { STATE.load(Acquire).as_ref() }
}

/// The state, for a call that makes something whose handle goes to `out`. Without room for the handle the driver
/// refuses the call: nothing is charged for it, so that the driver's word is what the program hears.
#[inline]
pub(crate) fn making<T>(out: *const T) -> Option<&'static Direct> {
    state().filter(|_| !out.is_null())
}

/// The shared page; the submission path needs nothing else.
#[inline(always)]
pub(crate) fn page() -> Option<&'static ClientPage> {
    // SAFETY: null, or within the state leaked by `publish`.
    unsafe { SUBMISSION.page.load(Relaxed).as_ref() }
}

/// Whether this is a child of a process that had initialized CUDA.
pub(crate) fn forked() -> bool {
    FORKED.load(Acquire)
}

/// Makes the state visible to the hooks.
pub(crate) fn publish(direct: Direct) -> &'static Direct {
    let direct: &'static Direct = Box::leak(Box::new(direct));
    let page: &'static ClientPage = direct.link.page();
    SUBMISSION
        .page
        .store(std::ptr::from_ref(page).cast_mut(), Release);
    STATE.store(std::ptr::from_ref(direct).cast_mut(), Release);
    // SAFETY: the handler only stores to atomics and closes descriptors.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    direct
}

/// The child shares the parent's page and socket, and must touch neither: it would be taken for the
/// parent, and the parent's death would go unnoticed while it lives.
extern "C" fn in_child() {
    let state = STATE.swap(std::ptr::null_mut(), Release);
    SUBMISSION.page.store(std::ptr::null_mut(), Release);
    // SAFETY: null or leaked, as in `state`.
    if let Some(direct) = unsafe { state.as_ref() } {
        FORKED.store(true, Release);
        direct.link.close_in_child();
    }
}

impl Direct {
    /// The records of a connection.
    pub(crate) fn new(link: Arc<HostLink>) -> Self {
        Self {
            quota: PageQuota::new(link.clone()),
            gate: Gate::new(link.clone()),
            link,
            linear: Allocations::default(),
            objects: Allocations::default(),
            pools: Pools::default(),
            handles: Handles::default(),
            contexts: Contexts::default(),
            graphs: GraphMemory::default(),
            stacks: Stacks::default(),
        }
    }

    /// Charges memory, giving pools that shrank unseen the chance to return theirs first. May wait, if that is how
    /// the virtual GPU is set up, for what other threads free: never with one of the records' locks held.
    pub(crate) fn charge(&self, bytes: u64) -> Result<(), OutOfMemory> {
        if self.charge_now(bytes) {
            return Ok(());
        }
        reconcile::compare(self);
        self.quota.charge(bytes).map_err(|denied| {
            log::line(&format!("out of memory: {denied}"));
            OutOfMemory
        })
    }

    /// Charges what can be had now, without waiting, or nothing.
    pub(crate) fn charge_now(&self, bytes: u64) -> bool {
        bytes == 0 || self.quota.charge_now(bytes)
    }

    /// Waits until so much could be charged, as [`Direct::charge`] does, and leaves it to [`Direct::charge_now`]
    /// under whatever lock the charge must be made with. Others may be faster: then both come again.
    pub(crate) fn make_room(&self, bytes: u64) -> Result<(), OutOfMemory> {
        self.charge(bytes)?;
        self.release(bytes);
        Ok(())
    }

    /// Gives charged memory back.
    pub(crate) fn release(&self, bytes: u64) {
        if bytes > 0 {
            self.quota.release(bytes);
        }
    }

    /// Notes that so much more or less of what is charged is left out of the driver's own figure.
    pub(crate) fn uncount(&self, bytes: u64, more: bool) {
        let uncounted = &self.link.page().memory.uncounted_bytes;
        match more {
            true => uncounted.fetch_add(bytes, Relaxed),
            false => uncounted.fetch_sub(bytes, Relaxed),
        };
    }

    /// Charges, calls, and takes the charge back if the call failed.
    pub(crate) fn charged(&self, bytes: u64, call: impl FnOnce() -> CuStatus) -> CuStatus {
        if self.charge(bytes).is_err() {
            return CuResult::OutOfMemory as CuStatus;
        }
        let status = call();
        if status != 0 {
            self.release(bytes);
        }
        status
    }
}

/// The limit does not allow it; already logged.
#[derive(Debug)]
pub(crate) struct OutOfMemory;

/// What an allocation of so many bytes takes from the device. Small ones share a granule, in units.
pub(crate) fn footprint(bytes: u64) -> u64 {
    let whole = match bytes {
        ..GRANULE => bytes.checked_next_multiple_of(UNIT),
        _ => bytes.checked_next_multiple_of(GRANULE),
    };
    whole.unwrap_or(u64::MAX)
}
