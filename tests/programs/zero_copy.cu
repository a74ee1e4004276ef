#include "check.h"
// Host memory that a running kernel reads and writes in place, allocated pinned and registered later. Where a device cannot map host
// memory, what a running kernel and the program would tell each other is left out.
static int can_map = 0;
__global__ void play(volatile int *ball, int rounds) {
    for (int i = 0; i < rounds; i++) {
        while (ball[0] != 2 * i + 1);
        __threadfence_system();
        ball[1] = ball[1] * 3 + 1;
        __threadfence_system();
        ball[0] = 2 * i + 2;
    }
}
__global__ void sum(const int *p, int n, unsigned long long *out) { unsigned long long s = 0; for (int i = threadIdx.x; i < n; i += blockDim.x) s += p[i]; atomicAdd(out, s); }
static void rally(volatile int *host, int *device) {
    if (!can_map) return;
    const int rounds = 20;
    host[0] = 0; host[1] = 0;
    play<<<1, 1>>>(device, rounds);
    unsigned wanted = 0;
    for (int i = 0; i < rounds; i++) {
        __sync_synchronize();
        host[0] = 2 * i + 1;
        while (host[0] != 2 * i + 2);
        __sync_synchronize();
        wanted = wanted * 3 + 1;
        EXPECT_EQ((unsigned)host[1], wanted);
    }
    CHECK(cudaDeviceSynchronize());
}
int main() {
    CHECK(cudaSetDeviceFlags(cudaDeviceMapHost));
    CHECK(cudaDeviceGetAttribute(&can_map, cudaDevAttrCanMapHostMemory, 0));
    if (!can_map) printf("skipped: the device cannot map host memory\n");
    int *pinned, *d;
    CHECK(cudaHostAlloc(&pinned, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
    CHECK(cudaHostGetDevicePointer(&d, pinned, 0));
    rally(pinned, d);
    unsigned flags = 0;
    CHECK(cudaHostGetFlags(&flags, pinned));
    EXPECT((flags & cudaHostAllocMapped) && (flags & cudaHostAllocPortable));
    CHECK(cudaFreeHost(pinned));

    const int n = 1 << 18;
    int *own = (int *)aligned_alloc(4096, n * sizeof(int));
    for (int i = 0; i < n; i++) own[i] = i;
    // Registration keeps what is there; a second one of the same memory is refused.
    CHECK(cudaHostRegister(own, n * sizeof(int), cudaHostRegisterMapped));
    EXPECT_ERROR(cudaHostRegister(own, n * sizeof(int), cudaHostRegisterMapped), cudaErrorHostMemoryAlreadyRegistered);
    cudaGetLastError();
    EXPECT_EQ(own[n - 1], n - 1);
    CHECK(cudaHostGetDevicePointer(&d, own, 0));
    Device<unsigned long long> out(1);
    CHECK(cudaMemset(out, 0, 8));
    sum<<<1, 256>>>(d, n, out);
    EXPECT_EQ(out.host()[0], (unsigned long long)n * (n - 1) / 2);
    rally(own, d);
    // A part of it by its own address.
    int *part;
    CHECK(cudaHostGetDevicePointer(&part, own + 100, 0));
    EXPECT(part == d + 100);
    CHECK(cudaHostUnregister(own));
    EXPECT_EQ(own[n - 1], n - 1);
    EXPECT_ERROR(cudaHostUnregister(own), cudaErrorHostMemoryNotRegistered);
    cudaGetLastError();
    EXPECT_ERROR(cudaHostGetDevicePointer(&d, nullptr, 0), cudaErrorInvalidValue);
    cudaGetLastError();
    free(own);
    return finish();
}
