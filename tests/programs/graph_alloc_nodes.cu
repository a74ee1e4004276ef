#include "check.h"
// Memory that lives inside a graph: made and freed by nodes, counted, and trimmed afterwards.
__global__ void put(int *p, int n) { for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = i * 3; }
__global__ void take(const int *p, int *out, int n) { for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = p[i] + 1; }
int main() {
    const int n = 1 << 18;
    Device<int> out(n);
    cudaGraph_t g;
    CHECK(cudaGraphCreate(&g, 0));
    cudaMemAllocNodeParams alloc = {};
    alloc.poolProps.allocType = cudaMemAllocationTypePinned;
    alloc.poolProps.location.type = cudaMemLocationTypeDevice;
    alloc.bytesize = n * sizeof(int);
    cudaGraphNode_t a, k, t, f;
    CHECK(cudaGraphAddMemAllocNode(&a, g, nullptr, 0, &alloc));
    EXPECT(alloc.dptr != nullptr);
    int *p = (int *)alloc.dptr, *o = out, count = n;
    cudaMemAllocNodeParams read = {};
    CHECK(cudaGraphMemAllocNodeGetParams(a, &read));
    EXPECT(read.dptr == alloc.dptr && read.bytesize == alloc.bytesize);
    void *put_args[] = {&p, &count}, *take_args[] = {&p, &o, &count};
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)put; kernel.gridDim = dim3(1); kernel.blockDim = dim3(256); kernel.kernelParams = put_args;
    CHECK(cudaGraphAddKernelNode(&k, g, &a, 1, &kernel));
    kernel.func = (void *)take; kernel.kernelParams = take_args;
    CHECK(cudaGraphAddKernelNode(&t, g, &k, 1, &kernel));
    CHECK(cudaGraphAddMemFreeNode(&f, g, &t, 1, alloc.dptr));
    void *freed = nullptr;
    CHECK(cudaGraphMemFreeNodeGetParams(f, &freed));
    EXPECT(freed == alloc.dptr);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, g, 0));
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    for (int round = 0; round < 3; round++) CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaStreamSynchronize(s));
    auto h = out.host();
    for (int i = 0; i < n; i++) EXPECT_EQ(h[i], i * 3 + 1);
    unsigned long long reserved = 0, used = 1;
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &reserved));
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemCurrent, &used));
    // The graph keeps its memory between launches.
    EXPECT(used >= alloc.bytesize && used <= reserved);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(g));
    CHECK(cudaDeviceGraphMemTrim(0));
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &reserved));
    EXPECT_EQ(reserved, 0ull);
    return finish();
}
