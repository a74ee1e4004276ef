//! Which symbols are hooked, with their signatures, and the one way every hook is entered.
//!
//! A hook gets its own symbol, the real function and the program's arguments. Copies and fills of before CUDA 3.2, with
//! numbers of 32 bits, share the hooks of their successors: each argument passes in a register of its own, whole, and
//! what stands in the upper half of one can only make a copy look large.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mica_cuda_abi::{
    AllocationHandle, Array3dDescriptor, Array3dDescriptorV1, ArrayDescriptor, ArrayDescriptorV1,
    CuResult, CuStatus, Device, DevicePtr, ExternalMemoryDescriptor, Handle, LaunchConfig,
    MemAllocNodeParams, MemAllocationProp, MemLocation, Symbol,
};

use super::driver::real;
use super::submission::launch_path;
use super::{
    arrays, bulk, capture, context, copies, external, graphs, host_waits, info, init, launch,
    memory, modules, pools, procaddr, stacks, submission, sync, vmm,
};

/// A hook's address.
pub(crate) struct Address(pub(crate) *const c_void);

// SAFETY: an address of code.
unsafe impl Sync for Address {}

fn guarded(call: impl FnOnce() -> CuStatus) -> CuStatus {
    // A panic must not unwind into the program.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(CuResult::Unknown as CuStatus)
}

macro_rules! hook {
    ($symbol:ident ($($arg:ident: $type:ty),*) $target:path) => {
        #[expect(non_snake_case, reason = "the driver's name")]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> CuStatus {
            let function = real!($symbol as unsafe extern "C" fn($($type),*) -> CuStatus);
            guarded(|| {
                // SAFETY: the program's own arguments for the driver's function of this name.
                unsafe { $target(Symbol::$symbol, function, $($arg),*) }
            })
        }
    };
}

/// A hook whose common path is a few instructions that cannot panic: it guards its slow path itself.
macro_rules! bare_hook {
    ($symbol:ident ($($arg:ident: $type:ty),*) $target:path) => {
        #[expect(non_snake_case, reason = "the driver's name")]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> CuStatus {
            let function = real!($symbol as unsafe extern "C" fn($($type),*) -> CuStatus);
            // SAFETY: the program's own arguments for the driver's function of this name.
            unsafe { $target(Symbol::$symbol, function, $($arg),*) }
        }
    };
}

/// `cuLaunchKernel`: its stream is the ninth argument, on the stack.
macro_rules! launch_hook {
    ($symbol:ident () $wait:path) => {
        #[unsafe(naked)]
        #[allow(non_snake_case, reason = "the driver's name")]
        unsafe extern "C" fn $symbol() {
            launch_path!($symbol, $wait, "mov rax, [rsp + 24]")
        }
    };
}

/// `cuLaunchKernelEx`: its stream is in the configuration, its first argument.
macro_rules! launch_ex_hook {
    ($symbol:ident () $wait:path) => {
        #[unsafe(naked)]
        #[allow(non_snake_case, reason = "the driver's name")]
        unsafe extern "C" fn $symbol() {
            launch_path!(
                $symbol,
                $wait,
                "test rdi, rdi",
                "je 2f",
                "mov rax, [rdi + {in_config}]",
                in_config = const std::mem::offset_of!(LaunchConfig, stream)
            )
        }
    };
}

macro_rules! hooks {
    ($($kind:ident [$($symbol:ident),+] $args:tt => $target:path;)*) => {
        $($($kind! { $symbol $args $target })+)*

        /// Every hooked symbol.
        pub(crate) static HOOKS: &[(Symbol, Address)] = &[
            $($((Symbol::$symbol, Address($symbol as *const c_void)),)+)*
        ];
    };
}

/// Hooked only for programs that call the exported name. The runtime, which looks functions up by name and version, knows
/// their arguments, and asks for the device ten times a launch.
pub(crate) const ONLY_EXPORTED: &[Symbol] = &[Symbol::cuCtxGetDevice_v2];

hooks! {
    hook [cuInit](flags: u32) => init::init;
    hook [cuGetProcAddress](name: *const i8, out: *mut *const c_void, version: i32, flags: u64)
        => procaddr::get_proc_address;
    hook [cuGetProcAddress_v2](name: *const i8, out: *mut *const c_void, version: i32, flags: u64, found: *mut u32)
        => procaddr::get_proc_address_v2;

    hook [cuDevicePrimaryCtxRetain](out: *mut Handle, device: Device) => context::primary_retain;
    hook [cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2](device: Device) => context::primary_release;
    hook [cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2](device: Device) => context::primary_release;
    hook [cuCtxCreate, cuCtxCreate_v2](out: *mut Handle, flags: u32, device: Device) => context::create;
    hook [cuCtxCreate_v3](out: *mut Handle, params: *mut c_void, count: i32, flags: u32, device: Device)
        => context::create_v3;
    hook [cuCtxCreate_v4](out: *mut Handle, params: *mut c_void, flags: u32, device: Device)
        => context::create_v4;
    hook [cuGLCtxCreate, cuGLCtxCreate_v2](out: *mut Handle, flags: u32, device: Device) => context::create;
    hook [cuVDPAUCtxCreate, cuVDPAUCtxCreate_v2]
        (out: *mut Handle, flags: u32, device: Device, vdp_device: u32, vdp_address: *mut c_void)
        => context::create_vdpau;
    hook [cuCtxDestroy, cuCtxDestroy_v2](context: Handle) => context::destroy;
    hook [cuCtxAttach](out: *mut Handle, flags: u32) => context::attach;
    hook [cuCtxDetach](context: Handle) => context::detach;
    hook [cuGreenCtxCreate](out: *mut Handle, resources: Handle, device: Device, flags: u32) => context::green::create;
    hook [cuGreenCtxDestroy](green: Handle) => context::green::destroy;
    hook [cuCtxFromGreenCtx](out: *mut Handle, green: Handle) => context::green::context;
    hook [cuCtxGetDevice_v2](out: *mut Device, context: Handle) => context::device_of;
    hook [cuCtxSetLimit](limit: u32, value: usize) => stacks::set_limit;

    hook [cuMemGetInfo_v2](free: *mut usize, total: *mut usize) => info::memory;
    hook [cuMemGetInfo](free: *mut u32, total: *mut u32) => info::memory;
    hook [cuDeviceTotalMem_v2](bytes: *mut usize, device: Device) => info::total;
    hook [cuDeviceTotalMem](bytes: *mut u32, device: Device) => info::total;

    hook [cuMemAlloc_v2](out: *mut DevicePtr, bytes: usize) => memory::alloc;
    hook [cuMemAlloc](out: *mut u32, bytes: u32) => memory::alloc_v1;
    hook [cuMemAllocPitch_v2](out: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32)
        => memory::alloc_pitch;
    hook [cuMemAllocPitch](out: *mut u32, pitch: *mut u32, width: u32, height: u32, element: u32)
        => memory::alloc_pitch_v1;
    hook [cuMemAllocManaged](out: *mut DevicePtr, bytes: usize, flags: u32) => memory::alloc_managed;
    hook [cuMemFree_v2](pointer: DevicePtr) => memory::free;
    hook [cuMemFree](pointer: u32) => memory::free_v1;
    hook [cuMemFreeAsync, cuMemFreeAsync_ptsz](pointer: DevicePtr, stream: Handle) => memory::free_async;

    hook [cuMemAllocAsync, cuMemAllocAsync_ptsz](out: *mut DevicePtr, bytes: usize, stream: Handle)
        => pools::alloc_async;
    hook [cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz]
        (out: *mut DevicePtr, bytes: usize, pool: Handle, stream: Handle) => pools::alloc_from_pool;
    hook [cuMemPoolCreate](out: *mut Handle, props: *const MemAllocationProp) => pools::create;
    hook [cuMemPoolDestroy](pool: Handle) => pools::destroy;
    hook [cuMemPoolTrimTo](pool: Handle, keep: usize) => pools::trim;
    hook [cuDeviceSetMemPool](device: Device, pool: Handle) => pools::set_default;

    hook [cuMemSetMemPool](location: *const MemLocation, kind: u32, pool: Handle)
        => pools::set_default_at;

    hook [cuMemCreate](out: *mut AllocationHandle, bytes: usize, props: *const MemAllocationProp, flags: u64)
        => vmm::create;
    hook [cuMemRelease](handle: AllocationHandle) => vmm::release;
    hook [cuMemRetainAllocationHandle](out: *mut AllocationHandle, address: *mut c_void) => vmm::retain;
    hook [cuMemImportFromShareableHandle](out: *mut AllocationHandle, handle: *mut c_void, kind: u32)
        => vmm::import;
    hook [cuMemExportToShareableHandle](out: *mut c_void, handle: AllocationHandle, kind: u32, flags: u64)
        => vmm::export;
    hook [cuMemMap](address: DevicePtr, bytes: usize, offset: usize, handle: AllocationHandle, flags: u64)
        => vmm::map;
    hook [cuMemUnmap](address: DevicePtr, bytes: usize) => vmm::unmap;

    hook [cuModuleLoadData, cuModuleLoadFatBinary](out: *mut Handle, image: *const c_void) => modules::load_data;
    hook [cuModuleLoadDataEx]
        (out: *mut Handle, image: *const c_void, count: u32, options: *mut i32, values: *mut *mut c_void)
        => modules::load_data_ex;
    hook [cuModuleLoad](out: *mut Handle, path: *const c_char) => modules::load_file;
    hook [cuLibraryLoadData, cuLibraryLoadFromFile]
        (out: *mut Handle, code: *const c_void, jit_options: *mut c_void, jit_values: *mut c_void,
         jit_count: u32, options: *mut c_void, values: *mut c_void, count: u32) => modules::load_library;
    hook [cuModuleUnload, cuLibraryUnload](module: Handle) => modules::unload;
    hook [cuModuleGetFunction](out: *mut Handle, module: Handle, name: *const c_char) => stacks::function;
    hook [cuModuleEnumerateFunctions](out: *mut Handle, count: u32, module: Handle) => stacks::functions;
    hook [cuFuncLoad](function: Handle) => stacks::load;
    hook [cuLibraryEnumerateKernels](out: *mut Handle, count: u32, library: Handle) => stacks::kernels;
    hook [cuLibraryGetKernel](out: *mut Handle, library: Handle, name: *const c_char) => stacks::kernel;

    hook [cuArrayCreate_v2](out: *mut Handle, descriptor: *const ArrayDescriptor) => arrays::create;
    hook [cuArrayCreate](out: *mut Handle, descriptor: *const ArrayDescriptorV1) => arrays::create;
    hook [cuArray3DCreate](out: *mut Handle, descriptor: *const Array3dDescriptorV1) => arrays::create;
    hook [cuArray3DCreate_v2](out: *mut Handle, descriptor: *const Array3dDescriptor) => arrays::create;
    hook [cuMipmappedArrayCreate](out: *mut Handle, descriptor: *const Array3dDescriptor, levels: u32)
        => arrays::create_mipmapped;
    hook [cuArrayDestroy, cuMipmappedArrayDestroy](array: Handle) => arrays::destroy;

    hook [cuImportExternalMemory](out: *mut Handle, descriptor: *const ExternalMemoryDescriptor)
        => external::import;
    hook [cuDestroyExternalMemory](memory: Handle) => arrays::destroy;

    hook [cuGraphAddMemAllocNode]
        (out: *mut Handle, graph: Handle, needs: *const Handle, count: usize, params: *mut MemAllocNodeParams)
        => graphs::add_alloc_node;
    hook [cuGraphAddNode]
        (out: *mut Handle, graph: Handle, needs: *const Handle, count: usize, params: *mut c_void)
        => graphs::add_node;
    hook [cuGraphAddNode_v2, cuGraphAddNode_v3]
        (out: *mut Handle, graph: Handle, needs: *const Handle, data: *const c_void, count: usize,
         params: *mut c_void) => graphs::add_node_v2;
    hook [cuGraphAddChildGraphNode]
        (out: *mut Handle, graph: Handle, needs: *const Handle, count: usize, child: Handle)
        => graphs::add_child;
    hook [cuGraphClone](out: *mut Handle, graph: Handle) => graphs::clone;
    hook [cuGraphDestroy](graph: Handle) => graphs::destroy;
    hook [cuGraphInstantiateWithFlags](out: *mut Handle, graph: Handle, flags: u64) => graphs::instantiate;
    hook [cuGraphInstantiate, cuGraphInstantiate_v2]
        (out: *mut Handle, graph: Handle, culprit: *mut Handle, text: *mut c_char, room: usize)
        => graphs::instantiate_logging;
    hook [cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz]
        (out: *mut Handle, graph: Handle, params: *mut c_void) => graphs::instantiate_with_params;
    hook [cuGraphLaunch, cuGraphLaunch_ptsz](exec: Handle, stream: Handle) => graphs::launch;
    hook [cuGraphUpload, cuGraphUpload_ptsz](exec: Handle, stream: Handle) => graphs::upload;
    hook [cuGraphExecDestroy](exec: Handle) => graphs::exec_destroy;
    hook [cuDeviceGraphMemTrim](device: Device) => graphs::trim;

    launch_hook [cuLaunchKernel, cuLaunchKernel_ptsz]() => submission::wait;
    launch_ex_hook [cuLaunchKernelEx, cuLaunchKernelEx_ptsz]() => submission::wait;
    bare_hook [cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz]
        (function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
         stream: Handle, params: *mut *mut c_void) => launch::cooperative;
    hook [cuLaunchCooperativeKernelMultiDevice](list: *mut c_void, count: u32, flags: u32)
        => launch::cooperative_many;
    hook [cuLaunch](function: Handle) => launch::legacy;
    hook [cuLaunchGrid](function: Handle, width: i32, height: i32) => launch::legacy_grid;
    hook [cuLaunchGridAsync](function: Handle, width: i32, height: i32, stream: Handle)
        => launch::legacy_grid_async;

    bare_hook [cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz]
        (to: DevicePtr, from: *const c_void, bytes: usize, stream: Handle) => copies::linear_async;
    bare_hook [cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz]
        (to: *mut c_void, from: DevicePtr, bytes: usize, stream: Handle) => copies::linear_async;
    bare_hook [cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyAsync, cuMemcpyAsync_ptsz]
        (to: DevicePtr, from: DevicePtr, bytes: usize, stream: Handle) => copies::linear_async;
    bare_hook [cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz]
        (to: DevicePtr, there: Handle, from: DevicePtr, here: Handle, bytes: usize, stream: Handle)
        => copies::peer_async;
    bare_hook [cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz](copy: *const c_void, stream: Handle)
        => copies::flat_async;
    bare_hook [cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz](copy: *const c_void, stream: Handle)
        => copies::deep_async;
    hook [cuMemcpyHtoD, cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds](to: DevicePtr, from: *const c_void, bytes: usize)
        => copies::linear;
    hook [cuMemcpyDtoH, cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds](to: *mut c_void, from: DevicePtr, bytes: usize)
        => copies::to_host;
    hook [cuMemcpyDtoD, cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpy, cuMemcpy_ptds]
        (to: DevicePtr, from: DevicePtr, bytes: usize) => copies::linear;

    hook [cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds]
        (copy: *const c_void) => copies::flat;
    hook [cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, cuMemcpy3DPeer, cuMemcpy3DPeer_ptds](copy: *const c_void)
        => copies::deep;
    hook [cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz](copy: *const c_void, stream: Handle)
        => copies::deep_async;
    hook [cuMemcpyPeer, cuMemcpyPeer_ptds]
        (to: DevicePtr, there: Handle, from: DevicePtr, here: Handle, bytes: usize) => copies::peer;
    hook [cuMemcpyHtoA, cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds](to: Handle, offset: usize, from: *const c_void, bytes: usize)
        => copies::array;
    hook [cuMemcpyDtoA, cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds](to: Handle, offset: usize, from: DevicePtr, bytes: usize)
        => copies::array;
    hook [cuMemcpyAtoD, cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds](to: DevicePtr, from: Handle, offset: usize, bytes: usize)
        => copies::array;
    hook [cuMemcpyAtoH, cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds](to: *mut c_void, from: Handle, offset: usize, bytes: usize)
        => copies::array_to_host;
    hook [cuMemcpyAtoA, cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds]
        (to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize)
        => copies::between_arrays;
    hook [cuMemcpyHtoAAsync, cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz]
        (to: Handle, offset: usize, from: *const c_void, bytes: usize, stream: Handle) => copies::array_async;
    hook [cuMemcpyAtoHAsync, cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz]
        (to: *mut c_void, from: Handle, offset: usize, bytes: usize, stream: Handle) => copies::array_async;

    hook [cuMemcpy2D, cuMemcpy2DUnaligned, cuMemcpy3D](copy: *const c_void) => copies::described_v1;
    hook [cuMemcpy2DAsync, cuMemcpy3DAsync](copy: *const c_void, stream: Handle)
        => copies::described_async_v1;

    hook [cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz](maps: *mut vmm::ArrayMapping, count: u32, stream: Handle)
        => vmm::map_arrays;
    hook [cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz]
        (to: DevicePtr, from: DevicePtr, bytes: usize, attributes: *mut c_void, stream: Handle)
        => bulk::with_attributes;
    hook [cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz]
        (copy: *mut c_void, flags: u64, stream: Handle) => bulk::deep_with_attributes;
    hook [cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz,
          cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz]
        (from: *mut c_void, sizes: *const usize, count: usize, places: *mut c_void, place_of: *mut c_void,
         place_count: usize, flags: u64, stream: Handle) => bulk::prefetch_batch;
    hook [cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz]
        (from: *mut c_void, sizes: *const usize, count: usize, flags: u64, stream: Handle)
        => bulk::discard_batch;
    hook [cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz]
        (to: *mut c_void, from: *mut c_void, sizes: *const usize, count: usize, attributes: *mut c_void,
         places: *mut c_void, attribute_count: usize, failed: *mut usize, stream: Handle) => bulk::batch;
    hook [cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz]
        (to: *mut c_void, from: *mut c_void, sizes: *const usize, count: usize, attributes: *mut c_void,
         places: *mut c_void, attribute_count: usize, stream: Handle) => bulk::batch_v2;
    hook [cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz]
        (count: usize, copies: *mut c_void, failed: *mut usize, flags: u64, stream: Handle)
        => bulk::deep_batch;
    hook [cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz]
        (count: usize, copies: *mut c_void, flags: u64, stream: Handle) => bulk::deep_batch_v2;
    hook [cuMemBatchDecompressAsync, cuMemBatchDecompressAsync_ptsz]
        (params: *mut c_void, count: usize, flags: u32, failed: *mut usize, stream: Handle)
        => bulk::decompress;
    hook [cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz]
        (from: DevicePtr, bytes: usize, device: i32, stream: Handle) => bulk::prefetch;
    hook [cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz]
        (from: DevicePtr, bytes: usize, to: MemLocation, flags: u32, stream: Handle) => bulk::prefetch_v2;
    bare_hook [cuMemsetD8, cuMemsetD8_v2, cuMemsetD8_v2_ptds](to: DevicePtr, value: u8, count: usize) => bulk::fill;
    bare_hook [cuMemsetD16, cuMemsetD16_v2, cuMemsetD16_v2_ptds](to: DevicePtr, value: u16, count: usize) => bulk::fill;
    bare_hook [cuMemsetD32, cuMemsetD32_v2, cuMemsetD32_v2_ptds](to: DevicePtr, value: u32, count: usize) => bulk::fill;
    bare_hook [cuMemsetD8Async, cuMemsetD8Async_ptsz]
        (to: DevicePtr, value: u8, count: usize, stream: Handle) => bulk::fill_async;
    bare_hook [cuMemsetD16Async, cuMemsetD16Async_ptsz]
        (to: DevicePtr, value: u16, count: usize, stream: Handle) => bulk::fill_async;
    bare_hook [cuMemsetD32Async, cuMemsetD32Async_ptsz]
        (to: DevicePtr, value: u32, count: usize, stream: Handle) => bulk::fill_async;
    bare_hook [cuMemsetD2D8, cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds]
        (to: DevicePtr, pitch: usize, value: u8, width: usize, height: usize) => bulk::fill_rows;
    bare_hook [cuMemsetD2D16, cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds]
        (to: DevicePtr, pitch: usize, value: u16, width: usize, height: usize) => bulk::fill_rows;
    bare_hook [cuMemsetD2D32, cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds]
        (to: DevicePtr, pitch: usize, value: u32, width: usize, height: usize) => bulk::fill_rows;
    bare_hook [cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz]
        (to: DevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: Handle)
        => bulk::fill_rows_async;
    bare_hook [cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz]
        (to: DevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: Handle)
        => bulk::fill_rows_async;
    bare_hook [cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz]
        (to: DevicePtr, pitch: usize, value: u32, width: usize, height: usize, stream: Handle)
        => bulk::fill_rows_async;

    hook [cuStreamSynchronize, cuStreamSynchronize_ptsz](stream: Handle) => sync::stream;
    hook [cuCtxSynchronize]() => sync::whole_context;
    hook [cuCtxSynchronize_v2](context: Handle) => context::synchronize;
    hook [cuEventSynchronize](event: Handle) => sync::event;
    bare_hook [cuStreamQuery, cuStreamQuery_ptsz](stream: Handle) => sync::stream_query;
    bare_hook [cuEventQuery](event: Handle) => sync::event_query;
    bare_hook [cuEventRecord, cuEventRecord_ptsz](event: Handle, stream: Handle) => sync::record;
    bare_hook [cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz](event: Handle, stream: Handle, flags: u32)
        => sync::record_with_flags;

    hook [cuStreamWaitValue32, cuStreamWaitValue32_ptsz, cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz]
        (stream: Handle, address: DevicePtr, value: u32, flags: u32) => host_waits::value;
    hook [cuStreamWaitValue64, cuStreamWaitValue64_ptsz, cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz]
        (stream: Handle, address: DevicePtr, value: u64, flags: u32) => host_waits::value;
    hook [cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz, cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz]
        (stream: Handle, count: u32, operations: *mut c_void, flags: u32) => host_waits::batch;
    hook [cuWaitExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync_ptsz]
        (semaphores: *const Handle, params: *const c_void, count: u32, stream: Handle)
        => host_waits::semaphores;

    hook [cuStreamBeginCapture, cuStreamBeginCapture_ptsz](stream: Handle) => capture::begin_v1;
    hook [cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz](stream: Handle, mode: u32) => capture::begin;
    hook [cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz]
        (stream: Handle, graph: Handle, needs: *const Handle, data: *const c_void, count: usize, mode: u32)
        => capture::begin_to_graph;
    hook [cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz]
        (stream: Handle, mode: u32, graph: Handle, callback: *const c_void, user: *mut c_void)
        => capture::begin_recapture;
    hook [cuStreamDestroy, cuStreamDestroy_v2](stream: Handle) => capture::stream_destroyed;
    hook [cuStreamEndCapture, cuStreamEndCapture_ptsz](stream: Handle, graph: *mut Handle) => capture::end;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_support_list_says_what_is_hooked() {
        for (number, entry) in mica_cuda_abi::ENTRY_POINTS.iter().enumerate() {
            let hooked = HOOKS.iter().any(|(symbol, _)| *symbol as usize == number);
            let forwarded = entry.direct() == mica_cuda_abi::Direct::Forwarded;
            assert!(
                hooked != forwarded,
                "{}: bring the lists in crates/cuda-abi/src and docs/SUPPORT.md up to date",
                entry.symbol
            );
        }
    }
}
