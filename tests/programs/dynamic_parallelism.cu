// nvcc: -rdc=true -lcudadevrt
#include "check.h"
// Kernels that launch kernels.
__global__ void leaf(int *out, int base) { atomicAdd(out + threadIdx.x, base + blockIdx.x); }
__global__ void tail(int *out) { if (threadIdx.x == 0) out[64] = out[0] * 2; }
__global__ void tree(int *out, int depth) {
    if (depth == 0) { atomicAdd(out + 65, 1); return; }
    if (threadIdx.x < 2) tree<<<1, 2, 0, cudaStreamFireAndForget>>>(out, depth - 1);
}
__global__ void copied(int *out) { out[75] = out[67] + out[70]; out[72] += 1; }
__global__ void parent(int *out) {
    if (threadIdx.x == 0) {
        leaf<<<4, 64>>>(out, 100);
        leaf<<<dim3(2), dim3(64), 0, cudaStreamFireAndForget>>>(out, 10);
        tail<<<1, 32, 0, cudaStreamTailLaunch>>>(out);
        tree<<<1, 2>>>(out, 5);
        cudaStream_t s;
        cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
        leaf<<<1, 64, 0, s>>>(out, 1);
        cudaStreamDestroy(s);
        // In order with the launches before and after them.
        cudaMemcpyAsync(out + 67, out, 4 * sizeof(int), cudaMemcpyDeviceToDevice, 0);
        cudaMemsetAsync(out + 72, 0x11, 8, 0);
        copied<<<1, 1>>>(out);
        out[66] = cudaGetLastError();
    }
}
int main() {
    Device<int> d(std::vector<int>(128, 0));
    parent<<<1, 32>>>(d);
    CHECK(cudaDeviceSynchronize());
    auto r = d.host();
    for (int i = 0; i < 64; i++) EXPECT_EQ(r[i], 400 + 6 + 20 + 1 + 1);
    EXPECT_EQ(r[64], 2 * (400 + 6 + 20 + 1 + 1));
    EXPECT_EQ(r[65], 64);
    EXPECT_EQ(r[66], 0);
    EXPECT_EQ(r[75], 2 * 428);
    EXPECT_EQ(r[72], 0x11111112);
    EXPECT_EQ(r[73], 0x11111111);
    return finish();
}
