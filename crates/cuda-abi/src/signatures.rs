//! Names and types of the arguments of entry points that Mica calls or stands in front of.
//!
//! The table of entry points says of each argument what kind it is; here is the rest, once for each entry point, and the
//! compiler checks that both agree. From a row come the type of the function ([`function`]) and what a hook is made of
//! ([`signature`](crate::signature)).

use std::ffi::{c_char, c_void};

use crate::{
    AllocationHandle, Array3dDescriptor, Array3dDescriptorV1, ArrayDescriptor, ArrayDescriptorV1,
    CuStatus, Device, DevicePtr, ExternalMemoryDescriptor, Handle, LaunchConfig,
    MemAllocNodeParams, MemAllocationProp, MemLocation, Symbol,
};

/// A type of arguments, by the letter that the table has for its kind.
trait Argument {
    const KIND: u8;
}

impl<T> Argument for *mut T {
    const KIND: u8 = b'p';
}

impl<T> Argument for *const T {
    const KIND: u8 = b'p';
}

macro_rules! kinds {
    ($($type:ty = $kind:literal),*) => { $(impl Argument for $type { const KIND: u8 = $kind; })* };
}
kinds!(
    u8 = b'u',
    u16 = b'u',
    u32 = b'u',
    i32 = b'u',
    u64 = b'd',
    usize = b'd',
    MemLocation = b'S'
);

/// Whether types are those of an entry point. Programs of before CUDA 3.2 have sizes and addresses of 32 bits, which pass
/// in the registers that hold 64 bits today: such an argument may be taken whole.
const fn agrees(symbol: Symbol, kinds: &[u8]) -> bool {
    let entry = &crate::ENTRY_POINTS[symbol as usize];
    let letters = entry.args.as_bytes();
    let mut at = 0;
    while at < kinds.len() && at < letters.len() {
        let is_same = match (letters[at], kinds[at]) {
            (b's', b'p') => true,
            (b'u', b'd') => entry.version < 3020,
            (letter, kind) => letter == kind,
        };
        if !is_same {
            return false;
        }
        at += 1;
    }
    letters.len() == kinds.len()
}

macro_rules! function_of {
    ($symbol:ident ($($arg:ident: $type:ty),*)) => {
        #[doc = concat!("`", stringify!($symbol), "`.")]
        pub type $symbol = unsafe extern "C" fn($($type),*) -> CuStatus;
        const _: () = assert!(
            agrees(Symbol::$symbol, &[$(<$type as Argument>::KIND),*]),
            concat!("the table of entry points has other arguments for ", stringify!($symbol)),
        );
    };
}

macro_rules! signatures {
    ($dollar:tt $([$($symbol:ident)+] $args:tt;)*) => {
        /// The types of the driver's functions.
        #[allow(non_camel_case_types, reason = "the names are CUDA's own")]
        pub mod function {
            use super::*;
            $($(function_of! { $symbol $args })+)*
        }

        /// Calls `$then! { $rest… (argument: type, …) }` with the arguments of an entry point. Whoever uses it has the
        /// types of this crate, `c_char` and `c_void` in scope.
        #[macro_export]
        macro_rules! signature {
            $($(($symbol $dollar then:ident $dollar($dollar rest:tt)*) => {
                $dollar then! { $dollar($dollar rest)* $args }
            };)+)*
        }
    };
}

// The dollar sign is for the macro that the macro above defines.
signatures! { $
    [cuInit] (flags: u32);
    [cuGetProcAddress] (name: *const c_char, out: *mut *const c_void, version: i32, flags: u64);
    [cuGetProcAddress_v2]
        (name: *const c_char, out: *mut *const c_void, version: i32, flags: u64, found: *mut u32);
    [cuDevicePrimaryCtxRetain] (out: *mut Handle, device: Device);
    [cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset
     cuDevicePrimaryCtxReset_v2 cuDeviceGraphMemTrim] (device: Device);
    [cuCtxCreate cuCtxCreate_v2 cuGLCtxCreate cuGLCtxCreate_v2] (out: *mut Handle, flags: u32, device: Device);
    [cuCtxCreate_v3] (out: *mut Handle, params: *mut c_void, count: i32, flags: u32, device: Device);
    [cuCtxCreate_v4] (out: *mut Handle, params: *mut c_void, flags: u32, device: Device);
    [cuVDPAUCtxCreate cuVDPAUCtxCreate_v2]
        (out: *mut Handle, flags: u32, device: Device, vdp_device: u32, vdp_address: *mut c_void);
    [cuCtxDestroy cuCtxDestroy_v2 cuCtxDetach cuCtxSynchronize_v2] (context: Handle);
    [cuCtxAttach] (out: *mut Handle, flags: u32);
    [cuGreenCtxCreate] (out: *mut Handle, resources: Handle, device: Device, flags: u32);
    [cuGreenCtxDestroy] (green: Handle);
    [cuCtxFromGreenCtx] (out: *mut Handle, green: Handle);
    [cuCtxGetDevice_v2] (out: *mut Device, context: Handle);
    [cuCtxSetLimit] (limit: u32, value: usize);
    [cuMemGetInfo_v2] (free: *mut usize, total: *mut usize);
    [cuMemGetInfo] (free: *mut u32, total: *mut u32);
    [cuDeviceTotalMem_v2] (bytes: *mut usize, device: Device);
    [cuDeviceTotalMem] (bytes: *mut u32, device: Device);
    [cuMemAlloc_v2] (out: *mut DevicePtr, bytes: usize);
    [cuMemAlloc] (out: *mut u32, bytes: u32);
    [cuMemAllocPitch_v2] (out: *mut DevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32);
    [cuMemAllocPitch] (out: *mut u32, pitch: *mut u32, width: u32, height: u32, element: u32);
    [cuMemAllocManaged] (out: *mut DevicePtr, bytes: usize, flags: u32);
    [cuMemFree_v2] (pointer: DevicePtr);
    [cuMemFree] (pointer: u32);
    [cuMemFreeAsync cuMemFreeAsync_ptsz] (pointer: DevicePtr, stream: Handle);
    [cuMemAllocAsync cuMemAllocAsync_ptsz] (out: *mut DevicePtr, bytes: usize, stream: Handle);
    [cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz]
        (out: *mut DevicePtr, bytes: usize, pool: Handle, stream: Handle);
    [cuMemPoolCreate] (out: *mut Handle, props: *const MemAllocationProp);
    [cuMemPoolDestroy] (pool: Handle);
    [cuMemPoolTrimTo] (pool: Handle, keep: usize);
    [cuDeviceSetMemPool] (device: Device, pool: Handle);
    [cuMemSetMemPool] (location: *const MemLocation, kind: u32, pool: Handle);
    [cuMemCreate] (out: *mut AllocationHandle, bytes: usize, props: *const MemAllocationProp, flags: u64);
    [cuMemRelease] (handle: AllocationHandle);
    [cuMemRetainAllocationHandle] (out: *mut AllocationHandle, address: *mut c_void);
    [cuMemImportFromShareableHandle] (out: *mut AllocationHandle, handle: *mut c_void, kind: u32);
    [cuMemExportToShareableHandle] (out: *mut c_void, handle: AllocationHandle, kind: u32, flags: u64);
    [cuMemMap] (address: DevicePtr, bytes: usize, offset: usize, handle: AllocationHandle, flags: u64);
    [cuMemUnmap] (address: DevicePtr, bytes: usize);
    [cuModuleLoadData cuModuleLoadFatBinary] (out: *mut Handle, image: *const c_void);
    [cuModuleLoadDataEx]
        (out: *mut Handle, image: *const c_void, count: u32, options: *mut i32, values: *mut *mut c_void);
    [cuModuleLoad] (out: *mut Handle, path: *const c_char);
    [cuLibraryLoadData cuLibraryLoadFromFile]
        (out: *mut Handle, code: *const c_void, jit_options: *mut c_void, jit_values: *mut c_void,
         jit_count: u32, options: *mut c_void, values: *mut c_void, count: u32);
    [cuModuleUnload cuLibraryUnload] (module: Handle);
    [cuModuleGetFunction] (out: *mut Handle, module: Handle, name: *const c_char);
    [cuModuleEnumerateFunctions] (out: *mut Handle, count: u32, module: Handle);
    [cuFuncLoad cuLaunch] (function: Handle);
    [cuLibraryEnumerateKernels] (out: *mut Handle, count: u32, library: Handle);
    [cuLibraryGetKernel] (out: *mut Handle, library: Handle, name: *const c_char);
    [cuArrayCreate_v2] (out: *mut Handle, descriptor: *const ArrayDescriptor);
    [cuArrayCreate] (out: *mut Handle, descriptor: *const ArrayDescriptorV1);
    [cuArray3DCreate] (out: *mut Handle, descriptor: *const Array3dDescriptorV1);
    [cuArray3DCreate_v2] (out: *mut Handle, descriptor: *const Array3dDescriptor);
    [cuMipmappedArrayCreate] (out: *mut Handle, descriptor: *const Array3dDescriptor, levels: u32);
    [cuArrayDestroy cuMipmappedArrayDestroy] (array: Handle);
    [cuImportExternalMemory] (out: *mut Handle, descriptor: *const ExternalMemoryDescriptor);
    [cuDestroyExternalMemory] (memory: Handle);
    [cuGraphAddMemAllocNode]
        (out: *mut Handle, graph: Handle, needs: *const Handle, count: usize,
         params: *mut MemAllocNodeParams);
    [cuGraphAddNode]
        (out: *mut Handle, graph: Handle, needs: *const Handle, count: usize, params: *mut c_void);
    [cuGraphAddNode_v2 cuGraphAddNode_v3]
        (out: *mut Handle, graph: Handle, needs: *const Handle, data: *const c_void, count: usize,
         params: *mut c_void);
    [cuGraphAddChildGraphNode]
        (out: *mut Handle, graph: Handle, needs: *const Handle, count: usize, child: Handle);
    [cuGraphClone] (out: *mut Handle, graph: Handle);
    [cuGraphDestroy] (graph: Handle);
    [cuGraphInstantiateWithFlags] (out: *mut Handle, graph: Handle, flags: u64);
    [cuGraphInstantiate cuGraphInstantiate_v2]
        (out: *mut Handle, graph: Handle, culprit: *mut Handle, text: *mut c_char, room: usize);
    [cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz]
        (out: *mut Handle, graph: Handle, params: *mut c_void);
    [cuGraphLaunch cuGraphLaunch_ptsz cuGraphUpload cuGraphUpload_ptsz] (exec: Handle, stream: Handle);
    [cuGraphExecDestroy] (exec: Handle);
    [cuLaunchKernel cuLaunchKernel_ptsz]
        (function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
         stream: Handle, params: *mut *mut c_void, extra: *mut *mut c_void);
    [cuLaunchKernelEx cuLaunchKernelEx_ptsz]
        (config: *const LaunchConfig, function: Handle, params: *mut *mut c_void, extra: *mut *mut c_void);
    [cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz]
        (function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32,
         stream: Handle, params: *mut *mut c_void);
    [cuLaunchCooperativeKernelMultiDevice] (list: *mut c_void, count: u32, flags: u32);
    [cuLaunchGrid] (function: Handle, width: i32, height: i32);
    [cuLaunchGridAsync] (function: Handle, width: i32, height: i32, stream: Handle);
    [cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz]
        (to: DevicePtr, from: *const c_void, bytes: usize, stream: Handle);
    [cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz]
        (to: *mut c_void, from: DevicePtr, bytes: usize, stream: Handle);
    [cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz cuMemcpyAsync cuMemcpyAsync_ptsz]
        (to: DevicePtr, from: DevicePtr, bytes: usize, stream: Handle);
    [cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz]
        (to: DevicePtr, there: Handle, from: DevicePtr, here: Handle, bytes: usize, stream: Handle);
    [cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz
     cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz cuMemcpy2DAsync cuMemcpy3DAsync]
        (copy: *const c_void, stream: Handle);
    [cuMemcpyHtoD cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds] (to: DevicePtr, from: *const c_void, bytes: usize);
    [cuMemcpyDtoH cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds] (to: *mut c_void, from: DevicePtr, bytes: usize);
    [cuMemcpyDtoD cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds cuMemcpy cuMemcpy_ptds]
        (to: DevicePtr, from: DevicePtr, bytes: usize);
    [cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds cuMemcpy3D_v2
     cuMemcpy3D_v2_ptds cuMemcpy3DPeer cuMemcpy3DPeer_ptds cuMemcpy2D cuMemcpy2DUnaligned cuMemcpy3D]
        (copy: *const c_void);
    [cuMemcpyPeer cuMemcpyPeer_ptds]
        (to: DevicePtr, there: Handle, from: DevicePtr, here: Handle, bytes: usize);
    [cuMemcpyHtoA cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds]
        (to: Handle, offset: usize, from: *const c_void, bytes: usize);
    [cuMemcpyDtoA cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds]
        (to: Handle, offset: usize, from: DevicePtr, bytes: usize);
    [cuMemcpyAtoD cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds]
        (to: DevicePtr, from: Handle, offset: usize, bytes: usize);
    [cuMemcpyAtoH cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds]
        (to: *mut c_void, from: Handle, offset: usize, bytes: usize);
    [cuMemcpyAtoA cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds]
        (to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize);
    [cuMemcpyHtoAAsync cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz]
        (to: Handle, offset: usize, from: *const c_void, bytes: usize, stream: Handle);
    [cuMemcpyAtoHAsync cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz]
        (to: *mut c_void, from: Handle, offset: usize, bytes: usize, stream: Handle);
    [cuMemMapArrayAsync cuMemMapArrayAsync_ptsz] (maps: *mut c_void, count: u32, stream: Handle);
    [cuMemcpyWithAttributesAsync cuMemcpyWithAttributesAsync_ptsz]
        (to: DevicePtr, from: DevicePtr, bytes: usize, attributes: *mut c_void, stream: Handle);
    [cuMemcpy3DWithAttributesAsync cuMemcpy3DWithAttributesAsync_ptsz]
        (copy: *mut c_void, flags: u64, stream: Handle);
    [cuMemPrefetchBatchAsync cuMemPrefetchBatchAsync_ptsz cuMemDiscardAndPrefetchBatchAsync
     cuMemDiscardAndPrefetchBatchAsync_ptsz]
        (from: *mut c_void, sizes: *const usize, count: usize, places: *mut c_void, place_of: *mut c_void,
         place_count: usize, flags: u64, stream: Handle);
    [cuMemDiscardBatchAsync cuMemDiscardBatchAsync_ptsz]
        (from: *mut c_void, sizes: *const usize, count: usize, flags: u64, stream: Handle);
    [cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz]
        (to: *mut c_void, from: *mut c_void, sizes: *const usize, count: usize, attributes: *mut c_void,
         places: *mut c_void, attribute_count: usize, failed: *mut usize, stream: Handle);
    [cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz]
        (to: *mut c_void, from: *mut c_void, sizes: *const usize, count: usize, attributes: *mut c_void,
         places: *mut c_void, attribute_count: usize, stream: Handle);
    [cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz]
        (count: usize, copies: *mut c_void, failed: *mut usize, flags: u64, stream: Handle);
    [cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz]
        (count: usize, copies: *mut c_void, flags: u64, stream: Handle);
    [cuMemBatchDecompressAsync cuMemBatchDecompressAsync_ptsz]
        (params: *mut c_void, count: usize, flags: u32, failed: *mut usize, stream: Handle);
    [cuMemPrefetchAsync cuMemPrefetchAsync_ptsz] (from: DevicePtr, bytes: usize, device: i32, stream: Handle);
    [cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz]
        (from: DevicePtr, bytes: usize, to: MemLocation, flags: u32, stream: Handle);
    [cuMemsetD8 cuMemsetD8_v2 cuMemsetD8_v2_ptds] (to: DevicePtr, value: u8, count: usize);
    [cuMemsetD16 cuMemsetD16_v2 cuMemsetD16_v2_ptds] (to: DevicePtr, value: u16, count: usize);
    [cuMemsetD32 cuMemsetD32_v2 cuMemsetD32_v2_ptds] (to: DevicePtr, value: u32, count: usize);
    [cuMemsetD8Async cuMemsetD8Async_ptsz] (to: DevicePtr, value: u8, count: usize, stream: Handle);
    [cuMemsetD16Async cuMemsetD16Async_ptsz] (to: DevicePtr, value: u16, count: usize, stream: Handle);
    [cuMemsetD32Async cuMemsetD32Async_ptsz] (to: DevicePtr, value: u32, count: usize, stream: Handle);
    [cuMemsetD2D8 cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds]
        (to: DevicePtr, pitch: usize, value: u8, width: usize, height: usize);
    [cuMemsetD2D16 cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds]
        (to: DevicePtr, pitch: usize, value: u16, width: usize, height: usize);
    [cuMemsetD2D32 cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds]
        (to: DevicePtr, pitch: usize, value: u32, width: usize, height: usize);
    [cuMemsetD2D8Async cuMemsetD2D8Async_ptsz]
        (to: DevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: Handle);
    [cuMemsetD2D16Async cuMemsetD2D16Async_ptsz]
        (to: DevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: Handle);
    [cuMemsetD2D32Async cuMemsetD2D32Async_ptsz]
        (to: DevicePtr, pitch: usize, value: u32, width: usize, height: usize, stream: Handle);
    [cuStreamSynchronize cuStreamSynchronize_ptsz cuStreamQuery cuStreamQuery_ptsz cuStreamBeginCapture
     cuStreamBeginCapture_ptsz cuStreamDestroy cuStreamDestroy_v2] (stream: Handle);
    [cuCtxSynchronize] ();
    [cuEventSynchronize cuEventQuery] (event: Handle);
    [cuEventRecord cuEventRecord_ptsz] (event: Handle, stream: Handle);
    [cuEventRecordWithFlags cuEventRecordWithFlags_ptsz] (event: Handle, stream: Handle, flags: u32);
    [cuStreamWaitValue32 cuStreamWaitValue32_ptsz cuStreamWaitValue32_v2 cuStreamWaitValue32_v2_ptsz]
        (stream: Handle, address: DevicePtr, value: u32, flags: u32);
    [cuStreamWaitValue64 cuStreamWaitValue64_ptsz cuStreamWaitValue64_v2 cuStreamWaitValue64_v2_ptsz]
        (stream: Handle, address: DevicePtr, value: u64, flags: u32);
    [cuStreamBatchMemOp cuStreamBatchMemOp_ptsz cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz]
        (stream: Handle, count: u32, operations: *mut c_void, flags: u32);
    [cuWaitExternalSemaphoresAsync cuWaitExternalSemaphoresAsync_ptsz]
        (semaphores: *const Handle, params: *const c_void, count: u32, stream: Handle);
    [cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz] (stream: Handle, mode: u32);
    [cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz]
        (stream: Handle, graph: Handle, needs: *const Handle, data: *const c_void, count: usize, mode: u32);
    [cuStreamBeginRecaptureToGraph cuStreamBeginRecaptureToGraph_ptsz]
        (stream: Handle, mode: u32, graph: Handle, callback: *const c_void, user: *mut c_void);
    [cuStreamEndCapture cuStreamEndCapture_ptsz] (stream: Handle, graph: *mut Handle);

    [cuDriverGetVersion] (version: *mut i32);
    [cuDeviceGetCount] (count: *mut i32);
    [cuDeviceGetAttribute] (value: *mut i32, attribute: i32, device: Device);
    [cuDeviceGetMemPool] (pool: *mut Handle, device: Device);
    [cuDeviceGetGraphMemAttribute] (device: Device, attribute: u32, value: *mut c_void);
    [cuDevicePrimaryCtxGetState] (device: Device, flags: *mut u32, active: *mut i32);
    [cuCtxGetCurrent] (out: *mut Handle);
    [cuCtxSetCurrent] (context: Handle);
    [cuCtxGetDevice] (out: *mut Device);
    [cuCtxGetLimit] (value: *mut usize, limit: u32);
    [cuFuncGetAttribute] (value: *mut i32, attribute: i32, function: Handle);
    [cuKernelGetAttribute] (value: *mut i32, attribute: i32, kernel: Handle, device: Device);
    [cuModuleGetFunctionCount] (count: *mut u32, module: Handle);
    [cuLibraryGetKernelCount] (count: *mut u32, library: Handle);
    [cuStreamIsCapturing] (stream: Handle, status: *mut u32);
    [cuMemPoolGetAttribute] (pool: Handle, attribute: u32, value: *mut c_void);
}
