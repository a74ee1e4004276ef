//! Graph launches, and the memory that graphs with allocation nodes take.
//!
//! The driver reserves a graph's memory when it is first launched or uploaded. What all nodes
//! together may need is charged before that; afterwards the charge is what the driver reserved.

use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mica_cuda_abi::{CuResult, CuStatus, Device, Handle, MemAllocNodeParams, Symbol};

use super::context::current_device;
use super::driver::real;
use super::launch::submit;
use super::state::{Direct, GRANULE, footprint, state};

const ATTR_RESERVED_CURRENT: u32 = 2;

#[derive(Default)]
struct Books {
    /// Bytes of allocation nodes not yet known to be reserved.
    expected: u64,
    /// Reserved bytes, all charged.
    charged: u64,
    /// Executable graphs that have their memory.
    ready: HashSet<usize>,
}

/// Memory of graphs.
#[derive(Default)]
pub(crate) struct GraphMemory {
    /// Whether any graph allocates at all: most never do, and their launches skip all this.
    in_use: AtomicBool,
    books: Mutex<Books>,
}

/// `cuGraphAddMemAllocNode`.
pub(crate) unsafe fn add_alloc_node(
    _: Symbol,
    real: unsafe extern "C" fn(
        *mut Handle,
        Handle,
        *const Handle,
        usize,
        *mut MemAllocNodeParams,
    ) -> CuStatus,
    out: *mut Handle,
    graph: Handle,
    needs: *const Handle,
    count: usize,
    params: *mut MemAllocNodeParams,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, graph, needs, count, params) };
    if let (Some(direct), 0) = (state(), status) {
        // SAFETY: the driver has just read these parameters.
        direct.graphs.expect(unsafe { (*params).bytes } as u64);
    }
    status
}

/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`, and where `CUgraphNodeParams` holds such a node's size.
const NODE_ALLOC: i32 = 10;
const NODE_ALLOC_BYTES: usize = 16 + std::mem::offset_of!(MemAllocNodeParams, bytes);

/// Books a node added through the general call if it allocates.
///
/// # Safety
/// `params` is the program's `CUgraphNodeParams`, which the driver has just accepted.
unsafe fn expect_node(status: CuStatus, params: *const c_void) {
    let Some(direct) = state().filter(|_| status == 0 && !params.is_null()) else {
        return;
    };
    // SAFETY: the first word of the parameters is the node's type.
    if unsafe { params.cast::<i32>().read() } == NODE_ALLOC {
        // SAFETY: parameters of this type have their size there.
        let bytes = unsafe { params.byte_add(NODE_ALLOC_BYTES).cast::<usize>().read() };
        direct.graphs.expect(bytes as u64);
    }
}

/// `cuGraphAddNode`.
pub(crate) unsafe fn add_node(
    _: Symbol,
    real: unsafe extern "C" fn(*mut Handle, Handle, *const Handle, usize, *mut c_void) -> CuStatus,
    out: *mut Handle,
    graph: Handle,
    needs: *const Handle,
    count: usize,
    params: *mut c_void,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, graph, needs, count, params) };
    // SAFETY: the program's parameters.
    unsafe { expect_node(status, params) };
    status
}

/// `cuGraphAddNode_v2`.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn add_node_v2(
    _: Symbol,
    real: unsafe extern "C" fn(
        *mut Handle,
        Handle,
        *const Handle,
        *const c_void,
        usize,
        *mut c_void,
    ) -> CuStatus,
    out: *mut Handle,
    graph: Handle,
    needs: *const Handle,
    data: *const c_void,
    count: usize,
    params: *mut c_void,
) -> CuStatus {
    // SAFETY: the program's arguments.
    let status = unsafe { real(out, graph, needs, data, count, params) };
    // SAFETY: the program's parameters.
    unsafe { expect_node(status, params) };
    status
}

/// `cuGraphLaunch`.
pub(crate) unsafe fn launch(
    symbol: Symbol,
    real: unsafe extern "C" fn(Handle, Handle) -> CuStatus,
    exec: Handle,
    stream: Handle,
) -> CuStatus {
    submit(symbol, stream);
    // SAFETY: the program's arguments.
    with_memory(exec, || unsafe { real(exec, stream) })
}

/// `cuGraphUpload`.
pub(crate) unsafe fn upload(
    _: Symbol,
    real: unsafe extern "C" fn(Handle, Handle) -> CuStatus,
    exec: Handle,
    stream: Handle,
) -> CuStatus {
    // SAFETY: the program's arguments.
    with_memory(exec, || unsafe { real(exec, stream) })
}

/// `cuGraphExecDestroy`.
pub(crate) unsafe fn exec_destroy(
    _: Symbol,
    real: unsafe extern "C" fn(Handle) -> CuStatus,
    exec: Handle,
) -> CuStatus {
    if let Some(direct) = state().filter(|direct| direct.graphs.in_use.load(Relaxed)) {
        direct.graphs.books().ready.remove(&(exec as usize));
    }
    // SAFETY: the program's argument.
    unsafe { real(exec) }
}

/// `cuDeviceGraphMemTrim`.
pub(crate) unsafe fn trim(
    _: Symbol,
    real: unsafe extern "C" fn(Device) -> CuStatus,
    device: Device,
) -> CuStatus {
    // SAFETY: the program's argument.
    let status = unsafe { real(device) };
    if let Some(direct) = state().filter(|direct| direct.graphs.in_use.load(Relaxed)) {
        let mut books = direct.graphs.books();
        books.ready.clear();
        books.expected = books.expected.max(books.charged);
        compare(direct, &mut books, 0);
    }
    status
}

fn with_memory(exec: Handle, call: impl FnOnce() -> CuStatus) -> CuStatus {
    let Some(direct) = state().filter(|direct| direct.graphs.in_use.load(Relaxed)) else {
        return call();
    };
    let mut books = direct.graphs.books();
    if books.ready.contains(&(exec as usize)) {
        drop(books);
        return call();
    }
    let ahead = books.expected.saturating_sub(books.charged);
    if direct.charge(ahead).is_err() {
        return CuResult::OutOfMemory as CuStatus;
    }
    let status = call();
    compare(direct, &mut books, ahead);
    if status == 0 {
        books.ready.insert(exec as usize);
    }
    status
}

/// Makes the charge what the driver has reserved; `ahead` was charged beyond it.
fn compare(direct: &Direct, books: &mut Books, ahead: u64) {
    let paid = books.charged + ahead;
    let reserved = reserved().unwrap_or(paid);
    if reserved <= paid {
        direct.release(paid - reserved);
        books.charged = reserved;
    } else if direct.quota_only(reserved - paid) {
        books.charged = reserved;
    } else {
        // Reserved by the driver already and beyond the limit: the daemon shows the difference as
        // unattributed.
        books.charged = paid;
    }
}

fn reserved() -> Option<u64> {
    type Get = unsafe extern "C" fn(Device, u32, *mut c_void) -> CuStatus;
    let get = real!(cuDeviceGetGraphMemAttribute as Get);
    let mut bytes = 0_u64;
    // SAFETY: the attribute is one 64-bit number.
    let status = unsafe {
        get(
            current_device()?,
            ATTR_RESERVED_CURRENT,
            (&raw mut bytes).cast(),
        )
    };
    (status == 0).then_some(bytes)
}

impl GraphMemory {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node was added that will need so many bytes.
    pub(crate) fn expect(&self, bytes: u64) {
        let mut books = self.books();
        books.expected = books.expected.saturating_add(footprint(bytes.max(GRANULE)));
        self.in_use.store(true, Relaxed);
    }

    /// Gives back what graphs no longer hold.
    pub(crate) fn reconcile(&self, direct: &Direct) {
        if self.in_use.load(Relaxed) {
            // Held by the caller while it charges for a launch.
            if let Ok(mut books) = self.books.try_lock() {
                compare(direct, &mut books, 0);
            }
        }
    }
}
