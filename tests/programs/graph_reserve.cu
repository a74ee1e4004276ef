#include "check.h"
// Memory of a graph's own is taken when the graph is first launched, not when its nodes are made.
__global__ void put(int *p) { p[threadIdx.x] = threadIdx.x; }
static cudaGraph_t graph_with(size_t bytes, void **p) {
    cudaGraph_t g;
    CHECK(cudaGraphCreate(&g, 0));
    cudaMemAllocNodeParams alloc = {};
    alloc.poolProps.allocType = cudaMemAllocationTypePinned;
    alloc.poolProps.location.type = cudaMemLocationTypeDevice;
    alloc.bytesize = bytes;
    cudaGraphNode_t a, k, f;
    CHECK(cudaGraphAddMemAllocNode(&a, g, nullptr, 0, &alloc));
    *p = alloc.dptr;
    cudaKernelNodeParams kernel = {};
    void *args[] = {&alloc.dptr};
    kernel.func = (void *)put; kernel.gridDim = dim3(1); kernel.blockDim = dim3(256); kernel.kernelParams = args;
    CHECK(cudaGraphAddKernelNode(&k, g, &a, 1, &kernel));
    CHECK(cudaGraphAddMemFreeNode(&f, g, &k, 1, alloc.dptr));
    return g;
}
static unsigned long long reserved() {
    unsigned long long bytes = 0;
    CHECK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &bytes));
    return bytes;
}
int main() {
    size_t before, total, after;
    CHECK(cudaMemGetInfo(&before, &total));
    // Five graphs that together ask for more than the device has.
    const size_t bytes = total / 16 * 7;
    cudaGraph_t g[5];
    cudaGraphExec_t exec[5];
    void *p[5];
    for (int i = 0; i < 5; i++) g[i] = graph_with(bytes, p + i);
    CHECK(cudaMemGetInfo(&after, &total));
    EXPECT_EQ(reserved(), 0ull);
    EXPECT(before - after < bytes / 2);
    for (int i = 0; i < 5; i++) CHECK(cudaGraphInstantiate(&exec[i], g[i], 0));
    EXPECT_EQ(reserved(), 0ull);
    CHECK(cudaGraphLaunch(exec[0], 0));
    CHECK(cudaDeviceSynchronize());
    EXPECT(reserved() >= bytes);
    CHECK(cudaMemGetInfo(&after, &total));
    EXPECT(before - after >= bytes);
    for (int i = 0; i < 5; i++) { CHECK(cudaGraphExecDestroy(exec[i])); CHECK(cudaGraphDestroy(g[i])); }
    CHECK(cudaDeviceGraphMemTrim(0));
    EXPECT_EQ(reserved(), 0ull);
    return finish();
}
