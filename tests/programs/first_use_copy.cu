// nvcc: -std=c++17
#include "check.h"
#include <atomic>
#include <ctime>
#include <thread>
#include <utility>
// A synchronous copy of a few bytes of pageable memory to the device comes back while a kernel of a stream that does not wait
// for the default one runs, also where other kernels have been used for the first time meanwhile.
__global__ void hold(volatile int *go) { while (!*go) ; }
template <int N> __global__ void put(int *p) { *p = N; }
using Kernel = void (*)(int *);
template <int... N> static std::vector<Kernel> kernels(std::integer_sequence<int, N...>) { return {put<N>...}; }
static void pause_ms(long ms) { struct timespec t = {ms / 1000, ms % 1000 * 1000000}; nanosleep(&t, nullptr); }
int main() {
    auto all = kernels(std::make_integer_sequence<int, 40>());
    volatile int *go;
    int *go_device;
    CHECK(cudaHostAlloc((void **)&go, 4, cudaHostAllocMapped));
    CHECK(cudaHostGetDevicePointer((void **)&go_device, (void *)go, 0));
    Device<int> out(std::vector<int>(64, -1)), written(64);
    std::vector<int> bytes(64);
    for (int i = 0; i < 64; i++) bytes[i] = i * 5;
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
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(written, bytes.data(), 256, cudaMemcpyHostToDevice));
    // The bytes are the program's again.
    std::fill(bytes.begin(), bytes.end(), -1);
    EXPECT_EQ((int)cudaStreamQuery(s), (int)cudaErrorNotReady);
    EXPECT(!late);
    done = true;
    *go = 1;
    watch.join();
    CHECK(cudaDeviceSynchronize());
    auto seen = out.host(), arrived = written.host();
    EXPECT_EQ(seen[3], 3); EXPECT_EQ(seen[17], 17); EXPECT_EQ(seen[39], 39); EXPECT_EQ(seen[4], -1);
    for (int i = 0; i < 64; i++) EXPECT_EQ(arrived[i], i * 5);
    return finish();
}
