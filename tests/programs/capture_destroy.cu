#include "check.h"
// Streams and events that took part in a capture may go before the capture ends, once they have joined it again.
__global__ void add(int *p, int v) { atomicAdd(p, v); }
int main() {
    Device<int> d(std::vector<int>(1, 0));
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (int round = 0; round < 3; round++) {
        cudaStream_t other;
        cudaEvent_t fork, join;
        CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
        CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
        add<<<1, 32, 0, s>>>(d, 1);
        CHECK(cudaEventRecord(fork, s));
        CHECK(cudaStreamWaitEvent(other, fork, 0));
        add<<<1, 32, 0, other>>>(d, 10);
        CHECK(cudaEventRecord(join, other));
        CHECK(cudaStreamWaitEvent(s, join, 0));
        CHECK(cudaEventDestroy(fork));
        CHECK(cudaEventDestroy(join));
        CHECK(cudaStreamDestroy(other));
        cudaStreamCaptureStatus status;
        CHECK(cudaStreamIsCapturing(s, &status));
        EXPECT(status == cudaStreamCaptureStatusActive);
        add<<<1, 32, 0, s>>>(d, 100);
    }
    cudaGraph_t g;
    CHECK(cudaStreamEndCapture(s, &g));
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(g, nullptr, &nodes));
    EXPECT_EQ(nodes, (size_t)9);
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, g, 0));
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(d.host()[0], 3 * 32 * 111);
    // One that has not joined leaves its work out of the graph, which its origin says at the end.
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    cudaStream_t lost;
    cudaEvent_t fork;
    CHECK(cudaStreamCreateWithFlags(&lost, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CHECK(cudaEventRecord(fork, s));
    CHECK(cudaStreamWaitEvent(lost, fork, 0));
    add<<<1, 32, 0, lost>>>(d, 10);
    CHECK(cudaStreamDestroy(lost));
    cudaGraph_t none = nullptr;
    EXPECT_ERROR(cudaStreamEndCapture(s, &none), cudaErrorStreamCaptureUnjoined);
    cudaGetLastError();
    EXPECT(none == nullptr);
    add<<<1, 32, 0, s>>>(d, 1);
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(d.host()[0], 3 * 32 * 111 + 32);
    return finish();
}
