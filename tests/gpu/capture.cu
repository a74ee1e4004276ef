// What the hooks must not disturb: capture beside other streams, graphs with memory nodes, VMM references,
// events polled from other threads, a context that ends and begins anew. Exits 0 if all of it holds.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 capture.cu -lcuda -lpthread -o capture
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#define CHECK(x) do { int code_ = (x); if (code_) { printf("%s:%d %s = %d\n", __FILE__, __LINE__, #x, code_); exit(1); } } while (0)
#define EXPECT(x) do { if (!(x)) { printf("%s:%d not so: %s\n", __FILE__, __LINE__, #x); exit(1); } } while (0)

__global__ void add(int *p, int n) { if (threadIdx.x < n) p[threadIdx.x] += 1; }

static void captures_beside_work() {
    std::atomic<bool> stop(false);
    std::thread other([&] {
        cudaStream_t s;
        CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        int *p;
        CHECK(cudaMalloc(&p, 4096));
        while (!stop) {
            add<<<1, 32, 0, s>>>(p, 32);
            CHECK(cudaStreamSynchronize(s));
        }
        CHECK(cudaFree(p));
    });
    cudaStream_t s;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    int *p;
    CHECK(cudaMalloc(&p, 4096));
    CHECK(cudaMemset(p, 0, 4096));
    for (int round = 0; round < 50; round++) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        for (int i = 0; i < 100; i++) add<<<1, 32, 0, s>>>(p, 32);
        CHECK(cudaStreamEndCapture(s, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        CHECK(cudaGraphLaunch(exec, s));
        CHECK(cudaStreamSynchronize(s));
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
    int host[32];
    CHECK(cudaMemcpy(host, p, sizeof host, cudaMemcpyDeviceToHost));
    EXPECT(host[0] == 5000 && host[31] == 5000);
    stop = true;
    other.join();
    CHECK(cudaFree(p));
}

static void graphs_with_memory() {
    cudaStream_t s;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    void *p;
    CHECK(cudaMallocAsync(&p, 64 << 20, s));
    CHECK(cudaMemsetAsync(p, 1, 64 << 20, s));
    CHECK(cudaFreeAsync(p, s));
    CHECK(cudaStreamEndCapture(s, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 10; i++) CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaDeviceGraphMemTrim(0));
}

static void references() {
    CUmemAllocationProp props = {};
    props.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 };
    size_t free_before, free_held, free_after, total;
    CHECK(cudaDeviceSynchronize());
    CHECK(cuMemGetInfo(&free_before, &total));
    CUmemGenericAllocationHandle handle, again;
    CHECK(cuMemCreate(&handle, 64 << 20, &props, 0));
    CUdeviceptr at;
    CHECK(cuMemAddressReserve(&at, 64 << 20, 0, 0, 0));
    CHECK(cuMemMap(at, 64 << 20, 0, handle, 0));
    CHECK(cuMemRelease(handle));
    CHECK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void *>(at)));
    CHECK(cuMemUnmap(at, 64 << 20));
    CHECK(cuMemGetInfo(&free_held, &total));
    EXPECT(free_held + (64 << 20) <= free_before);
    CHECK(cuMemRelease(again));
    CHECK(cuMemGetInfo(&free_after, &total));
    EXPECT(free_after >= free_held + (64 << 20));
    CHECK(cuMemAddressFree(at, 64 << 20));
}

static void polling() {
    cudaStream_t s;
    cudaEvent_t e;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    int *p;
    CHECK(cudaMallocAsync(&p, 4096, s));
    for (int i = 0; i < 1000; i++) {
        add<<<1, 32, 0, s>>>(p, 32);
        CHECK(cudaEventRecord(e, s));
        while (cudaEventQuery(e) == cudaErrorNotReady) {}
    }
    CHECK(cudaFreeAsync(p, s));
    CHECK(cudaStreamSynchronize(s));
}

int main() {
    captures_beside_work();
    graphs_with_memory();
    references();
    polling();
    void *p;
    CHECK(cudaMalloc(&p, 256 << 20));
    CHECK(cudaDeviceReset());
    CHECK(cudaMalloc(&p, 256 << 20));
    captures_beside_work();
    puts("ok");
    return 0;
}
