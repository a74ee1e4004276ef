#include "check.h"
__device__ int lock, value, order; __global__ void k(int n) { for (int i = 0; i < n; i++) { if (threadIdx.x == 0) { while (atomicCAS(&lock, 0, 1)) ; __threadfence(); value = value + 1; __threadfence(); atomicExch(&lock, 0); } __syncthreads(); } }
__global__ void chain() { while (atomicAdd(&order, 0) < (int)blockIdx.x) ; __threadfence(); atomicAdd(&order, 1); }
int main() { k<<<8, 32>>>(20); CHECK(cudaDeviceSynchronize()); int v; CHECK(cudaMemcpyFromSymbol(&v, value, 4)); EXPECT_EQ(v, 160); chain<<<16, 1>>>(); CHECK(cudaDeviceSynchronize()); CHECK(cudaMemcpyFromSymbol(&v, order, 4)); EXPECT_EQ(v, 16); return finish(); }
