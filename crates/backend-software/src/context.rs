//! What a context holds besides its streams: its sticky error, limits, output and heap.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, mpsc};

use mica_cuda_abi::{CuResult, Limit};
use mica_gpu::{GpuError, HostCallback, Result};
use mica_kernel::TextureView;

use crate::heap::DeviceHeap;
use crate::meter::Meter;
use crate::printf::Fifo;

/// A host callback on its way to the context's thread: the stream, and what to call.
pub(crate) type CallbackJob = (u64, HostCallback);

/// One context.
pub(crate) struct Context {
    pub(crate) id: u64,
    fault: OnceLock<GpuError>,
    /// Kernel time.
    pub(crate) meter: Meter,
    /// Blocks (or worker visits) of this context that may be touching memory right now.
    pub(crate) executing: AtomicUsize,
    pub(crate) suspended: AtomicBool,
    /// Held still for a moment, while memory moves under its kernels.
    pub(crate) is_held: AtomicBool,
    pub(crate) destroyed: AtomicBool,
    limits: Mutex<Limits>,
    pub(crate) fifo: Mutex<Fifo>,
    pub(crate) heap: Mutex<DeviceHeap>,
    pub(crate) textures: RwLock<HashMap<u64, TextureView>>,
    /// Textures that were destroyed while work was queued that may use them: the number of the last such
    /// operation, and the handle.
    pub(crate) destroyed_textures: Mutex<VecDeque<(u64, u64)>>,
    pub(crate) callbacks: Mutex<Option<mpsc::Sender<CallbackJob>>>,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    stack: u64,
    sync_depth: u64,
    pending_launches: u64,
    l2_fetch: u64,
}

const STACK_MOST: u64 = 512 << 10;

impl Context {
    pub(crate) fn new(id: u64) -> Self {
        Self {
            id,
            fault: OnceLock::new(),
            meter: Meter::default(),
            executing: AtomicUsize::new(0),
            suspended: AtomicBool::new(false),
            is_held: AtomicBool::new(false),
            destroyed: AtomicBool::new(false),
            limits: Mutex::new(Limits {
                stack: 1024,
                sync_depth: 2,
                pending_launches: 2048,
                l2_fetch: 64,
            }),
            fifo: Mutex::default(),
            heap: Mutex::default(),
            textures: RwLock::default(),
            destroyed_textures: Mutex::default(),
            callbacks: Mutex::default(),
        }
    }

    /// The sticky error.
    pub(crate) fn fault(&self) -> Option<&GpuError> {
        self.fault.get()
    }

    /// Refuses when the context is broken.
    pub(crate) fn check(&self) -> Result<()> {
        match self.fault.get() {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Sets the sticky error; the first one stays. Says whether this was it.
    pub(crate) fn set_fault(&self, error: GpuError) -> bool {
        self.fault.set(error).is_ok()
    }

    /// Whether nothing of the context runs any more: it is broken or destroyed.
    pub(crate) fn is_over(&self) -> bool {
        self.fault.get().is_some() || self.destroyed.load(Ordering::SeqCst)
    }

    /// Whether kernels of the context must not run.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::SeqCst) || self.is_held.load(Ordering::SeqCst)
    }

    /// Stack bytes per thread for kernels whose depth is not known.
    pub(crate) fn stack_bytes(&self) -> u64 {
        lock(&self.limits).stack
    }

    /// A limit.
    pub(crate) fn limit(&self, limit: Limit) -> Result<u64> {
        let limits = *lock(&self.limits);
        Ok(match limit {
            Limit::StackSize => limits.stack,
            Limit::PrintfFifoSize => lock(&self.fifo).capacity() as u64,
            Limit::MallocHeapSize => lock(&self.heap).limit(),
            Limit::DevRuntimeSyncDepth => limits.sync_depth,
            Limit::DevRuntimePendingLaunchCount => limits.pending_launches,
            Limit::MaxL2FetchGranularity => limits.l2_fetch,
            Limit::PersistingL2CacheSize => 0,
            _ => return Err(unsupported(limit)),
        })
    }

    /// Sets a limit.
    pub(crate) fn set_limit(&self, limit: Limit, value: u64) -> Result<()> {
        let mut limits = lock(&self.limits);
        match limit {
            Limit::StackSize if value > STACK_MOST => {
                return Err(GpuError::new(
                    CuResult::InvalidValue,
                    format!("a stack of {value} bytes a thread; at most {STACK_MOST}"),
                ));
            }
            Limit::StackSize => limits.stack = value.max(16).next_multiple_of(16),
            Limit::PrintfFifoSize => lock(&self.fifo).set_capacity(value)?,
            Limit::MallocHeapSize => lock(&self.heap).set_limit(value)?,
            Limit::DevRuntimeSyncDepth => limits.sync_depth = value,
            Limit::DevRuntimePendingLaunchCount => limits.pending_launches = value,
            Limit::MaxL2FetchGranularity if value <= 128 => limits.l2_fetch = value,
            Limit::PersistingL2CacheSize if value == 0 => {}
            Limit::MaxL2FetchGranularity | Limit::PersistingL2CacheSize => {
                return Err(GpuError::new(
                    CuResult::InvalidValue,
                    format!("{value} is out of range for limit {limit:?}"),
                ));
            }
            _ => return Err(unsupported(limit)),
        }
        Ok(())
    }
}

fn unsupported(limit: Limit) -> GpuError {
    GpuError::new(
        CuResult::InvalidValue,
        format!("limit {limit:?} is not one of this device's"),
    )
}

/// Locks what is consistent at every unlock, whoever panicked.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
