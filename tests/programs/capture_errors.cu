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
    // A question about the legacy stream is refused, and the capture goes on.
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    k<<<1, 1, 0, s>>>();
    cudaStreamCaptureStatus status;
    EXPECT_ERROR(cudaStreamIsCapturing(cudaStreamLegacy, &status), cudaErrorStreamCaptureImplicit);
    cudaGetLastError();
    CHECK(cudaStreamEndCapture(s, &g));
    // The graph as text names its kernel.
    char path[] = "/tmp/mica-dot-XXXXXX";
    EXPECT(mkstemp(path) >= 0);
    CHECK(cudaGraphDebugDotPrint(g, path, 0));
    char text[4096] = {};
    FILE* file = fopen(path, "r");
    EXPECT(file && fread(text, 1, sizeof text - 1, file) > 0);
    if (file) fclose(file);
    remove(path);
    EXPECT(strstr(text, "digraph") && strstr(text, "_Z1kv"));
    CHECK(cudaGraphDestroy(g));
    k<<<1, 1, 0, s>>>();
    CHECK(cudaStreamSynchronize(s));
    return finish();
}
