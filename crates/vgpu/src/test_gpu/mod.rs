//! A device made of plain vectors, for tests of the engine and of what is built on it.
//!
//! Work runs at once, except behind a `block` kernel: that holds its context's later work until it is
//! cancelled or [`TestGpu::release`]d. "PTX" is a line per kernel: its name and the sizes of its
//! parameters. Kernels: `fill` (u64 address, u32 count, u32 value), `add` (u64 address, u32 count,
//! u32 value), `fault`, `block`; other names do nothing. `global NAME BYTES` makes a variable.
#![expect(unsafe_code, reason = "copies read and write host spans")]

mod interface;
mod machine;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mica_cuda_abi::CuResult;
use mica_gpu::*;

type Work = Box<dyn FnOnce(&mut State) + Send>;

#[derive(Default)]
struct ContextState {
    blocked: bool,
    suspended: bool,
    callbacks: u32,
    fault: Option<GpuError>,
    queue: Vec<Work>,
    default_stream: u64,
}

impl ContextState {
    fn held(&self) -> bool {
        self.blocked || self.suspended || self.callbacks > 0
    }
}

enum Memory {
    Owned(Vec<u8>),
    Host(HostSpan),
}

#[derive(Default)]
struct State {
    next: u64,
    contexts: HashMap<u64, ContextState>,
    streams: HashMap<u64, u64>,
    events: HashMap<u64, u64>,
    modules: HashMap<u64, (u64, ModuleInfo)>,
    memory: BTreeMap<u64, (u64, Memory)>,
    arrays: HashMap<u64, (u64, Vec<u8>, ArrayDescriptor)>,
    textures: HashMap<u64, u64>,
    frames: HashMap<u64, u64>,
    reserved: BTreeMap<u64, u64>,
    in_use: u64,
}

/// The device.
pub struct TestGpu {
    properties: DeviceProperties,
    state: Arc<Mutex<State>>,
    changed: Arc<Condvar>,
}

fn no(code: CuResult, what: &str) -> GpuError {
    GpuError::new(code, what)
}

fn missing(what: &str) -> GpuError {
    no(CuResult::InvalidHandle, what)
}

impl TestGpu {
    /// A device with so much memory.
    pub fn new(total_memory: u64) -> Self {
        Self {
            properties: DeviceProperties {
                name: "Test GPU".into(),
                uuid: [7; 16],
                pci_bus_id: "0000:00:00.0".into(),
                compute_capability: (9, 0),
                total_memory,
                multiprocessors: 4,
                max_threads_per_block: 1024,
                max_shared_per_block: 48 << 10,
                frame_bytes: 2 << 20,
                stream_priorities: (0, -5),
            },
            state: Arc::default(),
            changed: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets every `block` kernel end.
    pub fn release(&self) {
        let mut state = self.state();
        let contexts: Vec<u64> = state.contexts.keys().copied().collect();
        for context in contexts {
            if let Some(c) = state.contexts.get_mut(&context) {
                c.blocked = false;
            }
            state.run_queue(context);
        }
        self.changed.notify_all();
    }

    /// Objects and bytes that are still there: zero when everything was freed.
    pub fn leftovers(&self) -> u64 {
        let state = self.state();
        let objects = state.contexts.len()
            + state.streams.len()
            + state.events.len()
            + state.modules.len()
            + state.memory.len()
            + state.arrays.len()
            + state.textures.len()
            + state.frames.len()
            + state.reserved.len();
        objects as u64 + state.in_use
    }

    /// Bytes of device memory in use.
    pub fn in_use(&self) -> u64 {
        self.state().in_use
    }

    fn wait(&self, context: u64) -> Result<()> {
        let mut state = self.state();
        loop {
            let Some(c) = state.contexts.get(&context) else {
                return Err(no(CuResult::ContextIsDestroyed, "the context went"));
            };
            if let Some(fault) = &c.fault {
                return Err(fault.clone());
            }
            if !c.held() && c.queue.is_empty() {
                return Ok(());
            }
            let waited = self.changed.wait_timeout(state, Duration::from_secs(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn with_context<T>(
        &self,
        context: ContextId,
        f: impl FnOnce(&mut State, u64) -> T,
    ) -> Result<T> {
        let mut state = self.state();
        match state.contexts.get(&context.0).map(|c| c.fault.clone()) {
            None => Err(no(CuResult::InvalidContext, "no context")),
            Some(Some(fault)) => Err(fault),
            Some(None) => Ok(f(&mut state, context.0)),
        }
    }

    fn idle(&self, context: u64) -> Result<bool> {
        let state = self.state();
        let c = state.contexts.get(&context).ok_or(missing("no context"))?;
        c.fault.clone().map_or(Ok(()), Err)?;
        Ok(!c.held() && c.queue.is_empty())
    }

    fn take(&self, state: &mut State, bytes: u64) -> Result<()> {
        if state.in_use + bytes > self.properties.total_memory {
            return Err(no(CuResult::OutOfMemory, "the device is full"));
        }
        state.in_use += bytes;
        Ok(())
    }
}
