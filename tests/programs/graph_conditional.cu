#include "check.h"
// since: 13.0
// Conditional nodes run their bodies where the device has such nodes, and are refused by name where it has not.
__global__ void add_one(int *p) { ++*p; }
__global__ void add_ten(int *p) { *p += 10; }
static void add_kernel(cudaGraph_t graph, void *func, int **p) {
    cudaGraphNode_t node;
    void *args[] = {p};
    cudaKernelNodeParams k = {};
    k.func = func; k.gridDim = dim3(1); k.blockDim = dim3(1); k.kernelParams = args;
    CHECK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &k));
}
int main() {
    Device<int> d(1);
    int *p = d;
    cudaGraphExec_t exec;
    cudaGraph_t plain;
    CHECK(cudaGraphCreate(&plain, 0));
    add_kernel(plain, (void *)add_one, &p);
    // Kernels that launch graphs are not served in isolated mode.
    cudaError_t launched_by_kernels = cudaGraphInstantiateWithFlags(&exec, plain, cudaGraphInstantiateFlagDeviceLaunch);
    EXPECT(launched_by_kernels == cudaSuccess || launched_by_kernels == cudaErrorNotSupported);
    for (unsigned value = 0; value < 3; value++) {
        cudaGraph_t g;
        CHECK(cudaGraphCreate(&g, 0));
        cudaGraphConditionalHandle handle;
        EXPECT_ERROR(cudaGraphConditionalHandleCreate(&handle, g, 0, 2), cudaErrorInvalidValue);
        cudaError_t made = cudaGraphConditionalHandleCreate(&handle, g, value, cudaGraphCondAssignDefault);
        if (made == cudaErrorNotSupported) {
            CHECK(cudaGraphDestroy(g));
            return finish();
        }
        CHECK(made);
        cudaGraphNodeParams params = {cudaGraphNodeTypeConditional};
        params.conditional.handle = handle;
        params.conditional.type = value < 2 ? cudaGraphCondTypeIf : cudaGraphCondTypeSwitch;
        params.conditional.size = 2;
        cudaGraphNode_t node;
        CHECK(cudaGraphAddNode(&node, g, nullptr, nullptr, 0, &params));
        add_kernel(params.conditional.phGraph_out[0], (void *)add_one, &p);
        add_kernel(params.conditional.phGraph_out[1], (void *)add_ten, &p);
        cudaGraph_t clone;
        EXPECT(cudaGraphClone(&clone, g) != cudaSuccess);
        CHECK(cudaMemset(p, 0, 4));
        CHECK(cudaGraphInstantiate(&exec, g, 0));
        CHECK(cudaGraphLaunch(exec, 0));
        CHECK(cudaDeviceSynchronize());
        // 0: the second body; 1: the first; 2: a switch without such a body.
        EXPECT_EQ(d.host()[0], value == 0 ? 10 : value == 1 ? 1 : 0);
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(g));
    }
    return finish();
}
