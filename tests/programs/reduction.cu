#include "check.h"
__global__ void sum(const int *in, long long *out, int n) {
    __shared__ long long part[256]; long long s = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += in[i];
    part[threadIdx.x] = s; __syncthreads();
    for (int w = 128; w > 0; w >>= 1) { if (threadIdx.x < w) part[threadIdx.x] += part[threadIdx.x + w]; __syncthreads(); }
    if (threadIdx.x == 0) atomicAdd((unsigned long long *)out, (unsigned long long)part[0]);
}
int main() {
    const int n = 1 << 20; std::vector<int> v(n); long long want = 0; for (int i = 0; i < n; i++) { v[i] = (i * 7919) % 1000 - 500; want += v[i]; }
    Device<int> d(v); Device<long long> out(1); CHECK(cudaMemset(out, 0, 8));
    sum<<<37, 256>>>(d, out, n); CHECK(cudaGetLastError()); EXPECT_EQ(out.host()[0], want);
    return finish();
}
