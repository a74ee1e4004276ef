// Loads that compete: each counts the kernels it finished within a window that all of them share.
// Prints one JSON object.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 load.cu -o load
//   ./load MODE --start UNIX_SECONDS --seconds S --us KERNEL_MICROSECONDS --depth N --tag NAME [--every S]
//
//   --every S  also a line "UNIX_SECONDS UNITS_SO_FAR" each S seconds
//
//   MODE  saturate  N kernels always in flight        burst    N kernels, then wait, again
//         latency   one kernel every 2 ms, timed      graph    graphs of ten kernels, N in flight
//         mixed     as saturate, lengths 1/4 to 4     copies   64 MiB copies to the device, N in flight
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

using Wall = std::chrono::system_clock;

static double now() { return std::chrono::duration<double>(Wall::now().time_since_epoch()).count(); }

static void check(int code, const char *what) {
    if (code) {
        fprintf(stderr, "%s: error %d\n", what, code);
        exit(1);
    }
}

// Fills the device: sixteen blocks of 128 threads for each of 132 processors.
__global__ void spin(float *out, int iterations) {
    float a = threadIdx.x, b = 1.0001f, c = 0.5f, d = a + 1;
    for (int i = 0; i < iterations; i++) {
        a = a * b + c;
        d = d * b + c;
    }
    if (a + d == 12345.f) *out = a;
}

static float *out;
static int blocks;

static void submit(int iterations, cudaStream_t stream) { spin<<<blocks, 128, 0, stream>>>(out, iterations); }

// Iterations that take so many microseconds on the device as it is now; only right when nobody competes,
// so loads that compete are given --iterations instead.
static int calibrate(double us, cudaStream_t stream) {
    cudaEvent_t a, b;
    check(cudaEventCreate(&a), "event");
    check(cudaEventCreate(&b), "event");
    float best = 1e9f;
    for (int i = 0; i < 10; i++) {
        check(cudaEventRecord(a, stream), "record");
        submit(20000, stream);
        check(cudaEventRecord(b, stream), "record");
        check(cudaEventSynchronize(b), "wait");
        float ms;
        check(cudaEventElapsedTime(&ms, a, b), "time");
        best = std::min(best, ms);
    }
    return std::max(1, static_cast<int>(20000 * us / 1000 / best));
}

int main(int count, char **arguments) {
    std::string mode = count > 1 ? arguments[1] : "saturate", tag = "load";
    double start = 0, seconds = 5, us = 400, every = 0;
    int depth = 8, iterations = 0;
    for (int i = 2; i + 1 < count; i += 2) {
        std::string name = arguments[i];
        const char *value = arguments[i + 1];
        if (name == "--start") start = atof(value);
        else if (name == "--seconds") seconds = atof(value);
        else if (name == "--us") us = atof(value);
        else if (name == "--iterations") iterations = atoi(value);
        else if (name == "--depth") depth = std::min(64, std::max(1, atoi(value)));
        else if (name == "--every") every = atof(value);
        else if (name == "--tag") tag = value;
        else { fprintf(stderr, "unknown option %s\n", arguments[i]); return 2; }
    }
    int processors;
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0), "device");
    blocks = processors * 16;
    check(cudaMalloc(&out, 4), "memory");
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    submit(10, stream);
    check(cudaStreamSynchronize(stream), "warm up");
    if (!iterations) iterations = calibrate(us, stream);

    cudaGraphExec_t graph = nullptr;
    if (mode == "graph") {
        cudaGraph_t captured;
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
        for (int i = 0; i < 10; i++) submit(iterations, stream);
        check(cudaStreamEndCapture(stream, &captured), "capture");
        check(cudaGraphInstantiate(&graph, captured, 0), "graph");
    }
    void *host = nullptr, *device = nullptr;
    if (mode == "copies") {
        check(cudaMallocHost(&host, 64 << 20), "host memory");
        check(cudaMalloc(&device, 64 << 20), "device memory");
    }
    cudaEvent_t done[64];
    double weight[64];
    for (auto &event : done) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");

    if (start == 0) start = now() + 0.2;
    double end = start + seconds, units = 0, submitted = 0;
    std::vector<double> latencies;
    // Submits from before the window to after it, so that all competitors are busy throughout.
    std::this_thread::sleep_for(std::chrono::duration<double>(std::max(0.0, start - 0.1 - now())));
    unsigned seed = 1;
    long k = 0;
    double next_line = start;
    auto finished = [&](double amount) {
        double t = now();
        if (t >= start && t < end) units += amount;
        if (every > 0 && t >= next_line) {
            printf("%.4f %.2f\n", t, units);
            fflush(stdout);
            next_line = t + every;
        }
    };
    while (now() < end + 0.1) {
        if (mode == "latency") {
            auto begun = std::chrono::steady_clock::now();
            submit(iterations, stream);
            check(cudaStreamSynchronize(stream), "wait");
            double took = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun).count();
            double t = now();
            if (t >= start && t < end) latencies.push_back(took);
            finished(1);
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        } else if (mode == "burst") {
            for (int i = 0; i < depth; i++) submit(iterations, stream);
            check(cudaStreamSynchronize(stream), "wait");
            finished(depth);
        } else {
            int slot = k % depth;
            if (k >= depth) {
                check(cudaEventSynchronize(done[slot]), "wait");
                finished(weight[slot]);
            }
            weight[slot] = 1;
            if (mode == "graph") {
                check(cudaGraphLaunch(graph, stream), "launch");
                weight[slot] = 10;
            } else if (mode == "copies") {
                check(cudaMemcpyAsync(device, host, 64 << 20, cudaMemcpyHostToDevice, stream), "copy");
            } else if (mode == "mixed") {
                double scale = 0.25 * (1 << rand_r(&seed) % 5);
                submit(static_cast<int>(iterations * scale), stream);
                weight[slot] = scale;
            } else {
                submit(iterations, stream);
            }
            check(cudaEventRecord(done[slot], stream), "record");
            k++;
        }
        submitted++;
    }
    check(cudaDeviceSynchronize(), "end");
    std::sort(latencies.begin(), latencies.end());
    auto quantile = [&](double q) { return latencies.empty() ? 0.0 : latencies[static_cast<size_t>(q * (latencies.size() - 1))]; };
    printf("{\"tag\": \"%s\", \"mode\": \"%s\", \"seconds\": %.3f, \"iterations\": %d, \"units\": %.2f, \"rate\": %.2f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f}\n",
           tag.c_str(), mode.c_str(), seconds, iterations, units, units / seconds, quantile(0.5), quantile(0.99), quantile(1));
    return 0;
}
