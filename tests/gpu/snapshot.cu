// Trains a small model for STEPS steps beside MIB mebibytes that it compares at the end, and prints the bits of the loss of each
// step: the same ones in every run, whatever happens to the GPU's memory between the steps. With -DVARIABLES it uses variables of
// its module too. Prints ok at the end.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 snapshot.cu -o snapshot ; ./snapshot STEPS MIB [PAUSE_MS]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <cuda_runtime.h>

static void check(cudaError_t code, const char *what) {
    if (code != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
        exit(1);
    }
}

const int samples = 1 << 16, threads = 256, blocks = samples / threads;

#ifdef VARIABLES
__constant__ float rate_of_module = 0.125f;
__device__ float momentum_of_module[64];
__global__ void remember(const float *slope) {
    if (blockIdx.x == 0 && threadIdx.x < 64) momentum_of_module[threadIdx.x] = 0.5f * momentum_of_module[threadIdx.x] + slope[0];
}
__device__ float rate() { return rate_of_module * (1.0f + 1e-3f * momentum_of_module[7]); }
#else
__global__ void remember(const float *) {}
__device__ float rate() { return 0.125f; }
#endif

__global__ void inputs(float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = float((i * 2654435761u) >> 8) / (1 << 24);
    y[i] = 3.0f * x[i] - 1.0f + 0.01f * float(i % 17);
}

// Sums in a fixed order.
__global__ void slopes(const float *x, const float *y, const float *model, float *parts) {
    __shared__ float sums[3][threads];
    int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
    float error = model[0] * x[i] + model[1] - y[i];
    sums[0][t] = error * x[i];
    sums[1][t] = error;
    sums[2][t] = error * error;
    for (int half = threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (t < half)
            for (int k = 0; k < 3; k++) sums[k][t] += sums[k][t + half];
    }
    if (t == 0)
        for (int k = 0; k < 3; k++) parts[k * gridDim.x + blockIdx.x] = sums[k][0];
}

__global__ void step(float *model, const float *parts, float *loss, float *slope) {
    float sums[3] = {};
    for (int k = 0; k < 3; k++)
        for (int b = 0; b < blocks; b++) sums[k] += parts[k * blocks + b];
    model[0] -= rate() * sums[0] / samples;
    model[1] -= rate() * sums[1] / samples;
    *slope = sums[0] / samples;
    *loss = sums[2] / samples;
}

__global__ void fill(unsigned *at, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) at[i] = unsigned(i * 2654435761u);
}

__global__ void compare(const unsigned *at, size_t count, unsigned long long *wrong) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        if (at[i] != unsigned(i * 2654435761u)) atomicAdd(wrong, 1ull);
}

int main(int count, char **words) {
    if (count < 3) return 2;
    int steps = atoi(words[1]);
    size_t ballast_words = (strtoull(words[2], nullptr, 10) << 20) / 4;
    int pause_ms = count > 3 ? atoi(words[3]) : 100;
    float *x, *y, *model, *parts, *slope, *loss, *seen;
    unsigned *ballast;
    unsigned long long *wrong, wrong_words = 0;
    cudaStream_t training, reading;
    cudaEvent_t trained, begun, ended;
    check(cudaMalloc(&x, samples * 4), "x");
    check(cudaMalloc(&y, samples * 4), "y");
    check(cudaMalloc(&model, 8), "model");
    check(cudaMalloc(&parts, 3 * blocks * 4), "parts");
    check(cudaMalloc(&slope, 4), "slope");
    check(cudaMalloc(&loss, 4), "loss");
    check(cudaMalloc(&wrong, 8), "wrong");
    check(cudaMalloc(&ballast, ballast_words * 4), "ballast");
    check(cudaMallocHost(&seen, 4096), "pinned");
    check(cudaStreamCreateWithFlags(&training, cudaStreamNonBlocking), "stream");
    check(cudaStreamCreateWithFlags(&reading, cudaStreamNonBlocking), "stream");
    check(cudaEventCreateWithFlags(&trained, cudaEventDisableTiming), "event");
    check(cudaEventCreate(&begun), "event");
    check(cudaEventCreate(&ended), "event");
    check(cudaMemset(model, 0, 8), "cudaMemset");
    check(cudaMemset(wrong, 0, 8), "cudaMemset");
    inputs<<<blocks, threads>>>(x, y);
    fill<<<1024, 256>>>(ballast, ballast_words);
    check(cudaDeviceSynchronize(), "inputs");
    check(cudaEventRecord(begun, training), "record");
    for (int number = 1; number <= steps; number++) {
        slopes<<<blocks, threads, 0, training>>>(x, y, model, parts);
        step<<<1, 1, 0, training>>>(model, parts, loss, slope);
        remember<<<1, 64, 0, training>>>(slope);
        check(cudaEventRecord(trained, training), "record");
        check(cudaStreamWaitEvent(reading, trained, 0), "wait");
        check(cudaMemcpyAsync(seen, loss, 4, cudaMemcpyDeviceToHost, reading), "copy");
        check(cudaStreamSynchronize(reading), "step");
        unsigned bits;
        memcpy(&bits, seen, 4);
        printf("%d %08x\n", number, bits);
        fflush(stdout);
        std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    }
    check(cudaEventRecord(ended, training), "record");
    check(cudaEventSynchronize(ended), "record");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begun, ended), "elapsed");
    if (milliseconds < 0.9f * pause_ms * steps) {
        fprintf(stderr, "%.1f ms between events of %d steps with pauses of %d ms\n", milliseconds, steps, pause_ms);
        return 1;
    }
    compare<<<1024, 256>>>(ballast, ballast_words, wrong);
    check(cudaMemcpy(&wrong_words, wrong, 8, cudaMemcpyDeviceToHost), "compare");
    if (wrong_words) {
        fprintf(stderr, "%llu words are wrong\n", wrong_words);
        return 1;
    }
    puts("ok");
}
