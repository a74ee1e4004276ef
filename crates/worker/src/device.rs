//! Where sessions get their devices from.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use mica_backend_software::{Config, ExecutionGate, OutputKind, SoftwareGpu};
use mica_gpu::Gpu;
use mica_limits::{Gate, HostLink};
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::{OutputBuffer, WorkerError};

/// Opens the worker's device anew for a session, so that its memory is in no other's address space.
pub trait DeviceSource: Send + Sync {
    /// A device whose kernels print into `output`.
    fn open(&self, output: Arc<OutputBuffer>) -> Result<Arc<dyn Gpu>, WorkerError>;
}

/// Software GPUs that share a gate.
pub struct SoftwareDevices {
    ordinal: u32,
    memory_bytes: Option<u64>,
    gate: Option<Arc<dyn ExecutionGate>>,
}

impl SoftwareDevices {
    /// Devices with this number, memory and gate.
    pub fn new(
        ordinal: u32,
        memory_bytes: Option<u64>,
        gate: Option<Arc<dyn ExecutionGate>>,
    ) -> Self {
        Self {
            ordinal,
            memory_bytes,
            gate,
        }
    }
}

impl DeviceSource for SoftwareDevices {
    fn open(&self, output: Arc<OutputBuffer>) -> Result<Arc<dyn Gpu>, WorkerError> {
        let sink = move |kind: OutputKind, bytes: &[u8]| {
            output.add(u8::from(kind == OutputKind::Assert), bytes);
        };
        let config = Config {
            ordinal: self.ordinal,
            memory_bytes: self.memory_bytes,
            gate: self.gate.clone(),
            output: Some(Arc::new(sink)),
            ..Config::default()
        };
        let gpu =
            SoftwareGpu::new(config).map_err(|error| WorkerError::Device(error.to_string()))?;
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

/// The daemon's leases, as the software GPU asks for them.
pub struct LeaseGate {
    gate: Gate,
    link: Arc<HostLink>,
}

impl LeaseGate {
    /// The gate of a connection.
    pub fn new(gate: Gate, link: Arc<HostLink>) -> Self {
        Self { gate, link }
    }
}

impl ExecutionGate for LeaseGate {
    fn may_run(&self) -> bool {
        self.gate.may_run()
    }

    fn wait(&self, cancel: &AtomicBool) -> bool {
        if self.gate.may_run() {
            return true;
        }
        // The device has paused its blocks before it asks, so a lease that has run out is drained.
        self.gate.yield_now();
        let page = self.link.page();
        let began = mica_limits::monotonic_ns();
        page.counters.waiting.fetch_add(1, SeqCst);
        self.link.ring();
        while !self.gate.may_run() && !cancel.load(Acquire) {
            let word = page.lease.gate.load(Acquire);
            if self.gate.may_run() {
                break;
            }
            let nap = Timespec {
                tv_sec: 0,
                tv_nsec: 5_000_000,
            };
            let _ = futex::wait(&page.lease.gate, futex::Flags::empty(), word, Some(&nap));
            // A lease can end while its holder slept through it: give it back, or it is lost time.
            if !self.gate.may_run() {
                self.gate.yield_now();
            }
        }
        page.counters.waiting.fetch_sub(1, SeqCst);
        let waited = mica_limits::monotonic_ns().saturating_sub(began);
        page.counters.gate_wait_ns.fetch_add(waited, Relaxed);
        self.gate.may_run()
    }

    fn idle(&self) {
        self.gate.yield_now();
    }
}
