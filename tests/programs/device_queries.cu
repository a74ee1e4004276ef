#include "check.h"
#include <string>
// What a program asks a device, a kernel and a texture about, and what it may set.
template <int N> __global__ void shared_kernel(float *p) { __shared__ float s[N]; s[threadIdx.x] = p[threadIdx.x]; __syncthreads(); p[threadIdx.x] = s[N - 1 - threadIdx.x]; }
__global__ __launch_bounds__(128) void bounded(int *p, double x, char c) { *p = (int)x + c; }
// The architecture nvcc compiled this for, as a kernel knows it.
__global__ void architecture(int *out) {
#ifdef __CUDA_ARCH__
    *out = __CUDA_ARCH__ / 10;
#endif
}
static int built_for() {
    Device<int> d(1);
    architecture<<<1, 1>>>(d);
    return d.host()[0];
}

int main() {
    int can = 7, value = 0;
    // Itself is no peer.
    CHECK(cudaDeviceCanAccessPeer(&can, 0, 0));
    EXPECT_EQ(can, 0);
    EXPECT_ERROR(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessUnsupported); cudaGetLastError();
    EXPECT_ERROR(cudaDeviceCanAccessPeer(&can, 0, 99), cudaErrorInvalidDevice); cudaGetLastError();
    cudaDeviceProp wish = {};
    wish.major = 7;
    CHECK(cudaChooseDevice(&value, &wish));
    EXPECT_EQ(value, 0);
    char bus[32];
    CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
    CHECK(cudaDeviceGetByPCIBusId(&value, bus));
    EXPECT_EQ(value, 0);
    size_t limit = 0, more = 0;
    CHECK(cudaDeviceGetLimit(&limit, cudaLimitStackSize));
    EXPECT(limit >= 1024);
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 8192));
    CHECK(cudaDeviceGetLimit(&more, cudaLimitStackSize));
    EXPECT_EQ(more, (size_t)8192);
    CHECK(cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
    EXPECT(limit >= 8 << 20);
    CHECK(cudaDeviceGetLimit(&limit, cudaLimitPrintfFifoSize));
    EXPECT(limit > 0);
    unsigned flags = 0;
    CHECK(cudaGetDeviceFlags(&flags));
    cudaFuncCache cache;
    CHECK(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
    CHECK(cudaDeviceGetCacheConfig(&cache));

    cudaFuncAttributes a;
    CHECK(cudaFuncGetAttributes(&a, shared_kernel<256>));
    EXPECT(a.sharedSizeBytes == 1024 && a.maxThreadsPerBlock >= 256 && a.numRegs > 0);
    EXPECT_EQ(a.ptxVersion, built_for());
    CHECK(cudaFuncGetAttributes(&a, bounded));
    EXPECT(a.maxThreadsPerBlock == 128 && a.sharedSizeBytes == 0);
    int *none = nullptr;
    double x = 1;
    char c = 2;
    void *args[] = {&none, &x, &c};
    EXPECT(cudaLaunchKernel((void *)bounded, dim3(1), dim3(129), args, 0, nullptr) != cudaSuccess); cudaGetLastError();
    CHECK(cudaFuncSetCacheConfig(bounded, cudaFuncCachePreferShared));
    CHECK(cudaFuncSetAttribute(bounded, cudaFuncAttributePreferredSharedMemoryCarveout, 50));
    EXPECT_ERROR(cudaFuncSetAttribute(bounded, cudaFuncAttributePreferredSharedMemoryCarveout, 101), cudaErrorInvalidValue); cudaGetLastError();
    int blocks = 0, with_flags = 0, grid = 0, block = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, bounded, 128, 0));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&with_flags, bounded, 128, 0, cudaOccupancyDisableCachingOverride));
    EXPECT(blocks > 0 && blocks == with_flags);
    CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, bounded, 0, 0));
    EXPECT(grid > 0 && block > 0 && block <= 128);
#if CUDART_VERSION >= 12030
    const char *name = nullptr;
    CHECK(cudaFuncGetName(&name, (const void *)bounded));
    EXPECT(std::string(name).find("bounded") != std::string::npos);
#endif
#if CUDART_VERSION >= 12040
    size_t offset = 0, size = 0;
    CHECK(cudaFuncGetParamInfo((const void *)bounded, 2, &offset, &size));
    EXPECT(offset == 16 && size == 1);
    EXPECT_ERROR(cudaFuncGetParamInfo((const void *)bounded, 3, &offset, &size), cudaErrorInvalidValue); cudaGetLastError();
#endif

    cudaArray_t array;
    cudaChannelFormatDesc two = cudaCreateChannelDesc<float2>(), told;
    CHECK(cudaMallocArray(&array, &two, 32, 16));
    CHECK(cudaGetChannelDesc(&told, array));
    EXPECT(told.x == 32 && told.y == 32 && told.z == 0 && told.f == cudaChannelFormatKindFloat);
    cudaResourceDesc resource = {}, resource_told = {};
    resource.resType = cudaResourceTypeArray; resource.res.array.array = array;
    cudaTextureDesc texture = {}, texture_told = {};
    texture.addressMode[0] = cudaAddressModeMirror; texture.addressMode[1] = cudaAddressModeWrap;
    texture.filterMode = cudaFilterModeLinear; texture.normalizedCoords = 1;
    cudaTextureObject_t t;
    CHECK(cudaCreateTextureObject(&t, &resource, &texture, nullptr));
    CHECK(cudaGetTextureObjectResourceDesc(&resource_told, t));
    EXPECT(resource_told.resType == cudaResourceTypeArray && resource_told.res.array.array == array);
    CHECK(cudaGetTextureObjectTextureDesc(&texture_told, t));
    EXPECT(texture_told.addressMode[0] == cudaAddressModeMirror && texture_told.filterMode == cudaFilterModeLinear && texture_told.normalizedCoords == 1);
    CHECK(cudaDestroyTextureObject(t));
    CHECK(cudaFreeArray(array));
    Device<float> d(256);
    shared_kernel<256><<<1, 256>>>(d);
    CHECK(cudaDeviceSynchronize());
    return finish();
}
