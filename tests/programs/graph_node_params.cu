#include "check.h"
// What a node does can be read and changed; copies of a graph have nodes of their own.
__global__ void put(int *p, int value, int n) { int i = threadIdx.x; if (i < n) p[i] = value; }
static int called = 0;
static void host(void *p) { called += *(int *)p; }
int main() {
    Device<int> d(64), e(64);
    int h[64], one = 1, ten = 10;
    cudaGraph_t g;
    CHECK(cudaGraphCreate(&g, 0));
    int *p = d, value = 5, n = 64;
    void *args[] = {&p, &value, &n};
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)put; kernel.gridDim = dim3(1); kernel.blockDim = dim3(64); kernel.kernelParams = args;
    cudaGraphNode_t k, c, m, f;
    CHECK(cudaGraphAddKernelNode(&k, g, nullptr, 0, &kernel));
    // The parameters were copied: changing the program's changes nothing.
    value = 99;
    cudaKernelNodeParams read = {};
    CHECK(cudaGraphKernelNodeGetParams(k, &read));
    EXPECT(read.func == (void *)put && read.blockDim.x == 64 && read.gridDim.x == 1);
    EXPECT(*(int **)read.kernelParams[0] == (int *)d && *(int *)read.kernelParams[1] == 5);
    CHECK(cudaGraphAddMemcpyNode1D(&c, g, &k, 1, h, d, sizeof h, cudaMemcpyDeviceToHost));
    cudaMemsetParams set = {};
    set.dst = e; set.elementSize = 4; set.value = 0x01020304; set.width = 64; set.height = 1;
    CHECK(cudaGraphAddMemsetNode(&m, g, nullptr, 0, &set));
    cudaMemsetParams back = {};
    CHECK(cudaGraphMemsetNodeGetParams(m, &back));
    EXPECT(back.dst == (void *)e && back.elementSize == 4 && back.value == 0x01020304 && back.width == 64);
    cudaHostNodeParams call = {host, &one}, call_back = {};
    CHECK(cudaGraphAddHostNode(&f, g, &c, 1, &call));
    CHECK(cudaGraphHostNodeGetParams(f, &call_back));
    EXPECT(call_back.fn == host && call_back.userData == &one);
    cudaGraphNodeType type;
    CHECK(cudaGraphNodeGetType(m, &type));
    EXPECT(type == cudaGraphNodeTypeMemset);
    cudaMemcpy3DParms copy = {};
    CHECK(cudaGraphMemcpyNodeGetParams(c, &copy));
    EXPECT(copy.srcPtr.ptr == (void *)d && copy.dstPtr.ptr == (void *)h && copy.extent.width == sizeof h);

    cudaGraph_t clone;
    CHECK(cudaGraphClone(&clone, g));
    cudaGraphNode_t k2, f2;
    CHECK(cudaGraphNodeFindInClone(&k2, k, clone));
    CHECK(cudaGraphNodeFindInClone(&f2, f, clone));
    EXPECT(k2 != k && f2 != f);
    EXPECT_ERROR(cudaGraphNodeFindInClone(&k2, k2, g), cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaGraphNodeFindInClone(&k2, k, clone));
    value = 6;
    CHECK(cudaGraphKernelNodeSetParams(k2, &kernel));
    call.userData = &ten;
    CHECK(cudaGraphHostNodeSetParams(f2, &call));

    cudaGraphExec_t first, second;
    CHECK(cudaGraphInstantiate(&first, g, 0));
    CHECK(cudaGraphInstantiateWithFlags(&second, clone, 0));
    unsigned long long flags = 7;
    CHECK(cudaGraphExecGetFlags(second, &flags));
    EXPECT_EQ(flags, 0ull);
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    CHECK(cudaGraphUpload(first, s));
    CHECK(cudaGraphLaunch(first, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT(h[63] == 5 && called == 1 && e.host()[63] == 0x01020304);
    CHECK(cudaGraphLaunch(second, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT(h[0] == 6 && called == 11);

    // Nodes that are switched off do nothing; the rest goes on.
    unsigned enabled = 0;
    CHECK(cudaGraphNodeGetEnabled(second, k2, &enabled));
    EXPECT_EQ(enabled, 1u);
    CHECK(cudaGraphNodeSetEnabled(second, k2, 0));
    CHECK(cudaGraphNodeGetEnabled(second, k2, &enabled));
    EXPECT_EQ(enabled, 0u);
    CHECK(cudaMemset(d, 0, 256));
    CHECK(cudaGraphLaunch(second, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT(h[0] == 0 && called == 21);
    CHECK(cudaGraphExecDestroy(first));
    CHECK(cudaGraphExecDestroy(second));
    CHECK(cudaGraphDestroy(clone));

    // A node that is gone is gone from its neighbours' lists.
    size_t count = 0;
    CHECK(cudaGraphGetNodes(g, nullptr, &count));
    EXPECT_EQ(count, (size_t)4);
    CHECK(cudaGraphDestroyNode(c));
    CHECK(cudaGraphGetNodes(g, nullptr, &count));
    EXPECT_EQ(count, (size_t)3);
    CHECK(cudaGraphGetRootNodes(g, nullptr, &count));
    EXPECT_EQ(count, (size_t)3);
    CHECK(cudaGraphDestroy(g));
    return finish();
}
