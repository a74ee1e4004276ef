#include "check.h"
__global__ void scan(int *data) {
    __shared__ int t[1024]; int i = threadIdx.x; t[i] = data[blockIdx.x * 1024 + i]; __syncthreads();
    for (int d = 1; d < 1024; d <<= 1) { int v = i >= d ? t[i - d] : 0; __syncthreads(); t[i] += v; __syncthreads(); }
    data[blockIdx.x * 1024 + i] = t[i];
}
int main() {
    std::vector<int> v(8192); for (size_t i = 0; i < v.size(); i++) v[i] = (int)(i * 31 % 17);
    Device<int> d(v); scan<<<8, 1024>>>(d); auto r = d.host();
    for (int b = 0; b < 8; b++) { int s = 0; for (int i = 0; i < 1024; i++) { s += v[b * 1024 + i]; EXPECT_EQ(r[b * 1024 + i], s); } }
    return finish();
}
