// nvcc: -lineinfo
// mica: misaligned | fault_misaligned.cu:<-, | block (0,1,0) | thread (0,3,0) | kernel skewed(char const*, int*)
// An address that is no multiple of the size of what lies there.
#include "check.h"

__device__ int pick(const char *p) {
    return *(const int *)(p + threadIdx.y); // <-
}

__global__ void skewed(const char *p, int *out) {
    if (blockIdx.y == 1 && threadIdx.y == 3)
        *out = pick(p);
}

int main() {
    char *p = nullptr;
    EXPECT_ERROR(cudaMalloc(&p, 64), cudaSuccess);
    skewed<<<dim3(1, 2), dim3(1, 4)>>>(p, (int *)p);
    EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorMisalignedAddress);
    return finish();
}
