#include "check.h"
#include <cassert>
__global__ void t(int x) { assert(threadIdx.x != x); }
int main() { t<<<1, 8>>>(100); CHECK(cudaDeviceSynchronize()); t<<<1, 8>>>(5); EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorAssert); return finish(); }
