// nvcc: -std=c++17 -lcuda
// since: 13.0
#include "check.h"
#include <cuda.h>
#include <sys/resource.h>
// Thousands of each kind of object at once, with few open files allowed.
static const char *ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .u32 v;\n.visible .entry k() { ret; }\n";
__global__ void add(int *p) { atomicAdd(p, 1); }
int main() {
    Device<int> d(1);
    CHECK(cudaMemset(d, 0, 4));
    rlimit few = {64, 64};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    std::vector<int *> pinned(500), managed(500), device(5000);
    for (auto &p : pinned) { CHECK(cudaMallocHost(&p, 4096)); *p = 1; }
    for (auto &p : managed) { CHECK(cudaMallocManaged(&p, 64)); *p = 2; }
    for (auto &p : device) CHECK(cudaMalloc(&p, 256));
    std::vector<int> pages(300 * 1024);
    int *first = (int *)(((size_t)pages.data() + 4095) & ~(size_t)4095);
    for (int i = 0; i < 200; i++) CHECK(cudaHostRegister(first + i * 1024, 4096, 0));
    std::vector<cudaStream_t> streams(2000);
    std::vector<cudaEvent_t> events(5000);
    for (auto &s : streams) { CHECK(cudaStreamCreate(&s)); add<<<1, 1, 0, s>>>(d); }
    for (size_t i = 0; i < events.size(); i++) { CHECK(cudaEventCreate(&events[i])); CHECK(cudaEventRecord(events[i], streams[i % streams.size()])); }
    add<<<1, 1>>>(managed[7]);
    CHECK(cudaDeviceSynchronize());
    EXPECT_EQ(d.host()[0], 2000);
    EXPECT_EQ(*managed[7], 3);
    for (auto e : events) { CHECK(cudaEventQuery(e)); CHECK(cudaEventDestroy(e)); }
    for (auto s : streams) CHECK(cudaStreamDestroy(s));
    std::vector<CUmodule> modules(300);
    for (auto &m : modules) EXPECT_EQ((int)cuModuleLoadData(&m, ptx), 0);
    for (auto m : modules) EXPECT_EQ((int)cuModuleUnload(m), 0);
    for (int i = 0; i < 200; i++) CHECK(cudaHostUnregister(first + i * 1024));
    for (auto p : pinned) { EXPECT_EQ(*p, 1); CHECK(cudaFreeHost(p)); }
    for (auto p : managed) CHECK(cudaFree(p));
    for (auto p : device) CHECK(cudaFree(p));
    // And again, to see that all of it was given back.
    for (int i = 0; i < 2000; i++) { cudaStream_t s; CHECK(cudaStreamCreate(&s)); CHECK(cudaStreamDestroy(s)); }
    return finish();
}
