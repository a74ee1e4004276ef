// nvcc: -std=c++17 -gencode arch=compute_80,code=compute_80
#include "check.h"
// Warps with different jobs that meet at barriers in shared memory and at named barriers.
#include <cuda/barrier>
#include <cuda/std/utility>
using barrier = cuda::barrier<cuda::thread_scope_block>;
const int rounds = 40;
// Half of the block fills a buffer, the other half takes it: two named barriers, each side arrives at one and waits at the other.
__global__ void named(int *out) {
    __shared__ int buffer[128];
    bool producer = threadIdx.x < 128;
    int t = threadIdx.x & 127, sum = 0;
    for (int r = 0; r < rounds; r++) {
        if (producer) {
            if (r > 0) asm volatile("bar.sync 2, 256;" ::: "memory");
            buffer[t] = r * 1000 + t + blockIdx.x;
            asm volatile("bar.arrive 1, 256;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 256;" ::: "memory");
            sum += buffer[127 - t];
            if (r + 1 < rounds) asm volatile("bar.arrive 2, 256;" ::: "memory");
        }
    }
    if (!producer) out[blockIdx.x * 128 + t] = sum;
}
// The same with barriers in shared memory and tokens, two buffers.
__global__ void tokens(int *out) {
    __shared__ alignas(8) char room[4 * sizeof(barrier)];
    barrier *full = (barrier *)room, *empty = full + 2;
    __shared__ int buffer[2][128];
    if (threadIdx.x == 0) for (int i = 0; i < 2; i++) { init(full + i, blockDim.x); init(empty + i, blockDim.x); }
    __syncthreads();
    int t = threadIdx.x & 127, sum = 0;
    if (threadIdx.x < 128) {
        for (int r = 0; r < rounds; r++) {
            empty[r & 1].arrive_and_wait();
            buffer[r & 1][t] = r * 1000 + t + blockIdx.x;
            (void)full[r & 1].arrive();
        }
    } else {
        (void)empty[0].arrive();
        (void)empty[1].arrive();
        for (int r = 0; r < rounds; r++) {
            full[r & 1].arrive_and_wait();
            sum += buffer[r & 1][127 - t];
            (void)empty[r & 1].arrive();
        }
        out[blockIdx.x * 128 + t] = sum;
    }
}
// By parity, one thread of a warp arriving for all.
__global__ void parity(int *out) {
    __shared__ barrier full, empty;
    __shared__ int buffer[128];
    if (threadIdx.x == 0) { init(&full, 4); init(&empty, 4); }
    __syncthreads();
    int t = threadIdx.x & 127, sum = 0;
    bool lead = (threadIdx.x & 31) == 0;
    for (int r = 0; r < rounds; r++) {
        if (threadIdx.x < 128) {
            if (r > 0) empty.wait_parity((r - 1) & 1);
            buffer[t] = r * 1000 + t + blockIdx.x;
            __syncwarp();
            if (lead) (void)full.arrive();
        } else {
            full.wait_parity(r & 1);
            sum += buffer[127 - t];
            __syncwarp();
            if (lead) (void)empty.arrive();
        }
    }
    if (threadIdx.x >= 128) out[blockIdx.x * 128 + t] = sum;
}
// Threads leave one by one; those that stay go on.
__global__ void leaving(int *out) {
    __shared__ barrier b;
    __shared__ int count;
    if (threadIdx.x == 0) { init(&b, blockDim.x); count = 0; }
    __syncthreads();
    int last = 0;
    for (int r = 0; r < 8; r++) {
        if ((threadIdx.x & 7) == r) { atomicAdd(&count, 1); b.arrive_and_drop(); return; }
        b.arrive_and_wait();
        last = *(volatile int *)&count;
        out[blockIdx.x * blockDim.x + threadIdx.x] = last;
        b.arrive_and_wait();
    }
}
__global__ void meeting(int *out) {
    __shared__ barrier b;
    __shared__ int at[256];
    if (threadIdx.x == 0) init(&b, blockDim.x);
    __syncthreads();
    int x = threadIdx.x;
    for (int r = 0; r < rounds; r++) {
        at[threadIdx.x] = x + r;
        b.arrive_and_wait();
        x = at[(threadIdx.x + 37) & 255];
        auto token = b.arrive();
        b.wait(cuda::std::move(token));
    }
    out[blockIdx.x * 256 + threadIdx.x] = x;
}
int main() {
    const int blocks = 3;
    Device<int> d(blocks * 256);
    for (auto kernel : {named, tokens, parity}) {
        CHECK(cudaMemset(d, 0, blocks * 256 * 4));
        kernel<<<blocks, 256>>>(d);
        CHECK(cudaDeviceSynchronize());
        auto r = d.host();
        for (int b = 0; b < blocks; b++) for (int t = 0; t < 128; t++)
            EXPECT_EQ(r[b * 128 + t], rounds * (rounds - 1) / 2 * 1000 + rounds * (127 - t + b));
    }
    leaving<<<blocks, 256>>>(d);
    CHECK(cudaDeviceSynchronize());
    auto l = d.host();
    for (int b = 0; b < blocks; b++) for (int t = 0; t < 256; t++) if (t & 7) EXPECT_EQ(l[b * 256 + t], (t & 7) * 32);
    meeting<<<blocks, 256>>>(d);
    CHECK(cudaDeviceSynchronize());
    auto m = d.host();
    for (int b = 0; b < blocks; b++) for (int t = 0; t < 256; t++) EXPECT_EQ(m[b * 256 + t], ((t + 37 * rounds) & 255) + rounds * (rounds - 1) / 2);
    return finish();
}
