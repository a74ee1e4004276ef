// Several processes with several threads each allocate and free at random as fast as they can. The parent
// adds up, in shared memory, what all of them hold: its peak must stay within the limit given.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 race.cu -lcuda -lpthread -o race ; ./race PROCESSES SECONDS [PIECE_MIB]
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda.h>

struct Shared {
    std::atomic<size_t> held, peak, grants, refusals, errors, ready;
};

static void worker(Shared *shared, CUcontext context, double seconds, size_t piece, unsigned seed) {
    if (cuCtxSetCurrent(context)) return;
    CUdeviceptr mine[32] = {};
    size_t bytes[32] = {};
    auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
        int k = rand_r(&seed) % 32;
        if (mine[k]) {
            // Counted out before it is freed: what is counted is never more than what is held.
            shared->held -= bytes[k];
            if (cuMemFree(mine[k])) shared->errors++;
            mine[k] = 0;
            continue;
        }
        bytes[k] = piece / 2 + rand_r(&seed) % piece;
        int code = cuMemAlloc(&mine[k], bytes[k]);
        if (code) {
            mine[k] = 0;
            if (code == CUDA_ERROR_OUT_OF_MEMORY) shared->refusals++;
            else shared->errors++;
            continue;
        }
        shared->grants++;
        size_t now = shared->held += bytes[k], peak = shared->peak;
        while (now > peak && !shared->peak.compare_exchange_weak(peak, now)) {}
    }
    for (int k = 0; k < 32; k++) {
        if (mine[k]) {
            shared->held -= bytes[k];
            cuMemFree(mine[k]);
        }
    }
}

int main(int count, char **arguments) {
    int processes = count > 1 ? atoi(arguments[1]) : 8;
    double seconds = count > 2 ? atof(arguments[2]) : 3;
    size_t piece = (count > 3 ? strtoull(arguments[3], nullptr, 0) : 64) << 20;
    auto *shared = static_cast<Shared *>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (int i = 0; i < processes; i++) {
        if (fork()) continue;
        CUdevice device;
        CUcontext context;
        if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device)) {
            shared->errors++;
            shared->ready++;
            _exit(1);
        }
        // A context takes memory too: nobody begins before all have theirs.
        shared->ready++;
        while (shared->ready < static_cast<size_t>(processes)) usleep(1000);
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; t++) threads.emplace_back(worker, shared, context, seconds, piece, i * 97 + t * 13 + 1);
        for (auto &thread : threads) thread.join();
        _exit(0);
    }
    int failed = 0, status;
    while (wait(&status) > 0) failed += status != 0;
    printf("{\"processes\": %d, \"failed\": %d, \"peak_bytes\": %zu, \"left_bytes\": %zu, \"grants\": %zu, \"refusals\": %zu, \"errors\": %zu}\n",
           processes, failed, shared->peak.load(), shared->held.load(), shared->grants.load(), shared->refusals.load(), shared->errors.load());
    return 0;
}
