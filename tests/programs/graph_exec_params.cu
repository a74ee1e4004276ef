#include "check.h"
// An executable graph is changed in place, node by node and as a whole; what cannot be is refused.
__global__ void put(int *p, int value) { *p = value; }
__global__ void other(int *p, int value) { *p = -value; }
static void add_to(void *p) { ++*(int *)p; }
static cudaKernelNodeParams params(void *func, void **args) {
    cudaKernelNodeParams k = {};
    k.func = func; k.gridDim = dim3(1); k.blockDim = dim3(1); k.kernelParams = args;
    return k;
}
int main() {
    Device<int> d(4);
    CHECK(cudaMemset(d, 0, 16));
    int *p = d, value = 1, x = 0, y = 0, h[4] = {};
    void *args[] = {&p, &value};
    cudaGraph_t g, child;
    cudaGraphNode_t k, m, c, f, sub, inner;
    CHECK(cudaGraphCreate(&g, 0));
    cudaKernelNodeParams kernel = params((void *)put, args);
    CHECK(cudaGraphAddKernelNode(&k, g, nullptr, 0, &kernel));
    cudaMemsetParams set = {};
    set.dst = d + 1; set.elementSize = 1; set.value = 0x11; set.width = 4; set.height = 1;
    CHECK(cudaGraphAddMemsetNode(&m, g, nullptr, 0, &set));
    CHECK(cudaGraphCreate(&child, 0));
    int *p2 = d + 2, value2 = 3;
    void *args2[] = {&p2, &value2};
    cudaKernelNodeParams kernel2 = params((void *)put, args2);
    CHECK(cudaGraphAddKernelNode(&inner, child, nullptr, 0, &kernel2));
    CHECK(cudaGraphAddChildGraphNode(&sub, g, nullptr, 0, child));
    cudaGraphNode_t before[] = {k, m, sub};
    CHECK(cudaGraphAddMemcpyNode1D(&c, g, before, 3, h, d, 16, cudaMemcpyDeviceToHost));
    cudaHostNodeParams call = {add_to, &x};
    CHECK(cudaGraphAddHostNode(&f, g, &c, 1, &call));
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, g, 0));
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    auto launch = [&] { CHECK(cudaGraphLaunch(exec, s)); CHECK(cudaStreamSynchronize(s)); };
    launch();
    EXPECT(h[0] == 1 && h[1] == 0x11111111 && h[2] == 3 && x == 1);

    value = 7;
    kernel.func = (void *)other;
    CHECK(cudaGraphExecKernelNodeSetParams(exec, k, &kernel));
    set.value = 0x22;
    CHECK(cudaGraphExecMemsetNodeSetParams(exec, m, &set));
    call.userData = &y;
    CHECK(cudaGraphExecHostNodeSetParams(exec, f, &call));
    int h2[4] = {};
    CHECK(cudaGraphExecMemcpyNodeSetParams1D(exec, c, h2, d, 16, cudaMemcpyDeviceToHost));
    launch();
    EXPECT(h2[0] == -7 && h2[1] == 0x22222222 && h2[2] == 3 && x == 1 && y == 1 && h[0] == 1);
    // The child's parameters come from a graph of the same shape.
    value2 = 30;
    CHECK(cudaGraphKernelNodeSetParams(inner, &kernel2));
    CHECK(cudaGraphExecChildGraphNodeSetParams(exec, sub, child));
    launch();
    EXPECT(h2[2] == 30 && y == 2);
    // A node of another kind is no kernel node.
    EXPECT_ERROR(cudaGraphExecKernelNodeSetParams(exec, m, &kernel), cudaErrorInvalidValue);
    cudaGetLastError();

    // The graph itself was not changed: an update brings back what it says.
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(exec, g, &info));
    EXPECT(info.result == cudaGraphExecUpdateSuccess);
    launch();
    EXPECT(h[0] == 1 && h[1] == 0x11111111 && x == 2);
    cudaGraph_t longer;
    CHECK(cudaGraphClone(&longer, g));
    cudaGraphNode_t extra;
    CHECK(cudaGraphAddEmptyNode(&extra, longer, nullptr, 0));
    EXPECT_ERROR(cudaGraphExecUpdate(exec, longer, &info), cudaErrorGraphExecUpdateFailure);
    EXPECT(info.result == cudaGraphExecUpdateErrorTopologyChanged);
    cudaGetLastError();
    launch();
    EXPECT_EQ(x, 3);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(longer));
    CHECK(cudaGraphDestroy(child));
    CHECK(cudaGraphDestroy(g));
    return finish();
}
