#include "check.h"
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); } __device__ __noinline__ int ack(int m, int n) { return m == 0 ? n + 1 : n == 0 ? ack(m - 1, 1) : ack(m - 1, ack(m, n - 1)); }
__global__ void k(int *o) { o[threadIdx.x] = fib(threadIdx.x); if (threadIdx.x == 0) o[32] = ack(2, 3); }
int main() { Device<int> o(33); CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 8192)); k<<<1, 16>>>(o); CHECK(cudaDeviceSynchronize()); auto r = o.host(); int a = 0, b = 1; for (int i = 0; i < 16; i++) { EXPECT_EQ(r[i], a); int c = a + b; a = b; b = c; } EXPECT_EQ(r[32], 9); return finish(); }
