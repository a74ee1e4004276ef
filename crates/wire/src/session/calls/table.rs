//! The rows: one a call. CONTRIBUTING.md tells how to add one; `calls` tells what each column means.

use super::facts::{Bytes, LARGE, PIECE, column};
use super::*;
use crate::codec::{Malformed, Reader};
use crate::session::types::*;

// The dollar sign is for the macro that the macro below defines.
calls! { $
    /// Begins a session; the tail is the program's name.
    1 Attach { /** Process id, for logs. */ pid: u32, } -> DeviceSnapshot, + tail;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// What `cuMemGetInfo` shows.
    2 MemoryInfo {} -> MemoryState;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Counters of the virtual GPU.
    3 Counters {} -> VgpuCounters;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Takes the oldest late error; one that killed its context stays.
    4 TakeLate { /** Context, 0 for any. */ context: u64, } -> LateError;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Answers; all calls before it have been taken in.
    5 Ping {} -> Done;
        class: Quick, late: Never, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Takes what kernels have printed.
    6 TakeOutput {} -> KernelOutput;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Tells the one who runs the program what was refused; the tail is the sentence.
    7 NoteRefused {} -> Done, + tail;
        class: Posted, late: Kept, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Makes a context.
    10 ContextCreate { /** `CUctx_flags`, kept for the program. */ flags: u32, } -> NewContext;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: MakesContext;

    /// Ends a context and all it holds.
    11 ContextDestroy { /** Context. */ context: u64, } -> Done;
        class: Waiting, late: Never, order: Ordered, touches: [any_event frees], gate: Never, settle: Yes, node: No, effect: EndsContext;

    /// Waits for all work of a context.
    12 ContextSynchronize { /** Context. */ context: u64, } -> Done;
        class: Waiting, late: After(context), order: WaitsForContext, touches: [], gate: Never, settle: No, node: No, effect: None;

    /// Reads a `CUlimit`.
    13 ContextLimit { /** Context. */ context: u64, /** `CUlimit`. */ limit: u32, } -> Number;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Sets a `CUlimit`.
    14 ContextSetLimit {
        /** Context. */ context: u64, /** `CUlimit`. */ limit: u32, /** Value. */ value: u64,
    } -> Done;
        class: Quick, late: Never, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Cancels running and queued kernels; answers how many.
    15 Cancel { /** Context. */ context: u64, /** Stream, 0 for all. */ stream: u64, } -> Number;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Nanoseconds of GPU time of a context.
    16 ContextGpuTime { /** Context. */ context: u64, } -> Number;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Makes a stream.
    20 StreamCreate {
        /** Context. */ context: u64,
        /** Not ordered against the default stream. */ non_blocking: bool,
        /** Priority, lower first. */ priority: i32,
    } -> Number;
        class: Quick, late: Before(context), order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: MakesStream;

    /// Destroys a stream once its work is done.
    21 StreamDestroy { /** Stream. */ stream: u64, } -> Done;
        class: Posted, late: Kept, order: Ordered, touches: [stream], gate: Never, settle: Yes, node: No, effect: EndsStream;

    /// Waits for a stream.
    22 StreamSynchronize { /** Stream. */ stream: u64, } -> Done;
        class: Waiting, late: After(stream), order: WaitsForStream, touches: [], gate: Never, settle: No, node: No, effect: None;

    /// Whether a stream's work is done.
    23 StreamQuery { /** Stream. */ stream: u64, } -> Truth;
        class: Quick, late: After(stream), order: AsksStream, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Makes later work of a stream wait for an event.
    24 StreamWaitEvent { /** Stream. */ stream: u64, /** Event. */ event: u64, } -> Done;
        class: Posted, late: Kept(stream), order: Ordered, touches: [stream], gate: Never, settle: Yes, node: Yes, effect: None;

    /// Asks for a notice in stream order; the stream waits for `CallbackDone`.
    25 StreamCallback { /** Stream. */ stream: u64, /** The program's number for it. */ callback: u64, } -> Done;
        class: Posted, late: Kept(stream), order: Ordered, touches: [stream], gate: Never, settle: Yes, node: Yes, effect: None;

    /// The host function has returned.
    26 CallbackDone { /** Number from the notice. */ callback: u64, } -> Done;
        class: Posted, late: Kept, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Whether new work of a stream would run at once: nothing of it, or of what is ordered before it, is left.
    27 StreamClear { /** Stream. */ stream: u64, } -> Truth;
        class: Quick, late: After(stream), order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Makes later work of a stream wait for a word in memory.
    28 StreamWaitValue {
        /** Stream. */ stream: u64, /** Where the word is. */ address: u64, /** It has 8 bytes, not 4. */ is_wide: bool,
        /** What it is compared with. */ value: u64, /** `CUstreamWaitValue_flags`. */ flags: u32,
    } -> Done;
        class: Posted, late: Kept(stream), order: Ordered, touches: [stream], gate: Never, settle: Yes, node: No, effect: None;

    /// Makes an event.
    30 EventCreate { /** Context. */ context: u64, /** No timestamps. */ disable_timing: bool, } -> Number;
        class: Quick, late: Before(context), order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Destroys an event.
    31 EventDestroy { /** Event. */ event: u64, } -> Done;
        class: Posted, late: Kept, order: Ordered, touches: [event], gate: Never, settle: Yes, node: No, effect: None;

    /// Records a stream's progress.
    32 EventRecord { /** Event. */ event: u64, /** Stream. */ stream: u64, } -> Done;
        class: Posted, late: Kept(stream), order: Records, touches: [stream event], gate: Never, settle: No, node: Yes, effect: None;

    /// Whether an event was reached.
    33 EventQuery { /** Event. */ event: u64, } -> Truth;
        class: Quick, late: After(event), order: AsksEvent, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Waits for an event.
    34 EventSynchronize { /** Event. */ event: u64, } -> Done;
        class: Waiting, late: After(event), order: WaitsForEvent, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Time between two events.
    35 EventElapsed { /** Earlier. */ start: u64, /** Later. */ end: u64, } -> Milliseconds;
        class: Quick, late: Never, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Appends the tail to a blob.
    40 BlobPart { /** The program's number for it. */ blob: u64, } -> Done, + tail;
        class: Posted, late: Kept, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Appends a staging chunk to a blob and gives the chunk back.
    41 BlobChunk {
        /** Blob. */ blob: u64, /** Staging chunk. */ chunk: u32, /** Bytes in it. */ bytes: u32,
    } -> Done;
        class: Posted, late: Kept, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Forgets a blob.
    42 BlobDrop { /** Blob. */ blob: u64, } -> Done;
        class: Posted, late: Kept, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Loads PTX, a fatbin or a cubin.
    43 ModuleLoad {
        /** Context. */ context: u64, /** Image; consumed. */ blob: u64, /** Check exact bounds. */ memcheck: bool,
    } -> LoadedModule;
        class: Waiting, late: Before(context), order: Takes, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Unloads a module.
    44 ModuleUnload { /** Module. */ module: u64, } -> Done;
        class: Quick, late: Never, order: Ordered, touches: [frees], gate: Never, settle: Yes, node: No, effect: None;

    /// Blocks that fit on one multiprocessor.
    45 Occupancy {
        /** Module. */ module: u64, /** Kernel's index. */ kernel: u32,
        /** Threads per block. */ block_threads: u32, /** Dynamic shared bytes. */ dynamic_shared: u64,
    } -> Number;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Moves a variable to host memory that the program shares.
    46 ModuleBind {
        /** Module. */ module: u64, /** Variable's index. */ global: u32, /** Host memory's device address. */ address: u64,
    } -> Done;
        class: Quick, late: Never, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// All that is known of a kernel. Ordered: a driver loads a kernel that it is asked about, and a launch before does so
    /// in the order of its stream.
    47 KernelDescription { /** Module. */ module: u64, /** Kernel's index. */ kernel: u32, } -> KernelLayout;
        class: Quick, late: Never, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Reads a `CUfunction_attribute`.
    48 KernelAttribute {
        /** Module. */ module: u64, /** Kernel's index. */ kernel: u32, /** `CUfunction_attribute`. */ attribute: u32,
    } -> Signed;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Sets a `CUfunction_attribute`.
    49 KernelSetAttribute {
        /** Module. */ module: u64, /** Kernel's index. */ kernel: u32, /** `CUfunction_attribute`. */ attribute: u32,
        /** Value. */ value: i32,
    } -> Done;
        class: Quick, late: Never, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Launches a kernel; the tail is its packed parameter block.
    50 Launch {
        /** Stream. */ stream: u64, /** Module. */ module: u64, /** Kernel's index. */ kernel: u32,
        /** Blocks. */ grid: [u32; 3], /** Threads per block. */ block: [u32; 3],
        /** Dynamic shared bytes. */ dynamic_shared: u32, /** Grid-wide barriers are used. */ cooperative: bool,
    } -> Done, + tail;
        class: Posted, late: Kept(stream), order: Ordered, touches: [stream], gate: Always, settle: No, node: Yes, effect: None;

    /// Makes a graph ready to be launched.
    51 GraphInstantiate {
        /** Context. */ context: u64, /** `Vec<GraphNode>`; consumed. */ blob: u64,
        /** Template with the handles of its conditional nodes; 0 for none. */ template: u64,
        /** Nodes run with the priorities of their own launches. */ node_priorities: bool,
    } -> Number;
        class: Waiting, late: Before(context), order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Launches a graph.
    52 GraphLaunch { /** Graph. */ graph: u64, /** Stream. */ stream: u64, } -> Done;
        class: Posted, late: Kept(stream), order: Ordered, touches: [stream any_event], gate: Always, settle: Yes, node: No, effect: None;

    /// Replaces a graph's nodes.
    53 GraphUpdate {
        /** Graph. */ graph: u64, /** `Vec<GraphNode>`; consumed. */ blob: u64,
        /** Template with the handles of its conditional nodes; 0 for none. */ template: u64,
    } -> Done;
        class: Quick, late: Never, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Destroys a graph.
    54 GraphDestroy { /** Graph. */ graph: u64, } -> Done;
        class: Posted, late: Kept, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Launches a kernel with attributes; the tail is the attributes, 68 bytes each, and the packed parameter block.
    55 LaunchWith {
        /** Stream. */ stream: u64, /** Module. */ module: u64, /** Kernel's index. */ kernel: u32,
        /** Blocks. */ grid: [u32; 3], /** Threads per block. */ block: [u32; 3],
        /** Dynamic shared bytes. */ dynamic_shared: u32, /** How many attributes. */ attributes: u32,
    } -> Done, + tail;
        class: Posted, late: Kept(stream), order: Ordered, touches: [stream any_event], gate: Always, settle: Yes, node: Yes, effect: None;

    /// Clusters of a kernel's blocks that run at once, or the largest that fits; the tail is the attributes.
    56 Clusters {
        /** Module. */ module: u64, /** Kernel's index. */ kernel: u32,
        /** Blocks. */ grid: [u32; 3], /** Threads per block. */ block: [u32; 3],
        /** Dynamic shared bytes. */ dynamic_shared: u32, /** How many attributes. */ attributes: u32,
        /** Ask for the largest. */ largest: bool,
    } -> Number, + tail;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Dynamic shared memory that each of so many blocks on one multiprocessor can have.
    57 AvailableShared {
        /** Module. */ module: u64, /** Kernel's index. */ kernel: u32,
        /** Blocks. */ blocks: u32, /** Threads per block. */ block_threads: u32,
    } -> Number;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Makes a tensor map of a `TensorMapShape`, which is the tail.
    58 TensorMap { /** Context. */ context: u64, } -> Data, + tail;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Allocates device memory.
    60 MemoryAlloc { /** Context. */ context: u64, /** Bytes. */ bytes: u64, } -> Number;
        class: Waiting, late: Before(context), order: Takes, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Waits for the context, then frees.
    61 MemoryFree { /** Context. */ context: u64, /** Address. */ address: u64, } -> Done;
        class: Waiting, late: Never, order: Ordered, touches: [frees], gate: Never, settle: Yes, node: No, effect: FreesMemory;

    /// The allocation that holds an address.
    62 MemoryRange { /** Context. */ context: u64, /** Address. */ address: u64, } -> AddressRange;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Allocates in stream order.
    63 MemoryAllocAsync { /** Stream. */ stream: u64, /** Bytes. */ bytes: u64, } -> Number;
        class: Waiting, late: Before(stream), order: Takes, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Frees in stream order.
    64 MemoryFreeAsync { /** Stream. */ stream: u64, /** Address. */ address: u64, } -> Done;
        class: Posted, late: Kept(stream), order: Ordered, touches: [stream frees], gate: Never, settle: Yes, node: No, effect: FreesMemory;

    /// Copies a box of bytes; a staging chunk it reads is given back, one it writes is marked full.
    65 Copy { /** Stream. */ stream: u64, /** What. */ area: CopyBox, } -> Done;
        class: Posted, late: Kept(stream), order: Ordered, touches: [stream], gate: Sized(PIECE), settle: Yes, node: Yes, effect: None;

    /// Fills rows with a pattern.
    66 Fill {
        /** Stream. */ stream: u64, /** First byte. */ address: u64, /** Bytes between rows. */ pitch: u64,
        /** Pattern. */ value: u32, /** 1, 2 or 4. */ element_bytes: u32,
        /** Elements per row. */ width: u64, /** Rows. */ height: u64,
    } -> Done;
        class: Posted, late: Kept(stream), order: Ordered, touches: [stream], gate: Sized(LARGE), settle: Yes, node: Yes, effect: None;

    /// Writes the tail to device memory.
    67 Write { /** Stream. */ stream: u64, /** Where to. */ address: u64, } -> Done, + tail;
        class: Posted, late: Kept(stream), order: Ordered, touches: [stream], gate: Sized(LARGE), settle: Yes, node: Yes, effect: None;

    /// Reads device memory.
    68 Read { /** Stream. */ stream: u64, /** Where from. */ address: u64, /** At most 1 MiB. */ bytes: u32, } -> Data;
        class: Waiting, late: After(stream), order: WaitsForStream, touches: [stream], gate: Sized(LARGE), settle: Yes, node: No, effect: None;

    /// Maps host memory of the program into the device.
    70 HostRegister {
        /** Context. */ context: u64, /** Tag of the descriptor on the socket, or [`HostRegister::IN_IVSHMEM`]. */ tag: u64,
        /** Bytes. */ bytes: u64, /** Offset in the file. */ offset: u64,
        /** Charge it to the memory limit (managed memory). */ charge: bool,
        /** The program's address of it, which a device with a driver should use too; 0 for any. */ wanted: u64,
        /** The program can bring the file again, should another worker go on with the session. */ offered: bool,
    } -> Number;
        class: Waiting, late: Never, order: Takes, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Waits for the context, then ends `HostRegister`.
    71 HostUnregister { /** Context. */ context: u64, /** Device address. */ address: u64, } -> Done;
        class: Waiting, late: Never, order: Ordered, touches: [frees], gate: Never, settle: Yes, node: No, effect: FreesMemory;

    /// Lets the program touch the allocation around an address in place.
    72 MemoryWindow { /** First byte. */ address: u64, /** Bytes that will be touched. */ bytes: u64, } -> Window;
        class: Waiting, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Reserves device addresses.
    80 AddressReserve { /** Bytes. */ bytes: u64, /** Alignment. */ align: u64, } -> Number;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Gives reserved addresses back.
    81 AddressFree { /** First. */ address: u64, /** Bytes. */ bytes: u64, } -> Done;
        class: Quick, late: Never, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Physical memory without an address.
    82 FrameCreate { /** Bytes. */ bytes: u64, } -> Number;
        class: Waiting, late: Never, order: Takes, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Drops a frame.
    83 FrameRelease { /** Frame. */ frame: u64, } -> Done;
        class: Quick, late: Never, order: Ordered, touches: [frees], gate: Never, settle: Yes, node: No, effect: None;

    /// Maps a frame.
    84 FrameMap { /** Where. */ address: u64, /** Frame. */ frame: u64, } -> Done;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Unmaps whole mappings.
    85 FrameUnmap { /** First. */ address: u64, /** Bytes. */ bytes: u64, } -> Done;
        class: Waiting, late: Never, order: Ordered, touches: [frees], gate: Never, settle: Yes, node: No, effect: None;

    /// Sets access.
    86 FrameAccess { /** First. */ address: u64, /** Bytes. */ bytes: u64, /** 0 none, 1 read, 3 read and write. */ access: u32, } -> Done;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Makes an array.
    90 ArrayCreate { /** Context. */ context: u64, /** Shape. */ shape: ArrayShape, } -> Number;
        class: Waiting, late: Never, order: Takes, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Frees an array.
    91 ArrayDestroy { /** Array. */ array: u64, } -> Done;
        class: Waiting, late: Never, order: Ordered, touches: [frees], gate: Never, settle: Yes, node: No, effect: None;

    /// Makes a texture object.
    92 TextureCreate { /** Context. */ context: u64, /** What and how. */ shape: TextureShape, } -> Number;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Makes a surface object.
    93 SurfaceCreate { /** Context. */ context: u64, /** Array. */ array: u64, } -> Number;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Destroys a texture or surface object.
    94 TextureDestroy { /** Context. */ context: u64, /** Texture or surface. */ handle: u64, } -> Done;
        class: Quick, late: Never, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Asks for the rest of an answer that did not fit its slot.
    100 Continue { /** Where the answer so far ends. */ offset: u64, } -> Done;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Brings to the device what the next launch of a graph needs there.
    110 GraphUpload { /** Graph. */ graph: u64, /** Stream. */ stream: u64, } -> Done;
        class: Posted, late: Kept(stream), order: Ordered, touches: [stream], gate: Always, settle: Yes, node: No, effect: None;

    /// Makes a template: what handles of conditional nodes belong to.
    111 TemplateCreate { /** Context. */ context: u64, } -> Number;
        class: Quick, late: Before(context), order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Destroys a template.
    112 TemplateDestroy { /** Template. */ template: u64, } -> Done;
        class: Posted, late: Kept, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// A handle for a conditional node.
    113 ConditionalCreate {
        /** Template. */ template: u64, /** What it is at first. */ value: u32, /** Each launch begins with it. */ is_default: bool,
    } -> Number;
        class: Quick, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Lets other programs of the virtual GPU have an allocation; the program maps it no more.
    130 ShareMemory { /** Context. */ context: u64, /** First address. */ address: u64, } -> SharedMemory;
        class: Waiting, late: Never, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: FreesMemory;

    /// Lets other programs of the virtual GPU have a frame.
    131 ShareFrame { /** Frame. */ frame: u64, } -> SharedMemory;
        class: Waiting, late: Never, order: Ordered, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Takes in what a program of the virtual GPU shares, as a frame.
    132 OpenShared { /** What it was shared under. */ id: [u8; 16], } -> OpenedFrame;
        class: Waiting, late: Never, order: Takes, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Makes an event that other programs of the virtual GPU can have.
    133 EventCreateShared { /** Context. */ context: u64, } -> Number;
        class: Quick, late: Before(context), order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Lets other programs of the virtual GPU have such an event.
    134 ShareEvent { /** Event. */ event: u64, } -> SharedEvent;
        class: Waiting, late: Never, order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;

    /// Takes in an event that a program of the virtual GPU shares.
    135 OpenSharedEvent {
        /** Context. */ context: u64, /** What it was shared under. */ id: [u8; 16], /** Its place there. */ slot: u32,
    } -> Number;
        class: Waiting, late: Before(context), order: Free, touches: [], gate: Never, settle: Yes, node: No, effect: None;
}
