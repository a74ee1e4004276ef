// since: 12.3
#include "check.h"
#include <thread>
// A capture spreads over streams by events, can be looked at and steered, and lands in a given graph.
__global__ void add(int *p, int v) { atomicAdd(p, v); }
__global__ void times(int *p, int v) { *p *= v; }
static cudaStreamCaptureStatus status_of(cudaStream_t s) { cudaStreamCaptureStatus c; CHECK(cudaStreamIsCapturing(s, &c)); return c; }
// CUDA 13 puts the edges' data into the same call.
static cudaError_t cuda_capture_info(cudaStream_t s, cudaStreamCaptureStatus *c, unsigned long long *id, cudaGraph_t *g, const cudaGraphNode_t **after, size_t *count) {
#if CUDART_VERSION >= 13000
    return cudaStreamGetCaptureInfo(s, c, id, g, after, nullptr, count);
#else
    return cudaStreamGetCaptureInfo_v2(s, c, id, g, after, count);
#endif
}
int main() {
    Device<int> d(1);
    cudaStream_t s, t, u;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking)); CHECK(cudaStreamCreateWithFlags(&u, cudaStreamNonBlocking));
    cudaEvent_t fork, left, right;
    for (cudaEvent_t *e : {&fork, &left, &right}) CHECK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
    cudaGraph_t g;
    cudaGraphExec_t exec;
    EXPECT(status_of(s) == cudaStreamCaptureStatusNone);
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    add<<<1, 1, 0, s>>>(d, 1);
    CHECK(cudaEventRecord(fork, s));
    CHECK(cudaStreamWaitEvent(t, fork, 0));
    CHECK(cudaStreamWaitEvent(u, fork, 0));
    EXPECT(status_of(t) == cudaStreamCaptureStatusActive && status_of(u) == cudaStreamCaptureStatusActive);
    unsigned long long id = 0, other = 1;
    cudaStreamCaptureStatus c;
    cudaGraph_t seen;
    const cudaGraphNode_t *after;
    size_t count = 0;
    CHECK(cuda_capture_info(s, &c, &id, &seen, &after, &count));
    EXPECT(c == cudaStreamCaptureStatusActive && count == 1);
    CHECK(cuda_capture_info(t, &c, &other, nullptr, nullptr, nullptr));
    EXPECT_EQ(id, other);
    add<<<1, 32, 0, t>>>(d, 10);
    add<<<1, 32, 0, u>>>(d, 100);
    CHECK(cudaEventRecord(left, t));
    CHECK(cudaEventRecord(right, u));
    CHECK(cudaStreamWaitEvent(s, left, 0));
    CHECK(cudaStreamWaitEvent(s, right, 0));
    CHECK(cuda_capture_info(s, &c, &id, &seen, &after, &count));
    EXPECT_EQ(count, (size_t)3);
    times<<<1, 1, 0, s>>>(d, 2);
    CHECK(cudaStreamEndCapture(s, &g));
    EXPECT(g == seen && status_of(t) == cudaStreamCaptureStatusNone);
    // An event of a capture that is over cannot be asked about.
    EXPECT_ERROR(cudaEventQuery(left), cudaErrorInvalidValue);
    cudaGetLastError();
    CHECK(cudaGraphGetNodes(g, nullptr, &count));
    EXPECT_EQ(count, (size_t)4);
    CHECK(cudaGraphInstantiate(&exec, g, 0));
    int value = 0;
    CHECK(cudaMemcpy(d, &value, 4, cudaMemcpyHostToDevice));
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(d.host()[0], 2 * (1 + 320 + 3200));
    CHECK(cudaGraphExecDestroy(exec));

    // The end must come from the thread that began, unless the capture is relaxed; from another it ends the capture all the same.
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    cudaError_t told = cudaSuccess;
    std::thread([&] { cudaGraph_t none; told = cudaStreamEndCapture(s, &none); cudaGetLastError(); }).join();
    EXPECT(told == cudaErrorStreamCaptureWrongThread);
    cudaGraph_t empty = nullptr;
    EXPECT_ERROR(cudaStreamEndCapture(s, &empty), cudaErrorIllegalState);
    cudaGetLastError();
    // Ended on a stream that only joined.
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaEventRecord(fork, s));
    CHECK(cudaStreamWaitEvent(t, fork, 0));
    EXPECT_ERROR(cudaStreamEndCapture(t, &empty), cudaErrorStreamCaptureUnmatched);
    cudaGetLastError();
    cudaError_t ended = cudaStreamEndCapture(s, &empty);
    EXPECT(ended == cudaErrorStreamCaptureInvalidated || ended == cudaErrorStreamCaptureUnjoined);
    cudaGetLastError();

    // Unsafe calls are allowed while the thread says it knows what it does.
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == cudaStreamCaptureModeGlobal);
    int *p;
    CHECK(cudaMalloc(&p, 64));
    CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT(mode == cudaStreamCaptureModeRelaxed);
    add<<<1, 1, 0, s>>>(p, 1);
    CHECK(cudaStreamEndCapture(s, &empty));
    CHECK(cudaGraphDestroy(empty));
    CHECK(cudaFree(p));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    EXPECT_ERROR(cudaMalloc(&p, 64), cudaErrorStreamCaptureUnsupported);
    cudaGetLastError();
    EXPECT_ERROR(cudaStreamEndCapture(s, &empty), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();

    // Into a graph that exists, after a node of it.
    cudaGraph_t whole;
    CHECK(cudaGraphCreate(&whole, 0));
    cudaGraphNode_t zero;
    cudaMemsetParams set = {};
    set.dst = d; set.elementSize = 4; set.value = 5; set.width = 1; set.height = 1;
    CHECK(cudaGraphAddMemsetNode(&zero, whole, nullptr, 0, &set));
    CHECK(cudaStreamBeginCaptureToGraph(s, whole, &zero, nullptr, 1, cudaStreamCaptureModeThreadLocal));
    times<<<1, 1, 0, s>>>(d, 7);
    CHECK(cudaStreamEndCapture(s, &empty));
    EXPECT(empty == whole);
    CHECK(cudaGraphInstantiate(&exec, whole, 0));
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(d.host()[0], 35);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(whole));
    CHECK(cudaGraphDestroy(g));
    return finish();
}
