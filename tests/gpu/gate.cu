// What passes the gate, and what a lease or a cap is charged for. Each mode prints one line.
//
//   gate long MS SECONDS      kernels of MS milliseconds, a wait after each: the part of the time they would take alone
//   gate streams MS SECONDS   the same on one stream, while another one is waited for and the first is polled
//   gate host ROUNDS          a stream that waits for a word which the launching thread writes after many launches
//   gate poll ROUNDS          a kernel that polls for a word which the launching thread writes after many launches
//   gate callback ROUNDS      a host function that waits for what the launching thread does after many launches
//   gate endless SKIP SECONDS one kernel that ends when told: the rounds it made in a second, those of the first SKIP seconds aside
//   gate facts                what the driver does where its documentation is silent
//
//   nvcc -O2 -std=c++17 -arch=sm_90 gate.cu -lcuda -lpthread -o gate
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include <cuda.h>
#include <cuda_runtime.h>

#define CHECK(x) do { int code_ = (x); if (code_) { printf("%s:%d %s = %d\n", __FILE__, __LINE__, #x, code_); exit(1); } } while (0)

__global__ void work(long rounds, float *out) {
    float a = threadIdx.x, b = 1.000001f;
    for (long i = 0; i < rounds; i++) a = a * b + 0.5f;
    if (a == 42.0f) *out = a;
}
__global__ void nothing() {}
__global__ void poll(volatile unsigned *word, unsigned value) {
    while (*word < value) __nanosleep(500);
}

// Until told to end: rounds of arithmetic, counted.
__global__ void endless(volatile unsigned *end, volatile unsigned *rounds, float *out) {
    __shared__ bool ends;
    float a = threadIdx.x, b = 1.000001f;
    for (;;) {
        if (threadIdx.x == 0) ends = *end != 0;
        __syncthreads();
        if (ends) break;
        for (int i = 0; i < 20000; i++) a = a * b + 0.5f;
        if (blockIdx.x == 0 && threadIdx.x == 0) (*rounds)++;
        __syncthreads();
    }
    if (a == 42.0f) *out = a;
}

static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

static long rounds_per_ms() {
    cudaEvent_t a, b;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    const long rounds = 200000;
    float best = 1e9f;
    // The shortest of many: others may have had the GPU meanwhile.
    for (int i = 0; i < 40; i++) {
        float ms;
        CHECK(cudaEventRecord(a));
        work<<<132, 256>>>(rounds, nullptr);
        CHECK(cudaEventRecord(b));
        CHECK(cudaEventSynchronize(b));
        CHECK(cudaEventElapsedTime(&ms, a, b));
        if (ms < best) best = ms;
    }
    return (long)(rounds / best);
}

static int share(bool streams, double ms, double seconds) {
    long rounds = (long)(rounds_per_ms() * ms);
    cudaStream_t a, b;
    CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    double begun = now();
    int done = 0;
    while (now() - begun < seconds) {
        work<<<132, 256, 0, a>>>(rounds, nullptr);
        if (streams) {
            nothing<<<1, 1, 0, b>>>();
            CHECK(cudaStreamSynchronize(b));
            while (cudaStreamQuery(a) == cudaErrorNotReady) usleep(200);
        } else {
            CHECK(cudaStreamSynchronize(a));
        }
        done++;
    }
    printf("%.1f\n", 100 * done * ms / 1000 / (now() - begun));
    return 0;
}

static int never_drains(double skip, double seconds) {
    volatile unsigned *words;
    CHECK(cudaHostAlloc((void **)&words, 4096, cudaHostAllocMapped));
    words[0] = words[64] = 0;
    unsigned *on_device;
    CHECK(cudaHostGetDevicePointer((void **)&on_device, (void *)words, 0));
    endless<<<132, 256>>>(on_device, on_device + 64, nullptr);
    CHECK(cudaGetLastError());
    usleep((useconds_t)(skip * 1e6));
    unsigned before = words[64];
    double begun = now();
    usleep((useconds_t)(seconds * 1e6));
    printf("%.1f\n", (words[64] - before) / (now() - begun));
    words[0] = 1;
    CHECK(cudaDeviceSynchronize());
    return 0;
}

static std::atomic<unsigned> reached{0};
static void wait_for_round(void *round) {
    while (reached.load() < (unsigned)(uintptr_t)round) usleep(20);
}

// Rounds of work that ends only when this thread has gone on. What it launches meanwhile goes to the same stream for
// 'v' (a wait for a value) and to another one else.
static int host(char what, int rounds) {
    cudaStream_t s, other;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    volatile unsigned *word;
    CHECK(cudaHostAlloc((void **)&word, 4096, cudaHostAllocMapped));
    *word = 0;
    CUdeviceptr at;
    CHECK(cuMemHostGetDevicePointer(&at, (void *)word, 0));
    // The driver loads a kernel at its first launch and waits for the context then: it must not happen below.
    poll<<<1, 1, 0, s>>>((volatile unsigned *)at, 0);
    nothing<<<1, 1, 0, s>>>();
    CHECK(cudaStreamSynchronize(s));
    double longest = 0, begun = now();
    for (int round = 1; round <= rounds; round++) {
        double from = now();
        if (what == 'v') CHECK(cuStreamWaitValue32(s, at, round, CU_STREAM_WAIT_VALUE_GEQ));
        if (what == 'p') poll<<<1, 1, 0, s>>>((volatile unsigned *)at, round);
        if (what == 'c') CHECK(cudaLaunchHostFunc(s, wait_for_round, (void *)(uintptr_t)round));
        for (int i = 0; i < 100; i++) nothing<<<1, 1, 0, what == 'v' ? s : other>>>();
        *word = round;
        reached = round;
        CHECK(cudaStreamSynchronize(s));
        if (now() - from > longest) longest = now() - from;
    }
    printf("%d rounds in %.1f s, the longest took %.0f ms\nok\n", rounds, now() - begun, longest * 1e3);
    return 0;
}

static int facts() {
    CHECK(cudaFree(0));
    int pageable = 0, active = 0;
    unsigned flags;
    CHECK(cuDeviceGetAttribute(&pageable, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0));
    printf("ordinary host memory can move to the GPU: %s\n", pageable ? "yes, uncharged" : "no");

    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle own, imported;
    int fd;
    CHECK(cuMemCreate(&own, 2 << 20, &prop, 0));
    CHECK(cuMemExportToShareableHandle(&fd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CHECK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    printf("imported from itself: %s handle\n", own == imported ? "the same" : "another");

    cudaStream_t s;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    nothing<<<1, 1, 0, s>>>();
    int destroyed = cuStreamDestroy(s);
    printf("a stream destroyed under capture: %d, then a wait for the context: %d\n", destroyed, (int)cudaDeviceSynchronize());

    void *p;
    cuuint64_t reserved = 0;
    CUmemoryPool pool;
    CHECK(cudaMallocAsync(&p, 64 << 20, 0));
    CHECK(cuDeviceGetMemPool(&pool, 0));
    CHECK(cudaDeviceReset());
    CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    int asked = cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
    printf("after a reset: context active %d, the pool answers %d, %llu MiB reserved\n", active, asked, (unsigned long long)reserved >> 20);
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    double a = argc > 2 ? atof(argv[2]) : 0, b = argc > 3 ? atof(argv[3]) : 0;
    if (!strcmp(mode, "long")) return share(false, a, b);
    if (!strcmp(mode, "streams")) return share(true, a, b);
    if (!strcmp(mode, "host")) return host('v', (int)a);
    if (!strcmp(mode, "poll")) return host('p', (int)a);
    if (!strcmp(mode, "callback")) return host('c', (int)a);
    if (!strcmp(mode, "endless")) return never_drains(a, b);
    if (!strcmp(mode, "facts")) return facts();
    return 2;
}
