// What calls cost at the caller: start-up, empty launches, launch and wait, allocations, pool hits.
// Prints one JSON object. Run it natively and in a virtual GPU, interleaved, and compare.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 micro.cu -lcuda -o micro
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

using Clock = std::chrono::steady_clock;

static double ns_since(Clock::time_point begun) {
    return std::chrono::duration<double, std::nano>(Clock::now() - begun).count();
}

static void check(int code, const char *what) {
    if (code) {
        fprintf(stderr, "%s: error %d\n", what, code);
        exit(1);
    }
}

static double quantile(std::vector<double> values, double q) {
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(q * (values.size() - 1))];
}

__global__ void empty() {}

// The median over rounds of the mean over one round: outliers of a busy host fall away.
template <typename Call> static double per_call_ns(int rounds, int calls, Call call) {
    std::vector<double> means;
    for (int round = 0; round < rounds; round++) {
        auto begun = Clock::now();
        for (int i = 0; i < calls; i++) call();
        means.push_back(ns_since(begun) / calls);
    }
    return quantile(means, 0.5);
}

int main() {
    auto begun = Clock::now();
    check(cuInit(0), "cuInit");
    double init_ms = ns_since(begun) / 1e6;
    begun = Clock::now();
    check(cudaFree(nullptr), "context");
    double context_ms = ns_since(begun) / 1e6;
    begun = Clock::now();
    empty<<<1, 1>>>();
    check(cudaDeviceSynchronize(), "first launch");
    double first_ms = ns_since(begun) / 1e6;

    // Fewer than the queue holds, so that no launch waits for the GPU.
    std::vector<double> launches;
    for (int round = 0; round < 200; round++) {
        auto start = Clock::now();
        for (int i = 0; i < 256; i++) empty<<<1, 1>>>();
        launches.push_back(ns_since(start) / 256);
        check(cudaDeviceSynchronize(), "launches");
    }
    std::vector<double> waits;
    for (int i = 0; i < 5000; i++) {
        auto start = Clock::now();
        empty<<<1, 1>>>();
        cudaDeviceSynchronize();
        waits.push_back(ns_since(start) / 1e3);
    }
    double alloc_us = per_call_ns(20, 200, [] {
        CUdeviceptr p;
        check(cuMemAlloc(&p, 1 << 20), "cuMemAlloc");
        check(cuMemFree(p), "cuMemFree");
    }) / 1e3;
    cudaStream_t stream;
    check(cudaStreamCreate(&stream), "stream");
    cudaMemPool_t pool;
    check(cudaDeviceGetDefaultMemPool(&pool, 0), "pool");
    unsigned long long keep = ~0ull;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "threshold");
    double pool_us = per_call_ns(20, 2000, [&] {
        void *p;
        check(cudaMallocAsync(&p, 1 << 20, stream), "cudaMallocAsync");
        check(cudaFreeAsync(p, stream), "cudaFreeAsync");
    }) / 1e3;
    check(cudaStreamSynchronize(stream), "end");
    size_t free_bytes, total_bytes;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "memory");
    printf("{\"init_ms\": %.2f, \"context_ms\": %.2f, \"first_launch_ms\": %.2f, \"launch_ns\": %.1f, \"launch_p90_ns\": %.1f, "
           "\"launch_sync_p50_us\": %.2f, \"launch_sync_p99_us\": %.2f, \"alloc_free_1mib_us\": %.3f, \"pool_hit_us\": %.3f, "
           "\"free_bytes\": %zu, \"total_bytes\": %zu}\n",
           init_ms, context_ms, first_ms, quantile(launches, 0.5), quantile(launches, 0.9), quantile(waits, 0.5), quantile(waits, 0.99),
           alloc_us, pool_us, free_bytes, total_bytes);
    return 0;
}
