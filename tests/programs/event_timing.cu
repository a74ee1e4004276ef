#include "check.h"
// Events: timing, order across streams, and what they refuse.
__global__ void step(unsigned *p, unsigned want) { if (*p == want) *p = want + 1; }
int main() {
    cudaEvent_t a, b, quick;
    cudaStream_t s, t;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreateWithFlags(&b, cudaEventBlockingSync));
    CHECK(cudaEventCreateWithFlags(&quick, cudaEventDisableTiming));
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&t, cudaStreamNonBlocking));
    Device<unsigned> d(1);
    CHECK(cudaMemset(d, 0, 4));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaEventQuery(quick));
    CHECK(cudaEventRecord(a, s));
    for (unsigned i = 0; i < 50; i++) {
        cudaStream_t now = i % 2 ? t : s, next = i % 2 ? s : t;
        step<<<1, 1, 0, now>>>(d, i);
        CHECK(cudaEventRecord(quick, now));
        CHECK(cudaStreamWaitEvent(next, quick, 0));
    }
    CHECK(cudaEventRecord(b, s));
    CHECK(cudaEventSynchronize(b));
    CHECK(cudaEventQuery(b));
    EXPECT_EQ(d.host()[0], 50u);
    float ms = -1;
    CHECK(cudaEventElapsedTime(&ms, a, b));
    EXPECT(ms >= 0 && ms < 60000);
    EXPECT_ERROR(cudaEventElapsedTime(&ms, a, quick), cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    CHECK(cudaEventDestroy(quick));
    CHECK(cudaStreamDestroy(t));
    return finish();
}
