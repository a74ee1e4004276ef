//! The layout of a block's scratch memory, known to generated code and to the runtime.

/// `u32`: first thread of the group that runs, for naming the thread of a fault.
pub(crate) const CURRENT: i32 = 0;
/// `u32`: set when a thread stopped short of a sync point (it is parked or off its group).
pub(crate) const PENDING: i32 = 4;
/// Address of the table of runtime functions.
pub(crate) const HELPERS: i32 = 8;
/// Address of the running `Kernel`.
pub(crate) const KERNEL: i32 = 16;
/// `u32`: threads per group in this launch, 1 for scalar code.
pub(crate) const LANES: i32 = 24;
/// `u32`: threads in the block.
pub(crate) const THREADS: i32 = 28;
/// `u32`: what the last poll of a loop said; not 0 means to end the block.
pub(crate) const CANCELLED: i32 = 36;
/// `f32`: 1, for vector code.
pub(crate) const ONE: i32 = 40;
/// `u32`: thread whose memory the runtime accesses for it, [`NOBODY`] before the first time.
pub(crate) const ACCESS: i32 = 44;
/// Two `u32`: the instance and the instruction that it does so for.
pub(crate) const ACCESS_PLACE: i32 = 48;
/// `u32`: nanoseconds that a thread of the block asked to sleep since the dispatcher last looked, the most of them.
pub(crate) const SLEEP: i32 = 56;
/// `u32`: dimensions of the texture in [`TEXTURE_ROOM`], 0 for none.
pub(crate) const TEXTURE: i32 = 60;
/// No thread.
pub(crate) const NOBODY: u32 = u32::MAX;
/// `u32` per thread: see the constants below.
pub(crate) const CONT: i32 = 64;
/// Most threads in a block.
pub(crate) const MAX_THREADS: u32 = 1024;
/// Barriers that a program can name.
pub(crate) const NAMED: usize = 16;
/// Threads of a warpgroup.
pub(crate) const WARPGROUP: u32 = 128;
/// The same, and one for each warpgroup.
pub(crate) const BARRIER_COUNT: usize = NAMED + (MAX_THREADS / WARPGROUP) as usize;
/// Barriers of 16 bytes.
pub(crate) const BARRIERS: i32 = CONT + 4 * MAX_THREADS as i32;
/// What the runtime knows of the texture that was sampled last.
pub(crate) const TEXTURE_ROOM: i32 = BARRIERS + 16 * BARRIER_COUNT as i32;
/// Bytes of it.
pub(crate) const TEXTURE_BYTES: usize = 320;
/// `u8`: completed phases of the barrier of a cluster that is this block, modulo 2.
pub(crate) const CLUSTER_PHASE: i32 = TEXTURE_ROOM + TEXTURE_BYTES as i32;
/// `u32`: not 0 when a thread has arrived at an `mbarrier` since the dispatcher last looked.
pub(crate) const PROGRESS: i32 = CLUSTER_PHASE + 4;
/// `u8` per thread: 1 more than the phase in which it arrived at the cluster's barrier last, 0 before the first time.
pub(crate) const ARRIVED: i32 = CLUSTER_PHASE + 64;
/// Frames of warps.
pub(crate) const FRAMES: i32 = ARRIVED + MAX_THREADS as i32;

/// A continuation: the group goes on together (stored for its first thread only).
pub(crate) const COHERENT: u32 = 1 << 31;
/// A continuation: waits at the sync site whose number is in the low bits.
pub(crate) const WAITING: u32 = 1 << 30;
/// A continuation: the thread has exited.
pub(crate) const EXITED: u32 = (1 << 30) - 1;

/// What generated code returns.
pub(crate) mod status {
    pub(crate) const OK: i64 = 0;
    pub(crate) const FAULT: i64 = 1;
    pub(crate) const CANCEL: i64 = 2;
    /// Other blocks of the cluster must run first. Only the dispatcher says so.
    pub(crate) const WAIT: i64 = 3;
}

/// Addresses of device functions: `FUNCTIONS + 16 * index`. Outside any arena, and the same values
/// that the interpreter gives.
pub(crate) const FUNCTIONS: u64 = 0x4d69_6361_0000_0010;
