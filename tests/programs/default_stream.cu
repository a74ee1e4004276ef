#include "check.h"
__global__ void spin(int *p, long long n) { long long t = clock64(); while (clock64() - t < n) ; *p = 1; } __global__ void copy(const int *a, int *b) { *b = *a; }
int main() { Device<int> d(4); CHECK(cudaMemset(d, 0, 16)); cudaStream_t s, u; CHECK(cudaStreamCreate(&s)); CHECK(cudaStreamCreate(&u)); spin<<<1, 1, 0, s>>>(d, 20000000); copy<<<1, 1>>>(d, d.p + 1); copy<<<1, 1, 0, u>>>(d.p + 1, d.p + 2); CHECK(cudaStreamSynchronize(u)); auto h = d.host(); EXPECT_EQ(h[1], 1); EXPECT_EQ(h[2], 1); return finish(); }
