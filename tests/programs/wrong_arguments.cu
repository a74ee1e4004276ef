#include "check.h"
// Wrong arguments of the runtime's calls: the code, at once, and everything goes on afterwards.
__constant__ int constant;
__global__ void k(int *p) { if (p) *p = 1; }
static int not_a_symbol;
#define WRONG(call, code) do { EXPECT_ERROR(call, code); EXPECT_ERROR(cudaGetLastError(), code); EXPECT_ERROR(cudaGetLastError(), cudaSuccess); } while (0)
int main() {
    int count, value;
    void *p = nullptr;
    char host[256];
    CHECK(cudaGetDeviceCount(&count));
    WRONG(cudaSetDevice(count), cudaErrorInvalidDevice);
    WRONG(cudaSetDevice(-1), cudaErrorInvalidDevice);
    cudaDeviceProp props;
    WRONG(cudaGetDeviceProperties(&props, 99), cudaErrorInvalidDevice);
    WRONG(cudaDeviceGetAttribute(&value, cudaDevAttrWarpSize, 99), cudaErrorInvalidDevice);
    WRONG(cudaDeviceGetAttribute(&value, (cudaDeviceAttr)9999, 0), cudaErrorInvalidValue);
    WRONG(cudaMalloc(nullptr, 16), cudaErrorInvalidValue);
    WRONG(cudaMalloc(&p, ~(size_t)0 / 2), cudaErrorMemoryAllocation);
    WRONG(cudaMallocHost(nullptr, 16), cudaErrorInvalidValue);
    CHECK(cudaMalloc(&p, 0));
    EXPECT(p == nullptr);
    CHECK(cudaFree(nullptr));
    CHECK(cudaMalloc(&p, 1024));
    WRONG(cudaFree((char *)p + 16), cudaErrorInvalidValue);
    WRONG(cudaFree(host), cudaErrorInvalidValue);
    WRONG(cudaFreeHost(host), cudaErrorInvalidValue);
    WRONG(cudaMemcpy(p, host, 16, (cudaMemcpyKind)42), cudaErrorInvalidMemcpyDirection);
    WRONG(cudaMemcpy(p, nullptr, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    CHECK(cudaMemcpy(p, nullptr, 0, cudaMemcpyHostToDevice));
    WRONG(cudaMemcpy2D(p, 8, host, 16, 16, 2, cudaMemcpyHostToDevice), cudaErrorInvalidPitchValue);
    WRONG(cudaMemset(nullptr, 0, 16), cudaErrorInvalidValue);
    WRONG(cudaMemcpyToSymbol(&not_a_symbol, &value, 4), cudaErrorInvalidSymbol);
    WRONG(cudaMemcpyToSymbol(constant, &value, 8), cudaErrorInvalidValue);
    WRONG(cudaGetSymbolAddress(&p, &not_a_symbol), cudaErrorInvalidSymbol);
    cudaFuncAttributes attributes;
    // What is no kernel may be taken for a handle of one first.
    for (cudaError_t e : {cudaFuncGetAttributes(&attributes, &not_a_symbol), cudaLaunchKernel(&not_a_symbol, dim3(1), dim3(1), nullptr, 0, nullptr)}) EXPECT(e == cudaErrorInvalidDeviceFunction || e == cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    void *null = nullptr, *args[] = {&null};
    WRONG(cudaLaunchKernel((void *)k, dim3(0), dim3(1), args, 0, nullptr), cudaErrorInvalidValue);
    WRONG(cudaLaunchKernel((void *)k, dim3(1), dim3(2048), args, 0, nullptr), cudaErrorInvalidValue);
    WRONG(cudaLaunchKernel((void *)k, dim3(1), dim3(1, 1, 128), args, 0, nullptr), cudaErrorInvalidValue);
    WRONG(cudaLaunchKernel((void *)k, dim3(1), dim3(1), args, 1 << 20, nullptr), cudaErrorInvalidValue);
    cudaEvent_t plain, untimed;
    CHECK(cudaEventCreate(&plain));
    CHECK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    float ms;
    WRONG(cudaEventElapsedTime(&ms, plain, plain), cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(plain));
    CHECK(cudaEventRecord(untimed));
    CHECK(cudaDeviceSynchronize());
    WRONG(cudaEventElapsedTime(&ms, plain, untimed), cudaErrorInvalidResourceHandle);
    WRONG(cudaEventCreateWithFlags(&plain, 64), cudaErrorInvalidValue);
    WRONG(cudaStreamWaitEvent(0, untimed, 2), cudaErrorInvalidValue);
    cudaArray_t array;
    cudaChannelFormatDesc odd = {7, 0, 0, 0, cudaChannelFormatKindSigned};
    WRONG(cudaMallocArray(&array, &odd, 16, 16), cudaErrorInvalidChannelDescriptor);
    size_t size;
    WRONG(cudaDeviceGetLimit(&size, (cudaLimit)99), cudaErrorInvalidValue);
    WRONG(cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 30), cudaErrorInvalidValue);
    WRONG(cudaStreamCreateWithFlags((cudaStream_t *)nullptr, 0), cudaErrorInvalidValue);
    k<<<1, 1>>>(nullptr);
    CHECK(cudaDeviceSynchronize());
    return finish();
}
