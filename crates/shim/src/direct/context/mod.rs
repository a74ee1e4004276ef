//! Contexts: what each takes by existing, and what ends with it.
//!
//! A context is charged an estimate before it is made; the daemon compares with the driver's own
//! figure afterwards. When one ends, everything that was booked under it is given back.

mod calls;
pub(crate) mod green;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use mica_cuda_abi::{CuResult, CuStatus, Device, Handle};

use super::driver::real;
use super::state::{Direct, making, state};
use super::{allocations, capture, control, reconcile};

pub(crate) use calls::*;

/// What a context takes on an H200 with driver 580.
const CONTEXT_BYTES: u64 = 520 << 20;
/// Name of the variable with another estimate.
const CONTEXT_BYTES_VARIABLE: &str = "MICA_CONTEXT_BYTES";

static SEEN: AtomicBool = AtomicBool::new(false);
/// The context, while there is exactly one.
static ONLY: AtomicUsize = AtomicUsize::new(0);

#[derive(Default)]
struct Records {
    /// Bytes charged for each context's existence.
    bytes: HashMap<usize, u64>,
    /// The primary context of each device, while it is active.
    primary: HashMap<Device, usize>,
    /// How often a context was attached to beyond its making.
    attached: HashMap<usize, u32>,
}

/// All contexts.
#[derive(Default)]
pub(crate) struct Contexts {
    records: Mutex<Records>,
}

impl Records {
    /// To be called whenever a context came or went.
    fn count(&self) {
        let mut all = self.bytes.keys();
        let only = all.next().filter(|_| self.bytes.len() == 1);
        ONLY.store(only.copied().unwrap_or(0), Release);
    }
}

impl Contexts {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The calling thread's context, 0 for none.
pub(crate) fn current() -> usize {
    let get = real!(cuCtxGetCurrent);
    let mut context: Handle = std::ptr::null_mut();
    // SAFETY: writes one handle.
    let status = unsafe { get(&mut context) };
    if status == 0 { context as usize } else { 0 }
}

/// The context that memory allocated by the calling thread belongs to.
#[inline]
pub(crate) fn owner() -> usize {
    match ONLY.load(Relaxed) {
        0 => green::whole(current()),
        only => only,
    }
}

/// Whether there is exactly one context.
pub(crate) fn is_only() -> bool {
    ONLY.load(Relaxed) != 0
}

/// Whether the calling thread's context is all there is.
pub(crate) fn current_is_only() -> bool {
    is_only() && current() == ONLY.load(Relaxed)
}

/// Whether the program sees one device, as every program in a virtual GPU that `mica run` started.
pub(crate) fn single_device() -> bool {
    static SINGLE: OnceLock<bool> = OnceLock::new();
    *SINGLE.get_or_init(|| {
        let get = real!(cuDeviceGetCount);
        let mut count = 0;
        // SAFETY: writes one number.
        unsafe { get(&mut count) == 0 && count == 1 }
    })
}

/// The device of the calling thread's context.
pub(crate) fn current_device() -> Option<Device> {
    let get = real!(cuCtxGetDevice);
    let mut device = 0;
    // SAFETY: writes one ordinal.
    (unsafe { get(&mut device) } == 0).then_some(device)
}

/// Waits for the work of every context of the process; true if all of it could be waited for.
pub(crate) fn synchronize_all(direct: &Direct) -> bool {
    let wait = real!(cuCtxSynchronize);
    let before = current();
    if ONLY.load(Acquire) == before && before != 0 {
        // SAFETY: takes no arguments; an error is the program's to see at its own next call.
        return unsafe { wait() } == 0;
    }
    let all: Vec<usize> = direct.contexts.records().bytes.keys().copied().collect();
    let set = real!(cuCtxSetCurrent);
    let mut done = true;
    for context in all {
        // SAFETY: a context the program made; if it has ended meanwhile the driver says so.
        done &= unsafe { set(context as Handle) == 0 && wait() == 0 };
    }
    // SAFETY: what was current on this thread, or nothing.
    unsafe { set(before as Handle) };
    done
}

/// Records a context that was made behind the hooks' back, through a private table. One load once a
/// context is known.
#[inline]
pub(crate) fn notice(direct: &Direct) {
    if !SEEN.load(Relaxed) {
        adopt(direct);
    }
}

#[cold]
fn adopt(direct: &Direct) {
    let context = current();
    if context == 0 {
        return;
    }
    let mut records = direct.contexts.records();
    if let Entry::Vacant(unknown) = records.bytes.entry(context) {
        // It exists already: if the limit does not allow it, the daemon sees that from the driver.
        let charged = direct.charge_now(estimate());
        unknown.insert(if charged { estimate() } else { 0 });
        records.count();
        if let Some(device) = current_device() {
            records.primary.entry(device).or_insert(context);
        }
        drop(records);
        made();
    }
}

fn estimate() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let set = mica_limits::variable(CONTEXT_BYTES_VARIABLE)
            .and_then(|value| value.into_string().ok());
        set.and_then(|text| text.parse().ok())
            .unwrap_or(CONTEXT_BYTES)
    })
}

/// A context exists: the daemon may now set slices.
fn made() {
    SEEN.store(true, Release);
    control::context_made();
}

/// A call that retains a device's primary context, which it makes if nobody has.
fn retaining(
    direct: Option<&'static Direct>,
    device: Device,
    call: impl FnOnce() -> CuStatus,
    primary: impl FnOnce() -> usize,
) -> CuStatus {
    let Some(direct) = direct else {
        return call();
    };
    let bytes = estimate();
    // Held while the context is made: a second thread must not charge for the same one.
    let mut records = loop {
        let records = direct.contexts.records();
        if records.primary.contains_key(&device) {
            drop(records);
            return call();
        }
        if direct.charge_now(bytes) {
            break records;
        }
        drop(records);
        if direct.make_room(bytes).is_err() {
            return CuResult::OutOfMemory as CuStatus;
        }
    };
    let status = call();
    if status != 0 {
        direct.release(bytes);
    } else {
        let context = primary();
        if let Some(twice) = records.bytes.insert(context, bytes) {
            direct.release(twice);
        }
        records.primary.insert(device, context);
        records.count();
        drop(records);
        made();
    }
    status
}

/// A call that may end a device's primary context.
fn releasing(device: Device, call: impl FnOnce() -> CuStatus) -> CuStatus {
    let Some(direct) = state() else {
        return call();
    };
    // Held over the call: another thread must not make the next one before this one's end is booked.
    let mut records = direct.contexts.records();
    let status = call();
    if status == 0
        && !is_active(device)
        && let Some(context) = records.primary.remove(&device)
    {
        ended(direct, records, context);
    }
    status
}

fn is_active(device: Device) -> bool {
    let get = real!(cuDevicePrimaryCtxGetState);
    let (mut flags, mut active) = (0, 0);
    // SAFETY: writes two numbers. An error leaves the context booked.
    unsafe { get(device, &mut flags, &mut active) != 0 || active != 0 }
}

/// # Safety
/// `call` writes a context to `out` when it succeeds.
unsafe fn charged_create(out: *mut Handle, call: impl FnOnce() -> CuStatus) -> CuStatus {
    let Some(direct) = making(out) else {
        return call();
    };
    let bytes = estimate();
    let status = direct.charged(bytes, call);
    if status == 0 {
        // SAFETY: our contract.
        let context = unsafe { out.read() } as usize;
        let mut records = direct.contexts.records();
        records.bytes.insert(context, bytes);
        records.count();
        drop(records);
        made();
    }
    status
}

/// Gives back what a context held.
fn ended(direct: &Direct, mut records: MutexGuard<'_, Records>, context: usize) {
    let mut bytes = records.bytes.remove(&context).unwrap_or(0);
    bytes += direct.stacks.ended(context);
    records.attached.remove(&context);
    records.count();
    drop(records);
    green::ended(context);
    let managed = |entry: &allocations::Entry| entry.context == context && entry.managed;
    let uncounted = direct.linear.remove_all(managed);
    direct.uncount(uncounted, false);
    bytes += uncounted + direct.linear.remove_all(|entry| entry.context == context);
    bytes += direct.objects.remove_all(|entry| entry.context == context);
    direct.release(bytes);
    direct.handles.context_ended(direct, context);
    capture::context_ended(context);
    reconcile::compare(direct);
    control::contexts_changed();
}
