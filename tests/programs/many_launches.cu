// nvcc: -std=c++17
#include "check.h"
#include <thread>
// Many launches in a row, of several kernels with other parameters each, run in their order with their own parameters, also
// beside other streams, waits and copies.
typedef unsigned long long u64;
__global__ void add(u64 *state, u64 value) { *state = *state * 6364136223846793005ull + value; }
__global__ void mix(u64 *state, unsigned a, unsigned short b, unsigned char c) { *state = (*state ^ a) * 31 + b + c; }
__global__ void wide(u64 *state, u64 *other) { extern __shared__ u64 s[]; s[threadIdx.x] = state[0] + threadIdx.x; __syncthreads(); if (threadIdx.x == 0) { u64 sum = blockIdx.x; for (unsigned i = 0; i < blockDim.x; i++) sum += s[i]; other[blockIdx.x] = sum; } }
__global__ void fold(u64 *state, const u64 *other, unsigned count) { u64 sum = *state; for (unsigned i = 0; i < count; i++) sum = sum * 33 + other[i]; *state = sum; }
struct Line {
    u64 *device, *other, expected;
    void one(unsigned i, cudaStream_t s) {
        switch (i % 7) {
        case 0: case 2: case 3: add<<<1, 1, 0, s>>>(device, i); expected = expected * 6364136223846793005ull + i; break;
        case 1: case 5: mix<<<1, 1, 0, s>>>(device, i, (unsigned short)(i * 7), (unsigned char)i); expected = (expected ^ i) * 31 + (unsigned short)(i * 7) + (unsigned char)i; break;
        case 4: {
            unsigned blocks = 1 + i % 5, threads = 32 + i % 3 * 32;
            wide<<<blocks, threads, threads * sizeof(u64), s>>>(device, other);
            u64 sum = expected;
            for (unsigned b = 0; b < blocks; b++) { u64 part = b; for (unsigned t = 0; t < threads; t++) part += expected + t; sum = sum * 33 + part; }
            fold<<<1, 1, 0, s>>>(device, other, blocks);
            expected = sum;
            break;
        }
        case 6: add<<<1, 1, 0, s>>>(device, ~0ull - i); expected = expected * 6364136223846793005ull + (~0ull - i); break;
        }
    }
};
static void check_line(Line &line, cudaStream_t s, const char *what) {
    u64 got = 0;
    CHECK(cudaMemcpyAsync(&got, line.device, sizeof got, cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    if (got != line.expected) { printf("%s: %llx, expected %llx\n", what, got, line.expected); mismatch(); }
}
int main() {
    Device<u64> memory(std::vector<u64>(64, 1)), others(64);
    cudaStream_t a, b;
    CHECK(cudaStreamCreate(&a));
    CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    Line first{memory, others, 1}, second{memory + 8, others + 8, 1}, third{memory + 16, others + 16, 1};
    for (unsigned i = 0; i < 20000; i++) first.one(i, a);
    check_line(first, a, "one stream");
    for (unsigned i = 0; i < 5000; i++) third.one(i, 0);
    check_line(third, 0, "the default stream");
    for (unsigned i = 0; i < 20000; i++) { if (i % 50 < 40) first.one(i, a); else second.one(i, b); }
    check_line(first, a, "two streams, first"); check_line(second, b, "two streams, second");
    // Short runs between other work: what comes between is in its order.
    cudaEvent_t e;
    CHECK(cudaEventCreate(&e));
    for (unsigned i = 0; i < 3000; i++) {
        first.one(i, a);
        if (i % 37 == 0) { u64 five = 5; CHECK(cudaMemcpyAsync(first.device, &five, sizeof five, cudaMemcpyHostToDevice, a)); first.expected = 5; }
        if (i % 101 == 0) { CHECK(cudaEventRecord(e, a)); CHECK(cudaStreamWaitEvent(b, e, 0)); second.one(i, b); }
        if (i % 997 == 0) CHECK(cudaStreamSynchronize(a));
    }
    check_line(first, a, "between other work, first"); check_line(second, b, "between other work, second");
    // Two threads.
    std::thread other([&] { for (unsigned i = 0; i < 10000; i++) second.one(i, b); });
    for (unsigned i = 0; i < 10000; i++) first.one(i, a);
    other.join();
    check_line(first, a, "two threads, first"); check_line(second, b, "two threads, second");
    // A launch that is refused is left out and told of, and the others run.
    for (unsigned i = 0; i < 100; i++) {
        first.one(i, a);
        if (i == 50) { add<<<1, 2048, 0, a>>>(first.device, 1); EXPECT_ERROR(cudaGetLastError(), cudaErrorInvalidValue); }
    }
    check_line(first, a, "around a refused launch");
    CHECK(cudaEventDestroy(e));
    return finish();
}
