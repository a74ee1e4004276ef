#include "check.h"
#include <string>
#include <thread>
// Errors have names and sentences; the last one is kept for the thread that got it until it is asked for.
__global__ void fault(int *p) { *p = 1; }
int main() {
    EXPECT(std::string(cudaGetErrorName(cudaSuccess)) == "cudaSuccess");
    EXPECT(std::string(cudaGetErrorString(cudaSuccess)) == "no error");
    EXPECT(std::string(cudaGetErrorName(cudaErrorMemoryAllocation)) == "cudaErrorMemoryAllocation");
    EXPECT(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)) == "out of memory");
    EXPECT(std::string(cudaGetErrorName((cudaError_t)12345)) == "unrecognized error code");
    EXPECT(cudaGetErrorString((cudaError_t)12345) != nullptr);
    EXPECT_ERROR(cudaSetDevice(77), cudaErrorInvalidDevice);
    // Another thread has its own.
    std::thread([] { EXPECT_ERROR(cudaPeekAtLastError(), cudaSuccess); }).join();
    EXPECT_ERROR(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    EXPECT_ERROR(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    // A call that succeeds does not clear it.
    int *p;
    CHECK(cudaMalloc(&p, 4));
    EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidDevice);
    EXPECT_ERROR(cudaGetLastError(), cudaSuccess);
    // An answer that is no error is not kept.
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    CHECK(cudaStreamQuery(s));
    EXPECT_ERROR(cudaPeekAtLastError(), cudaSuccess);
    // A fault stays: every call of every thread tells it, whatever was asked before.
    fault<<<1, 1>>>((int *)16);
    EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    EXPECT_ERROR(cudaGetLastError(), cudaErrorIllegalAddress);
    EXPECT_ERROR(cudaMalloc(&p, 4), cudaErrorIllegalAddress);
    EXPECT_ERROR(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    std::thread([] { int *q; EXPECT_ERROR(cudaMalloc(&q, 4), cudaErrorIllegalAddress); }).join();
    fault<<<1, 1>>>(p);
    EXPECT_ERROR(cudaGetLastError(), cudaErrorIllegalAddress);
    return finish();
}
