// nvcc: -std=c++17 -lcuda
// since: 13.0
#include "check.h"
#include <cuda.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <sstream>
#include <string>
#include <unistd.h>
// Every driver function with nothing but zeros and null pointers, in a current context: the code of each.
static const struct { CUresult code; const char *names; } expected[] = {
    {CUDA_ERROR_INVALID_VALUE,
     "cuDriverGetVersion cuGetErrorName cuGetErrorString cuGetExportTable cuGetProcAddress cuGetProcAddress_v2 "
     "cuDevicePrimaryCtxGetState cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuDeviceSetMemPool cuMemAllocAsync "
     "cuMemAllocFromPoolAsync cuMemGetDefaultMemPool cuMemGetMemPool cuMemPoolCreate cuMemPoolDestroy "
     "cuMemPoolGetAccess cuMemPoolGetAttribute cuMemPoolSetAccess cuMemPoolSetAttribute cuMemPoolTrimTo "
     "cuMemSetMemPool cuStreamGetGreenCtx cuDeviceCanAccessPeer cuDeviceComputeCapability cuDeviceGet "
     "cuDeviceGetAttribute cuDeviceGetByPCIBusId cuDeviceGetCount cuDeviceGetExecAffinitySupport "
     "cuDeviceGetGraphMemAttribute cuDeviceGetName cuDeviceGetPCIBusId cuDeviceGetProperties "
     "cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetUuid cuDeviceGetUuid_v2 cuDeviceSetGraphMemAttribute "
     "cuDeviceTotalMem_v2 cuCtxAttach cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxGetApiVersion "
     "cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevice cuCtxGetDevice_v2 cuCtxGetFlags cuCtxGetId cuCtxGetLimit "
     "cuCtxGetSharedMemConfig cuModuleGetFunction cuModuleGetGlobal_v2 cuModuleGetLoadingMode cuModuleLoad "
     "cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuLibraryGetGlobal cuLibraryGetKernel "
     "cuLibraryGetManaged cuLibraryLoadData cuLibraryLoadFromFile cuLinkCreate cuLinkCreate_v2 cuLaunchHostFunc "
     "cuLaunchKernelEx cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor "
     "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters cuMemcpy2DAsync_v2 "
     "cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2 cuMemcpy3DAsync_v2 cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3D_v2 "
     "cuMemcpyAtoD_v2 cuMemcpyBatchAsync cuMemcpyBatchAsync_v2 cuMemcpyDtoA_v2 cuMemAllocHost_v2 cuMemHostAlloc "
     "cuMemHostGetDevicePointer_v2 cuMemHostGetFlags cuMemHostRegister cuMemHostRegister_v2 cuMemAdvise cuMemAdvise_v2 "
     "cuMemAllocManaged cuMemPrefetchAsync cuMemPrefetchAsync_v2 cuMemRangeGetAttribute cuMemRangeGetAttributes "
     "cuMemAddressFree cuMemAddressReserve cuMemCreate cuMemGetAccess cuMemGetAllocationGranularity "
     "cuMemGetAllocationPropertiesFromHandle cuMemMap cuMemRelease cuMemRetainAllocationHandle cuMemSetAccess "
     "cuMemUnmap cuMemAllocPitch_v2 cuMemAlloc_v2 cuPointerGetAttribute cuPointerGetAttributes cuPointerSetAttribute "
     "cuArray3DCreate_v2 cuArrayCreate_v2 cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc "
     "cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc cuTexObjectGetTextureDesc cuStreamGetCaptureInfo "
     "cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v3 cuStreamIsCapturing cuThreadExchangeStreamCaptureMode "
     "cuStreamAddCallback cuStreamAttachMemAsync cuStreamCreate cuStreamCreateWithPriority cuStreamGetAttribute "
     "cuStreamGetCtx cuStreamGetCtx_v2 cuStreamGetDevice cuStreamGetFlags cuStreamGetId cuStreamGetPriority "
     "cuStreamSetAttribute cuStreamWriteValue32 cuStreamWriteValue32_v2 cuStreamWriteValue64 cuStreamWriteValue64_v2 "
     "cuEventCreate cuGraphAddChildGraphNode cuGraphAddDependencies cuGraphAddDependencies_v2 cuGraphAddEmptyNode "
     "cuGraphAddHostNode cuGraphAddKernelNode cuGraphAddKernelNode_v2 cuGraphAddMemAllocNode cuGraphAddMemFreeNode "
     "cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphAddNode cuGraphAddNode_v2 cuGraphChildGraphNodeGetGraph "
     "cuGraphClone cuGraphCreate cuGraphDestroy cuGraphDestroyNode cuGraphEventRecordNodeGetEvent "
     "cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent "
     "cuGraphExecChildGraphNodeSetParams cuGraphExecDestroy cuGraphExecGetFlags cuGraphExecGetId "
     "cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2 "
     "cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams cuGraphExecUpdate "
     "cuGraphExecUpdate_v2 cuGraphGetEdges cuGraphGetEdges_v2 cuGraphGetId cuGraphGetNodes cuGraphGetRootNodes "
     "cuGraphHostNodeGetParams cuGraphHostNodeSetParams cuGraphInstantiate cuGraphInstantiateWithFlags "
     "cuGraphInstantiateWithParams cuGraphInstantiate_v2 cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute "
     "cuGraphKernelNodeGetParams cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetAttribute "
     "cuGraphKernelNodeSetParams cuGraphKernelNodeSetParams_v2 cuGraphLaunch cuGraphMemAllocNodeGetParams "
     "cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams "
     "cuGraphMemsetNodeSetParams cuGraphNodeFindInClone cuGraphNodeGetContainingGraph cuGraphNodeGetDependencies "
     "cuGraphNodeGetDependencies_v2 cuGraphNodeGetDependentNodes cuGraphNodeGetDependentNodes_v2 cuGraphNodeGetEnabled "
     "cuGraphNodeGetLocalId cuGraphNodeGetType cuGraphNodeSetEnabled cuGraphNodeSetParams cuGraphReleaseUserObject "
     "cuGraphRemoveDependencies cuGraphRemoveDependencies_v2 cuGraphRetainUserObject cuGraphUpload cuUserObjectCreate "
     "cuUserObjectRelease cuUserObjectRetain"},
    {CUDA_ERROR_INVALID_HANDLE,
     "cuModuleEnumerateFunctions cuModuleGetFunctionCount cuModuleUnload cuKernelGetAttribute cuKernelGetFunction "
     "cuKernelGetLibrary cuKernelGetName cuKernelGetParamCount cuKernelGetParamInfo cuKernelSetAttribute "
     "cuKernelSetCacheConfig cuLibraryEnumerateKernels cuLibraryGetKernelCount cuLibraryGetModule "
     "cuLibraryGetUnifiedFunction cuLibraryUnload cuLinkAddData cuLinkAddData_v2 cuLinkAddFile cuLinkAddFile_v2 "
     "cuLinkComplete cuLinkDestroy cuFuncGetAttribute cuFuncGetModule cuFuncGetName cuFuncGetParamCount "
     "cuFuncGetParamInfo cuFuncIsLoaded cuFuncLoad cuFuncSetAttribute cuFuncSetCacheConfig cuFuncSetSharedMemConfig "
     "cuLaunchCooperativeKernel cuLaunchKernel cuOccupancyMaxPotentialBlockSize "
     "cuOccupancyMaxPotentialBlockSizeWithFlags cuOccupancyMaxPotentialClusterSize cuMemcpyAtoHAsync_v2 "
     "cuMemcpyAtoH_v2 cuMemcpyHtoAAsync_v2 cuMemcpyHtoA_v2 cuArray3DGetDescriptor_v2 cuArrayDestroy "
     "cuArrayGetDescriptor_v2 cuMipmappedArrayDestroy cuStreamBeginCaptureToGraph cuStreamDestroy cuStreamDestroy_v2 "
     "cuStreamWaitEvent cuEventDestroy cuEventDestroy_v2 cuEventElapsedTime cuEventElapsedTime_v2 cuEventQuery "
     "cuEventRecord cuEventRecordWithFlags cuEventSynchronize cuGraphAddEventRecordNode cuGraphAddEventWaitNode "
     "cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent"},
    {CUDA_SUCCESS,
     "cuDevicePrimaryCtxSetFlags cuDevicePrimaryCtxSetFlags_v2 cuMemFreeAsync cuDeviceGraphMemTrim "
     "cuCtxGetStreamPriorityRange cuCtxPopCurrent cuCtxPopCurrent_v2 cuCtxResetPersistingL2Cache cuCtxSetCacheConfig "
     "cuCtxSetCurrent cuCtxSetFlags cuCtxSetLimit cuCtxSetSharedMemConfig cuCtxSynchronize cuCtxSynchronize_v2 "
     "cuMemcpy cuMemcpyAsync cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 "
     "cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2 cuMemcpyPeer cuMemcpyPeerAsync cuMemsetD16Async cuMemsetD16_v2 "
     "cuMemsetD2D16Async cuMemsetD2D16_v2 cuMemsetD2D32Async cuMemsetD2D32_v2 cuMemsetD2D8Async cuMemsetD2D8_v2 "
     "cuMemsetD32Async cuMemsetD32_v2 cuMemsetD8Async cuMemsetD8_v2 cuMemFreeHost cuMemFree_v2 cuMemGetInfo_v2 "
     "cuStreamCopyAttributes cuStreamQuery cuStreamSynchronize"},
    {CUDA_ERROR_INVALID_CONTEXT,
     "cuCtxDestroy cuCtxDestroy_v2 cuCtxPushCurrent cuCtxPushCurrent_v2"},
    {CUDA_ERROR_NOT_SUPPORTED,
     "cuDeviceGetLuid cuMipmappedArrayCreate cuFlushGPUDirectRDMAWrites"},
    {CUDA_ERROR_ILLEGAL_STATE,
     "cuStreamEndCapture cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_v2"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
     "cuCtxDisablePeerAccess cuCtxEnablePeerAccess"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     "cuStreamBeginCapture cuStreamBeginCapture_v2"},
    {CUDA_ERROR_INVALID_DEVICE,
     "cuDeviceGetP2PAttribute"},
    {CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY,
     "cuCtxGetExecAffinity"},
    {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
     "cuMemHostUnregister"},
    {CUDA_ERROR_NOT_FOUND,
     "cuMemGetAddressRange_v2"},
};
typedef CUresult (*Function)(size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);
static sigjmp_buf back;
static const char *name_of(int code) { const char *name = nullptr; cuGetErrorName((CUresult)code, &name); return name ? name : "?"; }
int main() {
    CHECK(cudaFree(0));
    CUcontext context;
    EXPECT_EQ((int)cuCtxGetCurrent(&context), 0);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library != nullptr);
    struct sigaction action = {};
    action.sa_handler = [](int signal) { siglongjmp(back, signal); };
    action.sa_flags = SA_NODEFER;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGALRM}) sigaction(signal, &action, nullptr);
    int called = 0, wrong = 0;
    for (auto &row : expected) {
        std::istringstream names(row.names);
        for (std::string name; names >> name;) {
            auto function = (Function)dlsym(library, name.c_str());
            // A driver may be older than this list.
            if (!function) continue;
            cuCtxSetCurrent(context);
            alarm(5);
            int signal = sigsetjmp(back, 1), code = -1;
            if (!signal) code = function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            alarm(0);
            called++;
            if (signal) printf("%s ended with signal %d, expected %s\n", name.c_str(), signal, name_of(row.code));
            else if (code != row.code) printf("%s gave %s, expected %s\n", name.c_str(), name_of(code), name_of(row.code));
            wrong += signal || code != row.code;
        }
    }
    EXPECT_EQ(wrong, 0);
    EXPECT(called > 250);
    int *p;
    CHECK(cudaMalloc(&p, 4));
    CHECK(cudaFree(p));
    return finish();
}
