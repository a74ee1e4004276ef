//! The contract between compiled kernels and the device that runs them.
//!
//! Owns the block ABI: what a block of threads is given ([`BlockContext`]), what it may ask for
//! ([`Services`]) and how it ends ([`BlockOutcome`]). Both the interpreter and the native compiler
//! implement [`Executable`]; the software GPU only knows this crate.
//!
//! Addresses: device memory, shared memory and local memory all live in one reserved *arena* of
//! host address space, so a generic PTX address **is** a host address inside the arena. An access
//! is legal when `addr - arena_base <= arena_len - size`; holes inside the arena are `PROT_NONE`, so
//! touching one raises SIGSEGV, which the device turns into [`Fault`]. Nothing outside the arena is
//! ever touched.
//!
//! ```text
//!   device: for each block ── fill BlockContext ──► Executable::run_block ──► BlockOutcome
//!                                   ▲                   │ polls *stop at back edges
//!                                   └── Services ◄──────┘ printf, malloc, pause, textures, faults
//! ```
#![deny(clippy::unwrap_used, clippy::expect_used)]

pub mod cluster;
mod interrupt;
pub mod monitor;
mod wide_atomic;

pub use cluster::{Cluster, ClusterPlace};
pub use interrupt::{Interrupt, PrepareError};
pub use monitor::{LiveSlot, Monitor, MonitorRef, NotedRead, ReadLog};
pub use wide_atomic::update_128;

use std::sync::atomic::{AtomicU8, AtomicU32};

/// A three-dimensional extent or index.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dim3 {
    /// First dimension, the fastest.
    pub x: u32,
    /// Second dimension.
    pub y: u32,
    /// Third dimension.
    pub z: u32,
}

impl FaultKind {
    /// The kind with this number.
    pub fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            700 => Self::IllegalAddress,
            716 => Self::MisalignedAddress,
            717 => Self::InvalidAddressSpace,
            718 => Self::InvalidPc,
            719 => Self::LaunchFailed,
            710 => Self::Assert,
            715 => Self::IllegalInstruction,
            _ => return None,
        })
    }
}

/// An order of `0..count` that a number chooses: 0 is the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    step: u64,
    first: u64,
    count: u64,
}

impl Order {
    /// The order that a seed chooses.
    pub fn new(seed: u64, count: u64) -> Self {
        let usual = Self {
            step: 1,
            first: 0,
            count,
        };
        if seed == 0 || count < 2 {
            return usual;
        }
        let mixed = (seed ^ seed >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut step = 1 + (mixed >> 20) % (count - 1);
        while gcd(step, count) != 1 {
            step = 1 + step % (count - 1);
        }
        let first = (mixed >> 7) % count;
        Self {
            step,
            first,
            ..usual
        }
    }

    /// The element at a place in the order.
    pub fn at(&self, place: u64) -> u64 {
        match self.step {
            1 if self.first == 0 => place,
            step => {
                let at = u128::from(place) * u128::from(step) + u128::from(self.first);
                (at % u128::from(self.count)) as u64
            }
        }
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

impl Dim3 {
    /// The product of the three; the largest number where it is larger still.
    pub fn count(self) -> u64 {
        (u64::from(self.x) * u64::from(self.y)).saturating_mul(u64::from(self.z))
    }
}

/// Values of `*BlockContext::stop`, polled by compiled code at loop back edges and barriers.
pub mod stop {
    /// Run on.
    pub const RUN: u32 = 0;
    /// Call [`super::Services::pause`] and go on when it returns `true`.
    pub const PAUSE: u32 = 1;
    /// End the block now with [`super::BlockOutcome::Cancelled`].
    pub const CANCEL: u32 = 2;
}

/// Everything one block needs. The device fills it; compiled code reads it by field offset.
#[repr(C)]
#[derive(Clone)]
pub struct BlockContext {
    /// First host address of the arena.
    pub arena_base: u64,
    /// Length of the arena in bytes.
    pub arena_len: u64,
    /// Host address of this block's shared memory (inside the arena), 16-byte aligned or better.
    pub shared_base: u64,
    /// Static plus dynamic shared bytes.
    pub shared_len: u64,
    /// Host address of local memory of thread 0 (inside the arena). Thread `t` owns
    /// `[local_base + t * local_stride, + local_stride)`, its stack grows inside it.
    pub local_base: u64,
    /// Bytes of local memory per thread, a multiple of 16.
    pub local_stride: u64,
    /// Kernel parameters as laid out by PTX, readable for `params_len` bytes. Not in the arena:
    /// `ld.param` is bounds checked at compile time; a generic address of a parameter
    /// (`cvta.param`) is `params_device`.
    pub params: *const u8,
    /// Bytes at `params`.
    pub params_len: u64,
    /// A copy of the parameters inside the arena (read-only use), or 0 when the kernel never takes
    /// their address.
    pub params_device: u64,
    /// Module globals: `globals[i]` is the arena address of `Executable::globals()[i]`.
    pub globals: *const u64,
    /// Grid extent (`%nctaid`).
    pub grid: Dim3,
    /// Block extent (`%ntid`).
    pub block: Dim3,
    /// This block (`%ctaid`).
    pub ctaid: Dim3,
    /// Bytes of dynamic shared memory asked for at launch.
    pub dynamic_shared: u32,
    /// `%smid`, the worker thread that runs the block.
    pub smid: u32,
    /// `%gridid`.
    pub grid_id: u64,
    /// One of [`stop`]'s values.
    pub stop: *const AtomicU32,
    /// Calls back into the device. A thin pointer to a fat reference, so C-ABI code can pass it on.
    pub services: *const ServicesRef,
    /// Scratch for compiled code (spilled registers across barriers), at least
    /// [`Executable::scratch_bytes`] for this block size, 64-byte aligned, outside the arena.
    pub scratch: *mut u8,
    /// Where a fault is described before the block ends.
    pub fault: Fault,
    /// Arena address of the cooperative grid's workspace, 0 for an ordinary launch. `%envreg1` is
    /// its high half and `%envreg2` its low half: two `u32`s, the workspace's size and the barrier
    /// word that `cooperative_groups::grid_group::sync` counts on.
    pub grid_workspace: u64,
    /// What [`Executable::prepare`] said of this launch: with this arena, these parameters, this grid and
    /// this block. 1 lets it leave out checks that it has found needless; 0 is always right.
    pub proven: u32,
    /// Told of every access, by code that was made for it; null for none.
    pub monitor: *mut MonitorRef,
    /// What each access of the kernel is known to be allowed to touch ([`LiveSlot`]), as many as
    /// [`Executable::live_slots`] says; null where that says 0.
    pub live: *mut LiveSlot,
    /// Slots at `live`.
    pub live_len: u64,
    /// Where reads of shared memory are noted that the monitor may be told of later.
    pub reads: ReadLog,
    /// Chooses the order in which threads run one by one; 0 for the usual one. Engines may ignore it.
    pub schedule: u64,
    /// One byte for each basic block of the kernel, set to 1 when it is entered; for engines that record coverage,
    /// which fill it in themselves.
    pub entered: *const AtomicU8,
    /// What the blocks of its cluster share; null where it is alone.
    pub cluster: *mut Cluster,
    /// Where it is in its cluster.
    pub cluster_place: ClusterPlace,
    /// 1: the block ended with [`BlockOutcome::Waiting`] before, and goes on.
    pub resumes: u32,
}

impl BlockContext {
    /// Who is told of what the block does.
    ///
    /// # Safety
    /// [`BlockContext::monitor`] must be null or valid, and nobody else may use the monitor meanwhile.
    pub unsafe fn monitor<'a>(&self) -> Option<&'a mut dyn Monitor> {
        // SAFETY: null or valid by the contract.
        let holder = unsafe { self.monitor.as_ref()? };
        // SAFETY: what the holder points to is valid with it, and used by one at a time, by the contract.
        Some(unsafe { &mut *holder.0 })
    }

    /// All fields zero or null: a base for tests to fill, never runnable as it is.
    pub fn empty() -> Self {
        let none = Dim3::default();
        Self {
            arena_base: 0,
            arena_len: 0,
            shared_base: 0,
            shared_len: 0,
            local_base: 0,
            local_stride: 0,
            params: std::ptr::null(),
            params_len: 0,
            params_device: 0,
            globals: std::ptr::null(),
            grid: none,
            block: none,
            ctaid: none,
            dynamic_shared: 0,
            smid: 0,
            grid_id: 0,
            stop: std::ptr::null(),
            services: std::ptr::null(),
            scratch: std::ptr::null_mut(),
            fault: Fault::default(),
            grid_workspace: 0,
            proven: 0,
            monitor: std::ptr::null_mut(),
            live: std::ptr::null_mut(),
            live_len: 0,
            reads: ReadLog::NONE,
            schedule: 0,
            entered: std::ptr::null(),
            cluster: std::ptr::null_mut(),
            cluster_place: ClusterPlace::alone(none, none),
            resumes: 0,
        }
    }
}

/// What is the same for all blocks of a launch, as their [`BlockContext`]s will have it.
#[derive(Clone, Copy, Debug)]
pub struct LaunchFacts<'a> {
    /// First host address of the arena.
    pub arena_base: u64,
    /// Length of the arena in bytes.
    pub arena_len: u64,
    /// Kernel parameters as laid out by PTX.
    pub params: &'a [u8],
    /// Grid extent.
    pub grid: Dim3,
    /// Block extent.
    pub block: Dim3,
    /// Stops the preparation.
    pub interrupt: Interrupt<'a>,
}

/// A sized holder for the trait object, so that it can be behind a thin pointer.
pub struct ServicesRef(pub *const dyn Services);

/// Why a block ended early, in CUDA's terms.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// A [`FaultKind`] as its number, 0 for none.
    pub kind: u32,
    /// The source line of the PTX instruction, 0 when unknown.
    pub ptx_line: u32,
    /// The offending address, where there is one; [`Fault::STACK_FULL`] where a call found no room,
    /// [`Fault::NEVER_COME`] where nothing went wrong but the waiting.
    pub address: u64,
    /// Access size in bytes, 0 when unknown.
    pub bytes: u32,
    /// 1 for a write.
    pub is_write: u32,
    /// The thread within the block.
    pub thread: Dim3,
    /// Index of the `.file`/`.loc` source line when the module has debug lines, 0 otherwise.
    pub source_line: u32,
    /// The memory that `address` is an offset in: [`Fault::SHARED`], [`Fault::LOCAL`] or [`Fault::PARAMS`]; 0 where
    /// `address` is an address.
    pub space: u32,
}

impl Fault {
    /// The block's shared memory.
    pub const SHARED: u32 = 1;
    /// The thread's local memory.
    pub const LOCAL: u32 = 2;
    /// The launch's parameters.
    pub const PARAMS: u32 = 3;
    /// The address of a `LaunchFailed` that was no trap but a full stack.
    pub const STACK_FULL: u64 = u64::MAX;
    /// The address of a `LaunchFailed` that was no trap but a wait for threads that never come.
    pub const NEVER_COME: u64 = u64::MAX - 1;
}

/// The kinds of fault, with the `CUresult` each one becomes.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Access outside live memory: `CUDA_ERROR_ILLEGAL_ADDRESS`.
    IllegalAddress = 700,
    /// Address not a multiple of the access size: `CUDA_ERROR_MISALIGNED_ADDRESS`.
    MisalignedAddress = 716,
    /// A pointer of the wrong space: `CUDA_ERROR_INVALID_ADDRESS_SPACE`.
    InvalidAddressSpace = 717,
    /// A jump or call to something that is no code: `CUDA_ERROR_INVALID_PC`.
    InvalidPc = 718,
    /// `trap`, or stack overflow: `CUDA_ERROR_LAUNCH_FAILED`.
    LaunchFailed = 719,
    /// `__assertfail`: `CUDA_ERROR_ASSERT`.
    Assert = 710,
    /// An instruction that the device cannot run: `CUDA_ERROR_ILLEGAL_INSTRUCTION`.
    IllegalInstruction = 715,
}

/// How a block ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOutcome {
    /// Every thread exited.
    Done,
    /// The device asked for it (`stop::CANCEL`).
    Cancelled,
    /// `BlockContext::fault` says why.
    Faulted,
    /// Only for a block with a [`BlockContext::cluster`]: its threads wait, and other blocks of the cluster must run
    /// before it is called again, with [`BlockContext::resumes`] set.
    Waiting,
}

/// What compiled code may ask of the device while a block runs.
pub trait Services: Send + Sync {
    /// Blocks while the launch is paused; `false` means cancel.
    fn pause(&self) -> bool;
    /// `vprintf`: `format` and `args` are arena addresses; the device reads them with checks.
    fn printf(&self, format: u64, args: u64) -> i32;
    /// `__assertfail`: arena addresses of message, file, function; line number.
    fn assert_fail(&self, message: u64, file: u64, line: u32, function: u64);
    /// Device-side `malloc`; 0 when the heap is full.
    fn malloc(&self, bytes: u64) -> u64;
    /// Device-side `free`.
    fn free(&self, address: u64);
    /// Memory for the parameters of a launch that the kernel makes; 0 when there is none.
    fn parameter_buffer(&self, launch: &KernelLaunch) -> u64 {
        let _ = launch;
        0
    }
    /// Makes the launch whose parameters are in a buffer of [`Services::parameter_buffer`]. Gives a `cudaError`.
    fn launch(&self, buffer: u64, stream: u64) -> u32 {
        let _ = (buffer, stream);
        NOT_SUPPORTED
    }
    /// Nanoseconds of a monotonic clock (`%globaltimer`).
    fn global_timer_ns(&self) -> u64;
    /// Called again and again while all threads of the block that could run only look whether
    /// something has changed: others must run, perhaps blocks that have not begun.
    fn stalled(&self) {
        std::thread::yield_now();
    }
    /// Gives up the processor for about `ns` nanoseconds (`nanosleep`), returning early on stop.
    fn sleep(&self, ns: u32);
    /// Reads a texture or surface object: see [`TextureView`]. `None` for a forged handle.
    fn texture(&self, handle: u64) -> Option<TextureView>;
    /// Whether the `bytes` at `address` lie in one live allocation. Asked for every access of a
    /// module that was built with exact checks (`memcheck`), after the arena test.
    fn check_access(&self, address: u64, bytes: u64, is_write: bool) -> bool {
        let _ = (address, bytes, is_write);
        true
    }
}

/// `cudaErrorNotSupported`.
const NOT_SUPPORTED: u32 = 801;

/// What a kernel wants to launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLaunch {
    /// Index of a kernel of the same module.
    pub kernel: u32,
    /// Blocks.
    pub grid: Dim3,
    /// Threads per block.
    pub block: Dim3,
    /// Dynamic shared memory in bytes.
    pub dynamic_shared: u32,
}

impl KernelLaunch {
    /// From the words that `__mica_parameter_buffer` takes after the kernel.
    pub fn of_words(kernel: u32, words: [u64; 4]) -> Self {
        let (low, high) = (|w: u64| w as u32, |w: u64| (w >> 32) as u32);
        let [grid, rest, block, depth] = words;
        Self {
            kernel,
            grid: Dim3 {
                x: low(grid),
                y: high(grid),
                z: low(rest),
            },
            block: Dim3 {
                x: low(block),
                y: high(block),
                z: low(depth),
            },
            dynamic_shared: high(rest),
        }
    }
}

/// Where in a module an address of compiled code belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeLocation {
    /// Line of the PTX text, 0 when unknown.
    pub ptx_line: u32,
    /// Line of the `.loc` source, 0 when unknown.
    pub source_line: u32,
}

/// How a texture or surface object looks to a kernel.
#[derive(Clone, Copy, Debug)]
pub struct TextureView {
    /// Arena address of the first texel.
    pub base: u64,
    /// Texels per row, rows, slices or layers; unused ones are 1.
    pub extent: Dim3,
    /// Bytes from one row to the next.
    pub row_pitch: u64,
    /// Bytes from one slice or layer to the next.
    pub slice_pitch: u64,
    /// Channels: 1, 2 or 4.
    pub channels: u32,
    /// `CUarray_format`: 1 u8, 2 u16, 3 u32, 8 s8, 9 s16, 10 s32, 16 half, 32 float.
    pub format: u32,
    /// `CUaddress_mode` per dimension: 0 wrap, 1 clamp, 2 mirror, 3 border.
    pub address_mode: [u32; 3],
    /// 0 point, 1 linear.
    pub filter: u32,
    /// Coordinates are in `[0, 1)`.
    pub normalized_coords: bool,
    /// Integer texels are read as integers, not as normalized floats.
    pub read_as_integer: bool,
    /// Layered array: the z extent counts layers.
    pub layered: bool,
    /// Cube map.
    pub cubemap: bool,
    /// Colour outside, for border mode.
    pub border: [f32; 4],
}

impl TextureView {
    /// Floats of one channel, side by side: nearest texel, clamped, coordinates in texels. Other views
    /// are this with some fields changed.
    pub fn of_floats(base: u64, extent: Dim3) -> Self {
        let row_pitch = 4 * u64::from(extent.x);
        Self {
            base,
            extent,
            row_pitch,
            slice_pitch: row_pitch * u64::from(extent.y),
            channels: 1,
            format: 32,
            address_mode: [1; 3],
            filter: 0,
            normalized_coords: false,
            read_as_integer: false,
            layered: false,
            cubemap: false,
            border: [0.0; 4],
        }
    }
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamInfo {
    /// Byte offset in the parameter block.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// One kernel of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Its PTX name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<ParamInfo>,
    /// Total parameter bytes.
    pub params_len: u32,
    /// Static shared memory.
    pub static_shared: u32,
    /// Local memory (declared depots and call frames) per thread that the kernel needs at least;
    /// kernels with recursion also set `recursive`.
    pub local_bytes: u32,
    /// The kernel or what it calls may recurse or call indirectly: give it the context's stack size.
    pub recursive: bool,
    /// Estimate of registers per thread.
    pub registers: u32,
    /// `.reqntid`, or the default `(0, 0, 0)` when absent.
    pub required_block: Dim3,
    /// `.maxntid` product, 1024 when absent.
    pub max_threads: u32,
    /// `.reqnctapercluster`, or the default `(0, 0, 0)` when absent.
    pub required_cluster: Dim3,
    /// The kernel takes the address of a parameter, so `params_device` must be given.
    pub params_addressed: bool,
}

/// One module-scope variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalInfo {
    /// Its PTX name.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Alignment in bytes.
    pub align: u32,
    /// Lives in constant space.
    pub constant: bool,
    /// Initial bytes; shorter than `size` means zeros after.
    pub init: Vec<u8>,
    /// `(offset in init, global index, addend)`: places that hold another global's address.
    pub relocations: Vec<(u64, usize, i64)>,
    /// `(offset in init, function name)`: places that hold a device function's address.
    pub function_relocations: Vec<(u64, String)>,
    /// Visible outside the module (`.visible`, `.weak`, `.common`).
    pub visible: bool,
}

/// A loaded module, ready to run blocks of its kernels from many threads at once.
pub trait Executable: Send + Sync {
    /// Kernels, indexable by `run_block`'s `kernel`.
    fn kernels(&self) -> &[KernelInfo];
    /// Module variables that the device must place before the first launch.
    fn globals(&self) -> &[GlobalInfo];
    /// Scratch bytes that `run_block` needs for blocks of `threads` threads of `kernel`.
    fn scratch_bytes(&self, kernel: usize, threads: u32) -> usize;
    /// Instructions that [`Executable::prepare`] may have to compile for `kernel`: its own, and those of functions
    /// that it may call. The device charges for them beforehand.
    fn instructions(&self, kernel: usize) -> u64 {
        let _ = kernel;
        0
    }
    /// Makes a kernel ready for a launch: compiles it, where that is done late, and says whether the
    /// launch's blocks may have [`BlockContext::proven`] set. The device calls it at every launch, before
    /// the first block and outside any recovery scope.
    ///
    /// # Errors
    /// Says why the kernel cannot run, or that [`LaunchFacts::interrupt`] stopped its preparation.
    fn prepare(&self, kernel: usize, launch: &LaunchFacts<'_>) -> Result<bool, PrepareError> {
        let _ = (kernel, launch);
        Ok(false)
    }
    /// Bytes of local memory per thread that a launch of the kernel reserves at least: all frames of calls
    /// whose depth is known. More than [`KernelInfo::local_bytes`] where registers are saved over calls,
    /// which is known after [`Executable::prepare`].
    fn local_bytes(&self, kernel: usize) -> u64 {
        (self.kernels().get(kernel)).map_or(0, |k| u64::from(k.local_bytes))
    }
    /// Address value of a device function for `GlobalInfo::function_relocations`.
    fn function_address(&self, name: &str) -> Option<u64>;
    /// Whether `pc` is an instruction of this module's compiled code. Called from a signal handler:
    /// it must only compare numbers. Traps (SIGILL, SIGFPE) are taken for the kernel's only when it
    /// says yes; faults inside the arena are taken for the kernel's in any case.
    fn contains_pc(&self, pc: u64) -> bool {
        let _ = pc;
        false
    }
    /// What a trap at `pc` means, when it is not an access fault: a division the compiler guards
    /// by a trap, unreachable code. Called after recovery, on the faulted thread.
    fn trap_kind(&self, pc: u64) -> Option<FaultKind> {
        let _ = pc;
        None
    }
    /// The line that the code at `pc` came from, or that it ran for. Called after recovery, never in
    /// the handler.
    fn locate(&self, pc: u64, context: &BlockContext) -> Option<CodeLocation> {
        let _ = (pc, context);
        None
    }
    /// The source file that a line of the PTX text came from, where the text says so.
    fn source_file(&self, ptx_line: u32) -> Option<&str> {
        let _ = ptx_line;
        None
    }
    /// The line of that file, where the text says so.
    fn source_line(&self, ptx_line: u32) -> Option<u32> {
        let _ = ptx_line;
        None
    }
    /// Whether blocks of a kernel tell [`BlockContext::monitor`] of what they do.
    fn tells_monitor(&self, kernel: usize) -> bool {
        let _ = kernel;
        false
    }
    /// How many [`LiveSlot`]s blocks of a kernel want at [`BlockContext::live`]: not 0 where compiled code compares
    /// addresses with live memory by itself and tells the monitor only of the others.
    fn live_slots(&self, kernel: usize) -> usize {
        let _ = kernel;
        0
    }
    /// Tells which instructions were reached by launches of `kernel` and not told before: the index of the function
    /// in the text, and of the instruction in its body. Nothing where the module was not made to record it.
    fn take_reached(&self, kernel: usize, tell: &mut dyn FnMut(u32, u32)) {
        let _ = (kernel, tell);
    }
    /// The thread that was running when the code at `pc` faulted, where the code keeps track of it
    /// in `context.scratch` or elsewhere. Called after recovery on the faulted thread.
    fn faulting_thread(&self, pc: u64, context: &BlockContext) -> Option<Dim3> {
        let _ = (pc, context);
        None
    }
    /// How many threads, from [`Executable::faulting_thread`] on, the code at `pc` ran for at once: it
    /// is one of them that faulted.
    fn faulting_group(&self, pc: u64) -> u32 {
        let _ = pc;
        1
    }
    /// Runs one block to its end.
    ///
    /// # Safety
    /// `context` must be filled as its fields say, all pointers valid for the call; memory inside
    /// the arena is accessed as the kernel asks. A SIGSEGV inside the arena must be handled by the
    /// caller's recovery (see `backend-software`), for which this call keeps no Rust destructor
    /// pending while kernel code runs.
    unsafe fn run_block(&self, kernel: usize, context: &mut BlockContext) -> BlockOutcome;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_a_stranger_have_a_product() {
        let dim = |x, y, z| Dim3 { x, y, z };
        assert_eq!(dim(2, 3, 4).count(), 24);
        assert_eq!(dim(u32::MAX, u32::MAX, 2).count(), u64::MAX);
        assert_eq!(dim(u32::MAX, u32::MAX, u32::MAX).count(), u64::MAX);
        assert_eq!(dim(u32::MAX, u32::MAX, 0).count(), 0);
    }

    #[test]
    fn every_order_has_every_element_once() {
        let mut orders = std::collections::HashSet::new();
        for seed in 0..50 {
            for count in [1, 2, 3, 32, 100, 1024] {
                let order = Order::new(seed, count);
                let all: Vec<u64> = (0..count).map(|place| order.at(place)).collect();
                let mut sorted = all.clone();
                sorted.sort_unstable();
                assert!(sorted.into_iter().eq(0..count), "seed {seed}, {count}");
                assert!(seed != 0 || all.iter().copied().eq(0..count));
                orders.insert(all);
            }
        }
        assert!(orders.len() > 60, "{}", orders.len());
    }
}
