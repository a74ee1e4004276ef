#include "check.h"
#include <cuda.h>
// Every kind of node: memset, host, child, empty; edges asked for and changed; an update of the whole.
__global__ void add(int *p, int v) { p[threadIdx.x] += v; }
static void count(void *p) { ++*(int *)p; }
int main() {
    Device<int> d(32);
    int *p = d, v = 3, calls = 0;
    cudaGraph_t g, child;
    CHECK(cudaGraphCreate(&g, 0));
    CHECK(cudaGraphCreate(&child, 0));
    cudaMemsetParams m = {};
    m.dst = p, m.elementSize = 4, m.value = 10, m.width = 32, m.height = 1;
    cudaGraphNode_t set, inner, nested, host, empty;
    CHECK(cudaGraphAddMemsetNode(&set, g, nullptr, 0, &m));
    void *args[] = {&p, &v};
    cudaKernelNodeParams k = {};
    k.func = (void *)add, k.gridDim = 1, k.blockDim = 32, k.kernelParams = args;
    CHECK(cudaGraphAddKernelNode(&inner, child, nullptr, 0, &k));
    CHECK(cudaGraphAddKernelNode(&nested, child, &inner, 1, &k));
    CHECK(cudaGraphAddChildGraphNode(&nested, g, &set, 1, child));
    cudaHostNodeParams h = {count, &calls};
    CHECK(cudaGraphAddHostNode(&host, g, &nested, 1, &h));
    CHECK(cudaGraphAddEmptyNode(&empty, g, nullptr, 0));
    CHECK(cudaGraphAddDependencies(g, &host, &empty, nullptr, 1));
    size_t n = 0, roots = 0, edges = 0, before = 0;
    CHECK(cudaGraphGetNodes(g, nullptr, &n));
    CHECK(cudaGraphGetRootNodes(g, nullptr, &roots));
    CHECK(cudaGraphGetEdges(g, nullptr, nullptr, nullptr, &edges));
    CHECK(cudaGraphNodeGetDependencies(empty, nullptr, nullptr, &before));
    EXPECT_EQ(n, 4u);
    EXPECT_EQ(roots, 1u);
    EXPECT_EQ(edges, 3u);
    EXPECT_EQ(before, 1u);
    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(nested, &type));
    EXPECT_EQ(type, cudaGraphNodeTypeGraph);
    cudaGraphExec_t x;
    CHECK(cudaGraphInstantiate(&x, g, 0));
    CHECK(cudaGraphLaunch(x, 0));
    CHECK(cudaGraphLaunch(x, 0));
    CHECK(cudaDeviceSynchronize());
    EXPECT_EQ(calls, 2);
    for (int e : d.host()) EXPECT_EQ(e, 16);
    m.value = 100;
    CHECK(cudaGraphMemsetNodeSetParams(set, &m));
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(x, g, &info));
    CHECK(cudaGraphLaunch(x, 0));
    CHECK(cudaDeviceSynchronize());
    EXPECT_EQ(d.host()[31], 106);
    CHECK(cudaGraphDestroyNode(empty));
    EXPECT_ERROR(cudaGraphExecUpdate(x, g, &info), cudaErrorGraphExecUpdateFailure);
    cudaGetLastError();
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphDestroy(child));
    CHECK(cudaGraphDestroy(g));
    return finish();
}
