// What calls cost at the caller: start-up, empty launches, launch and wait, allocations, pool hits.
// Prints one JSON object. Run it natively and in a virtual GPU, interleaved, and compare. In a virtual GPU it also calls
// the driver past Mica, in turns with calls through Mica: the same process, context and core, so that nothing else differs.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 micro.cu -lcuda -o micro
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
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

// The driver's functions, as one library has them.
struct Driver {
    decltype(&cuLaunchKernel) launch;
    decltype(&cuMemAlloc) alloc;
    decltype(&cuMemFree) free;
    decltype(&cuMemAllocAsync) alloc_async;
    decltype(&cuMemFreeAsync) free_async;
    static Driver in(void *library) {
        auto find = [library](const char *name) {
            void *at = dlsym(library, name);
            check(at == nullptr, name);
            return at;
        };
        return {(decltype(launch))find("cuLaunchKernel"), (decltype(alloc))find("cuMemAlloc_v2"), (decltype(free))find("cuMemFree_v2"),
                (decltype(alloc_async))find("cuMemAllocAsync"), (decltype(free_async))find("cuMemFreeAsync")};
    }
};

// The driver that lies behind Mica's library in this process; null where the driver is all there is.
static void *driver_behind() {
    void *front = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchKernel"), *found = nullptr;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    while (maps && !found && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/');
        if (!path || !strstr(path, "/libcuda.so")) continue;
        path[strcspn(path, "\n")] = 0;
        void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        if (library && dlsym(library, "cuLaunchKernel") != front) found = library;
    }
    if (maps) fclose(maps);
    return found;
}

// Medians of what a call costs past Mica, and of what it costs more through it, from rounds in turns.
struct Pair { double past, more; };
template <typename Call, typename After> static Pair in_turns(int rounds, int calls, const Driver (&drivers)[2], Call call, After after) {
    std::vector<double> past, more;
    for (int round = 0; round < rounds; round++) {
        double ns[2];
        for (int place = 0; place < 2; place++) {
            int which = (round + place) % 2;
            auto begun = Clock::now();
            for (int i = 0; i < calls; i++) call(drivers[which]);
            ns[which] = ns_since(begun) / calls;
            after();
        }
        past.push_back(ns[0]);
        more.push_back(ns[1] - ns[0]);
    }
    return {quantile(past, 0.5), quantile(more, 0.5)};
}

static void print_pairs() {
    void *behind = driver_behind();
    if (!behind) return;
    const Driver drivers[2] = {Driver::in(behind), Driver::in(dlopen("libcuda.so.1", RTLD_NOW))};
    auto wait = [] { check(cudaDeviceSynchronize(), "wait"); };
    cudaFunction_t function;
    check(cudaGetFuncBySymbol(&function, (const void *)empty), "function");
    Pair launch = in_turns(300, 256, drivers, [&](const Driver &d) {
        check(d.launch((CUfunction)function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), "cuLaunchKernel");
    }, wait);
    auto alloc_free = [](const Driver &d) {
        CUdeviceptr p;
        check(d.alloc(&p, 1 << 20), "cuMemAlloc");
        check(d.free(p), "cuMemFree");
    };
    Pair alone = in_turns(40, 25, drivers, alloc_free, wait);
    void *beside;
    check(cudaMalloc(&beside, 256 << 10), "other memory");
    Pair second = in_turns(200, 100, drivers, alloc_free, wait);
    cudaStream_t stream;
    check(cudaStreamCreate(&stream), "stream");
    Pair pool = in_turns(200, 200, drivers, [&](const Driver &d) {
        CUdeviceptr p;
        check(d.alloc_async(&p, 1 << 20, (CUstream)stream), "cuMemAllocAsync");
        check(d.free_async(p, (CUstream)stream), "cuMemFreeAsync");
    }, wait);
    struct { const char *name; Pair pair; } rows[] = {{"launch", launch}, {"alloc_free_alone", alone}, {"alloc_free_beside", second}, {"pool_hit", pool}};
    for (auto &row : rows) printf("\"%s_past_ns\": %.1f, \"%s_more_ns\": %.1f, ", row.name, row.pair.past, row.name, row.pair.more);
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
    printf("{");
    print_pairs();
    printf("\"init_ms\": %.2f, \"context_ms\": %.2f, \"first_launch_ms\": %.2f, \"launch_ns\": %.1f, \"launch_p90_ns\": %.1f, "
           "\"launch_sync_p50_us\": %.2f, \"launch_sync_p99_us\": %.2f, \"alloc_free_1mib_us\": %.3f, \"pool_hit_us\": %.3f, "
           "\"free_bytes\": %zu, \"total_bytes\": %zu}\n",
           init_ms, context_ms, first_ms, quantile(launches, 0.5), quantile(launches, 0.9), quantile(waits, 0.5), quantile(waits, 0.99),
           alloc_us, pool_us, free_bytes, total_bytes);
    return 0;
}
