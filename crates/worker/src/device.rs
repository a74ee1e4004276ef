//! Where sessions get their devices from.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use mica_backend_software::{Capability, Config, ExecutionGate, OutputKind, SoftwareGpu};
use mica_check::CheckSettings;
use mica_gpu::Gpu;
use mica_gpu::profile::{Activity, Recorder};
use mica_limits::{Gate, HostLink};
use mica_wire::host::page::gate;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::profile::waited_since;
use crate::{OutputBuffer, WorkerError};

/// Opens the worker's device anew for a session, so that its memory is in no other's address space.
pub trait DeviceSource: Send + Sync {
    /// A device whose kernels print into `output`.
    fn open(&self, output: Arc<OutputBuffer>) -> Result<Arc<dyn Gpu>, WorkerError>;
    /// The same, with the address space of an earlier device: its first address and length.
    fn open_at(
        &self,
        _output: Arc<OutputBuffer>,
        _address_space: (u64, u64),
    ) -> Result<Arc<dyn Gpu>, WorkerError> {
        let what = "this GPU cannot be given the addresses of a snapshot";
        Err(WorkerError::Device(what.into()))
    }
}

/// How the software GPU runs kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelSettings {
    /// Record which lines are reached.
    pub coverage: bool,
    /// Chooses the order of blocks; `None` lets time decide.
    pub seed: Option<u64>,
    /// Threads that run blocks; `None` for the cores of the machine.
    pub cores: Option<usize>,
    /// What the device reports.
    pub capability: Capability,
}

/// Software GPUs that share a gate.
pub struct SoftwareDevices {
    ordinal: u32,
    memory_bytes: Option<u64>,
    gate: Option<Arc<LeaseGate>>,
    check: Option<CheckSettings>,
    kernels: KernelSettings,
    continuable: bool,
    open: Arc<AtomicUsize>,
}

/// Devices that get as much address space as they would have alone, 1 TiB. A process has 127 TiB: with
/// [`CROWDED_ARENA_BYTES`] for every other, all sessions of a worker fit.
const ROOMY_DEVICES: usize = 32;
/// Address space of the others: twice the memory of a large device.
const CROWDED_ARENA_BYTES: u64 = 128 << 30;

/// Counts a device while it is open.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl SoftwareDevices {
    /// Devices with this number, memory and gate.
    pub fn new(ordinal: u32, memory_bytes: Option<u64>, gate: Option<Arc<LeaseGate>>) -> Self {
        Self {
            ordinal,
            memory_bytes,
            gate,
            check: None,
            kernels: KernelSettings::default(),
            continuable: false,
            open: Arc::default(),
        }
    }
}

impl SoftwareDevices {
    /// Looks for mistakes of kernels, as the settings say.
    pub fn checked(self, check: Option<CheckSettings>) -> Self {
        Self { check, ..self }
    }

    /// Has devices that other workers may continue, for programs that are saved.
    pub fn continuable(self, continuable: bool) -> Self {
        Self {
            continuable,
            ..self
        }
    }

    /// Runs kernels as the settings say.
    pub fn with_kernels(self, kernels: KernelSettings) -> Self {
        Self { kernels, ..self }
    }
}

impl DeviceSource for SoftwareDevices {
    fn open(&self, output: Arc<OutputBuffer>) -> Result<Arc<dyn Gpu>, WorkerError> {
        self.open_in(output, None)
    }

    fn open_at(
        &self,
        output: Arc<OutputBuffer>,
        address_space: (u64, u64),
    ) -> Result<Arc<dyn Gpu>, WorkerError> {
        self.open_in(output, Some(address_space))
    }
}

impl SoftwareDevices {
    fn open_in(
        &self,
        output: Arc<OutputBuffer>,
        address_space: Option<(u64, u64)>,
    ) -> Result<Arc<dyn Gpu>, WorkerError> {
        let (gate, recorder) = (self.gate.clone(), Arc::clone(output.recorder()));
        if let Some(gate) = &gate {
            let _ = gate.recorder.set(Arc::clone(&recorder));
        }
        let kernels = self.kernels;
        let coverage = (kernels.coverage).then(|| Arc::clone(output.coverage()));
        let before = self.open.fetch_add(1, SeqCst);
        // Held by the sink, which the device holds.
        let open = Open(Arc::clone(&self.open));
        let sink = move |kind: OutputKind, bytes: &[u8]| match kind {
            OutputKind::Print => output.add(0, bytes),
            OutputKind::Assert => output.add(1, bytes),
            OutputKind::Check => output.add(2, bytes),
            // The program's own output stays its own: it gets a code, and `mica run` and `mica events`
            // tell what happened.
            OutputKind::Fault | OutputKind::Refused | OutputKind::LaunchRefused => {
                let _ = &open;
                if let Some(gate) = &gate {
                    let text = String::from_utf8_lossy(bytes);
                    match kind {
                        OutputKind::Fault => gate.link.note_kernel_fault(text.trim()),
                        OutputKind::LaunchRefused => gate.link.note_call_refused(text.trim()),
                        _ => gate.link.note_module_refused(text.trim()),
                    }
                }
            }
        };
        let config = Config {
            ordinal: self.ordinal,
            memory_bytes: self.memory_bytes,
            address_space,
            // The first one belongs to the worker and never to a program.
            continuable: self.continuable && before > 0,
            arena_bytes: (before >= ROOMY_DEVICES).then_some(CROWDED_ARENA_BYTES),
            gate: self.gate.as_ref().map(LeaseGate::for_device),
            output: Some(Arc::new(sink)),
            // One device for each session: it holds the memory of one program only. What a program writes
            // through a window, a check does not see.
            windows: self.check.is_none(),
            check: self.check,
            coverage,
            seed: kernels.seed,
            workers: kernels.cores,
            capability: kernels.capability,
            ..Config::default()
        };
        let gpu =
            SoftwareGpu::new(config).map_err(|error| WorkerError::Device(error.to_string()))?;
        gpu.attach_recorder(&recorder);
        Ok(Arc::new(gpu))
    }
}

/// One device for all sessions: for devices that keep contexts apart themselves, and for tests.
pub struct SharedDevice(pub Arc<dyn Gpu>);

impl DeviceSource for SharedDevice {
    fn open(&self, _: Arc<OutputBuffer>) -> Result<Arc<dyn Gpu>, WorkerError> {
        Ok(Arc::clone(&self.0))
    }
}

/// The daemon's leases, for all devices of a worker: it holds one lease for all of them and gives it
/// back when none of them runs anything.
pub struct LeaseGate {
    gate: Gate,
    link: Arc<HostLink>,
    /// Who is told of waits for a lease.
    recorder: OnceLock<Arc<Recorder>>,
    /// Devices that run blocks, or could.
    running: Mutex<usize>,
}

impl LeaseGate {
    /// The gate of a connection.
    pub fn new(gate: Gate, link: Arc<HostLink>) -> Arc<Self> {
        Arc::new(Self {
            gate,
            link,
            recorder: OnceLock::new(),
            running: Mutex::new(0),
        })
    }

    /// The gate of one more device.
    pub fn for_device(self: &Arc<Self>) -> Arc<dyn ExecutionGate> {
        Arc::new(DeviceGate {
            shared: Arc::clone(self),
            runs: AtomicBool::new(false),
            asks: AtomicBool::new(false),
            used_ns: AtomicU64::new(0),
            kept_ns: AtomicU64::new(0),
        })
    }

    /// Gives back a lease that has ended and that nobody uses; not one that has just come.
    fn yield_ended(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if *running == 0 {
            self.gate.yield_ended();
        }
    }

    /// Gives back a lease that nobody uses.
    fn yield_unused(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if *running == 0 {
            self.gate.yield_now();
        }
    }
}

/// One device's part in a [`LeaseGate`].
struct DeviceGate {
    shared: Arc<LeaseGate>,
    runs: AtomicBool,
    /// Counted among those that have something to run. They are while they hold a lease too: if it is taken
    /// from them, they need no processor to ask for another.
    asks: AtomicBool,
    /// What it has said that it used, and what of it was kept without work.
    used_ns: AtomicU64,
    kept_ns: AtomicU64,
}

impl DeviceGate {
    /// Says that it has something to run.
    fn ask(&self) {
        if !self.asks.swap(true, SeqCst) {
            let counters = &self.shared.link.page().counters;
            counters.waiting.fetch_add(1, SeqCst);
        }
    }

    fn ask_no_more(&self) {
        if self.asks.swap(false, SeqCst) {
            let counters = &self.shared.link.page().counters;
            counters.waiting.fetch_sub(1, SeqCst);
        }
    }

    fn set_runs(&self, runs: bool) {
        let shared = &self.shared;
        let mut running = (shared.running.lock()).unwrap_or_else(PoisonError::into_inner);
        if self.runs.swap(runs, Relaxed) != runs {
            *running = match runs {
                true => *running + 1,
                false => running.saturating_sub(1),
            };
        }
    }
}

impl Drop for DeviceGate {
    fn drop(&mut self) {
        self.idle();
    }
}

impl ExecutionGate for DeviceGate {
    fn may_run(&self) -> bool {
        self.shared.gate.may_run()
    }

    fn remaining(&self) -> Option<Duration> {
        let lease = &self.shared.link.page().lease;
        match gate::state(lease.gate.load(Acquire)) {
            gate::OPEN => None,
            _ => {
                let end_ns = lease.lease_end_ns.load(Relaxed);
                let left_ns = end_ns.saturating_sub(mica_limits::monotonic_ns());
                Some(Duration::from_nanos(left_ns))
            }
        }
    }

    fn can_watch(&self, _open: bool) -> bool {
        true
    }

    fn watch(&self, open: bool, limit: Duration) {
        let gate = &self.shared.link.page().lease.gate;
        // Before the question, so that an answer that changes after it is not slept through.
        let word = gate.load(Acquire);
        if self.shared.gate.may_run() == open {
            let limit = Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: i64::from(limit.subsec_nanos()),
            };
            let _ = futex::wait(gate, futex::Flags::empty(), word, Some(&limit));
        }
    }

    fn used(&self, total_ns: u64) {
        let before_ns = self.used_ns.fetch_max(total_ns, Relaxed);
        let counters = &self.shared.link.page().counters;
        counters
            .used_ns
            .fetch_add(total_ns.saturating_sub(before_ns), Relaxed);
    }

    fn kept(&self, total_ns: u64) {
        let before_ns = self.kept_ns.fetch_max(total_ns, Relaxed);
        let traffic = &self.shared.link.page().traffic;
        traffic
            .kept_ns
            .fetch_add(total_ns.saturating_sub(before_ns), Relaxed);
    }

    fn busy(&self) {
        self.set_runs(true);
        self.ask();
        // Said here and not only by the thread that waits: it takes a while to wake.
        if !self.shared.gate.may_run() {
            self.shared.link.ring();
        }
    }

    fn runs(&self) {
        self.set_runs(true);
    }

    fn holds_still(&self) {
        self.set_runs(false);
    }

    fn wait(&self, is_over: &dyn Fn() -> bool) {
        let shared = &self.shared;
        if self.may_run() {
            return;
        }
        // The device holds still, so a lease that has run out is drained, unless another device still runs
        // or a thread of this one has seen another lease since.
        let page = shared.link.page();
        let began = mica_limits::monotonic_ns();
        // Before the lease is given back, so that whoever hears of that sees that we want another.
        self.ask();
        shared.yield_ended();
        shared.link.ring();
        while !is_over() {
            let word = page.lease.gate.load(Acquire);
            if shared.gate.may_run() {
                break;
            }
            // A lease can end while its holder slept through it: give it back, or it is lost time.
            shared.yield_ended();
            let nap = Timespec {
                tv_sec: 0,
                tv_nsec: 5_000_000,
            };
            let _ = futex::wait(&page.lease.gate, futex::Flags::empty(), word, Some(&nap));
        }
        let waited = mica_limits::monotonic_ns().saturating_sub(began);
        page.counters.gate_wait_ns.fetch_add(waited, Relaxed);
        if let Some(recorder) = shared.recorder.get().filter(|to| to.is_on()) {
            waited_since(recorder, Activity::Turn, "turn", 0, began);
        }
        // Before it looks again, so that nobody else gives the lease back in between.
        self.set_runs(true);
    }

    fn idle(&self) {
        self.ask_no_more();
        self.set_runs(false);
        self.shared.yield_unused();
    }
}
