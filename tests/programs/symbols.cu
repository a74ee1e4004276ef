#include "check.h"
__constant__ float coeff[8]; __device__ int counter; __device__ float table[4] = {1, 2, 4, 8};
__global__ void k(float *o) { int i = threadIdx.x; o[i] = coeff[i & 7] * table[i & 3]; atomicAdd(&counter, 1); }
int main() { float c[8]; for (int i = 0; i < 8; i++) c[i] = i + 0.5f; CHECK(cudaMemcpyToSymbol(coeff, c, sizeof c)); int z = 100; CHECK(cudaMemcpyToSymbol(counter, &z, 4)); Device<float> o(64); k<<<1, 64>>>(o); auto r = o.host(); for (int i = 0; i < 64; i++) EXPECT_EQ(r[i], c[i & 7] * (1 << (i & 3)));
    CHECK(cudaMemcpyFromSymbol(&z, counter, 4)); EXPECT_EQ(z, 164); float t = 0; CHECK(cudaMemcpyFromSymbol(&t, table, 4, 8)); EXPECT_EQ(t, 4.0f); void *p; CHECK(cudaGetSymbolAddress(&p, table)); size_t s; CHECK(cudaGetSymbolSize(&s, coeff)); EXPECT_EQ(s, sizeof c); float v = 9; CHECK(cudaMemcpy(p, &v, 4, cudaMemcpyHostToDevice)); CHECK(cudaMemcpyFromSymbol(&t, table, 4)); EXPECT_EQ(t, 9.0f); return finish(); }
