// Blocks of one launch that wait for later ones. A GPU holds them all at once, so that they end; programs
// with as many blocks as the device says it holds rely on that.
#include "check.h"

__global__ void chain(volatile int *reached, int *sum) {
    const int last = gridDim.x - 1;
    if (blockIdx.x == last && threadIdx.x == 0) reached[last] = 1;
    // Every thread of a block waits for the block after it.
    while (blockIdx.x != last && reached[blockIdx.x + 1] == 0) {}
    __syncthreads();
    if (threadIdx.x == 0) {
        reached[blockIdx.x] = 1;
        atomicAdd(sum, blockIdx.x);
    }
}

int main() {
    cudaDeviceProp p;
    EXPECT_ERROR(cudaGetDeviceProperties(&p, 0), cudaSuccess);
    const int held = p.multiProcessorCount * (p.maxThreadsPerMultiProcessor / 256);
    const int blocks = held < 16 ? held : 16;
    int *d = nullptr;
    EXPECT_ERROR(cudaMalloc(&d, (blocks + 1) * sizeof(int)), cudaSuccess);
    EXPECT_ERROR(cudaMemset(d, 0, (blocks + 1) * sizeof(int)), cudaSuccess);
    chain<<<blocks, 256>>>(d, d + blocks);
    int sum = 0;
    EXPECT_ERROR(cudaMemcpy(&sum, d + blocks, sizeof sum, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(sum, blocks * (blocks - 1) / 2);
    return finish();
}
