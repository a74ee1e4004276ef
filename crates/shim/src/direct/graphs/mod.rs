//! Graph launches, and the memory that graphs with allocation nodes take.
//!
//! The driver reserves a graph's memory when it is first launched or uploaded. What the graph's
//! allocation nodes may need is charged before that; afterwards the charge is what the driver has
//! reserved for all graphs together. It keeps memory of graphs that ended until it is told to trim, so
//! the end of a graph changes what later ones are expected to need, and the charge follows the driver.

mod calls;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_cuda_abi::{CuResult, CuStatus, Device, GraphMemAttribute, Handle};

use super::context::current_device;
use super::driver::real;
use super::state::{Direct, GRANULE, footprint, state};

pub(crate) use calls::*;

const ATTR_RESERVED_CURRENT: u32 = GraphMemAttribute::ReservedMemCurrent as u32;

/// What an executable graph needs.
#[derive(Clone, Copy)]
struct Exec {
    /// Bytes of its allocation nodes.
    bytes: u64,
    /// Whether the driver has reserved them.
    ready: bool,
}

#[derive(Default)]
struct Records {
    /// Bytes of each graph's allocation nodes.
    graphs: HashMap<usize, u64>,
    execs: HashMap<usize, Exec>,
    /// Bytes of nodes captured into graphs that are not known by a handle yet.
    captured: u64,
    /// Reserved bytes, all charged.
    charged: u64,
    /// The device they lie on.
    device: Option<Device>,
}

impl Records {
    /// What an executable graph may still need. One made in a way that is not known may be any.
    fn missing(&self, exec: usize) -> u64 {
        match self.execs.get(&exec) {
            Some(exec) if exec.ready => 0,
            Some(exec) => exec.bytes,
            None => self.graphs.values().sum(),
        }
    }

    /// What a graph's allocation nodes need.
    fn of(&self, graph: Handle) -> u64 {
        self.graphs.get(&(graph as usize)).copied().unwrap_or(0)
    }

    /// A graph needs so many bytes more.
    fn add(&mut self, graph: Handle, bytes: u64) {
        let known = self.graphs.entry(graph as usize).or_default();
        *known = known.saturating_add(bytes);
    }
}

/// Memory of graphs.
#[derive(Default)]
pub(crate) struct GraphMemory {
    /// Whether any graph allocates at all: most never do, and their launches skip all this.
    in_use: AtomicBool,
    records: Mutex<Records>,
}

/// The state, if any graph allocates at all.
fn in_use() -> Option<&'static Direct> {
    state().filter(|direct| direct.graphs.in_use.load(Relaxed))
}

fn with_memory(exec: Handle, call: impl FnOnce() -> CuStatus) -> CuStatus {
    let Some(direct) = in_use() else {
        return call();
    };
    let Some((mut records, missing)) = paid(direct, |records| records.missing(exec as usize))
    else {
        return CuResult::OutOfMemory as CuStatus;
    };
    if missing == 0 {
        drop(records);
        return call();
    }
    let status = call();
    compare(direct, &mut records, missing);
    if status == 0 {
        let known = records.execs.entry(exec as usize);
        known
            .or_insert(Exec {
                bytes: missing,
                ready: true,
            })
            .ready = true;
    }
    status
}

/// The records, with as much charged as a call under their lock may make the driver reserve; `None` if that exceeds the
/// limit.
fn paid(
    direct: &Direct,
    needed: impl Fn(&Records) -> u64,
) -> Option<(MutexGuard<'_, Records>, u64)> {
    loop {
        let records = direct.graphs.records();
        let bytes = needed(&records);
        if direct.charge_now(bytes) {
            return Some((records, bytes));
        }
        drop(records);
        direct.make_room(bytes).ok()?;
    }
}

/// Makes the charge what the driver has reserved; `ahead` was charged beyond it.
fn compare(direct: &Direct, records: &mut Records, ahead: u64) {
    let paid = records.charged + ahead;
    let reserved = records.device.and_then(reserved).unwrap_or(paid);
    if reserved <= paid {
        direct.release(paid - reserved);
        records.charged = reserved;
    } else if direct.charge_now(reserved - paid) {
        records.charged = reserved;
    } else {
        // Reserved by the driver already and beyond the limit: the daemon sees the difference and
        // counts it.
        records.charged = paid;
        super::reconcile::look();
    }
}

fn reserved(device: Device) -> Option<u64> {
    let get = real!(cuDeviceGetGraphMemAttribute);
    let mut bytes = 0_u64;
    // SAFETY: the attribute is one 64-bit number.
    let status = unsafe { get(device, ATTR_RESERVED_CURRENT, (&raw mut bytes).cast()) };
    (status == 0).then_some(bytes)
}

impl GraphMemory {
    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node was added to a graph that will need so many bytes.
    fn expect(&self, graph: Handle, bytes: u64) {
        let bytes = self.note_use(bytes);
        self.records().add(graph, bytes);
    }

    /// An allocation was captured.
    pub(crate) fn capturing(&self, bytes: u64) {
        let bytes = self.note_use(bytes);
        self.records().captured += bytes;
    }

    fn note_use(&self, bytes: u64) -> u64 {
        let mut records = self.records();
        records.device = records.device.or_else(current_device);
        self.in_use.store(true, Relaxed);
        // A sum of many cannot overflow then.
        footprint(bytes.max(GRANULE)).min(1 << 48)
    }

    /// Gives back what graphs no longer hold.
    pub(crate) fn reconcile(&self, direct: &Direct) {
        if self.in_use.load(Relaxed) {
            // Held by the caller while it charges for a launch.
            if let Ok(mut records) = self.records.try_lock() {
                compare(direct, &mut records, 0);
            }
        }
    }
}

/// A capture has ended with a graph: what was captured is its. While others are still being captured
/// each of them is taken to hold everything, until the driver says what it reserved.
pub(crate) fn captured(graph: Handle, others: bool) {
    if let Some(direct) = in_use() {
        let mut records = direct.graphs.records();
        let bytes = records.captured;
        if !others {
            records.captured = 0;
        }
        // The graph may have nodes from before its capture, or others that were added to it meanwhile.
        records.add(graph, bytes);
    }
}

/// A capture has ended without a graph: nobody will launch what was captured.
pub(crate) fn capture_failed(others: bool) {
    if let Some(direct) = in_use().filter(|_| !others) {
        direct.graphs.records().captured = 0;
    }
}
