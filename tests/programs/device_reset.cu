#include "check.h"
__device__ int g = 5; __global__ void k() { g *= 2; }
int main() { CHECK(cudaSetDeviceFlags(cudaDeviceScheduleAuto)); for (int r = 0; r < 3; r++) { int *p; CHECK(cudaMalloc(&p, 4096)); k<<<1, 1>>>(); int v; CHECK(cudaMemcpyFromSymbol(&v, g, 4)); EXPECT_EQ(v, 10); CHECK(cudaDeviceReset()); } return finish(); }
