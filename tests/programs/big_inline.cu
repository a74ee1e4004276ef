#include "check.h"
// Kernels whose calls are too many to be put in one piece: functions with frames of their own, barriers and shuffles in them.
#define STEP(i) x = x * 1664525u + 1013904223u + a[(x >> 7) & 15]; a[(x >> 11) & 15] ^= x + i;
#define STEP8(i) STEP(i) STEP(i + 1) STEP(i + 2) STEP(i + 3) STEP(i + 4) STEP(i + 5) STEP(i + 6) STEP(i + 7)
#define STEP64(i) STEP8(i) STEP8(i + 8) STEP8(i + 16) STEP8(i + 24) STEP8(i + 32) STEP8(i + 40) STEP8(i + 48) STEP8(i + 56)
__host__ __device__ __noinline__ unsigned leaf(unsigned x, unsigned *a) { STEP64(1) STEP64(100) return x; }
template <int N> __host__ __device__ __noinline__ unsigned level(unsigned x) {
    unsigned a[16];
    for (int i = 0; i < 16; i++) a[i] = x * i + N;
    x = leaf(x, a); x ^= a[x & 15];
    if constexpr (N > 0) { x += level<N - 1>(x); x ^= level<N - 1>(x + a[3]); }
    return x + a[(x >> 5) & 15];
}
__device__ __noinline__ unsigned meet(unsigned x) {
    __shared__ unsigned s[128];
    s[threadIdx.x] = x;
    __syncthreads();
    unsigned y = s[127 - threadIdx.x] ^ __shfl_xor_sync(~0u, x, 5);
    __syncthreads();
    return y;
}
__global__ void k(unsigned *out) {
    unsigned x = threadIdx.x + blockIdx.x * blockDim.x;
    x = level<6>(x);
    x = meet(x);
    x = level<6>(x);
    out[threadIdx.x + blockIdx.x * blockDim.x] = meet(x);
}
int main() {
    const int n = 256;
    Device<unsigned> d(n);
    k<<<2, 128>>>(d);
    CHECK(cudaDeviceSynchronize());
    auto r = d.host();
    for (int b = 0; b < 2; b++) {
        unsigned x[128], y[128];
        auto meet = [&] { for (int i = 0; i < 128; i++) y[i] = x[127 - i] ^ x[i ^ 5]; memcpy(x, y, sizeof x); };
        for (int i = 0; i < 128; i++) x[i] = level<6>(b * 128 + i);
        meet();
        for (int i = 0; i < 128; i++) x[i] = level<6>(x[i]);
        meet();
        for (int i = 0; i < 128; i++) EXPECT_EQ(r[b * 128 + i], x[i]);
    }
    return finish();
}
