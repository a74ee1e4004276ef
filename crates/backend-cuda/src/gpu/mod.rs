//! One NVIDIA GPU as the engine sees it.
//!
//! Turns the engine's calls into the driver's, one to one. Numbers stand for driver objects
//! (`handles`), so nothing the engine passes reaches the driver as a pointer unless the driver gave
//! it. Each call makes its context current on its thread first: threads belong to no context.
//!
//! What a real GPU cannot do it refuses by name: kernels cannot be cancelled one by one, and GPU time
//! is not told per context.

mod contexts;
mod copies;
mod frame_copies;
mod graph_nodes;
mod graphs;
mod handles;
mod image;
mod interface;
mod known_ranges;
mod last_launch;
mod memory;
mod modules;
mod places;
mod record;
mod releases;
mod rows;
mod saved;
mod shared;
mod streams;
mod tensor_maps;
mod textures;
mod written_words;

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use mica_cuda_abi::{CuResult, DeviceAttribute, MemAllocationProp, MemLocation};
use mica_gpu::profile::Recorder;
use mica_gpu::{DeviceProperties, GpuError, Result};
use mica_rm::GroupId;

use crate::driver::{CudaDriver, DriverError, Raw, answer, check};
use crate::nvml::Nvml;
use crate::printed::{Printed, PrintedSink};
use graphs::{Graph, Template};
use handles::Handles;
use modules::Module;
use places::Places;
use record::ContextRecording;
use releases::{IdleEvents, Releases};
use rows::RowState;
use saved::{Age, Reference};
use written_words::Submitted;

/// One NVIDIA GPU.
pub struct CudaGpu {
    driver: Arc<CudaDriver>,
    /// Tells this object from others of the process.
    number: u64,
    ordinal: u32,
    properties: DeviceProperties,
    /// Held while a context is made, so that the channel groups that appear are its own.
    making_context: Mutex<()>,
    contexts: Handles<Arc<Context>>,
    streams: Handles<Stream>,
    events: Handles<Event>,
    modules: Handles<Arc<Module>>,
    frames: Handles<Frame>,
    arrays: Handles<Array>,
    graphs: Handles<Arc<Graph>>,
    templates: Handles<Arc<Template>>,
    nvml: OnceLock<Option<(Nvml, u32)>>,
    releases: Arc<Releases>,
    printed: OnceLock<Printed>,
    /// Who is told what the GPU did.
    recorder: OnceLock<Arc<Recorder>>,
    handle_types: u32,
    /// Where memory is reserved, if another process may continue this device.
    places: OnceLock<Mutex<Places>>,
    /// When this process went on with another one's device.
    continued: OnceLock<Instant>,
}

/// A driver's pointer, as a number: the driver says from which threads it may be used, which is all.
type Address = usize;

#[derive(Debug)]
struct Context {
    raw: Address,
    groups: Vec<GroupId>,
    default_stream: OnceLock<u64>,
    fault: Mutex<Option<GpuError>>,
    /// Texture objects, and whether each is a surface.
    textures: Mutex<HashMap<u64, bool>>,
    /// Registered host memory by device address: its own address, and its bytes.
    registered: Mutex<BTreeMap<u64, (Address, u64)>>,
    idle_events: Mutex<IdleEvents>,
    recording: Mutex<ContextRecording>,
    /// Allocations that are mapped frames, by address.
    framed: Mutex<HashMap<u64, Frame>>,
    submitted: Submitted,
    rows: Mutex<RowState>,
    reference: Reference,
}

#[derive(Clone, Debug)]
struct Stream {
    context: Arc<Context>,
    raw: Address,
}

#[derive(Clone, Debug)]
struct Event {
    context: Arc<Context>,
    raw: Address,
    /// When it was reached, as far as the driver does not know it.
    age: Arc<Age>,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    raw: u64,
    bytes: u64,
}

#[derive(Clone, Debug)]
struct Array {
    context: Arc<Context>,
    raw: Address,
}

impl std::fmt::Debug for CudaGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaGpu")
            .field("ordinal", &self.ordinal)
            .field("properties", &self.properties)
            .finish_non_exhaustive()
    }
}

impl CudaGpu {
    /// Takes up one of the driver's GPUs.
    ///
    /// # Errors
    /// There is no such GPU, or its compute mode forbids sharing.
    pub fn open(driver: Arc<CudaDriver>, ordinal: u32) -> Result<Self, DriverError> {
        let count = driver.device_count();
        if ordinal >= count {
            return Err(DriverError::Ordinal { ordinal, count });
        }
        let refused = |mode, allowed| DriverError::ComputeMode {
            ordinal,
            mode,
            allowed,
        };
        match driver.attribute(ordinal, DeviceAttribute::ComputeMode) {
            Some(2) => return Err(refused("prohibited", "no contexts at all")),
            Some(1 | 3) => return Err(refused("exclusive", "one process only")),
            _ => {}
        }
        let properties = read_properties(&driver, ordinal)?;
        let releases = Releases::new(Arc::clone(&driver));
        let handle_types = handle_types(&driver, ordinal);
        Ok(Self {
            handle_types,
            driver,
            number: last_launch::next_number(),
            ordinal,
            properties,
            making_context: Mutex::default(),
            contexts: Handles::default(),
            streams: Handles::default(),
            events: Handles::default(),
            modules: Handles::default(),
            frames: Handles::default(),
            arrays: Handles::default(),
            graphs: Handles::default(),
            templates: Handles::default(),
            nvml: OnceLock::new(),
            releases,
            printed: OnceLock::new(),
            recorder: OnceLock::new(),
            places: OnceLock::new(),
            continued: OnceLock::new(),
        })
    }

    /// Hands on what the driver prints, after each wait, from now on.
    pub fn hand_on_output(&self, printed: Printed) {
        let _ = self.printed.set(printed);
    }

    /// Whom to give the output of kernels.
    pub fn set_output(&self, sink: PrintedSink) {
        if let Some(printed) = self.printed.get() {
            printed.set_sink(sink);
        }
    }

    /// The driver behind it.
    pub fn driver(&self) -> &CudaDriver {
        &self.driver
    }

    /// Makes the context current on this thread and calls the driver.
    fn call(
        &self,
        context: &Context,
        function: &'static str,
        call: impl FnOnce() -> u32,
    ) -> Result<()> {
        self.enter(context)?;
        self.judge(context, function, call())
    }

    fn enter(&self, context: &Context) -> Result<()> {
        // SAFETY: the address is a context the driver made and has not destroyed.
        let code = unsafe { self.driver.enter(context.raw as Raw) };
        answer("cuCtxSetCurrent", code)
    }

    /// The driver's answer, remembered if it is the context's end.
    fn judge(&self, context: &Context, function: &'static str, code: u32) -> Result<()> {
        let result = answer(function, code);
        if let Err(error) = &result
            && error.code.is_sticky()
        {
            lock(&context.fault).get_or_insert_with(|| error.clone());
        }
        result
    }
}

fn read_properties(driver: &CudaDriver, ordinal: u32) -> Result<DeviceProperties, DriverError> {
    let functions = &driver.functions;
    let device = ordinal as c_int;
    let attribute = |number| {
        driver
            .attribute(ordinal, number)
            .unwrap_or(0)
            .unsigned_abs()
    };
    let (name, pci) = (functions.device_name, functions.device_pci);
    let mut uuid = [0; 16];
    // SAFETY: writes sixteen bytes.
    check("cuDeviceGetUuid", unsafe {
        (functions.device_uuid)(&mut uuid, device)
    })?;
    let mut total = 0;
    // SAFETY: writes one number.
    check("cuDeviceTotalMem", unsafe {
        (functions.device_memory)(&mut total, device)
    })?;
    let mut granularity = 0;
    let kind = frame_kind(ordinal, handle_types(driver, ordinal));
    // SAFETY: reads one description, writes one number.
    check("cuMemGetAllocationGranularity", unsafe {
        (functions.frame_granularity)(&mut granularity, &kind, 0)
    })?;
    Ok(DeviceProperties {
        // SAFETY: the buffer has the length passed, here and below.
        name: text("cuDeviceGetName", |b, n| unsafe { name(b, n, device) })?,
        uuid,
        // SAFETY: as above.
        pci_bus_id: text("cuDeviceGetPCIBusId", |b, n| unsafe { pci(b, n, device) })?,
        compute_capability: (
            attribute(DeviceAttribute::ComputeCapabilityMajor),
            attribute(DeviceAttribute::ComputeCapabilityMinor),
        ),
        total_memory: total as u64,
        multiprocessors: attribute(DeviceAttribute::MultiprocessorCount),
        max_threads_per_block: attribute(DeviceAttribute::MaxThreadsPerBlock),
        max_shared_per_block: attribute(DeviceAttribute::MaxSharedMemoryPerBlockOptin),
        frame_bytes: granularity as u64,
        // The range needs a context to ask; every GPU since Pascal with priorities has this one or a
        // part of it, and the driver clamps what it is given.
        stream_priorities: (0, -5),
    })
}

fn text(
    function: &'static str,
    call: impl FnOnce(*mut c_char, c_int) -> u32,
) -> Result<String, DriverError> {
    let mut buffer = [0_u8; 256];
    let code = call(buffer.as_mut_ptr().cast(), buffer.len() as c_int);
    check(function, code)?;
    let end = buffer.iter().position(|b| *b == 0).unwrap_or(buffer.len());
    Ok(String::from_utf8_lossy(&buffer[..end]).into_owned())
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTOR: u32 = 1;

/// How frames of a device can be shared with other processes.
fn handle_types(driver: &CudaDriver, ordinal: u32) -> u32 {
    match driver.attribute(
        ordinal,
        DeviceAttribute::HandleTypePosixFileDescriptorSupported,
    ) {
        Some(1) => FILE_DESCRIPTOR,
        _ => 0,
    }
}

/// Pinned memory on this device.
fn frame_kind(ordinal: u32, handle_types: u32) -> MemAllocationProp {
    MemAllocationProp {
        kind: 1,
        handle_types: handle_types as i32,
        location: MemLocation {
            kind: MemLocation::DEVICE,
            id: ordinal as i32,
        },
        win32: std::ptr::null(),
        flags: 0,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stale(what: &str, handle: u64) -> GpuError {
    let sentence = format!("{handle:#x} is no {what} of this GPU");
    GpuError::new(CuResult::InvalidHandle, sentence)
}

fn invalid(sentence: impl Into<String>) -> GpuError {
    GpuError::new(CuResult::InvalidValue, sentence)
}
