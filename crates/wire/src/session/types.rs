//! Descriptions that travel in calls and answers.

use crate::codec::{Field, Malformed, Reader, Sink, record};

record! {
    /// What a virtual GPU shows of its device, in one answer.
    DeviceSnapshot {
        /// Name of the virtual GPU.
        vgpu: String,
        /// Name of the device.
        name: String,
        /// UUID of the device.
        uuid: [u8; 16],
        /// `domain:bus:device.function`.
        pci_bus_id: String,
        /// Compute capability, major and minor.
        compute_capability: (u32, u32),
        /// Memory that the virtual GPU may have.
        total_memory: u64,
        /// Multiprocessors.
        multiprocessors: u32,
        /// Most threads per block.
        max_threads_per_block: u32,
        /// Most shared memory per block, opt-in included.
        max_shared_per_block: u32,
        /// Smallest frame of the VMM calls.
        frame_bytes: u64,
        /// Least and most important stream priority.
        stream_priorities: (i32, i32),
        /// Every `CUdevice_attribute` the device knows, by number.
        attributes: Vec<(u32, i32)>,
        /// Whether a real driver answers questions about kernels.
        has_driver: bool,
        /// Whether the session can be saved and go on in another worker, which needs the files of host memory again.
        can_be_saved: bool,
        /// For each pair of multiprocessors the cluster it belongs to; empty where the device does not tell.
        processor_groups: Vec<u8>,
        /// For each pair of multiprocessors its place in its cluster.
        processor_places: Vec<u8>,
    }

    /// A kernel of a loaded module.
    KernelLayout {
        /// Its (mangled) name.
        name: String,
        /// Offset and size of each parameter.
        params: Vec<(u32, u32)>,
        /// Static shared memory in bytes.
        static_shared: u32,
        /// Local memory per thread in bytes.
        local_bytes: u32,
        /// Constant memory in bytes.
        const_bytes: u32,
        /// Registers per thread.
        registers: u32,
        /// Most threads per block.
        max_threads: u32,
        /// PTX version × 10.
        ptx_version: u32,
        /// Machine code version × 10.
        binary_version: u32,
        /// Whether all of this is known, and not only names and parameters.
        is_complete: bool,
    }

    /// A variable of a loaded module.
    GlobalLayout {
        /// Its (mangled) name.
        name: String,
        /// Device address.
        address: u64,
        /// Size in bytes.
        bytes: u64,
        /// The driver keeps it in managed memory.
        is_managed: bool,
    }

    /// A loaded module with all that is in it.
    LoadedModule {
        /// Handle.
        module: u64,
        /// Kernels; a launch names one by its index.
        kernels: Vec<KernelLayout>,
        /// Variables.
        globals: Vec<GlobalLayout>,
    }

    /// Memory that other programs of the virtual GPU can have.
    SharedMemory {
        /// What it is shared under.
        id: [u8; 16],
        /// Bytes of the frame that they get.
        bytes: u64,
    }

    /// A frame with memory of another program.
    OpenedFrame {
        /// Handle.
        frame: u64,
        /// Bytes.
        bytes: u64,
        /// What may be done with it: 1 read, 3 read and write.
        access: u32,
    }

    /// An event that other programs of the virtual GPU can have.
    SharedEvent {
        /// What the page it lies in is shared under.
        id: [u8; 16],
        /// Its place in the page.
        slot: u32,
    }

    /// A new context.
    NewContext {
        /// Handle.
        context: u64,
        /// Handle of its default stream.
        default_stream: u64,
    }

    /// Memory of the virtual GPU.
    MemoryState {
        /// Bytes that can still be had.
        free_bytes: u64,
        /// The limit.
        limit_bytes: u64,
        /// Used by the whole virtual GPU.
        used_bytes: u64,
    }

    /// An error found after the call that caused it had returned.
    LateError {
        /// A `CUresult` by number, 0 for none.
        code: u32,
        /// The engine's sentence.
        message: String,
    }

    /// What kernels have printed, in order.
    KernelOutput {
        /// 0 for standard output, 1 for assertions (standard error), with the bytes.
        pieces: Vec<(u8, Vec<u8>)>,
    }

    /// A range of device addresses.
    AddressRange {
        /// First address.
        address: u64,
        /// Length.
        bytes: u64,
    }

    /// Where an allocation lies in the file with windows on device memory.
    Window {
        /// First address of the allocation.
        address: u64,
        /// Its size.
        bytes: u64,
        /// Where it begins in the file; `u64::MAX` if it cannot be shown.
        offset: u64,
    }

    /// Counters of a virtual GPU since its worker started.
    VgpuCounters {
        /// Kernels launched.
        launches: u64,
        /// Bytes copied from the host.
        bytes_from_host: u64,
        /// Bytes copied to the host.
        bytes_to_host: u64,
        /// Bytes copied on the device.
        bytes_on_device: u64,
        /// Memory requests refused.
        denials: u64,
        /// Contexts that faulted.
        faults: u64,
        /// Sessions open now.
        sessions: u64,
        /// Memory charged now, by this worker.
        used_bytes: u64,
        /// Most memory ever charged.
        peak_bytes: u64,
        /// GPU time used, where the device can tell.
        gpu_time_ns: u64,
        /// Streams open now.
        streams: u64,
        /// Modules loaded now.
        modules: u64,
    }

    /// An array's shape, as in `CUDA_ARRAY3D_DESCRIPTOR`.
    ArrayShape {
        /// Texels per row.
        width: u64,
        /// Rows, 0 for 1D.
        height: u64,
        /// Slices or layers, 0 for none.
        depth: u64,
        /// `CUarray_format`.
        format: u32,
        /// 1, 2 or 4.
        channels: u32,
        /// `CUDA_ARRAY3D_*` flags.
        flags: u32,
    }

    /// A texture object's description.
    TextureShape {
        /// 0 array, 1 linear, 2 pitched.
        kind: u32,
        /// Handle of the array, or the address.
        resource: u64,
        /// Bytes (linear) or texels per row (pitched).
        width: u64,
        /// Rows (pitched).
        height: u64,
        /// Bytes between rows (pitched).
        pitch: u64,
        /// `CUarray_format`, for linear and pitched memory.
        format: u32,
        /// Channels, for linear and pitched memory.
        channels: u32,
        /// `CUaddress_mode` per dimension.
        address_mode: [u32; 3],
        /// 0 point, 1 linear.
        filter: u32,
        /// Coordinates in `[0, 1)`.
        normalized_coords: bool,
        /// Integer texels stay integers.
        read_as_integer: bool,
        /// Border colour.
        border: [f32; 4],
    }

    /// A launch attribute, as in `CUlaunchAttribute`.
    LaunchAttribute {
        /// `CUlaunchAttributeID`.
        id: u32,
        /// `CUlaunchAttributeValue`; an event in it is named by its handle.
        value: [u32; 16],
    }

    /// A tensor map's description: the arguments of `cuTensorMapEncode*`.
    TensorMapShape {
        /// 0 tiled, 1 im2col, 2 wide im2col.
        kind: u32,
        /// `CUtensorMapDataType`.
        data_type: u32,
        /// Dimensions.
        rank: u32,
        /// Device address.
        address: u64,
        /// Elements in each dimension.
        dims: [u64; 5],
        /// Bytes between elements of each dimension but the first.
        strides: [u64; 5],
        /// The box (tiled).
        tile: [u32; 5],
        /// Lower corner of the pixel box (im2col); the first number where it is wide.
        lower: [i32; 5],
        /// Upper corner of the pixel box (im2col); the first number where it is wide.
        upper: [i32; 5],
        /// Channels per pixel (im2col).
        channels: u32,
        /// Pixels per column (im2col).
        pixels: u32,
        /// Elements between those that are read.
        element_strides: [u32; 5],
        /// `CUtensorMapInterleave`.
        interleave: u32,
        /// `CUtensorMapIm2ColWideMode`.
        mode: u32,
        /// `CUtensorMapSwizzle`.
        swizzle: u32,
        /// `CUtensorMapL2promotion`.
        l2_promotion: u32,
        /// `CUtensorMapFloatOOBfill`.
        fill: u32,
    }

    /// A box of bytes to copy.
    CopyBox {
        /// Where from.
        src: CopyPlace,
        /// Bytes between rows and slices of the source.
        src_pitch: (u64, u64),
        /// Offset in bytes, rows, slices, for arrays.
        src_offset: [u64; 3],
        /// Where to.
        dst: CopyPlace,
        /// As `src_pitch`.
        dst_pitch: (u64, u64),
        /// As `src_offset`.
        dst_offset: [u64; 3],
        /// Bytes in a row.
        width_bytes: u64,
        /// Rows.
        height: u64,
        /// Slices.
        depth: u64,
    }

    /// A node of a graph: the calls it comes after, and a posted call without its stream.
    GraphNode {
        /// Indices of earlier nodes.
        after: Vec<u32>,
        /// Number of the posted call, 0 for a node that does nothing, [`CONDITIONAL_NODE`] for a [`ConditionalNode`].
        call: u16,
        /// Its fields and tail, as in a record; stream handles are 0.
        body: Vec<u8>,
    }

    /// The body of a node whose graphs run as the value of a handle says.
    ConditionalNode {
        /// From `ConditionalCreate`.
        handle: u64,
        /// `CUgraphConditionalNodeType`.
        kind: u32,
        /// An encoded `Vec<GraphNode>` for each graph.
        bodies: Vec<Vec<u8>>,
    }
}

/// Stands for a [`ConditionalNode`] where a [`GraphNode`] has the number of a call.
pub const CONDITIONAL_NODE: u16 = u16::MAX;

/// How a graph is made ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphOptions {
    /// Template with the handles of its conditional nodes; 0 for none.
    pub template: u64,
    /// Nodes run with the priorities of their own launches.
    pub node_priorities: bool,
}

/// One side of a [`CopyBox`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPlace {
    /// A device address: device memory, or host memory that both sides map.
    Device(u64),
    /// An array by handle.
    Array(u64),
    /// A staging chunk, from this offset on.
    Staging {
        /// Which chunk.
        chunk: u32,
        /// Where in it.
        offset: u32,
    },
}

impl Field for CopyPlace {
    #[inline]
    fn put<S: Sink>(&self, sink: &mut S) {
        match *self {
            Self::Device(address) => (0_u8, address).put(sink),
            Self::Array(handle) => (1_u8, handle).put(sink),
            Self::Staging { chunk, offset } => (2_u8, (chunk, offset)).put(sink),
        }
    }
    #[inline]
    fn take(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::take(reader)? {
            0 => Ok(Self::Device(u64::take(reader)?)),
            1 => Ok(Self::Array(u64::take(reader)?)),
            2 => Ok(Self::Staging {
                chunk: u32::take(reader)?,
                offset: u32::take(reader)?,
            }),
            other => Err(Malformed::Value {
                what: "copy place",
                value: other.into(),
            }),
        }
    }
    #[cfg(test)]
    fn sample(random: &mut dyn FnMut() -> u64) -> Self {
        match random() % 3 {
            0 => Self::Device(random()),
            1 => Self::Array(random()),
            _ => Self::Staging {
                chunk: random() as u32,
                offset: random() as u32,
            },
        }
    }
}

impl CopyBox {
    /// A plain run of bytes.
    pub fn linear(dst: CopyPlace, src: CopyPlace, bytes: u64) -> Self {
        Self {
            src,
            src_pitch: (bytes, bytes),
            src_offset: [0; 3],
            dst,
            dst_pitch: (bytes, bytes),
            dst_offset: [0; 3],
            width_bytes: bytes,
            height: 1,
            depth: 1,
        }
    }
}
