#include "check.h"
__global__ void bump(int *p, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) p[i] = p[i] * 3 + 1; }
int main() { const int n = 4096; cudaStream_t s[3]; cudaEvent_t e[3], t0, t1; for (int i = 0; i < 3; i++) { CHECK(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking)); CHECK(cudaEventCreateWithFlags(&e[i], cudaEventDisableTiming)); } CHECK(cudaEventCreate(&t0)); CHECK(cudaEventCreate(&t1));
    Device<int> d(n); CHECK(cudaMemset(d, 0, n * 4)); CHECK(cudaDeviceSynchronize()); CHECK(cudaEventRecord(t0, s[0])); int want = 0;
    for (int k = 0; k < 12; k++) { int a = k % 3, b = (k + 1) % 3; bump<<<n / 256, 256, 0, s[a]>>>(d, n); CHECK(cudaEventRecord(e[a], s[a])); CHECK(cudaStreamWaitEvent(s[b], e[a], 0)); want = want * 3 + 1; }
    CHECK(cudaEventRecord(t1, s[0])); CHECK(cudaEventSynchronize(t1)); for (int i = 0; i < 3; i++) CHECK(cudaStreamSynchronize(s[i])); float ms = -1; CHECK(cudaEventElapsedTime(&ms, t0, t1)); EXPECT(ms >= 0 && ms < 60000);
    auto r = d.host(); for (int v : r) EXPECT_EQ(v, want); EXPECT_ERROR(cudaEventQuery(t1), cudaSuccess); EXPECT_ERROR(cudaStreamQuery(s[0]), cudaSuccess); EXPECT_ERROR(cudaEventElapsedTime(&ms, e[0], e[1]), cudaErrorInvalidResourceHandle);
    for (int i = 0; i < 3; i++) { CHECK(cudaStreamDestroy(s[i])); CHECK(cudaEventDestroy(e[i])); } return finish(); }
