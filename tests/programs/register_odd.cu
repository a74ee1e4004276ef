// nvcc: -std=c++17
#include "check.h"
#include <atomic>
#include <sys/mman.h>
#include <thread>
// Memory of all kinds is registered: of the stack, of the heap beside other things, of odd sizes, sharing pages,
// read-only, not there at all. What lies beside it stays as it is.
__global__ void add(int *p, int v, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) p[i] += v; }
template <class T> static T *on_device(T *p) { void *d = nullptr; CHECK(cudaHostGetDevicePointer(&d, p, 0)); return (T *)d; }
static void add_to(int *p, int n) { add<<<(n + 127) / 128, 128>>>(on_device(p), 7, n); CHECK(cudaDeviceSynchronize()); }
int main() {
    CHECK(cudaFree(0));
    // Of the stack, whose page the calls themselves use.
    int before = 11, local[16] = {1, 2, 3}, after = 13;
    CHECK(cudaHostRegister(local, sizeof local, cudaHostRegisterMapped));
    add_to(local, 16);
    EXPECT(local[0] == 8 && local[15] == 7 && before == 11 && after == 13);
    CHECK(cudaHostUnregister(local));
    EXPECT(local[0] == 8 && local[15] == 7);
    // Of the heap, in the middle of a page, beside memory that another thread writes to.
    std::vector<int> heap(40000);
    std::atomic<bool> stop{false};
    long steps = 0;
    volatile int *neighbour = &heap[19999];
    std::thread writer([&] { while (!stop) { *neighbour = (int)++steps; std::this_thread::yield(); } });
    for (int round = 0; round < 20; round++) {
        CHECK(cudaHostRegister(&heap[20000], 9999 * 4, cudaHostRegisterMapped));
        add_to(&heap[20000], 9999);
        CHECK(cudaHostUnregister(&heap[20000]));
    }
    stop = true;
    writer.join();
    for (int i = 0; i < 40000; i++) if (i != 19999) EXPECT_EQ(heap[i], i >= 20000 && i < 29999 ? 140 : 0);
    // Large, from the middle of a page to the middle of another.
    std::vector<int> large(20 << 20, 5);
    CHECK(cudaHostRegister(&large[3], (large.size() - 7) * 4, cudaHostRegisterMapped));
    add_to(&large[3], (int)large.size() - 7);
    EXPECT(large[2] == 5 && large[3] == 12 && large[10 << 20] == 12 && large[large.size() - 5] == 12 && large[large.size() - 4] == 5);
    CHECK(cudaHostUnregister(&large[3]));
    EXPECT(large[2] == 5 && large[3] == 12 && large[10 << 20] == 12 && large[large.size() - 5] == 12 && large[large.size() - 4] == 5);
    // Two in one page; each is free to go first.
    alignas(4096) static int page[2048];
    for (int first : {0, 1}) {
        int *a = page + 10, *b = page + 500;
        CHECK(cudaHostRegister(a, 400, cudaHostRegisterMapped));
        CHECK(cudaHostRegister(b, 401, cudaHostRegisterMapped));
        EXPECT_ERROR(cudaHostRegister(a, 400, 0), cudaErrorHostMemoryAlreadyRegistered);
        EXPECT_ERROR(cudaHostRegister(a + 5, 4, 0), cudaErrorHostMemoryAlreadyRegistered);
        add_to(a, 100);
        add_to(b, 100);
        CHECK(cudaHostUnregister(first ? a : b));
        EXPECT_ERROR(cudaHostUnregister(first ? a : b), cudaErrorHostMemoryNotRegistered);
        add_to(first ? b : a, 100);
        CHECK(cudaHostUnregister(first ? b : a));
        EXPECT_EQ(page[10], first ? 21 : 14);
    }
    (void)cudaGetLastError();
    // One byte, and one at the end of a page.
    char *bytes = (char *)page;
    CHECK(cudaHostRegister(bytes + 4095, 1, 0));
    CHECK(cudaHostUnregister(bytes + 4095));
    CHECK(cudaHostRegister(bytes + 4095, 2, 0));
    CHECK(cudaHostUnregister(bytes + 4095));
    // Wrong: not there, with a hole, not to be read, not all there; a size that wraps.
    char *area = (char *)mmap(nullptr, 5 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(area + 4096, 4096);
    mprotect(area + 3 * 4096, 4096, PROT_NONE);
    EXPECT_ERROR(cudaHostRegister(area + 4096, 4096, 0), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaHostRegister(area, 3 * 4096, 0), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaHostRegister(area + 3 * 4096, 10, 0), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaHostRegister(area, ~(size_t)0 - 8192, 0), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaHostRegister(nullptr, 4096, 0), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaHostRegister(area, 0, 0), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaHostRegister(area, 4096, 0x100), cudaErrorInvalidValue);
    // Read-only memory says so.
    mprotect(area, 4096, PROT_READ);
    EXPECT_ERROR(cudaHostRegister(area, 4096, 0), cudaErrorInvalidValue);
    int supported = 0;
    CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrHostRegisterReadOnlySupported, 0));
    if (supported) {
        CHECK(cudaHostRegister(area, 4096, cudaHostRegisterReadOnly));
        CHECK(cudaHostUnregister(area));
    }
    mprotect(area, 4096, PROT_READ | PROT_WRITE);
    area[0] = 1;
    // What is the device's already is no memory of the program's, pinned or not.
    Device<int> d(16);
    int *pinned, *managed;
    CHECK(cudaMallocHost(&pinned, 64));
    CHECK(cudaMallocManaged(&managed, 64));
    EXPECT_ERROR(cudaHostRegister(pinned, 64, 0), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaHostUnregister(pinned), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaHostRegister(d, 64, 0), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaFreeHost(d), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaFreeHost((char *)pinned + 8), cudaErrorInvalidValue);
    EXPECT_ERROR(cudaFreeHost(managed), cudaErrorInvalidValue);
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaFree(managed));
    void *none;
    EXPECT_ERROR(cudaMallocHost(&none, (size_t)1 << 50), cudaErrorMemoryAllocation);
    EXPECT_ERROR(cudaMallocManaged(&none, ~(size_t)0), cudaErrorMemoryAllocation);
    (void)cudaGetLastError();
    CHECK(cudaDeviceSynchronize());
    return finish();
}
