#include "check.h"
__global__ void hist(const unsigned char *in, unsigned *out, int n) {
    __shared__ unsigned h[256]; for (int i = threadIdx.x; i < 256; i += blockDim.x) h[i] = 0; __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&h[in[i]], 1u);
    __syncthreads(); for (int i = threadIdx.x; i < 256; i += blockDim.x) if (h[i]) atomicAdd(&out[i], h[i]);
}
int main() {
    const int n = 300001; std::vector<unsigned char> v(n); std::vector<unsigned> want(256); unsigned x = 1;
    for (auto &b : v) { x = x * 1664525u + 1013904223u; b = x >> 24; want[b]++; }
    Device<unsigned char> d(v); Device<unsigned> out(256); CHECK(cudaMemset(out, 0, 1024));
    hist<<<16, 192>>>(d, out, n); EXPECT(out.host() == want); return finish();
}
