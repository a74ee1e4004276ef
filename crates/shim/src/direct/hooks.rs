//! Which symbols are hooked, and the one way every hook is entered. Their arguments stand in `cuda-abi`.
//!
//! A hook gets its own symbol, the real function and the program's arguments. Copies and fills of before CUDA 3.2, with
//! numbers of 32 bits, share the hooks of their successors: each argument passes in a register of its own, whole, and
//! what stands in the upper half of one can only make a copy look large.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mica_cuda_abi::{
    AllocationHandle, Array3dDescriptor, Array3dDescriptorV1, ArrayDescriptor, ArrayDescriptorV1,
    CuResult, CuStatus, Device, DevicePtr, ExternalMemoryDescriptor, Handle, LaunchConfig,
    MemAllocNodeParams, MemAllocationProp, MemLocation, Symbol, signature,
};

use super::driver::real;
use super::launch::launch_path;
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
    ($symbol:ident $target:path; ($($arg:ident: $type:ty),*)) => {
        #[expect(non_snake_case, reason = "the driver's name")]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> CuStatus {
            let function = real!($symbol);
            guarded(|| {
                // SAFETY: the program's own arguments for the driver's function of this name.
                unsafe { $target(Symbol::$symbol, function, $($arg),*) }
            })
        }
    };
}

/// A hook that only notes that the function was called.
macro_rules! observe {
    ($symbol:ident $note:path; ($($arg:ident: $type:ty),*)) => {
        #[expect(non_snake_case, reason = "the driver's name")]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> CuStatus {
            let function = real!($symbol);
            $note();
            // SAFETY: the program's own arguments for the driver's function of this name.
            unsafe { function($($arg),*) }
        }
    };
}

/// The last of several arguments.
macro_rules! last {
    ($last:ident) => { $last };
    ($first:ident, $($rest:ident),+) => { last!($($rest),+) };
}

/// A hook of a function that submits work to a stream, its last argument: the call passes the gate whatever it holds.
macro_rules! submits {
    ($symbol:ident $submit:path; ($($arg:ident: $type:ty),*)) => {
        #[expect(non_snake_case, reason = "the driver's name")]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> CuStatus {
            let function = real!($symbol);
            guarded(|| {
                $submit(Symbol::$symbol, last!($($arg),*));
                // SAFETY: the program's own arguments for the driver's function of this name.
                unsafe { function($($arg),*) }
            })
        }
    };
}

/// A hook whose common path is a few instructions that cannot panic: it guards its slow path itself.
macro_rules! bare_hook {
    ($symbol:ident $target:path; ($($arg:ident: $type:ty),*)) => {
        #[expect(non_snake_case, reason = "the driver's name")]
        unsafe extern "C" fn $symbol($($arg: $type),*) -> CuStatus {
            let function = real!($symbol);
            // SAFETY: the program's own arguments for the driver's function of this name.
            unsafe { $target(Symbol::$symbol, function, $($arg),*) }
        }
    };
}

/// `cuLaunchKernel`: its stream is the ninth argument, on the stack.
macro_rules! launch_hook {
    ($symbol:ident $wait:path; $args:tt) => {
        #[unsafe(naked)]
        #[allow(non_snake_case, reason = "the driver's name")]
        unsafe extern "C" fn $symbol() {
            launch_path!($symbol, $wait, "mov rax, [rsp + 24]")
        }
    };
}

/// `cuLaunchKernelEx`: its stream is in the configuration, its first argument.
macro_rules! launch_ex_hook {
    ($symbol:ident $wait:path; $args:tt) => {
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
    ($($kind:ident [$($symbol:ident),+] => $target:path;)*) => {
        $($(signature! { $symbol $kind $symbol $target; })+)*

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
    hook [cuInit] => init::init;
    hook [cuGetProcAddress] => procaddr::get_proc_address;
    hook [cuGetProcAddress_v2] => procaddr::get_proc_address_v2;

    hook [cuDevicePrimaryCtxRetain] => context::primary_retain;
    hook [cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2] => context::primary_release;
    hook [cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2] => context::primary_release;
    hook [cuCtxCreate, cuCtxCreate_v2] => context::create;
    hook [cuCtxCreate_v3] => context::create_v3;
    hook [cuCtxCreate_v4] => context::create_v4;
    hook [cuGLCtxCreate, cuGLCtxCreate_v2] => context::create;
    hook [cuVDPAUCtxCreate, cuVDPAUCtxCreate_v2] => context::create_vdpau;
    hook [cuCtxDestroy, cuCtxDestroy_v2] => context::destroy;
    hook [cuCtxAttach] => context::attach;
    hook [cuCtxDetach] => context::detach;
    hook [cuGreenCtxCreate] => context::green::create;
    hook [cuGreenCtxDestroy] => context::green::destroy;
    hook [cuCtxFromGreenCtx] => context::green::context;
    hook [cuCtxGetDevice_v2] => context::device_of;
    hook [cuCtxSetLimit] => stacks::set_limit;

    hook [cuMemGetInfo_v2] => info::memory;
    hook [cuMemGetInfo] => info::memory;
    hook [cuDeviceTotalMem_v2] => info::total;
    hook [cuDeviceTotalMem] => info::total;

    hook [cuMemAlloc_v2] => memory::alloc;
    hook [cuMemAlloc] => memory::alloc_v1;
    hook [cuMemAllocPitch_v2] => memory::alloc_pitch;
    hook [cuMemAllocPitch] => memory::alloc_pitch_v1;
    hook [cuMemAllocManaged] => memory::alloc_managed;
    hook [cuMemFree_v2] => memory::free;
    hook [cuMemFree] => memory::free_v1;
    hook [cuMemFreeAsync, cuMemFreeAsync_ptsz] => memory::free_async;

    hook [cuMemAllocAsync, cuMemAllocAsync_ptsz] => pools::alloc_async;
    hook [cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz] => pools::alloc_from_pool;
    hook [cuMemPoolCreate] => pools::create;
    hook [cuMemPoolDestroy] => pools::destroy;
    hook [cuMemPoolTrimTo] => pools::trim;
    hook [cuDeviceSetMemPool] => pools::set_default;

    hook [cuMemSetMemPool] => pools::set_default_at;

    hook [cuMemCreate] => vmm::create;
    hook [cuMemRelease] => vmm::release;
    hook [cuMemRetainAllocationHandle] => vmm::retain;
    hook [cuMemImportFromShareableHandle] => vmm::import;
    hook [cuMemExportToShareableHandle] => vmm::export;
    hook [cuMemMap] => vmm::map;
    hook [cuMemUnmap] => vmm::unmap;

    hook [cuModuleLoadData, cuModuleLoadFatBinary] => modules::load_data;
    hook [cuModuleLoadDataEx] => modules::load_data_ex;
    hook [cuModuleLoad] => modules::load_file;
    hook [cuLibraryLoadData, cuLibraryLoadFromFile] => modules::load_library;
    hook [cuModuleUnload, cuLibraryUnload] => modules::unload;
    hook [cuModuleGetFunction] => stacks::function;
    hook [cuModuleEnumerateFunctions] => stacks::functions;
    hook [cuFuncLoad] => stacks::load;
    hook [cuLibraryEnumerateKernels] => stacks::kernels;
    hook [cuLibraryGetKernel] => stacks::kernel;

    hook [cuArrayCreate_v2] => arrays::create;
    hook [cuArrayCreate] => arrays::create;
    hook [cuArray3DCreate] => arrays::create;
    hook [cuArray3DCreate_v2] => arrays::create;
    hook [cuMipmappedArrayCreate] => arrays::create_mipmapped;
    hook [cuArrayDestroy, cuMipmappedArrayDestroy] => arrays::destroy;

    hook [cuImportExternalMemory] => external::import;
    hook [cuDestroyExternalMemory] => arrays::destroy;

    hook [cuGraphAddMemAllocNode] => graphs::add_alloc_node;
    hook [cuGraphAddNode] => graphs::add_node;
    hook [cuGraphAddNode_v2, cuGraphAddNode_v3] => graphs::add_node_v2;
    hook [cuGraphAddChildGraphNode] => graphs::add_child;
    hook [cuGraphClone] => graphs::clone;
    hook [cuGraphDestroy] => graphs::destroy;
    hook [cuGraphInstantiateWithFlags] => graphs::instantiate;
    hook [cuGraphInstantiate, cuGraphInstantiate_v2] => graphs::instantiate_logging;
    hook [cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz] => graphs::instantiate_with_params;
    hook [cuGraphLaunch, cuGraphLaunch_ptsz, cuGraphUpload, cuGraphUpload_ptsz] => graphs::launch;
    hook [cuGraphExecDestroy] => graphs::exec_destroy;
    hook [cuDeviceGraphMemTrim] => graphs::trim;

    launch_hook [cuLaunchKernel, cuLaunchKernel_ptsz] => launch::wait;
    launch_ex_hook [cuLaunchKernelEx, cuLaunchKernelEx_ptsz] => launch::wait;
    bare_hook [cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz] => submission::cooperative;
    hook [cuLaunchCooperativeKernelMultiDevice] => submission::cooperative_many;
    hook [cuLaunch] => submission::legacy;
    hook [cuLaunchGrid] => submission::legacy_grid;
    submits [cuLaunchGridAsync] => submission::submit;

    bare_hook [cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz] => copies::linear_async;
    bare_hook [cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz] => copies::linear_async;
    bare_hook [cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyAsync,
          cuMemcpyAsync_ptsz]
        => copies::linear_async;
    bare_hook [cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz] => copies::peer_async;
    bare_hook [cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz] => copies::flat_async;
    bare_hook [cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz] => copies::deep_async;
    hook [cuMemcpyHtoD, cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds] => copies::linear;
    hook [cuMemcpyDtoH, cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds] => copies::to_host;
    hook [cuMemcpyDtoD, cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, cuMemcpy, cuMemcpy_ptds] => copies::linear;

    hook [cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds] => copies::flat;
    hook [cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, cuMemcpy3DPeer, cuMemcpy3DPeer_ptds] => copies::deep;
    hook [cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz] => copies::deep_async;
    hook [cuMemcpyPeer, cuMemcpyPeer_ptds] => copies::peer;
    hook [cuMemcpyHtoA, cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds] => copies::array;
    hook [cuMemcpyDtoA, cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds] => copies::array;
    hook [cuMemcpyAtoD, cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds] => copies::array;
    hook [cuMemcpyAtoH, cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds] => copies::array_to_host;
    hook [cuMemcpyAtoA, cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds] => copies::between_arrays;
    hook [cuMemcpyHtoAAsync, cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz] => copies::array_async;
    hook [cuMemcpyAtoHAsync, cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz] => copies::array_async;

    hook [cuMemcpy2D, cuMemcpy2DUnaligned, cuMemcpy3D] => copies::described_v1;
    submits [cuMemcpy2DAsync, cuMemcpy3DAsync] => submission::submit;

    hook [cuMemMapArrayAsync, cuMemMapArrayAsync_ptsz] => vmm::map_arrays;
    hook [cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz] => bulk::with_attributes;
    submits [cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz] => submission::submit;
    hook [cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz, cuMemDiscardAndPrefetchBatchAsync,
          cuMemDiscardAndPrefetchBatchAsync_ptsz]
        => bulk::prefetch_batch;
    hook [cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz] => bulk::discard_batch;
    hook [cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz] => bulk::batch;
    hook [cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz] => bulk::batch_v2;
    submits [cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz] => submission::submit;
    submits [cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz] => submission::submit;
    submits [cuMemBatchDecompressAsync, cuMemBatchDecompressAsync_ptsz] => submission::submit;
    hook [cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz] => bulk::prefetch;
    hook [cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz] => bulk::prefetch_v2;
    bare_hook [cuMemsetD8, cuMemsetD8_v2, cuMemsetD8_v2_ptds] => bulk::fill;
    bare_hook [cuMemsetD16, cuMemsetD16_v2, cuMemsetD16_v2_ptds] => bulk::fill;
    bare_hook [cuMemsetD32, cuMemsetD32_v2, cuMemsetD32_v2_ptds] => bulk::fill;
    bare_hook [cuMemsetD8Async, cuMemsetD8Async_ptsz] => bulk::fill_async;
    bare_hook [cuMemsetD16Async, cuMemsetD16Async_ptsz] => bulk::fill_async;
    bare_hook [cuMemsetD32Async, cuMemsetD32Async_ptsz] => bulk::fill_async;
    bare_hook [cuMemsetD2D8, cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds] => bulk::fill_rows;
    bare_hook [cuMemsetD2D16, cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds] => bulk::fill_rows;
    bare_hook [cuMemsetD2D32, cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds] => bulk::fill_rows;
    bare_hook [cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz] => bulk::fill_rows_async;
    bare_hook [cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz] => bulk::fill_rows_async;
    bare_hook [cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz] => bulk::fill_rows_async;

    hook [cuStreamSynchronize, cuStreamSynchronize_ptsz] => sync::stream;
    hook [cuCtxSynchronize] => sync::whole_context;
    hook [cuCtxSynchronize_v2] => context::synchronize;
    hook [cuEventSynchronize] => sync::event;
    bare_hook [cuStreamQuery, cuStreamQuery_ptsz] => sync::stream_query;
    bare_hook [cuEventQuery] => sync::event_query;
    bare_hook [cuEventRecord, cuEventRecord_ptsz] => sync::record;
    bare_hook [cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz] => sync::record_with_flags;

    observe [cuStreamWaitValue32, cuStreamWaitValue32_ptsz, cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz]
        => host_waits::note;
    observe [cuStreamWaitValue64, cuStreamWaitValue64_ptsz, cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz]
        => host_waits::note;
    observe [cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz, cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz]
        => host_waits::note;
    observe [cuWaitExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync_ptsz] => host_waits::note;

    hook [cuStreamBeginCapture, cuStreamBeginCapture_ptsz] => capture::begin_v1;
    hook [cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz] => capture::begin;
    hook [cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz] => capture::begin_to_graph;
    hook [cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz] => capture::begin_recapture;
    hook [cuStreamDestroy, cuStreamDestroy_v2] => capture::stream_destroyed;
    hook [cuStreamEndCapture, cuStreamEndCapture_ptsz] => capture::end;
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
