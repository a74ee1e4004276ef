//! Kernels written in Rust, so that the device is tested without a compiler.
#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mica_backend_software::{Compiled, Compiler, Config, SoftwareGpu};
use mica_cuda_abi::CuResult;
use mica_gpu::{
    ContextId, Copy3d, DevicePtr, Gpu, GpuError, HostSpan, Launch, ModuleId, ModuleOptions, Place,
    Result, StreamId,
};
use mica_kernel::{
    BlockContext, BlockOutcome, Executable, GlobalInfo, KernelInfo, ParamInfo, Services, stop,
};

/// A block's work: parameters are eight-byte words.
pub(crate) type Body = fn(&mut BlockContext) -> BlockOutcome;

pub(crate) struct RustModule {
    kernels: Vec<KernelInfo>,
    globals: Vec<GlobalInfo>,
    bodies: Vec<Body>,
}

impl Executable for RustModule {
    fn kernels(&self) -> &[KernelInfo] {
        &self.kernels
    }
    fn globals(&self) -> &[GlobalInfo] {
        &self.globals
    }
    fn scratch_bytes(&self, _: usize, _: u32) -> usize {
        0
    }
    fn function_address(&self, _: &str) -> Option<u64> {
        None
    }
    unsafe fn run_block(&self, kernel: usize, context: &mut BlockContext) -> BlockOutcome {
        (self.bodies[kernel])(context)
    }
}

pub(crate) fn param(context: &BlockContext, index: usize) -> u64 {
    assert!((index + 1) * 8 <= context.params_len as usize);
    // SAFETY: inside the parameter block, which is aligned.
    unsafe { *context.params.cast::<u64>().add(index) }
}

pub(crate) fn services(context: &BlockContext) -> &dyn Services {
    // SAFETY: the device keeps it valid while the block runs.
    unsafe { &*(*context.services).0 }
}

/// What compiled code does at a back edge.
pub(crate) fn poll(context: &BlockContext) -> Option<BlockOutcome> {
    // SAFETY: the device keeps it valid while the block runs.
    let word = unsafe { &*context.stop }.load(Ordering::Relaxed);
    match word {
        stop::RUN => None,
        stop::PAUSE if services(context).pause() => None,
        _ => Some(BlockOutcome::Cancelled),
    }
}

pub(crate) fn word(address: u64) -> &'static AtomicU32 {
    // SAFETY: the tests pass device addresses; a bad one faults and is recovered.
    unsafe { &*(address as *const AtomicU32) }
}

fn block_number(c: &BlockContext) -> u64 {
    u64::from(c.ctaid.x)
        + u64::from(c.grid.x) * (u64::from(c.ctaid.y) + u64::from(c.grid.y) * u64::from(c.ctaid.z))
}

/// Nothing.
fn empty(_: &mut BlockContext) -> BlockOutcome {
    BlockOutcome::Done
}

/// `p0[block] = p1 + block`.
fn store(c: &mut BlockContext) -> BlockOutcome {
    let n = block_number(c);
    word(param(c, 0) + 4 * n).store((param(c, 1) + n) as u32, Ordering::Relaxed);
    BlockOutcome::Done
}

/// `*p0 += 1`.
fn count(c: &mut BlockContext) -> BlockOutcome {
    word(param(c, 0)).fetch_add(1, Ordering::Relaxed);
    BlockOutcome::Done
}

/// Counts in `*p0` until `*p1` is not zero.
fn spin(c: &mut BlockContext) -> BlockOutcome {
    while word(param(c, 1)).load(Ordering::Acquire) == 0 {
        word(param(c, 0)).fetch_add(1, Ordering::Relaxed);
        if let Some(end) = poll(c) {
            return end;
        }
    }
    BlockOutcome::Done
}

/// Waits until all blocks have counted in `*p0`, as compiled code waits.
fn gather(c: &mut BlockContext) -> BlockOutcome {
    let all = c.grid.count() as u32;
    word(param(c, 0)).fetch_add(1, Ordering::AcqRel);
    while word(param(c, 0)).load(Ordering::Acquire) < all {
        services(c).stalled();
        if let Some(end) = poll(c) {
            return end;
        }
    }
    BlockOutcome::Done
}

/// All blocks meet at `*p0`; then `p1[block]` is what they saw.
fn meet(c: &mut BlockContext) -> BlockOutcome {
    let all = c.grid.count() as u32;
    let at = word(c.grid_workspace + 4);
    at.fetch_add(1, Ordering::AcqRel);
    while at.load(Ordering::Acquire) < all {
        if let Some(end) = poll(c) {
            return end;
        }
    }
    word(param(c, 1) + 4 * block_number(c)).store(at.load(Ordering::Acquire), Ordering::Relaxed);
    BlockOutcome::Done
}

/// Writes shared and local memory from end to end, then `*p0 = ` bytes written.
fn own_memory(c: &mut BlockContext) -> BlockOutcome {
    let local = c.local_stride * c.block.count();
    for (base, len) in [(c.shared_base, c.shared_len), (c.local_base, local)] {
        for at in (0..len).step_by(4) {
            word(base + at).store(at as u32, Ordering::Relaxed);
        }
    }
    word(param(c, 0)).store((c.shared_len + local) as u32, Ordering::Relaxed);
    BlockOutcome::Done
}

/// `*p0 = ` any byte of shared memory that is not zero.
fn find_old_shared(c: &mut BlockContext) -> BlockOutcome {
    let found = (0..c.shared_len)
        .step_by(4)
        .map(|at| word(c.shared_base + at).load(Ordering::Relaxed))
        .fold(0, |a, b| a | b);
    word(param(c, 0)).fetch_or(found, Ordering::Relaxed);
    BlockOutcome::Done
}

/// Busy for `p0` microseconds, polling.
fn busy(c: &mut BlockContext) -> BlockOutcome {
    let end = std::time::Instant::now() + std::time::Duration::from_micros(param(c, 0));
    while std::time::Instant::now() < end {
        if let Some(end) = poll(c) {
            return end;
        }
    }
    BlockOutcome::Done
}

/// `p0[0] = malloc(p1)`, never freed.
fn allocate(c: &mut BlockContext) -> BlockOutcome {
    let got = services(c).malloc(param(c, 1));
    word(param(c, 0)).store(got as u32, Ordering::Relaxed);
    word(param(c, 0) + 4).store((got >> 32) as u32, Ordering::Relaxed);
    BlockOutcome::Done
}

/// `printf(p0, p1)`.
fn print(c: &mut BlockContext) -> BlockOutcome {
    services(c).printf(param(c, 0), param(c, 1));
    BlockOutcome::Done
}

/// Asks for an exact check of `p1` bytes at `p0`; stores the answer at `p2`.
fn check(c: &mut BlockContext) -> BlockOutcome {
    let fine = services(c).check_access(param(c, 0), param(c, 1), true);
    word(param(c, 2)).store(u32::from(fine), Ordering::Relaxed);
    BlockOutcome::Done
}

/// An engine's bug.
fn panicking(_: &mut BlockContext) -> BlockOutcome {
    panic!("a bug in the engine (this message belongs to a test)")
}

/// `assert(false)`.
fn failing(c: &mut BlockContext) -> BlockOutcome {
    services(c).assert_fail(param(c, 0), param(c, 0), 12, param(c, 0));
    c.fault.kind = 710;
    c.fault.thread.x = 3;
    BlockOutcome::Faulted
}

const BODIES: &[(&str, usize, Body)] = &[
    ("empty", 0, empty),
    ("store", 2, store),
    ("count", 1, count),
    ("spin", 2, spin),
    ("gather", 1, gather),
    ("meet", 2, meet),
    ("own_memory", 1, own_memory),
    ("find_old_shared", 1, find_old_shared),
    ("busy", 1, busy),
    ("allocate", 2, allocate),
    ("print", 2, print),
    ("check", 3, check),
    ("panicking", 0, panicking),
    ("failing", 1, failing),
];

/// Gives the one module there is for the image `rust`.
pub(crate) struct RustCompiler;

impl Compiler for RustCompiler {
    fn compile(&self, image: &[u8], _: &ModuleOptions) -> Result<Compiled> {
        if image != b"rust" {
            return Err(GpuError::new(CuResult::InvalidImage, "not the test module"));
        }
        let kernels = BODIES.iter().map(|(name, params, _)| KernelInfo {
            name: (*name).to_owned(),
            params: (0..*params as u32)
                .map(|p| ParamInfo {
                    offset: p * 8,
                    size: 8,
                })
                .collect(),
            params_len: *params as u32 * 8,
            static_shared: 0,
            local_bytes: 64,
            recursive: false,
            registers: 32,
            required_block: mica_kernel::Dim3::default(),
            max_threads: if *name == "count" { 256 } else { 1024 },
            required_cluster: mica_kernel::Dim3::default(),
            params_addressed: false,
        });
        let global = GlobalInfo {
            name: "table".to_owned(),
            size: 16,
            align: 8,
            constant: false,
            init: vec![1, 2, 3],
            relocations: vec![(8, 0, 4)],
            function_relocations: Vec::new(),
            visible: true,
        };
        Ok(Compiled {
            coverage: None,
            executable: Arc::new(RustModule {
                kernels: kernels.collect(),
                globals: vec![global],
                bodies: BODIES.iter().map(|(_, _, body)| *body).collect(),
            }),
            ptx_version: 80,
            target: 80,
        })
    }
}

pub(crate) fn config() -> Config {
    Config {
        memory_bytes: Some(256 << 20),
        arena_bytes: Some(8 << 30),
        workers: Some(2),
        compiler: Some(Arc::new(RustCompiler)),
        ..Config::default()
    }
}

/// A context with the module loaded.
pub(crate) struct Bench<'a> {
    pub gpu: &'a SoftwareGpu,
    pub context: ContextId,
    pub module: ModuleId,
    pub stream: StreamId,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(gpu: &'a SoftwareGpu) -> Self {
        let context = gpu.context_create().unwrap();
        let module = gpu
            .module_load(context, b"rust", &ModuleOptions::default())
            .unwrap();
        let stream = gpu.default_stream(context).unwrap();
        Self {
            gpu,
            context,
            module,
            stream,
        }
    }

    pub(crate) fn kernel(&self, name: &str) -> u32 {
        BODIES.iter().position(|(n, _, _)| *n == name).unwrap() as u32
    }

    pub(crate) fn try_launch(
        &self,
        stream: StreamId,
        name: &str,
        blocks: u32,
        change: impl FnOnce(&mut Launch<'_>),
        params: &[u64],
    ) -> Result<()> {
        let bytes: Vec<u8> = params.iter().flat_map(|p| p.to_le_bytes()).collect();
        let mut launch = Launch {
            module: self.module,
            kernel: self.kernel(name),
            grid: [blocks, 1, 1],
            block: [32, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
            params: &bytes,
        };
        change(&mut launch);
        self.gpu.launch(stream, &launch)
    }

    pub(crate) fn launch_on(&self, stream: StreamId, name: &str, blocks: u32, params: &[u64]) {
        self.try_launch(stream, name, blocks, |_| {}, params)
            .unwrap();
    }

    pub(crate) fn launch(&self, name: &str, blocks: u32, params: &[u64]) {
        self.launch_on(self.stream, name, blocks, params);
    }

    pub(crate) fn sync(&self) {
        self.gpu.context_synchronize(self.context).unwrap();
    }

    pub(crate) fn alloc(&self, bytes: u64) -> DevicePtr {
        self.gpu.memory_alloc(self.context, bytes).unwrap()
    }

    pub(crate) fn read(&self, at: DevicePtr, words: usize) -> Vec<u32> {
        let mut out = vec![0_u32; words];
        let bytes = words as u64 * 4;
        // SAFETY: the buffer outlives the synchronization below.
        let span = unsafe { HostSpan::new(out.as_mut_ptr().cast(), bytes) };
        let copy = Copy3d::linear(Place::Host(span), Place::Device(at), bytes);
        self.gpu.copy(self.stream, &copy).unwrap();
        self.gpu.stream_synchronize(self.stream).unwrap();
        out
    }

    pub(crate) fn write(&self, at: DevicePtr, words: &[u32]) {
        let bytes = words.len() as u64 * 4;
        // SAFETY: the buffer outlives the synchronization below and is only read.
        let span = unsafe { HostSpan::new(words.as_ptr().cast_mut().cast(), bytes) };
        let copy = Copy3d::linear(Place::Device(at), Place::Host(span), bytes);
        self.gpu.copy(self.stream, &copy).unwrap();
        self.gpu.stream_synchronize(self.stream).unwrap();
    }
}
