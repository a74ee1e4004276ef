//! How each mode serves each entry point: what the support list says, and what tests hold the shim to.
//!
//! Lists name a symbol without its per-thread variants, which are served alike. What is in no list of
//! isolated mode is refused; what is in no list of direct mode is the real driver's own affair.

use crate::EntryPoint;

/// How isolated mode serves an entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolated {
    /// Answered in the program's process, without the worker.
    Local,
    /// Put into the worker's ring without waiting; an error comes late.
    Posted,
    /// Waits for the worker, at least the first time.
    Synchronous,
    /// `CUDA_ERROR_NOT_SUPPORTED`, with its name in the log.
    Refused,
}

/// What direct mode does before the real driver is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// Takes from the memory limit, or gives back to it.
    Charged,
    /// Waits until it is the virtual GPU's turn.
    Gated,
    /// Noted: joins, waits, captures, look-ups of entry points.
    Observed,
    /// Answers what the virtual GPU has.
    Shown,
    /// Nothing.
    Forwarded,
}

impl EntryPoint {
    /// How isolated mode serves it.
    pub fn isolated(&self) -> Isolated {
        let name = self.legacy_symbol();
        let lists = [
            (LOCAL, Isolated::Local),
            (POSTED, Isolated::Posted),
            (SYNCHRONOUS, Isolated::Synchronous),
        ];
        find(&lists, name).unwrap_or(Isolated::Refused)
    }

    /// What direct mode does with it.
    pub fn direct(&self) -> Direct {
        let name = self.legacy_symbol();
        let lists = [
            (CHARGED, Direct::Charged),
            (GATED, Direct::Gated),
            (OBSERVED, Direct::Observed),
            (SHOWN, Direct::Shown),
        ];
        find(&lists, name).unwrap_or(Direct::Forwarded)
    }

    /// The symbol of its variant for the legacy default stream.
    fn legacy_symbol(&self) -> &'static str {
        let symbol = self.symbol;
        symbol
            .strip_suffix("_ptds")
            .or_else(|| symbol.strip_suffix("_ptsz"))
            .unwrap_or(symbol)
    }
}

fn find<T: Copy>(lists: &[(&[&str], T)], name: &str) -> Option<T> {
    let holds = |list: &[&str]| list.binary_search(&name).is_ok();
    lists
        .iter()
        .find(|(list, _)| holds(list))
        .map(|(_, service)| *service)
}

/// Isolated mode: answered in the program.
const LOCAL: &[&str] = &[
    "cuArray3DGetDescriptor_v2",
    "cuArrayGetDescriptor_v2",
    "cuCtxAttach",
    "cuCtxDetach",
    "cuCtxDisablePeerAccess",
    "cuCtxEnablePeerAccess",
    "cuCtxGetApiVersion",
    "cuCtxGetCacheConfig",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetDevice_v2",
    "cuCtxGetExecAffinity",
    "cuCtxGetFlags",
    "cuCtxGetId",
    "cuCtxGetSharedMemConfig",
    "cuCtxGetStreamPriorityRange",
    "cuCtxPopCurrent",
    "cuCtxPopCurrent_v2",
    "cuCtxPushCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxResetPersistingL2Cache",
    "cuCtxSetCacheConfig",
    "cuCtxSetCurrent",
    "cuCtxSetFlags",
    "cuCtxSetSharedMemConfig",
    "cuDeviceCanAccessPeer",
    "cuDeviceComputeCapability",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetByPCIBusId",
    "cuDeviceGetCount",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetExecAffinitySupport",
    "cuDeviceGetGraphMemAttribute",
    "cuDeviceGetLuid",
    "cuDeviceGetMemPool",
    "cuDeviceGetName",
    "cuDeviceGetP2PAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetProperties",
    "cuDeviceGetTexture1DLinearMaxWidth",
    "cuDeviceGetUuid",
    "cuDeviceGetUuid_v2",
    "cuDeviceGraphMemTrim",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxSetFlags",
    "cuDevicePrimaryCtxSetFlags_v2",
    "cuDeviceSetGraphMemAttribute",
    "cuDeviceSetMemPool",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuFlushGPUDirectRDMAWrites",
    "cuFuncGetAttribute",
    "cuFuncGetModule",
    "cuFuncGetName",
    "cuFuncGetParamCount",
    "cuFuncGetParamInfo",
    "cuFuncIsLoaded",
    "cuFuncSetAttribute",
    "cuFuncSetCacheConfig",
    "cuFuncSetSharedMemConfig",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetExportTable",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuGraphAddChildGraphNode",
    "cuGraphAddDependencies",
    "cuGraphAddDependencies_v2",
    "cuGraphAddEmptyNode",
    "cuGraphAddEventRecordNode",
    "cuGraphAddEventWaitNode",
    "cuGraphAddHostNode",
    "cuGraphAddKernelNode",
    "cuGraphAddKernelNode_v2",
    "cuGraphAddMemFreeNode",
    "cuGraphAddMemcpyNode",
    "cuGraphAddMemsetNode",
    "cuGraphChildGraphNodeGetGraph",
    "cuGraphClone",
    "cuGraphCreate",
    "cuGraphDestroy",
    "cuGraphDestroyNode",
    "cuGraphEventRecordNodeGetEvent",
    "cuGraphEventRecordNodeSetEvent",
    "cuGraphEventWaitNodeGetEvent",
    "cuGraphEventWaitNodeSetEvent",
    "cuGraphExecGetFlags",
    "cuGraphExecGetId",
    "cuGraphGetEdges",
    "cuGraphGetEdges_v2",
    "cuGraphGetId",
    "cuGraphGetNodes",
    "cuGraphGetRootNodes",
    "cuGraphHostNodeGetParams",
    "cuGraphHostNodeSetParams",
    "cuGraphKernelNodeCopyAttributes",
    "cuGraphKernelNodeGetAttribute",
    "cuGraphKernelNodeGetParams",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphKernelNodeSetAttribute",
    "cuGraphKernelNodeSetParams",
    "cuGraphKernelNodeSetParams_v2",
    "cuGraphMemAllocNodeGetParams",
    "cuGraphMemFreeNodeGetParams",
    "cuGraphMemcpyNodeGetParams",
    "cuGraphMemcpyNodeSetParams",
    "cuGraphMemsetNodeGetParams",
    "cuGraphMemsetNodeSetParams",
    "cuGraphNodeFindInClone",
    "cuGraphNodeGetContainingGraph",
    "cuGraphNodeGetDependencies",
    "cuGraphNodeGetDependencies_v2",
    "cuGraphNodeGetDependentNodes",
    "cuGraphNodeGetDependentNodes_v2",
    "cuGraphNodeGetEnabled",
    "cuGraphNodeGetLocalId",
    "cuGraphNodeGetType",
    "cuGraphNodeSetParams",
    "cuGraphReleaseUserObject",
    "cuGraphRemoveDependencies",
    "cuGraphRemoveDependencies_v2",
    "cuGraphRetainUserObject",
    "cuGraphUpload",
    "cuKernelGetAttribute",
    "cuKernelGetLibrary",
    "cuKernelGetName",
    "cuKernelGetParamCount",
    "cuKernelGetParamInfo",
    "cuKernelSetAttribute",
    "cuKernelSetCacheConfig",
    "cuLibraryGetUnifiedFunction",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLinkAddData",
    "cuLinkAddData_v2",
    "cuLinkAddFile",
    "cuLinkAddFile_v2",
    "cuLinkComplete",
    "cuLinkCreate",
    "cuLinkCreate_v2",
    "cuLinkDestroy",
    "cuMemAdvise",
    "cuMemAdvise_v2",
    "cuMemGetAccess",
    "cuMemGetAddressRange_v2",
    "cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemGetDefaultMemPool",
    "cuMemGetMemPool",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostGetFlags",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAccess",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAccess",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemPrefetchAsync",
    "cuMemPrefetchAsync_v2",
    "cuMemRangeGetAttribute",
    "cuMemRangeGetAttributes",
    "cuMemRetainAllocationHandle",
    "cuMemSetMemPool",
    "cuModuleGetLoadingMode",
    "cuOccupancyAvailableDynamicSMemPerBlock",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
    "cuOccupancyMaxActiveClusters",
    "cuOccupancyMaxPotentialBlockSize",
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    "cuOccupancyMaxPotentialClusterSize",
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuPointerSetAttribute",
    "cuProfilerInitialize",
    "cuProfilerStart",
    "cuProfilerStop",
    "cuStreamAttachMemAsync",
    "cuStreamBeginCapture",
    "cuStreamBeginCaptureToGraph",
    "cuStreamBeginCapture_v2",
    "cuStreamCopyAttributes",
    "cuStreamEndCapture",
    "cuStreamGetAttribute",
    "cuStreamGetCaptureInfo",
    "cuStreamGetCaptureInfo_v2",
    "cuStreamGetCaptureInfo_v3",
    "cuStreamGetCtx",
    "cuStreamGetCtx_v2",
    "cuStreamGetDevice",
    "cuStreamGetFlags",
    "cuStreamGetGreenCtx",
    "cuStreamGetId",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
    "cuStreamSetAttribute",
    "cuStreamUpdateCaptureDependencies",
    "cuStreamUpdateCaptureDependencies_v2",
    "cuSurfObjectGetResourceDesc",
    "cuTexObjectGetResourceDesc",
    "cuTexObjectGetTextureDesc",
    "cuThreadExchangeStreamCaptureMode",
    "cuUserObjectCreate",
    "cuUserObjectRelease",
    "cuUserObjectRetain",
];

/// Isolated mode: posted.
const POSTED: &[&str] = &[
    "cuEventDestroy",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuGraphExecDestroy",
    "cuGraphLaunch",
    "cuLaunchCooperativeKernel",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemFreeAsync",
    "cuMemcpy2DAsync_v2",
    "cuMemcpy3DAsync_v2",
    "cuMemcpy3DPeerAsync",
    "cuMemcpyAsync",
    "cuMemcpyAtoHAsync_v2",
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoAAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD16Async",
    "cuMemsetD16_v2",
    "cuMemsetD2D16Async",
    "cuMemsetD2D16_v2",
    "cuMemsetD2D32Async",
    "cuMemsetD2D32_v2",
    "cuMemsetD2D8Async",
    "cuMemsetD2D8_v2",
    "cuMemsetD32Async",
    "cuMemsetD32_v2",
    "cuMemsetD8Async",
    "cuMemsetD8_v2",
    "cuStreamAddCallback",
    "cuStreamDestroy",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuStreamWriteValue32",
    "cuStreamWriteValue32_v2",
    "cuStreamWriteValue64",
    "cuStreamWriteValue64_v2",
];

/// Isolated mode: waits for the worker.
const SYNCHRONOUS: &[&str] = &[
    "cuArray3DCreate_v2",
    "cuArrayCreate_v2",
    "cuArrayDestroy",
    "cuCtxCreate_v2",
    "cuCtxCreate_v3",
    "cuCtxCreate_v4",
    "cuCtxDestroy",
    "cuCtxDestroy_v2",
    "cuCtxGetLimit",
    "cuCtxSetLimit",
    "cuCtxSynchronize",
    "cuCtxSynchronize_v2",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxReset_v2",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuEventElapsedTime",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuFuncLoad",
    "cuGraphAddMemAllocNode",
    "cuGraphAddNode",
    "cuGraphAddNode_v2",
    "cuGraphExecChildGraphNodeSetParams",
    "cuGraphExecEventRecordNodeSetEvent",
    "cuGraphExecEventWaitNodeSetEvent",
    "cuGraphExecHostNodeSetParams",
    "cuGraphExecKernelNodeSetParams",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphExecMemsetNodeSetParams",
    "cuGraphExecNodeSetParams",
    "cuGraphExecUpdate",
    "cuGraphExecUpdate_v2",
    "cuGraphInstantiate",
    "cuGraphInstantiateWithFlags",
    "cuGraphInstantiateWithParams",
    "cuGraphInstantiate_v2",
    "cuGraphNodeSetEnabled",
    "cuInit",
    "cuKernelGetFunction",
    "cuLibraryEnumerateKernels",
    "cuLibraryGetGlobal",
    "cuLibraryGetKernel",
    "cuLibraryGetKernelCount",
    "cuLibraryGetManaged",
    "cuLibraryGetModule",
    "cuLibraryUnload",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocHost_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpy",
    "cuMemcpy2DUnaligned_v2",
    "cuMemcpy2D_v2",
    "cuMemcpy3DPeer",
    "cuMemcpy3D_v2",
    "cuMemcpyAtoD_v2",
    "cuMemcpyAtoH_v2",
    "cuMemcpyDtoA_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoA_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyPeer",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuModuleEnumerateFunctions",
    "cuModuleGetFunction",
    "cuModuleGetFunctionCount",
    "cuModuleGetGlobal_v2",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuSurfObjectCreate",
    "cuSurfObjectDestroy",
    "cuTexObjectCreate",
    "cuTexObjectDestroy",
];

/// Direct mode: memory.
const CHARGED: &[&str] = &[
    "cuArray3DCreate_v2",
    "cuArrayCreate_v2",
    "cuArrayDestroy",
    "cuCtxCreate",
    "cuCtxCreate_v2",
    "cuCtxCreate_v3",
    "cuCtxCreate_v4",
    "cuCtxDestroy",
    "cuCtxDestroy_v2",
    "cuCtxSetLimit",
    "cuDestroyExternalMemory",
    "cuDeviceGraphMemTrim",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxReset_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceSetMemPool",
    "cuGraphAddChildGraphNode",
    "cuGraphAddMemAllocNode",
    "cuGraphAddNode",
    "cuGraphAddNode_v2",
    "cuGraphAddNode_v3",
    "cuGraphClone",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiate",
    "cuGraphInstantiateWithFlags",
    "cuGraphInstantiateWithParams",
    "cuGraphInstantiate_v2",
    "cuGraphUpload",
    "cuImportExternalMemory",
    "cuLibraryGetKernel",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLibraryUnload",
    "cuMemAlloc",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocManaged",
    "cuMemAllocPitch",
    "cuMemAllocPitch_v2",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemFree",
    "cuMemFreeAsync",
    "cuMemFree_v2",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolTrimTo",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemSetMemPool",
    "cuMemUnmap",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuModuleGetFunction",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleUnload",
];

/// Direct mode: work.
const GATED: &[&str] = &[
    "cuGraphLaunch",
    "cuLaunch",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernelMultiDevice",
    "cuLaunchGrid",
    "cuLaunchGridAsync",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuMemBatchDecompressAsync",
    "cuMemPrefetchAsync",
    "cuMemPrefetchAsync_v2",
    "cuMemcpy",
    "cuMemcpy2DAsync_v2",
    "cuMemcpy2DUnaligned_v2",
    "cuMemcpy2D_v2",
    "cuMemcpy3DAsync_v2",
    "cuMemcpy3DBatchAsync",
    "cuMemcpy3DBatchAsync_v2",
    "cuMemcpy3DPeer",
    "cuMemcpy3DPeerAsync",
    "cuMemcpy3D_v2",
    "cuMemcpyAsync",
    "cuMemcpyBatchAsync",
    "cuMemcpyBatchAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyPeer",
    "cuMemcpyPeerAsync",
    "cuMemsetD16Async",
    "cuMemsetD16_v2",
    "cuMemsetD2D16Async",
    "cuMemsetD2D16_v2",
    "cuMemsetD2D32Async",
    "cuMemsetD2D32_v2",
    "cuMemsetD2D8Async",
    "cuMemsetD2D8_v2",
    "cuMemsetD32Async",
    "cuMemsetD32_v2",
    "cuMemsetD8Async",
    "cuMemsetD8_v2",
];

/// Direct mode: noted.
const OBSERVED: &[&str] = &[
    "cuCtxGetDevice_v2",
    "cuCtxSynchronize",
    "cuCtxSynchronize_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuEventSynchronize",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuInit",
    "cuStreamBeginCapture",
    "cuStreamBeginCaptureToGraph",
    "cuStreamBeginCapture_v2",
    "cuStreamBeginRecaptureToGraph",
    "cuStreamDestroy",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamQuery",
    "cuStreamSynchronize",
];

/// Direct mode: questions about memory.
const SHOWN: &[&str] = &[
    "cuDeviceTotalMem",
    "cuDeviceTotalMem_v2",
    "cuMemGetInfo",
    "cuMemGetInfo_v2",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ENTRY_POINTS, find_symbol};

    #[test]
    fn every_list_is_sorted_and_names_what_exists_once() {
        for modes in [
            &[LOCAL, POSTED, SYNCHRONOUS][..],
            &[CHARGED, GATED, OBSERVED, SHOWN],
        ] {
            let mut all: Vec<&str> = Vec::new();
            for list in modes {
                assert!(list.is_sorted(), "{list:?}");
                all.extend(list.iter().copied());
            }
            for name in &all {
                assert!(find_symbol(name).is_some(), "{name}");
            }
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), count, "a name is in two lists");
        }
    }

    #[test]
    fn variants_for_a_threads_own_stream_are_served_alike() {
        for entry in ENTRY_POINTS {
            let number = find_symbol(entry.legacy_symbol());
            let legacy = number.map_or(entry, |number| &ENTRY_POINTS[number]);
            assert_eq!(entry.isolated(), legacy.isolated(), "{}", entry.symbol);
        }
        let launch = &ENTRY_POINTS[find_symbol("cuLaunchKernel_ptsz").unwrap()];
        assert_eq!(
            (launch.isolated(), launch.direct()),
            (Isolated::Posted, Direct::Gated)
        );
    }
}
