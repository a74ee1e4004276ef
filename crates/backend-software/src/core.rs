//! The device's inner life: its tables, its lock, and the order in which things may happen.
//!
//! ```text
//!   caller ─ submit ─► stream queue ─ pump ─► ready grids ─► workers
//!                          ▲                  transfers  ─► copy threads
//!                          │                  callbacks  ─► the context's thread
//!                          └───── complete ◄──┘
//! ```
//!
//! One lock guards tables and queues; it is held for bookkeeping only, never while a kernel, a copy
//! or a callback runs. Blocks are claimed without it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use mica_gpu::{GpuError, HostCallback, Result, ValueWait};

use crate::compiling::Compiling;
use crate::config::{Config, OutputKind, OutputSink};
use crate::context::{Context, lock};
use crate::error::bad_handle;
use crate::gate::ExecutionGate;
use crate::grid::Grid;
use crate::idle_gaps::IdleGaps;
use crate::memory::DeviceMemory;
use crate::meter::Meter;
use crate::module::Module;
use crate::moving::Moving;
use crate::queue_room::QueueLevel;
use crate::texture::Array;
use crate::transfer::Transfer;
use crate::value_waits::WaitingStream;

/// Everything the device's threads share.
pub(crate) struct Core {
    pub(crate) memory: Arc<DeviceMemory>,
    pub(crate) workers: usize,
    pub(crate) gate: Option<Arc<dyn ExecutionGate>>,
    /// What was last known of the gate; true without one.
    pub(crate) gate_open: AtomicBool,
    /// Threads that run blocks, paused ones not counted.
    pub(crate) executing: AtomicUsize,
    pub(crate) output: Option<OutputSink>,
    /// What is looked for in kernels.
    pub(crate) check: Option<mica_check::CheckSettings>,
    /// Who is told which lines of kernels were reached.
    pub(crate) coverage: Option<Arc<mica_coverage::CoverageLog>>,
    /// Chooses the order of blocks and threads.
    pub(crate) seed: Option<u64>,
    /// Most shared memory of a block.
    pub(crate) shared_limit: u64,
    /// Who is told what the device did.
    pub(crate) recording: crate::record::Recording,
    /// What is queued, in a form that needs no lock.
    pub(crate) queue_level: QueueLevel,
    /// Kernel time of all contexts.
    pub(crate) meter: Meter,
    /// All contexts, for those who only want to know what they used: launches do not wait for them.
    metered: Mutex<Vec<Arc<Context>>>,
    state: Mutex<State>,
    /// Workers wait here for grids.
    pub(crate) work: Condvar,
    /// Threads of cooperative grids wait here for the next one.
    pub(crate) residents: Condvar,
    /// Callers wait here for completion.
    pub(crate) done: Condvar,
    /// Paused blocks wait here.
    pub(crate) resume: Condvar,
    /// Copy threads wait here.
    pub(crate) copies: Condvar,
    /// The monitor waits here.
    pub(crate) watch: Condvar,
    /// The thread that looks at words which streams wait for waits here.
    pub(crate) values: Condvar,
    /// Grids with unclaimed blocks, for those who look without the lock.
    pub(crate) ready_count: AtomicUsize,
    /// The most urgent priority among them.
    pub(crate) urgent: AtomicI32,
    /// Whether [`State::held`] holds a grid, for those who look without the lock.
    pub(crate) is_held: AtomicBool,
    /// Workers that look for grids without sleeping.
    pub(crate) spinning: AtomicUsize,
    /// Times that a worker goes to sleep at once.
    pub(crate) spins_skipped: AtomicU32,
    pub(crate) shutdown: AtomicBool,
}

/// What the lock guards.
#[derive(Default)]
pub(crate) struct State {
    last_id: u64,
    pub(crate) contexts: HashMap<u64, ContextEntry>,
    pub(crate) streams: HashMap<u64, Stream>,
    pub(crate) events: HashMap<u64, Arc<Event>>,
    pub(crate) modules: HashMap<u64, Arc<Module>>,
    pub(crate) arrays: HashMap<u64, Arc<Array>>,
    /// Active grids with blocks to claim.
    pub(crate) ready: Vec<Arc<Grid>>,
    /// All active grids.
    pub(crate) running: Vec<Arc<Grid>>,
    pub(crate) transfers: VecDeque<Moving>,
    /// Blocks of cooperative grids waiting for their own thread.
    pub(crate) resident: VecDeque<(Arc<Grid>, u64)>,
    pub(crate) threads: Threads,
    /// Callers inside a wait.
    pub(crate) waiting: usize,
    pub(crate) idle_gaps: IdleGaps,
    /// A short grid that nobody was woken for: whoever launched it may wait for it next.
    pub(crate) held: Option<Arc<Grid>>,
    /// Streams whose grids a waiting thread runs.
    pub(crate) helped: Vec<u64>,
    /// Operations queued or running.
    pub(crate) operations: usize,
    /// Bytes that they hold.
    pub(crate) queued_bytes: u64,
    /// Callbacks that run.
    pub(crate) callbacks: usize,
    /// Kernels that are being compiled for launches.
    pub(crate) compiling: Vec<Arc<Compiling>>,
    /// Transfers that copy threads do, or will do next.
    pub(crate) moving: usize,
    /// Streams that wait for a word.
    pub(crate) value_waits: Vec<WaitingStream>,
}

/// How many threads of each kind there are.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    pub(crate) workers: usize,
    pub(crate) workers_idle: usize,
    /// Workers held by blocks of suspended contexts.
    pub(crate) workers_paused: usize,
    /// The thread that holds the lock is a worker that looks for a grid next.
    pub(crate) returning: bool,
    /// Workers beyond the usual number, allowed because some spin on work that waits.
    pub(crate) workers_extra: usize,
    pub(crate) copiers: usize,
    pub(crate) copiers_idle: usize,
    pub(crate) residents: usize,
    pub(crate) residents_idle: usize,
    pub(crate) monitor: bool,
    /// There is a thread that looks at words which streams wait for.
    pub(crate) looks_at_values: bool,
    /// The monitor sleeps until it is told of work.
    pub(crate) monitor_rests: bool,
    pub(crate) joins: Vec<std::thread::JoinHandle<()>>,
}

/// A context and its streams.
pub(crate) struct ContextEntry {
    pub(crate) context: Arc<Context>,
    pub(crate) default_stream: u64,
    pub(crate) streams: Vec<u64>,
}

/// A stream: operations in order, the first of which may be running.
pub(crate) struct Stream {
    pub(crate) context: Arc<Context>,
    pub(crate) kind: StreamKind,
    pub(crate) priority: i32,
    pub(crate) queue: VecDeque<Op>,
    /// Grids that descend from the first operation and come before the second.
    pub(crate) descendants: VecDeque<Arc<Grid>>,
    /// The first operation is running.
    pub(crate) active: bool,
    pub(crate) destroyed: bool,
    pub(crate) last_submitted: u64,
    pub(crate) progress: Arc<AtomicU64>,
}

/// How a stream is ordered against the others of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Waits for, and holds up, all blocking streams.
    Default,
    /// Ordered against the default stream.
    Blocking,
    /// On its own.
    NonBlocking,
}

/// One operation. Its number orders it among all of the device.
pub(crate) struct Op {
    pub(crate) number: u64,
    pub(crate) kind: OpKind,
}

/// What an operation does.
pub(crate) enum OpKind {
    Launch(Arc<Grid>),
    Transfer(Transfer),
    /// A transfer that the submitting thread does itself.
    Inline,
    Callback(HostCallback),
    /// A function of the engine that returns at once, and the bytes it holds.
    Release(HostCallback, u64),
    Record(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
    /// A word in memory is waited for.
    WaitValue(ValueWait),
    /// Only its place in the order counts.
    Marker,
}

/// An event: which of its records were reached, and when the last one was.
pub(crate) struct Event {
    pub(crate) context: Arc<Context>,
    pub(crate) timing: bool,
    pub(crate) recorded: AtomicU64,
    pub(crate) reached: AtomicU64,
    pub(crate) reached_ns: AtomicU64,
    /// Streams whose first operation waits for it.
    pub(crate) waiters: Mutex<Vec<u64>>,
}

impl Core {
    pub(crate) fn new(config: &Config, memory: DeviceMemory) -> Self {
        Self {
            memory: Arc::new(memory),
            workers: config.worker_count(),
            shared_limit: config.capability.shared_per_block(),
            gate: config.gate.clone(),
            gate_open: AtomicBool::new(config.gate.is_none()),
            executing: AtomicUsize::new(0),
            output: config.output.clone(),
            check: config.check,
            coverage: config.coverage.clone(),
            seed: config.seed,
            recording: crate::record::Recording::default(),
            queue_level: QueueLevel::default(),
            meter: Meter::new(config.worker_count() as u64),
            metered: Mutex::default(),
            state: Mutex::default(),
            work: Condvar::new(),
            residents: Condvar::new(),
            done: Condvar::new(),
            resume: Condvar::new(),
            copies: Condvar::new(),
            watch: Condvar::new(),
            values: Condvar::new(),
            ready_count: AtomicUsize::new(0),
            urgent: AtomicI32::new(i32::MAX),
            is_held: AtomicBool::new(false),
            spinning: AtomicUsize::new(0),
            spins_skipped: AtomicU32::new(0),
            shutdown: AtomicBool::new(false),
        }
    }

    /// Takes the lock.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The contexts, to ask what they used.
    pub(crate) fn metered(&self) -> MutexGuard<'_, Vec<Arc<Context>>> {
        lock(&self.metered)
    }

    /// What a meter has counted, as time of the whole device: a second is one in which every worker ran.
    pub(crate) fn device_ns(&self, meter: &Meter) -> u64 {
        meter.total_ns() / self.workers as u64
    }

    /// Writes what a context's kernels printed.
    pub(crate) fn flush_output(&self, context: &Context) {
        let text = lock(&context.fifo).take();
        if !text.is_empty() {
            self.write(OutputKind::Print, &text);
        }
    }

    /// Writes to the sink, or to the C library's streams: a program's own `printf` shares their
    /// buffer, so the order of lines is kept.
    pub(crate) fn write(&self, kind: OutputKind, text: &[u8]) {
        if let Some(sink) = &self.output {
            sink(kind, text);
            return;
        }
        use OutputKind::{Assert, Check, Fault, LaunchRefused, Print, Refused};
        if matches!(kind, Fault | Refused | LaunchRefused) {
            return;
        }
        unsafe extern "C" {
            static stdout: *mut libc::FILE;
            static stderr: *mut libc::FILE;
        }
        // SAFETY: the C library defines both and keeps them valid for the process's life.
        let file = unsafe {
            match kind {
                Print => stdout,
                Assert | Check | Fault | Refused | LaunchRefused => stderr,
            }
        };
        // SAFETY: the text is valid for its length; the stream is locked by the C library.
        unsafe {
            libc::fwrite(text.as_ptr().cast(), 1, text.len(), file);
            libc::fflush(file);
        }
    }
}

impl State {
    /// Whether neither kernels nor transfers run or wait for the gate.
    pub(crate) fn is_quiet(&self) -> bool {
        self.running.is_empty() && self.moving == 0
    }

    /// A number no handle ever had.
    pub(crate) fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The number of the last operation or handle.
    pub(crate) fn last_id(&self) -> u64 {
        self.last_id
    }

    /// The number of a context's oldest operation that is not done, `u64::MAX` if all are.
    pub(crate) fn oldest_operation(&self, context: u64) -> u64 {
        let streams = self.streams.values();
        let own = streams.filter(|stream| stream.context.id == context);
        let first = own.filter_map(|stream| stream.queue.front());
        first.map(|op| op.number).min().unwrap_or(u64::MAX)
    }

    pub(crate) fn context(&self, id: u64) -> Result<&ContextEntry> {
        self.contexts
            .get(&id)
            .filter(|entry| !entry.context.destroyed.load(Ordering::Relaxed))
            .ok_or_else(|| {
                GpuError::new(
                    mica_cuda_abi::CuResult::InvalidContext,
                    format!("context {id} is not one of this device's"),
                )
            })
    }

    /// A context that still works.
    pub(crate) fn healthy_context(&self, id: u64) -> Result<&ContextEntry> {
        let entry = self.context(id)?;
        entry.context.check()?;
        Ok(entry)
    }

    pub(crate) fn stream(&self, id: u64) -> Result<&Stream> {
        self.streams
            .get(&id)
            .filter(|s| !s.destroyed && !s.context.destroyed.load(Ordering::Relaxed))
            .ok_or_else(|| bad_handle("stream", id))
    }

    /// A stream of a context that still works.
    pub(crate) fn healthy_stream(&self, id: u64) -> Result<&Stream> {
        let stream = self.stream(id)?;
        stream.context.check()?;
        Ok(stream)
    }

    pub(crate) fn event(&self, id: u64) -> Result<&Arc<Event>> {
        self.events.get(&id).ok_or_else(|| bad_handle("event", id))
    }
}
