// nvcc: -std=c++17 -lcuda
// since: 13.0
#include "check.h"
#include <atomic>
#include <cuda.h>
#include <thread>
// Answers to unusual calls that no documentation settles.
__global__ void add(int *p, int v) { atomicAdd(p, v); }
__global__ void spin(int *p, int n) { for (int i = 0; i < n; i++) atomicAdd(p, 1); }
__global__ void shared(int *p) { extern __shared__ int s[]; s[0] = 1; *p = s[0]; }
#define IS(call, code) do { EXPECT_ERROR(call, code); (void)cudaGetLastError(); } while (0)
#define DRV(call, code) IS((cudaError_t)(call), (cudaError_t)(code))
static int *d;
static cudaStream_t stream;

static void launches() {
    void *args[] = {&d}, *two[] = {&d, &d};
    add<<<0, 1>>>(d, 1); IS(cudaGetLastError(), cudaErrorInvalidValue);
    add<<<dim3(1, 65536), 1>>>(d, 1); IS(cudaGetLastError(), cudaErrorInvalidValue);
    add<<<0x80000000u, 1>>>(d, 1); IS(cudaGetLastError(), cudaErrorInvalidValue);
    shared<<<1, 1, 49153>>>(d); IS(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
    shared<<<1, 1, 60001>>>(d); IS(cudaGetLastError(), cudaErrorInvalidValue);
    shared<<<1, 1, 60000>>>(d); IS(cudaGetLastError(), cudaSuccess);
    IS(cudaLaunchKernel((void *)shared, dim3(1), dim3(1), nullptr, 0, nullptr), cudaErrorInvalidValue);
    IS(cudaLaunchKernel(nullptr, dim3(1), dim3(1), args, 0, nullptr), cudaErrorInvalidDeviceFunction);
    IS(cudaLaunchCooperativeKernel((void *)add, dim3(1 << 20), dim3(1024), two, 0, nullptr), cudaErrorCooperativeLaunchTooLarge);
    int n = -1;
    IS(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, add, 1025, 0), cudaSuccess); EXPECT_EQ(n, 0);
    IS(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, add, 0, 0), cudaErrorInvalidValue);
    IS(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, add, 128, 49153), cudaSuccess); EXPECT(n > 0);
    IS(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, add, 128, 1 << 20), cudaSuccess); EXPECT_EQ(n, 0);
    CHECK(cudaDeviceSynchronize());
}

static void copies() {
    char h[64] = {};
    IS(cudaMemcpy(nullptr, nullptr, 0, cudaMemcpyDefault), cudaSuccess);
    IS(cudaMemcpy(d, nullptr, 4, cudaMemcpyDefault), cudaErrorInvalidValue);
    IS(cudaMemcpy((char *)d + (1 << 20) - 4, h, 8, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    IS(cudaMemcpy(d + 1, d, 400, cudaMemcpyDeviceToDevice), cudaSuccess);
    IS(cudaMemcpy(d, h, 16, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    IS(cudaMemcpy(h, h + 8, 16, cudaMemcpyDefault), cudaSuccess);
    IS(cudaMemcpy(d, h, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    IS(cudaMemcpy2D(d, 16, h, 8, 16, 2, cudaMemcpyHostToDevice), cudaErrorInvalidPitchValue);
    IS(cudaMemcpy2D(d, 16, h, 16, 0, 2, cudaMemcpyHostToDevice), cudaSuccess);
    IS(cudaMemcpy2D(d, (size_t)1 << 40, h, 16, 16, 2, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    IS(cudaMemset2D(d, 8, 0, 16, 2), cudaErrorInvalidValue);
    IS(cudaMemset2D(d, 16, 0, 16, 1 << 20), cudaErrorInvalidValue);
    IS(cudaMemset(d, 0, (1 << 20) + 1), cudaErrorInvalidValue);
    IS(cudaMemset(h, 0, 4), cudaErrorInvalidValue);
    IS(cudaMemset(nullptr, 0, 0), cudaSuccess);
    IS(cudaMemcpyPeer(d, 0, d + 100, 0, 16), cudaSuccess);
    IS(cudaMemcpyPeer(d, 1, d + 100, 0, 16), cudaErrorInvalidDevice);
    int *freed;
    CHECK(cudaMalloc(&freed, 4 << 20));
    CHECK(cudaFree(freed));
    IS(cudaFree(freed), cudaErrorInvalidValue);
    IS(cudaMemset(freed, 0, 4), cudaErrorInvalidValue);
    void *p;
    IS(cudaHostAlloc(&p, 64, 0x100), cudaErrorInvalidValue);
    IS(cudaMallocManaged(&p, 64, 4), cudaErrorInvalidValue);
    IS(cudaMallocHost(&p, 0), cudaSuccess);
    IS(cudaHostGetDevicePointer(&p, h, 0), cudaErrorInvalidValue);
    IS(cudaMemAdvise(h, 64, cudaMemAdviseSetReadMostly, {cudaMemLocationTypeDevice, 0}), cudaErrorInvalidValue);
    IS(cudaMemPrefetchAsync(d, 64, {cudaMemLocationTypeDevice, 0}, 0, 0), cudaErrorInvalidValue);
}

static void callbacks() {
    static std::atomic<int> code[8];
    CHECK(cudaLaunchHostFunc(stream, [](void *) {
        void *p; int n; CUcontext c;
        code[0] = cudaMalloc(&p, 4); code[1] = cudaDeviceSynchronize(); code[2] = cudaGetDevice(&n); code[3] = cudaMemcpy(&n, &n, 4, cudaMemcpyDefault);
        code[4] = cudaStreamQuery(0); code[5] = cudaFree(0); code[6] = cuCtxGetCurrent(&c); code[7] = cuDriverGetVersion(&n);
    }, nullptr));
    CHECK(cudaStreamSynchronize(stream));
    const int wanted[8] = {800, 800, 0, 800, 800, 800, 800, 0};
    for (int i = 0; i < 8; i++) EXPECT_EQ(code[i].load(), wanted[i]);
    IS(cudaStreamAddCallback(stream, nullptr, nullptr, 0), cudaErrorInvalidValue);
    IS(cudaLaunchHostFunc(stream, nullptr, nullptr), cudaErrorInvalidValue);
    IS(cudaStreamAddCallback(stream, [](cudaStream_t, cudaError_t, void *) {}, nullptr, 1), cudaErrorInvalidValue);
}

static void captures() {
    cudaGraph_t g = nullptr;
    int *q = nullptr;
    IS(cudaStreamBeginCapture(stream, (cudaStreamCaptureMode)7), cudaErrorInvalidValue);
    IS(cudaStreamEndCapture(stream, &g), cudaErrorIllegalState);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    IS(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
    IS(cudaMalloc(&q, 4), cudaErrorStreamCaptureUnsupported);
    IS(cudaStreamEndCapture(stream, &g), cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    IS(cudaMalloc(&q, 4), cudaSuccess);
    add<<<1, 1>>>(d, 1); IS(cudaGetLastError(), cudaErrorStreamCaptureImplicit);
    IS(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
    IS(cudaStreamEndCapture(stream, &g), cudaErrorStreamCaptureInvalidated);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    std::thread([&] { IS(cudaMalloc(&q, 4), cudaSuccess); IS(cudaStreamEndCapture(stream, &g), cudaErrorStreamCaptureWrongThread); }).join();
    IS(cudaStreamEndCapture(stream, &g), cudaErrorIllegalState);
    cudaStream_t other;
    cudaEvent_t e, f;
    CHECK(cudaStreamCreate(&other));
    CHECK(cudaEventCreate(&e));
    CHECK(cudaEventCreate(&f));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(e, stream));
    CHECK(cudaStreamWaitEvent(other, e));
    add<<<1, 1, 0, other>>>(d, 1);
    IS(cudaStreamEndCapture(stream, &g), cudaErrorStreamCaptureUnjoined);
    IS(cudaStreamQuery(other), cudaSuccess);
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK(cudaEventRecord(e, stream));
    CHECK(cudaStreamWaitEvent(other, e));
    IS(cudaStreamEndCapture(other, &g), cudaErrorStreamCaptureUnmatched);
    IS(cudaEventRecord(f, other), cudaErrorStreamCaptureInvalidated);
    IS(cudaStreamEndCapture(stream, &g), cudaErrorStreamCaptureInvalidated);
}

static void graphs() {
    cudaGraph_t g, empty;
    cudaGraphNode_t a, b;
    cudaGraphExec_t x;
    CHECK(cudaGraphCreate(&g, 0));
    CHECK(cudaGraphAddEmptyNode(&a, g, nullptr, 0));
    CHECK(cudaGraphAddEmptyNode(&b, g, &a, 1));
    IS(cudaGraphAddDependencies(g, &a, &b, nullptr, 1), cudaErrorInvalidValue);
    IS(cudaGraphAddDependencies(g, &a, &a, nullptr, 1), cudaErrorInvalidValue);
    IS(cudaGraphAddDependencies(g, &b, &a, nullptr, 1), cudaSuccess);
    IS(cudaGraphInstantiate(&x, g, 0), cudaErrorInvalidValue);
    CHECK(cudaGraphCreate(&empty, 0));
    IS(cudaGraphInstantiate(&x, empty, 0), cudaSuccess);
    IS(cudaGraphLaunch(x, stream), cudaSuccess);
    IS(cudaStreamSynchronize(stream), cudaSuccess);
    IS(cudaGraphCreate(&g, 1), cudaErrorInvalidValue);
    IS(cudaGraphInstantiate(&x, empty, 0x100), cudaErrorInvalidValue);
}

static void others() {
    cudaEvent_t a, b;
    float ms = 0;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    CHECK(cudaEventRecord(a));
    spin<<<1, 1>>>(d, 100000);
    CHECK(cudaEventRecord(b));
    CHECK(cudaEventSynchronize(b));
    IS(cudaEventElapsedTime(&ms, b, a), cudaSuccess); EXPECT(ms < 0);
    IS(cudaEventElapsedTime(nullptr, a, b), cudaErrorInvalidValue);
    DRV(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, ~(size_t)0), CUDA_ERROR_INVALID_VALUE);
    DRV(cuCtxSetLimit((CUlimit)99, 1), CUDA_ERROR_INVALID_VALUE);
    DRV(cuDevicePrimaryCtxSetFlags(0, 0x1000), CUDA_ERROR_INVALID_VALUE);
    DRV(cuDevicePrimaryCtxSetFlags(7, 0), CUDA_ERROR_INVALID_DEVICE);
    CUdevice device;
    DRV(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
    char name[4];
    DRV(cuDeviceGetName(name, 0, 0), CUDA_ERROR_INVALID_VALUE);
    DRV(cuDeviceGetName(name, 4, 0), CUDA_SUCCESS); EXPECT_EQ(name[3], 0);
    CUdeviceptr p;
    size_t pitch;
    DRV(cuMemAllocPitch(&p, &pitch, 100, 10, 3), CUDA_ERROR_INVALID_VALUE);
    DRV(cuMemAlloc(&p, ~(size_t)0), CUDA_ERROR_OUT_OF_MEMORY);
    DRV(cuMemsetD32((CUdeviceptr)d + 2, 0, 4), CUDA_ERROR_INVALID_VALUE);
    DRV(cuMemsetD16((CUdeviceptr)d + 1, 0, 4), CUDA_ERROR_INVALID_VALUE);
    void *function = nullptr;
    CUdriverProcAddressQueryResult found;
    DRV(cuGetProcAddress("cuMemAlloc", &function, 1000, 0, &found), CUDA_SUCCESS); EXPECT_EQ((int)found, (int)CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    DRV(cuGetProcAddress("cuMemAlloc", &function, 12000, 0x80, &found), CUDA_ERROR_INVALID_VALUE);
    DRV(cuGetProcAddress("cumemalloc", &function, 12000, 0, &found), CUDA_SUCCESS); EXPECT(function == nullptr);
    cudaStream_t s;
    IS(cudaStreamCreateWithPriority(&s, 0, -1000), cudaSuccess);
    IS(cudaStreamCreateWithFlags(&s, 8), cudaErrorInvalidValue);
    IS(cudaSetDeviceFlags(0x1000), cudaErrorInvalidValue);
}

int main() {
    CHECK(cudaMalloc(&d, 1 << 20));
    CHECK(cudaMemset(d, 0, 1 << 20));
    CHECK(cudaStreamCreate(&stream));
    launches();
    copies();
    callbacks();
    captures();
    graphs();
    others();
    CHECK(cudaDeviceSynchronize());
    return finish();
}
