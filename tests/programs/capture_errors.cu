#include "check.h"
// What breaks a capture, and what it says then.
__global__ void k() {}
int main() {
    cudaStream_t s, t;
    cudaEvent_t e;
    cudaGraph_t g;
    CHECK(cudaStreamCreate(&s));
    CHECK(cudaStreamCreate(&t));
    CHECK(cudaEventCreate(&e));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    k<<<1, 1, 0, s>>>();
    EXPECT_ERROR(cudaStreamSynchronize(s), cudaErrorStreamCaptureUnsupported);
    cudaGetLastError();
    EXPECT_ERROR(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
    // A stream that joined must come back before the end.
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    CHECK(cudaEventRecord(e, s));
    CHECK(cudaStreamWaitEvent(t, e, 0));
    k<<<1, 1, 0, t>>>();
    EXPECT_ERROR(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureUnjoined);
    cudaGetLastError();
    // Work outside cannot be waited for inside.
    CHECK(cudaEventRecord(e, t));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    EXPECT_ERROR(cudaStreamWaitEvent(s, e, 0), cudaErrorStreamCaptureIsolation);
    cudaGetLastError();
    EXPECT_ERROR(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
    cudaGetLastError();
    EXPECT_ERROR(cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
    cudaGetLastError();
    k<<<1, 1, 0, s>>>();
    CHECK(cudaStreamSynchronize(s));
    return finish();
}
