// nvcc: -std=c++17
#include "check.h"
#include <atomic>
#include <ctime>
#include <thread>
// Many launches on one stream wait for a kernel that only ends when as many launches on another stream have run: streams
// that do not wait for each other go on apart, however many launches wait.
__global__ void hold(volatile int *go) { while (!*go) ; }
__global__ void let_go(volatile int *go) { *go = 1; }
__global__ void add(int *p, int n) { *p += n; }
static void pause_ms(long ms) { struct timespec t = {ms / 1000, ms % 1000 * 1000000}; nanosleep(&t, nullptr); }
int main() {
    const int launches = 400, streams = 12;
    volatile int *go;
    int *go_device;
    CHECK(cudaHostAlloc((void **)&go, 4, cudaHostAllocMapped));
    CHECK(cudaHostGetDevicePointer((void **)&go_device, (void *)go, 0));
    Device<int> sums(std::vector<int>(streams, 0));
    std::vector<cudaStream_t> all(streams);
    for (auto &s : all) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    // All kernels are loaded before one of them waits.
    *go = 1;
    hold<<<1, 1>>>(go_device);
    let_go<<<1, 1>>>(go_device);
    add<<<1, 1>>>(sums, 0);
    CHECK(cudaDeviceSynchronize());
    // A program that stands still is let go on, and fails.
    std::atomic<bool> done{false}, late{false};
    std::thread watch([&] {
        for (int i = 0; i < 100 && !done; i++) pause_ms(100);
        if (!done) { late = true; *go = 1; }
    });
    for (int round = 0; round < 3; round++) {
        *go = 0;
        // Each round another stream waits, and another one lets it go.
        cudaStream_t waits = all[round], goes = all[streams - 1 - round];
        hold<<<1, 1, 0, waits>>>(go_device);
        for (int i = 0; i < launches; i++) add<<<1, 1, 0, waits>>>(sums + round, 1);
        for (int i = 0; i < launches; i++) add<<<1, 1, 0, goes>>>(sums + (streams - 1 - round), 1);
        let_go<<<1, 1, 0, goes>>>(go_device);
        CHECK(cudaStreamSynchronize(goes));
        CHECK(cudaStreamSynchronize(waits));
        EXPECT(!late);
        // Launches that take turns on all streams.
        for (int i = 0; i < 40; i++)
            for (int s = 0; s < streams; s++)
                for (int k = 0; k < 20; k++) add<<<1, 1, 0, all[s]>>>(sums + s, 1);
        CHECK(cudaDeviceSynchronize());
    }
    done = true;
    watch.join();
    auto seen = sums.host();
    for (int s = 0; s < streams; s++) EXPECT_EQ(seen[s], 3 * 800 + (s < 3 || s >= streams - 3 ? launches : 0));
    return finish();
}
