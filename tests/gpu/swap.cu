// Holds MIB mebibytes in pieces of 256 MiB and works on all of them for SECONDS, then compares every word.
// Prints rounds a second, the longest round in milliseconds, and ok.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 swap.cu -o swap ; ./swap MIB SECONDS [PAUSE_MS]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

static void check(cudaError_t code, const char *what) {
    if (code != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
        exit(1);
    }
}

__global__ void fill(unsigned *at, size_t count, unsigned seed) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        at[i] = seed + unsigned(i);
}

__global__ void add(unsigned *at, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        at[i]++;
}

__global__ void compare(const unsigned *at, size_t count, unsigned seed, unsigned long long *wrong) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        if (at[i] != seed + unsigned(i)) atomicAdd(wrong, 1ull);
}

int main(int count, char **words) {
    if (count < 3) return 2;
    size_t left = strtoull(words[1], nullptr, 10) << 20;
    double seconds = atof(words[2]);
    int pause_ms = count > 3 ? atoi(words[3]) : 0;
    const size_t piece = 256u << 20;
    struct Piece {
        unsigned *at;
        size_t words;
        unsigned seed;
    };
    std::vector<Piece> pieces;
    unsigned seed = unsigned(std::chrono::steady_clock::now().time_since_epoch().count());
    while (left > 0) {
        size_t bytes = left < piece ? left : piece;
        Piece one{nullptr, bytes / 4, seed += 0x9e3779b9u};
        check(cudaMalloc(&one.at, bytes), "cudaMalloc");
        fill<<<1024, 256>>>(one.at, one.words, one.seed);
        pieces.push_back(one);
        left -= bytes;
    }
    check(cudaDeviceSynchronize(), "fill");
    auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
    double began = now(), longest = 0;
    unsigned rounds = 0;
    while (now() - began < seconds) {
        double round = now();
        for (auto &one : pieces) add<<<1024, 256>>>(one.at, one.words);
        check(cudaDeviceSynchronize(), "add");
        rounds++;
        longest = now() - round > longest ? now() - round : longest;
        if (pause_ms) std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    }
    double took = now() - began;
    unsigned long long *wrong, found = 0;
    check(cudaMalloc(&wrong, 8), "cudaMalloc");
    check(cudaMemset(wrong, 0, 8), "cudaMemset");
    for (auto &one : pieces) compare<<<1024, 256>>>(one.at, one.words, one.seed + rounds, wrong);
    check(cudaMemcpy(&found, wrong, 8, cudaMemcpyDeviceToHost), "cudaMemcpy");
    printf("%.2f rounds a second, longest %.1f ms, %llu words wrong\n", rounds / took, longest * 1e3, found);
    puts(found ? "wrong" : "ok");
    return found != 0;
}
