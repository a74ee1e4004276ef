#include "check.h"
__global__ void k(int *p) { if (p) *p = 1; }
int main() {
    k<<<1, 2048>>>(nullptr);
    EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
    k<<<0, 1>>>(nullptr);
    EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
    k<<<dim3(1, 70000), 1>>>(nullptr);
    EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
    k<<<1, 1, 1 << 20>>>(nullptr);
    EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
    k<<<1, 1>>>(nullptr);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    EXPECT_ERROR(cudaFree((void *)0x12345), cudaErrorInvalidValue);
    cudaGetLastError();
    void *p;
    EXPECT_ERROR(cudaMalloc(&p, (size_t)1 << 50), cudaErrorMemoryAllocation);
    cudaGetLastError();
    CHECK(cudaMalloc(&p, 100));
    CHECK(cudaFree(p));
    CHECK(cudaFree(nullptr));
    EXPECT(!strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation"));
    return finish();
}
