// nvcc: -rdc=true
#include "check.h"
// Relocatable device code: what is linked when the program is built, or when it is loaded.
extern __device__ int counter;
__device__ int helper(int x);
template <class T> __device__ __noinline__ T tripled(T x) { return x * 3; }
__global__ void k(int *p) { *p = helper(14) + tripled(2) + counter; }
__device__ int counter = 100;
__device__ int helper(int x) { atomicAdd(&counter, 1); return tripled(x); }
int main() {
    Device<int> d(1);
    k<<<1, 1>>>(d);
    CHECK(cudaGetLastError());
    EXPECT_EQ(d.host()[0], 42 + 6 + 101);
    int c = 0;
    CHECK(cudaMemcpyFromSymbol(&c, counter, 4));
    EXPECT_EQ(c, 101);
    return finish();
}
