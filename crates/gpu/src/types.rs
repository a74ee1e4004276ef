//! Addresses, handles and descriptions that cross the [`Gpu`](crate::Gpu) interface.

use mica_cuda_abi::LaunchAttributeId;

/// An address as the GPU sees it. Never a host pointer, never arithmetic by accident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address `bytes` further on.
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u64);
    )*};
}

handles! {
    /// A context of a device.
    ContextId;
    /// A stream of a context.
    StreamId;
    /// An event.
    EventId;
    /// A loaded module.
    ModuleId;
    /// Physical memory without an address.
    FrameId;
    /// A copy between a frame and host memory that may not have ended.
    FrameCopy;
    /// An array for textures and surfaces.
    ArrayId;
    /// A graph that is ready to be launched.
    GraphId;
    /// A graph without nodes, to which the handles of conditional nodes belong.
    TemplateId;
}

/// What a device's own books say of an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStanding {
    /// Bytes of the device that it takes alone; 0 where it lies beside others.
    pub held_bytes: u64,
    /// It lies in a pool, beside others.
    pub pooled: bool,
    /// Its contents, or a part of them, are in host memory.
    pub away: bool,
    /// Why it cannot leave the device.
    pub pinned: Option<&'static str>,
}

/// Sums over a device's own books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySums {
    /// Bytes in host memory.
    pub away_bytes: u64,
    /// Bytes that cannot leave the device.
    pub pinned_bytes: u64,
    /// Host memory that stands ready for memory that leaves.
    pub store_bytes: u64,
    /// Bytes that pools hold.
    pub pool_held_bytes: u64,
    /// Bytes of them that were asked for.
    pub pool_asked_bytes: u64,
    /// Bytes of them that are given out.
    pub pool_given_bytes: u64,
    /// Largest piece that a pool can give out without more memory.
    pub pool_largest_free_bytes: u64,
    /// Pieces that pools have given out.
    pub pool_pieces: u64,
}

/// Host memory that a copy reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSpan {
    ptr: *mut u8,
    len: u64,
}

// SAFETY: a span is only an address and a length; `HostSpan::new` puts the duty to keep the memory
// valid, from whatever thread uses it, on its caller.
unsafe impl Send for HostSpan {}
// SAFETY: as for `Send`.
unsafe impl Sync for HostSpan {}

impl HostSpan {
    /// Names host memory.
    ///
    /// # Safety
    /// `ptr` is valid for reads (and writes, if used as a destination) of `len` bytes until the
    /// operation that uses the span has completed on its stream.
    pub unsafe fn new(ptr: *mut u8, len: u64) -> Self {
        Self { ptr, len }
    }

    /// Its first byte.
    pub fn as_ptr(self) -> *mut u8 {
        self.ptr
    }

    /// Its length in bytes.
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// One side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Host memory.
    Host(HostSpan),
    /// Device memory.
    Device(DevicePtr),
    /// An array; the copy's offsets say where in it.
    Array(ArrayId),
}

/// A copy of a box of bytes. Plain copies have `height == depth == 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy3d {
    /// Where from.
    pub src: Place,
    /// Bytes between rows and between slices of the source.
    pub src_pitch: (u64, u64),
    /// Offset in bytes, rows and slices, for arrays (fold it into the address otherwise).
    pub src_offset: (u64, u64, u64),
    /// Where to.
    pub dst: Place,
    /// As `src_pitch`.
    pub dst_pitch: (u64, u64),
    /// As `src_offset`.
    pub dst_offset: (u64, u64, u64),
    /// Bytes in a row.
    pub width_bytes: u64,
    /// Rows.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}

impl Copy3d {
    /// A plain run of bytes.
    pub fn linear(dst: Place, src: Place, bytes: u64) -> Self {
        let none = (0, 0, 0);
        Self {
            src,
            src_pitch: (bytes, bytes),
            src_offset: none,
            dst,
            dst_pitch: (bytes, bytes),
            dst_offset: none,
            width_bytes: bytes,
            height: 1,
            depth: 1,
        }
    }
}

/// A fill of rows with a repeated pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill2d {
    /// First byte.
    pub dst: DevicePtr,
    /// Bytes between rows.
    pub pitch: u64,
    /// The pattern, in its low bytes.
    pub value: u32,
    /// Bytes of the pattern: 1, 2 or 4.
    pub element_bytes: u32,
    /// Elements per row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

/// Runs once on a host thread that may block; it may not call the device.
pub type HostCallback = Box<dyn FnOnce() + Send>;

/// How a stream behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFlags {
    /// Not ordered against the default stream (`CU_STREAM_NON_BLOCKING`).
    pub non_blocking: bool,
}

/// How an event behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventFlags {
    /// No timestamps are kept.
    pub disable_timing: bool,
}

/// Options for module loading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleOptions {
    /// Check exact allocation bounds on every access (software GPU).
    pub memcheck: bool,
}

/// One kernel parameter's place in the parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamLayout {
    /// Byte offset.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

/// One kernel of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelDescription {
    /// Its (mangled) name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<ParamLayout>,
    /// Static shared memory in bytes.
    pub static_shared: u32,
    /// Local memory per thread in bytes.
    pub local_bytes: u32,
    /// Constant memory in bytes.
    pub const_bytes: u32,
    /// Registers per thread.
    pub registers: u32,
    /// Most threads per block.
    pub max_threads: u32,
    /// PTX version × 10, for `CU_FUNC_ATTRIBUTE_PTX_VERSION`.
    pub ptx_version: u32,
    /// Machine code version × 10.
    pub binary_version: u32,
    /// Whether all of this is known. A device that loads kernels lazily knows only names and parameters at first
    /// and tells the rest in [`crate::Gpu::kernel_description`].
    pub is_complete: bool,
}

/// One variable of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalDescription {
    /// Its (mangled) name.
    pub name: String,
    /// Where it lives.
    pub address: DevicePtr,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether the driver keeps it in managed memory, at an address of this process.
    pub is_managed: bool,
}

/// What a module holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Kernels; a launch names one by its index here.
    pub kernels: Vec<KernelDescription>,
    /// Variables.
    pub globals: Vec<GlobalDescription>,
}

/// A kernel launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch<'a> {
    /// The module.
    pub module: ModuleId,
    /// Index into [`ModuleInfo::kernels`].
    pub kernel: u32,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub dynamic_shared: u32,
    /// All blocks must be resident at once (grid sync).
    pub cooperative: bool,
    /// The packed parameter block, laid out as [`KernelDescription::params`] says.
    pub params: &'a [u8],
}

/// A launch attribute: `CUlaunchAttribute`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchAttribute {
    /// `CUlaunchAttributeID`.
    pub id: u32,
    /// `CUlaunchAttributeValue`. Where an event belongs, these bytes do not count.
    pub value: [u32; 16],
    /// The event that the attribute records.
    pub event: Option<EventId>,
}

impl LaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
    pub const COOPERATIVE: u32 = LaunchAttributeId::Cooperative as u32;
    /// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
    pub const CLUSTER_DIMENSION: u32 = LaunchAttributeId::ClusterDimension as u32;
    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
    pub const PROGRAMMATIC_STREAM_SERIALIZATION: u32 =
        LaunchAttributeId::ProgrammaticStreamSerialization as u32;
    /// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT`.
    pub const PROGRAMMATIC_EVENT: u32 = LaunchAttributeId::ProgrammaticEvent as u32;
    /// `CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT`.
    pub const LAUNCH_COMPLETION_EVENT: u32 = LaunchAttributeId::LaunchCompletionEvent as u32;
    /// `CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE`.
    pub const DEVICE_UPDATABLE_KERNEL_NODE: u32 =
        LaunchAttributeId::DeviceUpdatableKernelNode as u32;
    /// The last attribute that a program may use.
    pub const LAST: u32 = LaunchAttributeId::PreferredSharedMemoryCarveout as u32;

    /// Whether the value begins with an event.
    pub fn records_event(id: u32) -> bool {
        matches!(id, Self::PROGRAMMATIC_EVENT | Self::LAUNCH_COMPLETION_EVENT)
    }
}

/// A question about clusters of a kernel: the launch that would use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterQuestion<'a> {
    /// The module.
    pub module: ModuleId,
    /// Index into [`ModuleInfo::kernels`].
    pub kernel: u32,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub dynamic_shared: u32,
    /// Attributes of the launch.
    pub attributes: &'a [LaunchAttribute],
    /// Which answer: the largest cluster that fits, or how many clusters run at once.
    pub largest: bool,
}

/// How a tensor map is made: the arguments of `cuTensorMapEncode*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorMapRequest {
    /// Which of the calls.
    pub kind: TensorMapKind,
    /// `CUtensorMapDataType`.
    pub data_type: u32,
    /// Dimensions, 1 to 5.
    pub rank: u32,
    /// Where the tensor begins.
    pub address: DevicePtr,
    /// Elements in each dimension.
    pub dims: [u64; 5],
    /// Bytes between elements of each dimension but the first.
    pub strides: [u64; 5],
    /// Elements between those that are read.
    pub element_strides: [u32; 5],
    /// `CUtensorMapInterleave`.
    pub interleave: u32,
    /// `CUtensorMapSwizzle`.
    pub swizzle: u32,
    /// `CUtensorMapL2promotion`.
    pub l2_promotion: u32,
    /// `CUtensorMapFloatOOBfill`.
    pub fill: u32,
}

/// What differs between the kinds of tensor maps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TensorMapKind {
    /// `cuTensorMapEncodeTiled`: the box that one copy moves.
    Tiled([u32; 5]),
    /// `cuTensorMapEncodeIm2col`: corners of the pixel box, channels per pixel, pixels per column.
    Im2col([i32; 5], [i32; 5], u32, u32),
    /// `cuTensorMapEncodeIm2colWide`: corners in the width, channels per pixel, pixels per column, mode.
    Im2colWide(i32, i32, u32, u32, u32),
}

/// A tensor map: opaque to everybody but the device.
pub type TensorMap = [u8; 128];

/// Who may touch mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nobody.
    None,
    /// Kernels and copies may read.
    Read,
    /// Kernels and copies may read and write.
    ReadWrite,
}

/// An array's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayDescriptor {
    /// Texels per row.
    pub width: u64,
    /// Rows, 0 for 1D.
    pub height: u64,
    /// Slices or layers, 0 for none.
    pub depth: u64,
    /// `CUarray_format` by number.
    pub format: u32,
    /// 1, 2 or 4.
    pub channels: u32,
    /// `CUDA_ARRAY3D_*` flags: 1 layered, 2 surface load/store, 4 cube map.
    pub flags: u32,
}

/// What a texture object reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextureResource {
    /// An array.
    Array(ArrayId),
    /// Linear memory: address, bytes.
    Linear(DevicePtr, u64),
    /// Pitched memory: address, width, height in texels, pitch in bytes.
    Pitched(DevicePtr, u64, u64, u64),
}

/// How a texture object reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TextureDescriptor {
    /// From where.
    pub resource: TextureResource,
    /// `CUarray_format`, for linear and pitched memory.
    pub format: u32,
    /// Channels, for linear and pitched memory.
    pub channels: u32,
    /// `CUaddress_mode` per dimension.
    pub address_mode: [u32; 3],
    /// 0 point, 1 linear.
    pub filter: u32,
    /// Coordinates in `[0, 1)`.
    pub normalized_coords: bool,
    /// `CU_TRSF_READ_AS_INTEGER`.
    pub read_as_integer: bool,
    /// Border colour.
    pub border: [f32; 4],
}

/// What a device is.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProperties {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// `domain:bus:device.function`.
    pub pci_bus_id: String,
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// Bytes of device memory.
    pub total_memory: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Most threads per block.
    pub max_threads_per_block: u32,
    /// Most shared memory per block, opt-in included.
    pub max_shared_per_block: u32,
    /// Smallest frame, and alignment of frames.
    pub frame_bytes: u64,
    /// Numerically greatest (least important) and least (most important) stream priority.
    pub stream_priorities: (i32, i32),
}

/// Device memory that another process sees: see [`crate::Gpu::memory_window`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryWindow {
    /// First byte of the allocation.
    pub base: DevicePtr,
    /// Its size.
    pub bytes: u64,
    /// Where it begins in the window file.
    pub offset: u64,
}

/// What was ended from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aborted {
    /// Kernels, running and queued.
    pub kernels: u64,
    /// Copies and fills.
    pub copies: u64,
}

impl std::iter::Sum for Aborted {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, more| Self {
            kernels: sum.kernels + more.kernels,
            copies: sum.copies + more.copies,
        })
    }
}
