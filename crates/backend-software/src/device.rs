//! [`SoftwareGpu`]: making it, ending it, and waiting for its work.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mica_gpu::{ContextId, DeviceProperties, GpuError, Result};

use crate::attributes::{self, Facts};
use crate::cache::ModuleCache;
use crate::compile::Compiler;
use crate::config::Config;
use crate::context::{Context, lock};
use crate::core::{Core, OpKind, State, StreamKind};
use crate::memory::DeviceMemory;
use crate::meter::now_ns;
use crate::threads::wait_for as wait_briefly;
use crate::worker::wait;

/// Address space asked for by default; less is taken where less can be had.
const ARENA_BYTES: u64 = 1 << 40;
/// How long a waiting caller looks before it sleeps: waking a thread costs more than this.
const SPIN_NS: u64 = 30_000;
/// All loops of kernels poll, so a block that takes longer to pause is stuck.
const SUSPEND_LIMIT: Duration = Duration::from_secs(10);

/// A GPU made of this machine's cores and memory.
///
/// ```
/// use mica_backend_software::{Config, SoftwareGpu};
/// use mica_gpu::Gpu;
///
/// let gpu = SoftwareGpu::new(Config::default())?;
/// assert_eq!(gpu.properties().name, "Mica Software GPU");
/// let context = gpu.context_create()?;
/// let memory = gpu.memory_alloc(context, 1 << 20)?;
/// assert_eq!(gpu.memory_range(context, memory.offset(100))?, (memory, 1 << 20));
/// gpu.context_destroy(context)?;
/// # Ok::<(), mica_gpu::GpuError>(())
/// ```
pub struct SoftwareGpu {
    pub(crate) core: Arc<Core>,
    pub(crate) facts: Facts,
    pub(crate) properties: DeviceProperties,
    pub(crate) cache: ModuleCache,
    pub(crate) handler_installed: AtomicBool,
    /// Taken by whoever holds all kernels still.
    still: Mutex<()>,
    /// Taken by whoever reads a module.
    pub(crate) reading: Mutex<()>,
}

impl SoftwareGpu {
    /// A device. It costs address space and little else until it is used.
    ///
    /// # Errors
    /// When the process may not have the address space for its memory.
    pub fn new(config: Config) -> Result<Self> {
        let (total, arena) = (config.memory(), config.arena_bytes.unwrap_or(ARENA_BYTES));
        let memory = match (config.address_space, config.windows) {
            (Some(place), _) => DeviceMemory::continued(total, place)?,
            (None, _) if config.continuable => DeviceMemory::continuable(total, arena)?,
            (None, true) => DeviceMemory::with_windows(total, arena)?,
            (None, false) => DeviceMemory::new(total, arena)?,
        };
        let mut memory = memory;
        if let Some(settings) = &config.check {
            memory.check(settings);
        }
        let (workers, resident) = (config.worker_count(), config.resident_blocks());
        let facts = Facts {
            capability: config.capability,
            ..Facts::new(workers, resident, config.ordinal)
        };
        let properties = attributes::properties(&facts, memory.total());
        let compiler: Arc<dyn Compiler> = match &config.compiler {
            Some(compiler) => Arc::clone(compiler),
            None => crate::pipeline::compiler(&config),
        };
        Ok(Self {
            core: Arc::new(Core::new(&config, memory)),
            facts,
            properties,
            cache: ModuleCache::new(compiler),
            handler_installed: AtomicBool::new(false),
            still: Mutex::default(),
            reading: Mutex::default(),
        })
    }

    /// Nanoseconds that kernels of all contexts have taken, where a second is one in which every worker
    /// ran; cheap to ask.
    pub fn busy_time_ns(&self) -> u64 {
        self.core.device_ns(&self.core.meter)
    }

    /// First address and length of the arena that all device addresses lie in.
    pub fn arena(&self) -> (u64, u64) {
        let arena = self.core.memory.arena();
        (arena.base(), arena.len())
    }

    /// Waits until a stream got as far as `target`.
    pub(crate) fn wait_for(&self, progress: &AtomicU64, target: u64) {
        let reached = || progress.load(Ordering::Acquire) >= target;
        let end = now_ns() + SPIN_NS;
        while now_ns() < end {
            for _ in 0..64 {
                if reached() {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        let mut state = self.core.state();
        state.waiting += 1;
        while !reached() {
            state = wait(&self.core.done, state);
        }
        state.waiting -= 1;
    }

    /// Waits for a stream's work and shows what its kernels printed.
    pub(crate) fn wait_for_stream(&self, stream: u64) -> Result<()> {
        let mut state = self.core.state();
        let known = state.healthy_stream(stream)?;
        let context = Arc::clone(&known.context);
        let progress = Arc::clone(&known.progress);
        let mut target = known.last_submitted;
        let (one, all) = ([stream], &mut Vec::new());
        let mut streams = &one[..];
        if known.kind == StreamKind::Default {
            // The default stream also stands for all blocking streams.
            target = self.core.submit(&mut state, stream, OpKind::Marker);
            *all = blocking_streams(&state, context.id);
            streams = all;
        }
        drop(state);
        let reached = || progress.load(Ordering::Acquire) >= target;
        if !reached() {
            self.core.help(streams, target, reached);
            self.wait_for(&progress, target);
        }
        self.after_wait(&context)
    }

    /// What every synchronization ends with.
    pub(crate) fn after_wait(&self, context: &Context) -> Result<()> {
        self.core.flush_output(context);
        context.check()
    }

    /// Waits for all streams of a context.
    pub(crate) fn wait_for_context(&self, context: ContextId) -> Result<()> {
        let state = self.core.state();
        let entry = state.healthy_context(context.0)?;
        let targets: Vec<(u64, Arc<AtomicU64>, u64)> = entry
            .streams
            .iter()
            .filter_map(|id| Some((*id, state.streams.get(id)?)))
            .map(|(id, stream)| (id, Arc::clone(&stream.progress), stream.last_submitted))
            .collect();
        let context = Arc::clone(&entry.context);
        drop(state);
        for (stream, progress, target) in targets {
            let reached = || progress.load(Ordering::Acquire) >= target;
            if !reached() {
                self.core.help(&[stream], target, reached);
                self.wait_for(&progress, target);
            }
        }
        self.after_wait(&context)
    }

    /// Sets or clears a context's suspension; suspending waits until its blocks hold still.
    pub(crate) fn set_suspended(&self, context: ContextId, suspended: bool) -> Result<()> {
        let mut state = self.core.state();
        let context = Arc::clone(&state.context(context.0)?.context);
        context.suspended.store(suspended, Ordering::SeqCst);
        self.core.note_ready(&mut state);
        self.core.refresh_stops(&state);
        if !suspended {
            self.core.work.notify_all();
            return Ok(());
        }
        let end = Instant::now() + SUSPEND_LIMIT;
        while context.executing.load(Ordering::SeqCst) > 0 && context.is_suspended() {
            if Instant::now() > end {
                return Err(GpuError::new(
                    mica_cuda_abi::CuResult::Timeout,
                    format!("a kernel of context {} does not pause", context.id),
                ));
            }
            state = wait_briefly(&self.core.done, state, Duration::from_millis(1));
        }
        Ok(())
    }

    /// Runs `change` while no kernel touches memory.
    pub(crate) fn while_still<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let still = lock(&self.still);
        let mut state = self.core.state();
        // Contexts made from here on are not held, and have no kernels that use older memory.
        let held: Vec<Arc<Context>> = (state.contexts.values())
            .map(|entry| Arc::clone(&entry.context))
            .collect();
        for context in &held {
            context.is_held.store(true, Ordering::SeqCst);
        }
        self.core.note_ready(&mut state);
        self.core.refresh_stops(&state);
        let end = Instant::now() + SUSPEND_LIMIT;
        let runs = |context: &Arc<Context>| context.executing.load(Ordering::SeqCst) > 0;
        while held.iter().any(runs) && Instant::now() < end {
            state = wait_briefly(&self.core.done, state, Duration::from_millis(1));
        }
        let is_still = !held.iter().any(runs);
        drop(state);
        let changed = match is_still {
            true => change(),
            false => Err(GpuError::new(
                mica_cuda_abi::CuResult::Timeout,
                "a kernel does not pause",
            )),
        };
        let mut state = self.core.state();
        for context in held {
            context.is_held.store(false, Ordering::SeqCst);
        }
        self.core.note_ready(&mut state);
        self.core.refresh_stops(&state);
        self.core.work.notify_all();
        drop(still);
        changed
    }

    /// Ends a context: its work, then everything it holds.
    pub(crate) fn destroy(&self, id: u64) -> Result<()> {
        let mut state = self.core.state();
        let context = Arc::clone(&state.context(id)?.context);
        context.destroyed.store(true, Ordering::SeqCst);
        self.core.cancel_grids(&mut state, id, None);
        self.core.pump_context(&mut state, id);
        state.waiting += 1;
        while is_busy(&state, id) || context.executing.load(Ordering::SeqCst) > 0 {
            state = wait_briefly(&self.core.done, state, Duration::from_millis(2));
        }
        state.waiting -= 1;
        self.core.metered().retain(|context| context.id != id);
        let streams = state.contexts.remove(&id).map(|entry| entry.streams);
        for stream in streams.into_iter().flatten() {
            if let Some(gone) = state.streams.remove(&stream) {
                state.operations -= gone.queue.len();
                let held: u64 = gone.queue.iter().map(|op| op.kind.held_bytes()).sum();
                state.queued_bytes -= held;
            }
        }
        self.core.tell_queue_level(&state);
        state.events.retain(|_, event| event.context.id != id);
        state.arrays.retain(|_, array| array.context != id);
        let gone: Vec<u64> = state
            .modules
            .iter()
            .filter(|(_, module)| module.context == id)
            .map(|(module, _)| *module)
            .collect();
        let modules: Vec<_> = gone.iter().map(|m| state.modules.remove(m)).collect();
        drop(state);
        drop(modules);
        *lock(&context.callbacks) = None;
        self.core.flush_output(&context);
        self.core.memory.free_all(id);
        Ok(())
    }
}

/// The streams of a context that are ordered against its default stream, and that one.
fn blocking_streams(state: &State, context: u64) -> Vec<u64> {
    let Some(entry) = state.contexts.get(&context) else {
        return Vec::new();
    };
    let blocks = |id: &&u64| {
        let stream = state.streams.get(*id);
        stream.is_some_and(|stream| stream.kind != StreamKind::NonBlocking)
    };
    entry.streams.iter().filter(blocks).copied().collect()
}

/// Whether anything of the context is running.
fn is_busy(state: &State, context: u64) -> bool {
    let Some(entry) = state.contexts.get(&context) else {
        return false;
    };
    entry
        .streams
        .iter()
        .filter_map(|id| state.streams.get(id))
        .any(|stream| stream.active)
}

impl Drop for SoftwareGpu {
    fn drop(&mut self) {
        let contexts: Vec<u64> = self.core.state().contexts.keys().copied().collect();
        for context in contexts {
            // Already gone is as good.
            let _gone = self.destroy(context);
        }
        self.core.shutdown.store(true, Ordering::SeqCst);
        let joins = {
            let mut state = self.core.state();
            let core = &self.core;
            for condition in [
                &core.work,
                &core.residents,
                &core.copies,
                &core.resume,
                &core.watch,
                &core.values,
                &core.done,
            ] {
                condition.notify_all();
            }
            std::mem::take(&mut state.threads.joins)
        };
        let me = std::thread::current().id();
        for thread in joins {
            if thread.thread().id() != me && thread.join().is_err() {
                tracing::error!("a device thread panicked");
            }
        }
    }
}

impl std::fmt::Debug for SoftwareGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SoftwareGpu")
            .field("properties", &self.properties)
            .finish_non_exhaustive()
    }
}
