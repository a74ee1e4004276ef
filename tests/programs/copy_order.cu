// nvcc: -std=c++17
#include "check.h"
#include <atomic>
#include <thread>
// Large copies keep their place among a stream's work: against streams that order each other, and against what
// other threads give to the same stream.
static const int n = 1 << 18;
__global__ void spin(int *p, int times) { for (int i = 0; i < times; i++) atomicAdd(p, 1); }
__global__ void fill(int *p, int value) { for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) p[i] = value; }
__global__ void compare(const int *p, int *differing) { int first = p[0]; for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) if (p[i] != first) atomicAdd(differing, 1); }
static bool uniform(const std::vector<int> &v) { for (int x : v) if (x != v[0]) return false; return true; }
int main() {
    cudaStream_t blocking, other;
    CHECK(cudaStreamCreate(&blocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    std::vector<int> one(n, 1), two(n, 2), seen(n);
    Device<int> d(one), differing(1);
    int *pinned;
    CHECK(cudaMallocHost(&pinned, n * 4));
    for (int round = 0; round < 3; round++) {
        // Behind the default stream, before it, behind an event.
        CHECK(cudaMemset(d, 0, 4));
        spin<<<1, 1>>>(d, 200000);
        CHECK(cudaMemcpyAsync(seen.data(), d, n * 4, cudaMemcpyDeviceToHost, blocking));
        CHECK(cudaStreamSynchronize(blocking));
        EXPECT_EQ(seen[0], 200000);
        CHECK(cudaMemset(d, 0, 4));
        spin<<<1, 1, 0, blocking>>>(d, 200000);
        CHECK(cudaMemcpy(seen.data(), d, n * 4, cudaMemcpyDeviceToHost));
        EXPECT_EQ(seen[0], 200000);
        spin<<<1, 1, 0, blocking>>>(d, 200000);
        CHECK(cudaMemcpy(pinned, d, n * 4, cudaMemcpyDeviceToHost));
        EXPECT_EQ(pinned[0], 400000);
        spin<<<1, 1>>>(d, 200000);
        CHECK(cudaMemcpyAsync(d, one.data(), n * 4, cudaMemcpyHostToDevice, blocking));
        CHECK(cudaStreamSynchronize(blocking));
        EXPECT_EQ(d.host()[0], 1);
        cudaEvent_t done;
        CHECK(cudaEventCreate(&done));
        spin<<<1, 1, 0, other>>>(d, 200000);
        CHECK(cudaEventRecord(done, other));
        CHECK(cudaStreamWaitEvent(blocking, done));
        CHECK(cudaMemcpyAsync(seen.data(), d, n * 4, cudaMemcpyDeviceToHost, blocking));
        CHECK(cudaStreamSynchronize(blocking));
        EXPECT_EQ(seen[0], 200001);
        CHECK(cudaEventDestroy(done));
    }
    // Another thread's kernels see all of a copy or nothing of it.
    for (cudaStream_t stream : {blocking, other, (cudaStream_t) nullptr}) {
        CHECK(cudaMemset(differing, 0, 4));
        CHECK(cudaMemcpy(d, one.data(), n * 4, cudaMemcpyHostToDevice));
        std::atomic<bool> stop{false};
        std::thread reader([&] {
            while (!stop) {
                compare<<<4, 64, 0, stream>>>(d, differing);
                CHECK(cudaStreamSynchronize(stream));
            }
        });
        for (int i = 0; i < 15; i++) CHECK(cudaMemcpyAsync(d, (i & 1 ? one : two).data(), n * 4, cudaMemcpyHostToDevice, stream));
        stop = true;
        reader.join();
        EXPECT_EQ(differing.host()[0], 0);
        // And a copy sees all of a kernel or nothing of it.
        CHECK(cudaDeviceSynchronize());
        stop = false;
        std::thread writer([&] { for (int i = 0; !stop; i++) { fill<<<8, 32, 0, stream>>>(d, i); CHECK(cudaStreamSynchronize(stream)); } });
        int torn = 0;
        for (int i = 0; i < 15; i++) {
            CHECK(cudaMemcpyAsync(seen.data(), d, n * 4, cudaMemcpyDeviceToHost, stream));
            CHECK(cudaStreamSynchronize(stream));
            torn += !uniform(seen);
        }
        stop = true;
        writer.join();
        EXPECT_EQ(torn, 0);
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaFreeHost(pinned));
    return finish();
}
