#include "check.h"
__global__ void wild(int *p) { *p = 1; }
int main() { wild<<<1, 1>>>((int *)0x10); EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress); void *p; EXPECT_ERROR(cudaMalloc(&p, 4), cudaErrorIllegalAddress); EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress); return finish(); }
