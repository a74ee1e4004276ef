#include "check.h"
// Memory that a graph allocates and frees, captured from a stream.
__global__ void fill(int *p, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) p[i] = i; }
__global__ void sum(const int *p, int n, int *out) { for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(out, p[i]); }
int main() {
    const int n = 1000;
    Device<int> out(1);
    CHECK(cudaMemset(out, 0, 4));
    cudaStream_t s;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    int *p;
    CHECK(cudaMallocAsync(&p, n * 4, s));
    fill<<<4, 256, 0, s>>>(p, n);
    sum<<<1, 128, 0, s>>>(p, n, out);
    CHECK(cudaFreeAsync(p, s));
    cudaStreamCaptureStatus status;
    CHECK(cudaStreamIsCapturing(s, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusActive);
    cudaGraph_t g;
    CHECK(cudaStreamEndCapture(s, &g));
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(g, nullptr, &nodes));
    EXPECT_EQ(nodes, 4u);
    cudaGraphExec_t x;
    CHECK(cudaGraphInstantiate(&x, g, 0));
    for (int i = 0; i < 5; i++) CHECK(cudaGraphLaunch(x, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(out.host()[0], 5 * (n * (n - 1) / 2));
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphDestroy(g));

    // Memory that no node frees outlives the graph: the program frees it.
    int *kept;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMallocAsync(&kept, n * 4, s));
    fill<<<4, 256, 0, s>>>(kept, n);
    CHECK(cudaStreamEndCapture(s, &g));
    CHECK(cudaGraphInstantiate(&x, g, 0));
    CHECK(cudaGraphLaunch(x, s));
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaGraphExecDestroy(x));
    CHECK(cudaGraphDestroy(g));
    CHECK(cudaMemset(out, 0, 4));
    CHECK(cudaDeviceSynchronize());
    sum<<<1, 128, 0, s>>>(kept, n, out);
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(out.host()[0], n * (n - 1) / 2);
    CHECK(cudaFreeAsync(kept, s));
    CHECK(cudaStreamSynchronize(s));
    return finish();
}
