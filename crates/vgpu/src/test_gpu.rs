//! A device made of plain vectors, for tests of the engine and of what is built on it.
//!
//! Work runs at once, except behind a `block` kernel: that holds its context's later work until it is
//! cancelled or [`TestGpu::release`]d. "PTX" is a line per kernel: its name and the sizes of its
//! parameters. Kernels: `fill` (u64 address, u32 count, u32 value), `add` (u64 address, u32 count,
//! u32 value), `fault`, `block`; other names do nothing. `global NAME BYTES` makes a variable.
#![expect(unsafe_code, reason = "copies read and write host spans")]

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
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

impl State {
    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn context_of(&self, stream: StreamId) -> Result<u64> {
        let context = *self.streams.get(&stream.0).ok_or(missing("no stream"))?;
        let state = self.contexts.get(&context).ok_or(missing("no context"))?;
        state.fault.clone().map_or(Ok(context), Err)
    }

    fn submit(&mut self, stream: StreamId, work: Work) -> Result<()> {
        let context = self.context_of(stream)?;
        let state = self
            .contexts
            .get_mut(&context)
            .ok_or(missing("no context"))?;
        if state.held() || !state.queue.is_empty() {
            state.queue.push(work);
        } else {
            work(self);
        }
        Ok(())
    }

    fn run_queue(&mut self, context: u64) {
        while let Some(state) = self.contexts.get_mut(&context) {
            if state.held() || state.queue.is_empty() {
                return;
            }
            let work = state.queue.remove(0);
            work(self);
        }
    }

    fn find(&self, address: u64) -> Option<(u64, &Memory)> {
        let (start, (len, memory)) = self.memory.range(..=address).next_back()?;
        (address - start < *len).then_some((address - start, memory))
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Option<()> {
        match self.find(address)? {
            (at, Memory::Owned(data)) => {
                bytes.copy_from_slice(data.get(at as usize..at as usize + bytes.len())?);
            }
            (at, Memory::Host(span)) => {
                (at + bytes.len() as u64 <= span.len()).then_some(())?;
                let from = span.as_ptr().wrapping_add(at as usize);
                // SAFETY: registered spans are valid until unregistered.
                unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
            }
        }
        Some(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        let (at, memory) = self.find(address)?;
        if let Memory::Host(span) = memory {
            (at + bytes.len() as u64 <= span.len()).then_some(())?;
            let to = span.as_ptr().wrapping_add(at as usize);
            // SAFETY: registered spans are valid until unregistered.
            unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
            return Some(());
        }
        let start = address - at;
        if let Some((_, Memory::Owned(data))) = self.memory.get_mut(&start) {
            data.get_mut(at as usize..at as usize + bytes.len())?
                .copy_from_slice(bytes);
        }
        Some(())
    }

    fn get_row(&self, place: Place, at: u64, bytes: &mut [u8]) -> Option<()> {
        match place {
            Place::Device(address) => self.read(address.0 + at, bytes),
            Place::Host(span) => {
                (at + bytes.len() as u64 <= span.len()).then_some(())?;
                let from = span.as_ptr().wrapping_add(at as usize);
                // SAFETY: spans are valid until the copy is done.
                unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
                Some(())
            }
            Place::Array(array) => {
                let data = &self.arrays.get(&array.0)?.1;
                bytes.copy_from_slice(data.get(at as usize..at as usize + bytes.len())?);
                Some(())
            }
        }
    }

    fn put_row(&mut self, place: Place, at: u64, bytes: &[u8]) -> Option<()> {
        match place {
            Place::Device(address) => self.write(address.0 + at, bytes),
            Place::Host(span) => {
                (at + bytes.len() as u64 <= span.len()).then_some(())?;
                let to = span.as_ptr().wrapping_add(at as usize);
                // SAFETY: spans are valid until the copy is done.
                unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
                Some(())
            }
            Place::Array(array) => {
                let data = &mut self.arrays.get_mut(&array.0)?.1;
                data.get_mut(at as usize..at as usize + bytes.len())?
                    .copy_from_slice(bytes);
                Some(())
            }
        }
    }

    fn pitch_of(&self, place: Place, pitch: (u64, u64)) -> (u64, u64) {
        match place {
            Place::Array(array) => self.arrays.get(&array.0).map_or((0, 0), |(_, data, d)| {
                let rows = d.height.max(1);
                let row = data.len() as u64 / rows / d.depth.max(1);
                (row, row * rows)
            }),
            _ => pitch,
        }
    }

    fn copy(&mut self, context: u64, copy: &Copy3d) {
        let src_pitch = self.pitch_of(copy.src, copy.src_pitch);
        let dst_pitch = self.pitch_of(copy.dst, copy.dst_pitch);
        let mut row = vec![0; copy.width_bytes as usize];
        for z in 0..copy.depth {
            for y in 0..copy.height {
                let at =
                    |o: (u64, u64, u64), p: (u64, u64)| o.0 + (o.1 + y) * p.0 + (o.2 + z) * p.1;
                let (src, dst) = (
                    at(copy.src_offset, src_pitch),
                    at(copy.dst_offset, dst_pitch),
                );
                let done = self
                    .get_row(copy.src, src, &mut row)
                    .and_then(|()| self.put_row(copy.dst, dst, &row));
                if done.is_none() {
                    return self.fault(context, CuResult::IllegalAddress, "a copy went wild");
                }
            }
        }
    }

    fn fault(&mut self, context: u64, code: CuResult, what: &str) {
        if let Some(state) = self.contexts.get_mut(&context) {
            state.fault.get_or_insert_with(|| no(code, what));
            state.queue.clear();
        }
    }

    fn kernel(&mut self, context: u64, name: &str, params: &[u8]) {
        let number = |at: usize, len: usize| {
            let mut bytes = [0; 8];
            if let Some(part) = params.get(at..at + len) {
                bytes[..len].copy_from_slice(part);
            }
            u64::from_le_bytes(bytes)
        };
        match name {
            "fill" | "add" => {
                let (address, count, value) = (number(0, 8), number(8, 4), number(12, 4) as u32);
                for index in 0..count {
                    let mut old = [0; 4];
                    let at = address.wrapping_add(index * 4);
                    let done = self.read(at, &mut old).and_then(|()| {
                        let base = if name == "add" {
                            u32::from_le_bytes(old)
                        } else {
                            0
                        };
                        self.write(at, &base.wrapping_add(value).to_le_bytes())
                    });
                    if done.is_none() {
                        return self.fault(context, CuResult::IllegalAddress, "a wild pointer");
                    }
                }
            }
            "fault" => self.fault(context, CuResult::IllegalAddress, "the fault kernel ran"),
            "block" => {
                if let Some(state) = self.contexts.get_mut(&context) {
                    state.blocked = true;
                }
            }
            _ => {}
        }
    }
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

fn parse(text: &str, place: &mut dyn FnMut(u64) -> u64) -> Result<ModuleInfo> {
    let mut info = ModuleInfo::default();
    let bad = || no(CuResult::InvalidPtx, "not a test module");
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let name = words.next().ok_or_else(bad)?;
        let numbers = |words: &mut dyn Iterator<Item = &str>| -> Result<Vec<u32>> {
            words.map(|w| w.parse().map_err(|_| bad())).collect()
        };
        if name == "global" {
            let name = words.next().ok_or_else(bad)?.to_owned();
            let bytes = u64::from(*numbers(&mut words)?.first().ok_or_else(bad)?);
            let address = DevicePtr(place(bytes));
            info.globals.push(GlobalDescription {
                name,
                address,
                bytes,
            });
            continue;
        }
        let mut offset = 0_u32;
        let mut params = Vec::new();
        for size in numbers(&mut words)? {
            offset = offset.next_multiple_of(size.max(1));
            params.push(ParamLayout { offset, size });
            offset += size;
        }
        info.kernels.push(KernelDescription {
            name: name.into(),
            params,
            static_shared: 0,
            local_bytes: 0,
            const_bytes: 0,
            registers: 16,
            max_threads: 1024,
            ptx_version: 80,
            binary_version: 90,
        });
    }
    Ok(info)
}

impl Gpu for TestGpu {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }
    fn attribute(&self, attribute: u32) -> Option<i32> {
        (1..=120)
            .contains(&attribute)
            .then_some(attribute as i32 * 10)
    }
    fn memory_info(&self) -> Result<(u64, u64)> {
        let total = self.properties.total_memory;
        Ok((total - self.in_use(), total))
    }

    fn context_create(&self) -> Result<ContextId> {
        let mut state = self.state();
        let (id, stream) = (state.id(), state.id());
        let context = ContextState {
            default_stream: stream,
            ..ContextState::default()
        };
        state.contexts.insert(id, context);
        state.streams.insert(stream, id);
        Ok(ContextId(id))
    }
    fn context_destroy(&self, context: ContextId) -> Result<()> {
        let mut state = self.state();
        let gone = state.contexts.remove(&context.0);
        gone.ok_or(no(CuResult::InvalidContext, "no context"))?;
        let id = context.0;
        state.streams.retain(|_, c| *c != id);
        state.events.retain(|_, c| *c != id);
        state.textures.retain(|_, c| *c != id);
        let modules: Vec<u64> = (state.modules.iter().filter(|(_, (c, _))| *c == id))
            .map(|(module, _)| *module)
            .collect();
        for module in modules {
            drop_module(&mut state, module);
        }
        let freed: u64 = (state.arrays.values().filter(|(c, _, _)| *c == id))
            .map(|(_, data, _)| data.len() as u64)
            .sum();
        state.arrays.retain(|_, (c, _, _)| *c != id);
        state.in_use -= freed;
        let owned = std::mem::take(&mut state.memory);
        for (address, (len, memory)) in owned {
            match memory {
                // The owner is in the address: see `memory_alloc`.
                Memory::Owned(data) if address >> 44 == id => state.in_use -= data.len() as u64,
                Memory::Host(_) if address >> 44 == id => {}
                other => {
                    state.memory.insert(address, (len, other));
                }
            }
        }
        self.changed.notify_all();
        Ok(())
    }
    fn context_synchronize(&self, context: ContextId) -> Result<()> {
        self.wait(context.0)
    }
    fn context_fault(&self, context: ContextId) -> Option<GpuError> {
        self.state().contexts.get(&context.0)?.fault.clone()
    }
    fn context_limit(&self, context: ContextId, limit: u32) -> Result<u64> {
        self.with_context(context, |_, _| u64::from(limit) * 1024)
    }
    fn context_set_limit(&self, context: ContextId, _: u32, _: u64) -> Result<()> {
        self.with_context(context, |_, _| ())
    }
    fn context_suspend(&self, context: ContextId) -> Result<()> {
        self.with_context(context, |state, id| {
            if let Some(c) = state.contexts.get_mut(&id) {
                c.suspended = true;
            }
        })
    }
    fn context_resume(&self, context: ContextId) -> Result<()> {
        self.with_context(context, |state, id| {
            if let Some(c) = state.contexts.get_mut(&id) {
                c.suspended = false;
            }
            state.run_queue(id);
            self.changed.notify_all();
        })
    }
    fn cancel(&self, context: ContextId, _: Option<StreamId>) -> Result<u64> {
        self.with_context(context, |state, id| {
            let mut cancelled = 0;
            if let Some(c) = state.contexts.get_mut(&id) {
                cancelled = u64::from(c.blocked);
                c.blocked = false;
            }
            state.run_queue(id);
            self.changed.notify_all();
            cancelled
        })
    }

    fn stream_create(&self, context: ContextId, _: StreamFlags, _: i32) -> Result<StreamId> {
        self.with_context(context, |state, context| {
            let id = state.id();
            state.streams.insert(id, context);
            StreamId(id)
        })
    }
    fn stream_destroy(&self, stream: StreamId) -> Result<()> {
        let gone = self.state().streams.remove(&stream.0);
        gone.map(drop).ok_or(missing("no stream"))
    }
    fn stream_synchronize(&self, stream: StreamId) -> Result<()> {
        let context = self.state().context_of(stream)?;
        self.wait(context)
    }
    fn stream_query(&self, stream: StreamId) -> Result<bool> {
        let context = self.state().context_of(stream)?;
        self.idle(context)
    }
    fn stream_wait_event(&self, stream: StreamId, event: EventId) -> Result<()> {
        let state = self.state();
        state.events.get(&event.0).ok_or(missing("no event"))?;
        state.context_of(stream).map(drop)
    }
    fn stream_callback(&self, stream: StreamId, callback: HostCallback) -> Result<()> {
        let (shared, changed) = (Arc::clone(&self.state), Arc::clone(&self.changed));
        let mut state = self.state();
        let context = state.context_of(stream)?;
        // On a thread of its own, as a callback may wait; later work waits for it.
        let run: Work = Box::new(move |state| {
            if let Some(c) = state.contexts.get_mut(&context) {
                c.callbacks += 1;
            }
            std::thread::spawn(move || {
                callback();
                let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(c) = state.contexts.get_mut(&context) {
                    c.callbacks -= 1;
                }
                state.run_queue(context);
                changed.notify_all();
            });
        });
        state.submit(stream, run)
    }
    fn default_stream(&self, context: ContextId) -> Result<StreamId> {
        self.with_context(context, |state, id| {
            StreamId(state.contexts.get(&id).map_or(0, |c| c.default_stream))
        })
    }

    fn event_create(&self, context: ContextId, _: EventFlags) -> Result<EventId> {
        self.with_context(context, |state, context| {
            let id = state.id();
            state.events.insert(id, context);
            EventId(id)
        })
    }
    fn event_destroy(&self, event: EventId) -> Result<()> {
        let gone = self.state().events.remove(&event.0);
        gone.map(drop).ok_or(missing("no event"))
    }
    fn event_record(&self, event: EventId, stream: StreamId) -> Result<()> {
        let state = self.state();
        state.events.get(&event.0).ok_or(missing("no event"))?;
        state.context_of(stream).map(drop)
    }
    fn event_query(&self, event: EventId) -> Result<bool> {
        let context = *self
            .state()
            .events
            .get(&event.0)
            .ok_or(missing("no event"))?;
        self.idle(context)
    }
    fn event_synchronize(&self, event: EventId) -> Result<()> {
        let context = *self
            .state()
            .events
            .get(&event.0)
            .ok_or(missing("no event"))?;
        self.wait(context)
    }
    fn event_elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32> {
        let state = self.state();
        state.events.get(&start.0).ok_or(missing("no event"))?;
        state.events.get(&end.0).ok_or(missing("no event"))?;
        Ok(1.5)
    }

    fn module_load(&self, context: ContextId, image: &[u8], _: &ModuleOptions) -> Result<ModuleId> {
        let text = std::str::from_utf8(image).map_err(|_| no(CuResult::InvalidImage, "no text"))?;
        self.with_context(context, |state, context| {
            let info = parse(text, &mut |bytes| {
                let address = (context << 44) + (state.id() << 24);
                state
                    .memory
                    .insert(address, (bytes, Memory::Owned(vec![0; bytes as usize])));
                state.in_use += bytes;
                address
            })?;
            let id = state.id();
            state.modules.insert(id, (context, info));
            Ok(ModuleId(id))
        })?
    }
    fn module_unload(&self, module: ModuleId) -> Result<()> {
        let mut state = self.state();
        state.modules.get(&module.0).ok_or(missing("no module"))?;
        drop_module(&mut state, module.0);
        Ok(())
    }
    fn module_info(&self, module: ModuleId) -> Result<ModuleInfo> {
        let state = self.state();
        let found = state.modules.get(&module.0);
        Ok(found.ok_or(missing("no module"))?.1.clone())
    }
    fn launch(&self, stream: StreamId, launch: &Launch<'_>) -> Result<()> {
        let mut state = self.state();
        let context = state.context_of(stream)?;
        let (_, info) = state
            .modules
            .get(&launch.module.0)
            .ok_or(missing("no module"))?;
        let kernel = info.kernels.get(launch.kernel as usize);
        let name = kernel.ok_or(missing("no kernel"))?.name.clone();
        let threads: u64 = launch.block.iter().map(|d| u64::from(*d)).product();
        let blocks: u64 = launch.grid.iter().map(|d| u64::from(*d)).product();
        if threads == 0 || threads > 1024 || blocks == 0 {
            return Err(no(CuResult::InvalidValue, "an impossible shape"));
        }
        let params = launch.params.to_vec();
        let run: Work = Box::new(move |state| state.kernel(context, &name, &params));
        let result = state.submit(stream, run);
        self.changed.notify_all();
        result
    }
    fn occupancy(&self, module: ModuleId, _: u32, threads: u32, _: u64) -> Result<u32> {
        self.module_info(module)?;
        Ok(2048 / threads.max(1))
    }

    fn memory_alloc(&self, context: ContextId, bytes: u64) -> Result<DevicePtr> {
        self.with_context(context, |state, id| {
            self.take(state, bytes)?;
            let address = (id << 44) + (state.id() << 24);
            let memory = Memory::Owned(vec![0; bytes as usize]);
            state.memory.insert(address, (bytes, memory));
            Ok(DevicePtr(address))
        })?
    }
    fn memory_free(&self, context: ContextId, address: DevicePtr) -> Result<()> {
        let mut state = self.state();
        state
            .contexts
            .get(&context.0)
            .ok_or(missing("no context"))?;
        let gone = state.memory.remove(&address.0);
        let (bytes, _) = gone.ok_or(no(CuResult::InvalidValue, "no allocation"))?;
        state.in_use -= bytes;
        Ok(())
    }
    fn memory_range(&self, _: ContextId, address: DevicePtr) -> Result<(DevicePtr, u64)> {
        let state = self.state();
        let (at, _) = state.find(address.0).ok_or(missing("no memory"))?;
        let start = address.0 - at;
        Ok((
            DevicePtr(start),
            state.memory.get(&start).map_or(0, |m| m.0),
        ))
    }
    fn copy(&self, stream: StreamId, copy: &Copy3d) -> Result<()> {
        let mut state = self.state();
        let context = state.context_of(stream)?;
        let copy = *copy;
        state.submit(stream, Box::new(move |state| state.copy(context, &copy)))
    }
    fn fill(&self, stream: StreamId, fill: &Fill2d) -> Result<()> {
        let mut state = self.state();
        let context = state.context_of(stream)?;
        let fill = *fill;
        let work = move |state: &mut State| {
            let element = &fill.value.to_le_bytes()[..fill.element_bytes as usize];
            let row = element.repeat(fill.width as usize);
            for y in 0..fill.height {
                if state.write(fill.dst.0 + y * fill.pitch, &row).is_none() {
                    return state.fault(context, CuResult::IllegalAddress, "a fill went wild");
                }
            }
        };
        state.submit(stream, Box::new(work))
    }

    unsafe fn host_register(
        &self,
        context: ContextId,
        span: HostSpan,
        _: Option<BorrowedFd<'_>>,
        _: u64,
    ) -> Result<DevicePtr> {
        self.with_context(context, |state, id| {
            let address = (id << 44) + (state.id() << 24);
            state
                .memory
                .insert(address, (span.len(), Memory::Host(span)));
            DevicePtr(address)
        })
    }
    fn host_unregister(&self, _: ContextId, address: DevicePtr) -> Result<()> {
        let gone = self.state().memory.remove(&address.0);
        gone.map(drop).ok_or(missing("not registered"))
    }

    fn address_reserve(&self, bytes: u64, _: u64) -> Result<DevicePtr> {
        let mut state = self.state();
        let address = state.id() << 44;
        state.reserved.insert(address, bytes);
        Ok(DevicePtr(address))
    }
    fn address_free(&self, address: DevicePtr, _: u64) -> Result<()> {
        let gone = self.state().reserved.remove(&address.0);
        gone.map(drop).ok_or(missing("not reserved"))
    }
    fn frame_create(&self, bytes: u64) -> Result<FrameId> {
        let mut state = self.state();
        self.take(&mut state, bytes)?;
        let id = state.id();
        state.frames.insert(id, bytes);
        Ok(FrameId(id))
    }
    fn frame_release(&self, frame: FrameId) -> Result<()> {
        let mut state = self.state();
        let bytes = state.frames.remove(&frame.0).ok_or(missing("no frame"))?;
        state.in_use -= bytes;
        Ok(())
    }
    fn frame_map(&self, address: DevicePtr, frame: FrameId) -> Result<()> {
        let mut state = self.state();
        let bytes = *state.frames.get(&frame.0).ok_or(missing("no frame"))?;
        let memory = Memory::Owned(vec![0; bytes as usize]);
        state.memory.insert(address.0, (bytes, memory));
        Ok(())
    }
    fn frame_unmap(&self, address: DevicePtr, _: u64) -> Result<()> {
        let gone = self.state().memory.remove(&address.0);
        gone.map(drop).ok_or(missing("not mapped"))
    }
    fn frame_access(&self, _: DevicePtr, _: u64, _: Access) -> Result<()> {
        Ok(())
    }

    fn array_create(&self, context: ContextId, d: &ArrayDescriptor) -> Result<ArrayId> {
        let texel = match d.format {
            1 | 8 => 1,
            2 | 9 | 16 => 2,
            _ => 4,
        } * u64::from(d.channels);
        let bytes = texel * d.width * d.height.max(1) * d.depth.max(1);
        self.with_context(context, |state, context| {
            self.take(state, bytes)?;
            let id = state.id();
            state
                .arrays
                .insert(id, (context, vec![0; bytes as usize], *d));
            Ok(ArrayId(id))
        })?
    }
    fn array_destroy(&self, array: ArrayId) -> Result<()> {
        let mut state = self.state();
        let (_, data, _) = state.arrays.remove(&array.0).ok_or(missing("no array"))?;
        state.in_use -= data.len() as u64;
        Ok(())
    }
    fn texture_create(&self, context: ContextId, _: &TextureDescriptor) -> Result<u64> {
        self.with_context(context, |state, context| {
            let id = state.id();
            state.textures.insert(id, context);
            id
        })
    }
    fn surface_create(&self, context: ContextId, _: ArrayId) -> Result<u64> {
        self.with_context(context, |state, context| {
            let id = state.id();
            state.textures.insert(id, context);
            id
        })
    }
    fn texture_destroy(&self, _: ContextId, handle: u64) -> Result<()> {
        let gone = self.state().textures.remove(&handle);
        gone.map(drop).ok_or(missing("no texture"))
    }

    fn context_gpu_time_ns(&self, _: ContextId) -> Option<u64> {
        None
    }
}

fn drop_module(state: &mut State, module: u64) {
    if let Some((_, info)) = state.modules.remove(&module) {
        for global in info.globals {
            if state.memory.remove(&global.address.0).is_some() {
                state.in_use -= global.bytes;
            }
        }
    }
}
