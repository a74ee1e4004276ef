#include "check.h"
// Copies to and from symbols as nodes; what a graph holds is given back when nobody needs it.
__device__ int table[8];
__global__ void twice() { table[threadIdx.x] *= 2; }
static int destroyed = 0;
static void destroy(void *p) { destroyed += *(int *)p; }
int main() {
    int in[8], out[8] = {}, in2[8];
    for (int i = 0; i < 8; i++) { in[i] = i + 1; in2[i] = 100 * i; }
    cudaGraph_t g;
    CHECK(cudaGraphCreate(&g, 0));
    cudaGraphNode_t to, k, from;
    CHECK(cudaGraphAddMemcpyNodeToSymbol(&to, g, nullptr, 0, table, in, sizeof in, 0, cudaMemcpyHostToDevice));
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)twice; kernel.gridDim = dim3(1); kernel.blockDim = dim3(8);
    CHECK(cudaGraphAddKernelNode(&k, g, &to, 1, &kernel));
    CHECK(cudaGraphAddMemcpyNodeFromSymbol(&from, g, &k, 1, out, table, 16, 16, cudaMemcpyDeviceToHost));
    int one = 1;
    cudaUserObject_t object;
    CHECK(cudaUserObjectCreate(&object, &one, destroy, 1, cudaUserObjectNoDestructorSync));
    CHECK(cudaGraphRetainUserObject(g, object, 1, cudaGraphUserObjectMove));
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, g, 0));
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaStreamSynchronize(s));
    for (int i = 0; i < 4; i++) EXPECT_EQ(out[i], 2 * (i + 5));
    CHECK(cudaGraphExecMemcpyNodeSetParamsToSymbol(exec, to, table, in2, sizeof in2, 0, cudaMemcpyHostToDevice));
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(out[3], 1400);
    // The executable graph goes on holding what the graph held.
    CHECK(cudaGraphDestroy(g));
    EXPECT_EQ(destroyed, 0);
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaGraphExecDestroy(exec));
    // The destructor may run a moment later, on a thread of the driver's.
    for (int i = 0; i < 60000 && !*(volatile int *)&destroyed; i++) { CHECK(cudaDeviceSynchronize()); struct timespec t = {0, 1000000}; nanosleep(&t, nullptr); }
    EXPECT_EQ(destroyed, 1);
    CHECK(cudaUserObjectCreate(&object, &one, destroy, 2, cudaUserObjectNoDestructorSync));
    CHECK(cudaUserObjectRelease(object, 1));
    EXPECT_EQ(destroyed, 1);
    CHECK(cudaUserObjectRelease(object, 1));
    for (int i = 0; i < 60000 && *(volatile int *)&destroyed < 2; i++) { struct timespec t = {0, 1000000}; nanosleep(&t, nullptr); }
    EXPECT_EQ(destroyed, 2);
    return finish();
}
