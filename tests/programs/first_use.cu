// nvcc: -std=c++17
#include "check.h"
#include <atomic>
#include <ctime>
#include <thread>
#include <utility>
// Kernels of a large module are launched for the first time while another kernel waits for the program: the program goes
// on, and they run when that one has ended.
__global__ void hold(volatile int *go) { while (!*go) ; }
template <int N> __global__ void put(int *p) { *p = N; }
template <int N> __global__ void put_shared(int *p) { extern __shared__ int s[]; s[threadIdx.x] = N; __syncthreads(); if (threadIdx.x == 0) *p = s[31]; }
using Kernel = void (*)(int *);
template <int... N> static std::vector<Kernel> kernels(std::integer_sequence<int, N...>) { return {put<N>...}; }
static void pause_ms(long ms) { struct timespec t = {ms / 1000, ms % 1000 * 1000000}; nanosleep(&t, nullptr); }
int main() {
    auto all = kernels(std::make_integer_sequence<int, 40>());
    volatile int *go;
    int *go_device;
    CHECK(cudaHostAlloc((void **)&go, 4, cudaHostAllocMapped));
    CHECK(cudaHostGetDevicePointer((void **)&go_device, (void *)go, 0));
    Device<int> out(std::vector<int>(64, -1));
    cudaStream_t s, other;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    // A program that stands still is let go on, and fails.
    std::atomic<bool> done{false}, late{false};
    std::thread watch([&] {
        for (int i = 0; i < 100 && !done; i++) pause_ms(100);
        if (!done) { late = true; *go = 1; }
    });
    hold<<<1, 1, 0, s>>>(go_device);
    CHECK(cudaGetLastError());
    for (int i : {3, 17, 39}) all[i]<<<1, 1, 0, other>>>(out + i);
    put_shared<7><<<1, 32, 32 * sizeof(int), other>>>(out + 40);
    CHECK(cudaGetLastError());
    EXPECT_EQ((int)cudaStreamQuery(s), (int)cudaErrorNotReady);
    EXPECT(!late);
    done = true;
    *go = 1;
    watch.join();
    CHECK(cudaDeviceSynchronize());
    auto seen = out.host();
    EXPECT_EQ(seen[3], 3); EXPECT_EQ(seen[17], 17); EXPECT_EQ(seen[39], 39); EXPECT_EQ(seen[40], 7); EXPECT_EQ(seen[4], -1);
    // What a launch is refused for is told at the first one too.
    put_shared<8><<<1, 2048>>>(out);
    EXPECT_EQ((int)cudaGetLastError(), (int)cudaErrorInvalidValue);
    put_shared<9><<<1, 32, 60 << 10>>>(out);
    EXPECT_EQ((int)cudaGetLastError(), (int)cudaErrorInvalidValue);
    put_shared<9><<<1, 32, 128>>>(out + 42);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    EXPECT_EQ(out.host()[42], 9);
    return finish();
}
