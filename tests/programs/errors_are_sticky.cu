#include "check.h"
// An error inside a kernel comes out at the next point that waits, stays, and ends with a reset.
__global__ void bad(int *p) { if (threadIdx.x == 3) *(volatile int *)((char *)p + 1) = 1; }
__global__ void fine(int *p) { *p = 42; }
int main() {
    int *p, v = 0;
    CHECK(cudaMalloc(&p, 64));
    bad<<<1, 32>>>(p);
    CHECK(cudaGetLastError());
    EXPECT_ERROR(cudaMemcpy(&v, p, 4, cudaMemcpyDeviceToHost), cudaErrorMisalignedAddress);
    EXPECT_ERROR(cudaGetLastError(), cudaErrorMisalignedAddress);
    fine<<<1, 1>>>(p);
    EXPECT_ERROR(cudaGetLastError(), cudaErrorMisalignedAddress);
    EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorMisalignedAddress);
    EXPECT_ERROR(cudaMalloc(&p, 4), cudaErrorMisalignedAddress);
    return finish();
}
