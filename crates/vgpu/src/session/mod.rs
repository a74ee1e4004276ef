//! One program's use of a virtual GPU.
//!
//! Locks: `tables` is read while a quick device call uses ids from it, so that an id cannot be
//! destroyed and reused in between; it is never held across a call that waits for the device, nor
//! while memory is charged. A launch may compile its kernel under it, so whoever suspends, cancels or measures
//! takes `live` alone.

mod arrays;
mod budget;
mod contexts;
mod drain;
mod events;
mod extents;
mod graphs;
mod late;
mod launches;
mod map;
mod memory;
mod modules;
mod saved;
mod shared;
mod vmm;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{
    Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

use mica_gpu::{
    Access, ArrayDescriptor, ArrayId, ContextId, EventFlags, EventId, FrameId, Gpu, GpuError,
    ModuleId, SessionBudget, Share, StreamFlags, StreamId,
};

pub use contexts::NewContext;
pub use late::LateErrors;
pub use launches::LaunchRun;
pub use map::{Piece, PieceKind};
pub use memory::HostUse;
pub use modules::LoadedModule;

use graphs::{Graph, Template};

use crate::handle::{HandleTable, ObjectKind};
use crate::progress::SharedProgress;
use crate::ranges::Ranges;
use crate::vgpu::{Charge, Vgpu};
use crate::windows::Windows;

/// How often the end of a session looks whether its calls have ended.
const END_LOOK: Duration = Duration::from_millis(1);
use crate::vgpu::lock;
use crate::{Result, VgpuError};

struct Context {
    id: ContextId,
    #[expect(dead_code, reason = "held until the object is destroyed")]
    share: Share,
}

struct Stream {
    id: StreamId,
    context: u64,
    is_default: bool,
    flags: StreamFlags,
    priority: i32,
    /// See [`Session::next_made`].
    made: u64,
    #[expect(dead_code, reason = "held until the object is destroyed")]
    share: Share,
}

struct Event {
    id: EventId,
    context: u64,
    flags: EventFlags,
    /// How far it is, where other processes have it too.
    progress: Option<Arc<dyn SharedProgress>>,
    /// See [`Session::next_made`].
    made: u64,
    #[expect(dead_code, reason = "held until the object is destroyed")]
    share: Share,
}

struct Module {
    id: ModuleId,
    context: u64,
    /// What it was loaded from, where sessions can be saved.
    kept: Option<modules::Kept>,
    /// Variables of it are in host memory.
    is_bound: AtomicBool,
    /// See [`Session::next_made`].
    made: u64,
    #[expect(dead_code, reason = "held until the module is unloaded")]
    charge: Charge,
    #[expect(dead_code, reason = "held until the object is destroyed")]
    share: Share,
}

struct Array {
    id: ArrayId,
    context: u64,
    descriptor: ArrayDescriptor,
    #[expect(dead_code, reason = "held until the array is destroyed")]
    charge: Charge,
    #[expect(dead_code, reason = "held until the object is destroyed")]
    share: Share,
}

struct Frame {
    id: FrameId,
    bytes: u64,
    charge: Arc<Charge>,
    /// The most that kernels may do with it.
    most: Access,
    #[expect(dead_code, reason = "held until the object is destroyed")]
    share: Share,
}

struct Tables {
    contexts: HandleTable<Context>,
    streams: HandleTable<Stream>,
    events: HandleTable<Arc<Event>>,
    modules: HandleTable<Arc<Module>>,
    arrays: HandleTable<Array>,
    frames: HandleTable<Frame>,
    graphs: HandleTable<Graph>,
    templates: HandleTable<Template>,
    /// Texture and surface objects by the device's handle, which kernels receive, with the context.
    textures: BTreeMap<u64, (u64, Share)>,
    /// Reserved addresses: first and length.
    reserved: BTreeMap<u64, (u64, Share)>,
    ranges: Ranges,
}

impl Tables {
    fn new() -> Self {
        Self {
            contexts: HandleTable::new(ObjectKind::Context),
            streams: HandleTable::new(ObjectKind::Stream),
            events: HandleTable::new(ObjectKind::Event),
            modules: HandleTable::new(ObjectKind::Module),
            arrays: HandleTable::new(ObjectKind::Array),
            frames: HandleTable::new(ObjectKind::Frame),
            graphs: HandleTable::new(ObjectKind::Graph),
            templates: HandleTable::new(ObjectKind::Template),
            textures: BTreeMap::new(),
            reserved: BTreeMap::new(),
            ranges: Ranges::default(),
        }
    }
}

/// One program's contexts and all they hold. Every method may be called from any thread.
pub struct Session {
    vgpu: Arc<Vgpu>,
    gpu: Arc<dyn Gpu>,
    tables: RwLock<Tables>,
    /// The contexts of `tables`, for those who must not wait for it. Taken after `tables`.
    live: Mutex<Vec<ContextId>>,
    closed: AtomicBool,
    late: LateErrors,
    faulted: Mutex<HashSet<u64>>,
    /// Addresses that streams have passed the free of: they can be freed now.
    freed: Arc<Mutex<Vec<u64>>>,
    frees_pending: AtomicU64,
    windows: OnceLock<Box<dyn Windows>>,
    drains: drain::Drains,
    /// A graph that the device refused has been logged.
    replay_logged: AtomicBool,
    /// Streams, events and modules made so far.
    made: AtomicU64,
    budget: Arc<SessionBudget>,
    /// Host memory that the program shares with the worker.
    registered: Arc<SessionBudget>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("vgpu", &self.vgpu)
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

fn table_full(kind: ObjectKind) -> VgpuError {
    VgpuError::TooMany {
        kind,
        limit: kind.most(),
    }
}

impl Session {
    pub(crate) fn new(vgpu: Arc<Vgpu>, gpu: Arc<dyn Gpu>) -> Arc<Self> {
        let registered = Arc::new(SessionBudget::new(vgpu.spec().registered_bytes));
        Arc::new(Self {
            budget: budget::open(&vgpu),
            registered,
            vgpu,
            gpu,
            tables: RwLock::new(Tables::new()),
            live: Mutex::default(),
            closed: AtomicBool::new(false),
            late: LateErrors::default(),
            faulted: Mutex::default(),
            freed: Arc::default(),
            frees_pending: AtomicU64::new(0),
            windows: OnceLock::new(),
            drains: drain::Drains::default(),
            replay_logged: AtomicBool::new(false),
            made: AtomicU64::new(0),
        })
    }

    /// Says that the session's program may have windows on its memory. The first call counts.
    pub fn attach_windows(&self, windows: Box<dyn Windows>) {
        if self.vgpu.is_suspended() {
            windows.set_open(false);
        }
        let _ = self.windows.set(windows);
    }

    /// Closes the windows, and waits at most so long until the program has let go; whether it has.
    pub(crate) fn close_windows(&self, patience: Duration) -> bool {
        let windows = self.windows.get();
        windows.is_none_or(|windows| windows.close_within(patience))
    }

    fn set_windows_open(&self, open: bool) {
        if let Some(windows) = self.windows.get() {
            windows.set_open(open);
        }
    }

    /// Bytes that the program says it has copied to and from the device itself.
    pub(crate) fn copied_bytes(&self) -> (u64, u64) {
        self.windows.get().map_or((0, 0), |w| w.copied_bytes())
    }

    /// The virtual GPU.
    pub fn vgpu(&self) -> &Arc<Vgpu> {
        &self.vgpu
    }

    /// The device, for what needs no permission: properties and attributes.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.gpu
    }

    /// Errors that came after their calls had returned.
    pub fn late(&self) -> &LateErrors {
        &self.late
    }

    /// Whether the session is over.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Acquire)
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Session::write`], for the end of the session: a launch that compiles its kernel with the tables in use
    /// is cancelled. One may begin after a look, so it is looked again.
    fn write_cancelling(&self) -> RwLockWriteGuard<'_, Tables> {
        loop {
            match self.tables.try_write() {
                Ok(tables) => return tables,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
            for id in self.context_ids() {
                // A device that cannot cancel compiles nothing itself.
                let _ = self.gpu.cancel(id, None);
            }
            std::thread::sleep(END_LOOK);
        }
    }

    #[inline]
    fn check(&self) -> Result<()> {
        if self.is_closed() {
            return Err(VgpuError::Closed);
        }
        self.vgpu.check()
    }

    /// Counts the first fault of a context, and passes the result on.
    fn watch<T>(&self, context: u64, result: Result<T, GpuError>) -> Result<T> {
        if let Err(error) = &result
            && error.code.is_sticky()
            && lock(&self.faulted).insert(context)
        {
            self.vgpu.counters().faults.fetch_add(1, Relaxed);
            tracing::warn!(%error, "a context faulted");
        }
        Ok(result?)
    }

    /// Ends the session: cancels its work and frees all it holds. The first call does it; later
    /// ones do nothing.
    pub fn close(&self) {
        if self.closed.swap(true, AcqRel) {
            return;
        }
        self.gpu.give_up_waits();
        let tables = {
            let mut tables = self.write_cancelling();
            lock(&self.live).clear();
            std::mem::replace(&mut *tables, Tables::new())
        };
        let counters = self.vgpu.counters();
        let streams = tables.streams.iter().filter(|(_, s)| !s.is_default).count();
        for (_, context) in tables.contexts.iter() {
            let spent = self.gpu.context_gpu_time_ns(context.id).unwrap_or(0);
            counters.past_gpu_time_ns.fetch_add(spent, Relaxed);
            self.see_drains_out(context.id);
            if let Err(error) = self.gpu.context_destroy(context.id) {
                tracing::warn!(%error, "a context of an ended session could not be destroyed");
            }
        }
        let (to_device, from_device) = self.copied_bytes();
        counters.bytes_from_host.fetch_add(to_device, Relaxed);
        counters.bytes_to_host.fetch_add(from_device, Relaxed);
        counters.streams.fetch_sub(streams as u32, Relaxed);
        counters
            .modules
            .fetch_sub(tables.modules.len() as u32, Relaxed);
        self.release_frames(&tables);
        // The rest of the tables is charges and keepers of host memory: they go last.
        drop(tables);
        lock(&self.freed).clear();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}
