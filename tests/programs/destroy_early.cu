// nvcc: -std=c++17 -lcuda
#include "check.h"
#include <cuda.h>
#include <ctime>
#include <thread>
// Objects that are destroyed while queued work still uses them live until that work is done.
#define DRIVER(call) do { CUresult e_ = (call); if (e_ != CUDA_SUCCESS) { printf("%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, (int)e_); exit(1); } } while (0)
__global__ void hold(volatile int *go) { while (!*go) ; }
__global__ void read(cudaTextureObject_t t, float *out) { out[threadIdx.x] = tex1Dfetch<float>(t, threadIdx.x); }
__global__ void read2(cudaTextureObject_t t, float *out) { out[threadIdx.x] = tex2D<float>(t, threadIdx.x % 8 + 0.5f, threadIdx.x / 8 + 0.5f); }
__global__ void write(cudaSurfaceObject_t s) { surf2Dwrite((float)(threadIdx.x * 3), s, (threadIdx.x % 8) * 4, threadIdx.x / 8); }
__global__ void fill(int *p, int v) { p[threadIdx.x] = v; }
static const char *ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 4 .u32 seven = 7;\n.visible .entry k(.param .u64 p) { .reg .b64 %d<3>; .reg .b32 %r<3>; ld.param.u64 %d1, [p]; ld.global.u32 %r1, [seven]; st.global.u32 [%d1], %r1; ret; }\n";
int main() {
    volatile int *go;
    CHECK(cudaHostAlloc((void **)&go, 4, cudaHostAllocMapped));
    int *go_device;
    CHECK(cudaHostGetDevicePointer((void **)&go_device, (void *)go, 0));
    std::vector<float> values(64);
    for (int i = 0; i < 64; i++) values[i] = i * 2;
    Device<float> linear(values), out1(64), out2(64);
    Device<int> ints(64), seven(1);
    cudaStream_t s, other;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    cudaArray_t array, target;
    auto format = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocArray(&array, &format, 8, 8));
    CHECK(cudaMallocArray(&target, &format, 8, 8, cudaArraySurfaceLoadStore));
    CHECK(cudaMemcpy2DToArray(array, 0, 0, values.data(), 32, 32, 8, cudaMemcpyHostToDevice));
    cudaTextureObject_t t1, t2;
    cudaSurfaceObject_t f;
    cudaTextureDesc how = {};
    cudaResourceDesc what = {};
    what.resType = cudaResourceTypeLinear;
    what.res.linear.devPtr = linear.p; what.res.linear.desc = format; what.res.linear.sizeInBytes = 256;
    CHECK(cudaCreateTextureObject(&t1, &what, &how, nullptr));
    what = {}; what.resType = cudaResourceTypeArray; what.res.array.array = array;
    CHECK(cudaCreateTextureObject(&t2, &what, &how, nullptr));
    what.res.array.array = target;
    CHECK(cudaCreateSurfaceObject(&f, &what));
    CUmodule module;
    CUfunction k;
    CHECK(cudaFree(0));
    DRIVER(cuModuleLoadData(&module, ptx));
    DRIVER(cuModuleGetFunction(&k, module, "k"));
    // Work that waits for the flag, then everything that uses the objects.
    hold<<<1, 1, 0, s>>>(go_device);
    read<<<1, 64, 0, s>>>(t1, out1);
    read2<<<1, 64, 0, s>>>(t2, out2);
    write<<<1, 64, 0, s>>>(f);
    void *args[] = {&seven.p};
    DRIVER(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, s, args, nullptr));
    cudaEvent_t e;
    CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    CHECK(cudaEventRecord(e, s));
    CHECK(cudaStreamWaitEvent(other, e, 0));
    fill<<<1, 64, 0, other>>>(ints, 5);
    CHECK(cudaEventDestroy(e));
    CHECK(cudaDestroyTextureObject(t1));
    CHECK(cudaDestroyTextureObject(t2));
    CHECK(cudaDestroySurfaceObject(f));
    CHECK(cudaStreamDestroy(s));
    CHECK(cudaStreamDestroy(other));
    // New objects must not take the place of those still in use.
    what = {}; what.resType = cudaResourceTypeLinear;
    Device<float> zeros(std::vector<float>(64, -1));
    what.res.linear.devPtr = zeros.p; what.res.linear.desc = format; what.res.linear.sizeInBytes = 256;
    cudaTextureObject_t later[4];
    for (auto &t : later) CHECK(cudaCreateTextureObject(&t, &what, &how, nullptr));
    // Unloading may wait for the kernel, so the flag comes from elsewhere.
    std::thread release([&] { struct timespec t = {0, 200000000}; nanosleep(&t, nullptr); *go = 1; });
    DRIVER(cuModuleUnload(module));
    release.join();
    CHECK(cudaDeviceSynchronize());
    auto a = out1.host(), b = out2.host();
    auto c = ints.host();
    for (int i = 0; i < 64; i++) { EXPECT_EQ(a[i], i * 2.f); EXPECT_EQ(b[i], i * 2.f); EXPECT_EQ(c[i], 5); }
    EXPECT_EQ(seven.host()[0], 7);
    std::vector<float> written(64);
    CHECK(cudaMemcpy2DFromArray(written.data(), 32, target, 0, 0, 32, 8, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++) EXPECT_EQ(written[i], i * 3.f);
    for (auto t : later) CHECK(cudaDestroyTextureObject(t));
    CHECK(cudaFreeArray(array));
    CHECK(cudaFreeArray(target));
    return finish();
}
