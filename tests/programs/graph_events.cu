#include "check.h"
// Events inside graphs: recorded and waited for by nodes, and by captured calls that ask for it.
__global__ void spin(long long cycles) { long long t = clock64(); while (clock64() - t < cycles); }
__global__ void put(int *p, int value) { *p = value; }
__global__ void copy(int *to, const int *from) { *to = *from; }
int main() {
    Device<int> d(2);
    CHECK(cudaMemset(d, 0, 8));
    cudaEvent_t begin, end, outside;
    CHECK(cudaEventCreate(&begin)); CHECK(cudaEventCreate(&end)); CHECK(cudaEventCreateWithFlags(&outside, cudaEventDisableTiming));
    cudaGraph_t g;
    CHECK(cudaGraphCreate(&g, 0));
    long long cycles = 200000;
    void *args[] = {&cycles};
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)spin; kernel.gridDim = dim3(1); kernel.blockDim = dim3(1); kernel.kernelParams = args;
    cudaGraphNode_t a, k, b;
    CHECK(cudaGraphAddEventRecordNode(&a, g, nullptr, 0, begin));
    CHECK(cudaGraphAddKernelNode(&k, g, &a, 1, &kernel));
    CHECK(cudaGraphAddEventRecordNode(&b, g, &k, 1, end));
    cudaEvent_t read;
    CHECK(cudaGraphEventRecordNodeGetEvent(b, &read));
    EXPECT(read == end);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, g, 0));
    cudaStream_t s, t;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaEventSynchronize(end));
    float ms = -1;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    EXPECT(ms > 0);
    CHECK(cudaGraphExecDestroy(exec)); CHECK(cudaGraphDestroy(g));

    // A wait node waits for what was recorded outside before the launch.
    int *p = d, *q = d + 1;
    CHECK(cudaGraphCreate(&g, 0));
    cudaGraphNode_t w;
    CHECK(cudaGraphAddEventWaitNode(&w, g, nullptr, 0, outside));
    CHECK(cudaGraphEventWaitNodeGetEvent(w, &read));
    EXPECT(read == outside);
    void *copy_args[] = {&q, &p};
    kernel.func = (void *)copy; kernel.kernelParams = copy_args;
    CHECK(cudaGraphAddKernelNode(&k, g, &w, 1, &kernel));
    CHECK(cudaGraphInstantiate(&exec, g, 0));
    for (int round = 1; round <= 5; round++) {
        spin<<<1, 1, 0, t>>>(2000000);
        put<<<1, 1, 0, t>>>(p, round);
        CHECK(cudaEventRecord(outside, t));
        CHECK(cudaGraphLaunch(exec, s));
        CHECK(cudaStreamSynchronize(s));
        EXPECT_EQ(d.host()[1], round);
    }
    CHECK(cudaGraphExecDestroy(exec)); CHECK(cudaGraphDestroy(g));

    // Captured with the external flag, a record becomes a node and the event is a real one.
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    put<<<1, 1, 0, s>>>(p, 77);
    CHECK(cudaEventRecordWithFlags(end, s, cudaEventRecordExternal));
    CHECK(cudaStreamEndCapture(s, &g));
    size_t count = 0;
    CHECK(cudaGraphGetNodes(g, nullptr, &count));
    EXPECT_EQ(count, (size_t)2);
    CHECK(cudaGraphInstantiate(&exec, g, 0));
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaEventSynchronize(end));
    EXPECT_EQ(d.host()[0], 77);
    CHECK(cudaGraphExecDestroy(exec)); CHECK(cudaGraphDestroy(g));
    return finish();
}
