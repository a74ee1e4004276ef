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
// Driver functions with nothing but zeros and null pointers, in a current context: the code of each.
struct Row { CUresult code; const char *names; };
// As a driver 580 for CUDA 13.0 answers on an H200. Left out are those in which it follows a null pointer and dies: the
// look-up of names, versions and errors, cuModuleGetLoadingMode, cuMemcpy3DPeer, cuThreadExchangeStreamCaptureMode.
static const Row expected[] = {
    {CUDA_ERROR_INVALID_VALUE,
     "cuDriverGetVersion cuGetExportTable cuDevicePrimaryCtxGetState cuDeviceGetDefaultMemPool cuDeviceGetMemPool "
     "cuDeviceSetMemPool cuMemAllocAsync cuMemAllocFromPoolAsync cuMemGetDefaultMemPool cuMemGetMemPool "
     "cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAccess cuMemPoolGetAttribute cuMemPoolSetAccess "
     "cuMemPoolSetAttribute cuMemPoolTrimTo cuMemSetMemPool cuStreamGetGreenCtx cuDeviceCanAccessPeer "
     "cuDeviceComputeCapability cuDeviceGet cuDeviceGetAttribute cuDeviceGetByPCIBusId cuDeviceGetCount "
     "cuDeviceGetExecAffinitySupport cuDeviceGetGraphMemAttribute cuDeviceGetName cuDeviceGetPCIBusId "
     "cuDeviceGetProperties cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetUuid cuDeviceGetUuid_v2 "
     "cuDeviceSetGraphMemAttribute cuDeviceTotalMem_v2 cuCtxAttach cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 "
     "cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevice cuCtxGetDevice_v2 cuCtxGetFlags cuCtxGetId "
     "cuCtxGetLimit cuCtxGetSharedMemConfig cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary "
     "cuLibraryGetGlobal cuLibraryGetKernel cuLibraryGetManaged cuLibraryLoadData cuLibraryLoadFromFile cuLinkCreate "
     "cuLinkCreate_v2 cuLaunchHostFunc cuLaunchKernelEx cuOccupancyAvailableDynamicSMemPerBlock "
     "cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags "
     "cuOccupancyMaxActiveClusters cuMemcpy2DAsync_v2 cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2 cuMemcpy3DAsync_v2 "
     "cuMemcpy3D_v2 cuMemcpyBatchAsync cuMemcpyBatchAsync_v2 cuMemAllocHost_v2 cuMemHostAlloc "
     "cuMemHostGetDevicePointer_v2 cuMemHostGetFlags cuMemHostRegister cuMemHostRegister_v2 cuMemAdvise cuMemAdvise_v2 "
     "cuMemAllocManaged cuMemPrefetchAsync cuMemPrefetchAsync_v2 cuMemRangeGetAttribute cuMemRangeGetAttributes "
     "cuMemAddressFree cuMemAddressReserve cuMemCreate cuMemGetAccess cuMemGetAllocationGranularity "
     "cuMemGetAllocationPropertiesFromHandle cuMemMap cuMemRelease cuMemRetainAllocationHandle cuMemSetAccess "
     "cuMemUnmap cuMemAllocPitch_v2 cuMemAlloc_v2 cuPointerGetAttribute cuPointerGetAttributes cuPointerSetAttribute "
     "cuArray3DCreate_v2 cuArrayCreate_v2 cuSurfObjectCreate cuSurfObjectGetResourceDesc cuTexObjectCreate "
     "cuTexObjectGetResourceDesc cuTexObjectGetTextureDesc cuStreamGetCaptureInfo cuStreamGetCaptureInfo_v2 "
     "cuStreamGetCaptureInfo_v3 cuStreamIsCapturing cuStreamAddCallback cuStreamAttachMemAsync cuStreamCreate "
     "cuStreamCreateWithPriority cuStreamGetAttribute cuStreamGetCtx cuStreamGetCtx_v2 cuStreamGetDevice "
     "cuStreamGetFlags cuStreamGetId cuStreamGetPriority cuStreamSetAttribute cuStreamWriteValue32_v2 "
     "cuStreamWriteValue64_v2 cuEventCreate cuGraphAddChildGraphNode cuGraphAddDependencies cuGraphAddDependencies_v2 "
     "cuGraphAddEmptyNode cuGraphAddHostNode cuGraphAddKernelNode cuGraphAddKernelNode_v2 cuGraphAddMemAllocNode "
     "cuGraphAddMemFreeNode cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphAddNode cuGraphAddNode_v2 "
     "cuGraphChildGraphNodeGetGraph cuGraphClone cuGraphCreate cuGraphDestroy cuGraphDestroyNode "
     "cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeGetEvent "
     "cuGraphEventWaitNodeSetEvent cuGraphExecChildGraphNodeSetParams cuGraphExecDestroy cuGraphExecGetFlags "
     "cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2 "
     "cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams cuGraphExecUpdate "
     "cuGraphExecUpdate_v2 cuGraphGetEdges cuGraphGetEdges_v2 cuGraphGetNodes cuGraphGetRootNodes "
     "cuGraphHostNodeGetParams cuGraphHostNodeSetParams cuGraphInstantiate cuGraphInstantiateWithFlags "
     "cuGraphInstantiateWithParams cuGraphInstantiate_v2 cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute "
     "cuGraphKernelNodeGetParams cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetAttribute "
     "cuGraphKernelNodeSetParams cuGraphKernelNodeSetParams_v2 cuGraphLaunch cuGraphMemAllocNodeGetParams "
     "cuGraphMemFreeNodeGetParams cuGraphMemcpyNodeGetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeGetParams "
     "cuGraphMemsetNodeSetParams cuGraphNodeFindInClone cuGraphNodeGetDependencies cuGraphNodeGetDependencies_v2 "
     "cuGraphNodeGetDependentNodes cuGraphNodeGetDependentNodes_v2 cuGraphNodeGetEnabled cuGraphNodeGetType "
     "cuGraphNodeSetEnabled cuGraphNodeSetParams cuGraphReleaseUserObject cuGraphRemoveDependencies "
     "cuGraphRemoveDependencies_v2 cuGraphRetainUserObject cuGraphUpload cuUserObjectCreate cuUserObjectRelease "
     "cuUserObjectRetain cuModuleEnumerateFunctions cuModuleGetFunctionCount cuKernelGetFunction cuKernelGetLibrary "
     "cuKernelGetName cuKernelGetParamInfo cuLibraryEnumerateKernels cuLibraryGetKernelCount cuLibraryGetModule "
     "cuLibraryGetUnifiedFunction cuFuncGetAttribute cuFuncGetModule cuFuncGetName cuFuncGetParamInfo cuFuncIsLoaded "
     "cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags cuOccupancyMaxPotentialClusterSize "
     "cuStreamBeginCaptureToGraph cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphExecEventRecordNodeSetEvent "
     "cuGraphExecEventWaitNodeSetEvent cuCtxDestroy cuCtxDestroy_v2 cuCtxPushCurrent cuCtxPushCurrent_v2 "
     "cuDeviceGetLuid cuMipmappedArrayCreate cuFlushGPUDirectRDMAWrites cuDeviceGetP2PAttribute cuCtxGetExecAffinity "
     "cuMemHostUnregister"},
    {CUDA_ERROR_INVALID_HANDLE,
     "cuModuleGetFunction cuModuleGetGlobal_v2 cuModuleUnload cuKernelGetAttribute cuKernelSetAttribute "
     "cuKernelSetCacheConfig cuLibraryUnload cuLinkAddData cuLinkAddData_v2 cuLinkAddFile cuLinkAddFile_v2 "
     "cuLinkComplete cuLinkDestroy cuFuncLoad cuFuncSetAttribute cuFuncSetCacheConfig cuFuncSetSharedMemConfig "
     "cuLaunchCooperativeKernel cuLaunchKernel cuArray3DGetDescriptor_v2 cuArrayDestroy cuArrayGetDescriptor_v2 "
     "cuMipmappedArrayDestroy cuStreamDestroy cuStreamDestroy_v2 cuStreamWaitEvent cuEventDestroy cuEventDestroy_v2 "
     "cuEventElapsedTime cuEventElapsedTime_v2 cuEventQuery cuEventRecord cuEventRecordWithFlags cuEventSynchronize"},
    {CUDA_SUCCESS,
     "cuMemcpyAtoD_v2 cuMemcpyDtoA_v2 cuSurfObjectDestroy cuTexObjectDestroy cuMemcpyAtoHAsync_v2 cuMemcpyAtoH_v2 "
     "cuMemcpyHtoAAsync_v2 cuMemcpyHtoA_v2 cuDevicePrimaryCtxSetFlags_v2 cuMemFreeAsync cuDeviceGraphMemTrim "
     "cuCtxGetStreamPriorityRange cuCtxPopCurrent cuCtxPopCurrent_v2 cuCtxResetPersistingL2Cache cuCtxSetCacheConfig "
     "cuCtxSetCurrent cuCtxSetFlags cuCtxSetLimit cuCtxSetSharedMemConfig cuCtxSynchronize cuCtxSynchronize_v2 "
     "cuMemcpy cuMemcpyAsync cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 "
     "cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2 cuMemcpyPeer cuMemcpyPeerAsync cuMemsetD16Async cuMemsetD16_v2 "
     "cuMemsetD2D16Async cuMemsetD2D16_v2 cuMemsetD2D32Async cuMemsetD2D32_v2 cuMemsetD2D8Async cuMemsetD2D8_v2 "
     "cuMemsetD32Async cuMemsetD32_v2 cuMemsetD8Async cuMemsetD8_v2 cuMemFreeHost cuMemFree_v2 cuMemGetInfo_v2 "
     "cuStreamCopyAttributes cuStreamQuery cuStreamSynchronize cuMemGetAddressRange_v2"},
    {CUDA_ERROR_INVALID_CONTEXT,
     "cuCtxDisablePeerAccess cuCtxEnablePeerAccess"},
    {CUDA_ERROR_NOT_SUPPORTED,
     "cuStreamWriteValue32 cuStreamWriteValue64"},
    {CUDA_ERROR_ILLEGAL_STATE,
     "cuStreamEndCapture cuStreamUpdateCaptureDependencies cuStreamUpdateCaptureDependencies_v2"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
     "cuStreamBeginCapture cuStreamBeginCapture_v2"},
    {CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
     "cuDevicePrimaryCtxSetFlags"},
};
// That driver does not have these. Mica in front of it exports them all the same and says that they are not supported.
static const Row newer[] = {
    {CUDA_ERROR_INVALID_VALUE,
     "cuGraphExecGetId cuGraphGetId cuGraphNodeGetContainingGraph cuGraphNodeGetLocalId"},
    {CUDA_ERROR_INVALID_HANDLE,
     "cuKernelGetParamCount cuFuncGetParamCount"},
};
typedef CUresult (*Function)(size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t, size_t);
static sigjmp_buf back;
static void *library;
static CUcontext context;
static bool print_all;
static int called;
static const char *name_of(int code) { const char *name = nullptr; cuGetErrorName((CUresult)code, &name); return name ? name : "?"; }
// Calls what a row names; the number of answers that are not as expected.
static int call(const Row &row, bool is_newer) {
    std::istringstream names(row.names);
    int wrong = 0;
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
        bool good = !signal && (code == row.code || (is_newer && code == CUDA_ERROR_NOT_SUPPORTED));
        if (signal) printf("%s ended with signal %d, expected %s\n", name.c_str(), signal, name_of(row.code));
        else if (print_all) printf("%s gave %s\n", name.c_str(), name_of(code));
        else if (!good) printf("%s gave %s, expected %s\n", name.c_str(), name_of(code), name_of(row.code));
        wrong += !good;
    }
    return wrong;
}
// With the argument "all" every answer is printed, to be compared with another library's.
int main(int argc, char **argv) {
    print_all = argc > 1 && !strcmp(argv[1], "all");
    CHECK(cudaFree(0));
    EXPECT_EQ((int)cuCtxGetCurrent(&context), 0);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    EXPECT(library != nullptr);
    struct sigaction action = {};
    action.sa_handler = [](int signal) { siglongjmp(back, signal); };
    action.sa_flags = SA_NODEFER;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGALRM}) sigaction(signal, &action, nullptr);
    int wrong = 0;
    for (auto &row : expected) wrong += call(row, false);
    EXPECT(called > 250);
    if (!print_all) for (auto &row : newer) wrong += call(row, true);
    if (!print_all) EXPECT_EQ(wrong, 0);
    int *p;
    CHECK(cudaMalloc(&p, 4));
    CHECK(cudaFree(p));
    return finish();
}
