#include "check.h"
__global__ void t(int x) { if (threadIdx.x == x) asm("trap;"); }
int main() { t<<<2, 64>>>(3); EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorLaunchFailure); EXPECT_ERROR(cudaGetLastError(), cudaErrorLaunchFailure); return finish(); }
