// since: 13.0
#include "check.h"
// Managed memory seen by both sides while a kernel runs, and the hints about where it lives.
__device__ __managed__ int flags[4];
__global__ void answer(volatile int *ask, volatile int *told, int rounds) {
    for (int i = 1; i <= rounds; i++) { while (*ask != i); __threadfence_system(); *told = i * i; __threadfence_system(); }
}
__global__ void add_system(int *p, int n) { for (int i = 0; i < n; i++) atomicAdd_system(p, 1); }
static void seen_while_it_runs() {
    flags[0] = flags[1] = flags[2] = 0;
    int *a;
    CHECK(cudaGetSymbolAddress((void **)&a, flags));
    answer<<<1, 1>>>(a, a + 1, 10);
    volatile int *v = flags;
    for (int i = 1; i <= 10; i++) { __sync_synchronize(); v[0] = i; while (v[1] != i * i); }
    CHECK(cudaDeviceSynchronize());
    // Both sides add at once; nothing is lost.
    add_system<<<1, 1>>>(a + 2, 1000);
    for (int i = 0; i < 1000; i++) __atomic_fetch_add(&flags[2], 1, __ATOMIC_SEQ_CST);
    CHECK(cudaDeviceSynchronize());
    EXPECT_EQ(flags[2], 2000);
}
int main() {
    int concurrent = 0;
    CHECK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    // Where a device says no, only what comes after a wait is seen.
    if (concurrent) seen_while_it_runs();
    else printf("skipped: the device has no concurrent access to managed memory\n");

    const size_t bytes = 4 << 20;
    int *p;
    CHECK(cudaMallocManaged(&p, bytes));
    cudaMemLocation device = {cudaMemLocationTypeDevice, 0}, host = {cudaMemLocationTypeHost, 0};
    CHECK(cudaMemAdvise(p, bytes, cudaMemAdviseSetReadMostly, device));
    int read_mostly = 0;
    CHECK(cudaMemRangeGetAttribute(&read_mostly, 4, cudaMemRangeAttributeReadMostly, p, bytes));
    EXPECT_EQ(read_mostly, 1);
    CHECK(cudaMemAdvise(p, bytes, cudaMemAdviseUnsetReadMostly, device));
    CHECK(cudaMemRangeGetAttribute(&read_mostly, 4, cudaMemRangeAttributeReadMostly, p, bytes));
    EXPECT_EQ(read_mostly, 0);
    CHECK(cudaMemAdvise(p, bytes, cudaMemAdviseSetPreferredLocation, device));
    int place = -7;
    CHECK(cudaMemRangeGetAttribute(&place, 4, cudaMemRangeAttributePreferredLocation, p, bytes));
    EXPECT_EQ(place, 0);
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    for (size_t i = 0; i < bytes / 4; i += 512) p[i] = (int)i;
    CHECK(cudaMemPrefetchAsync(p, bytes, device, 0, s));
    add_system<<<1, 1, 0, s>>>(p + 512, 5);
    CHECK(cudaMemPrefetchAsync(p, bytes, host, 0, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(p[512], 517);
    CHECK(cudaStreamAttachMemAsync(s, p, 0, cudaMemAttachGlobal));
    CHECK(cudaStreamSynchronize(s));
    cudaPointerAttributes what;
    CHECK(cudaPointerGetAttributes(&what, p + 3));
    EXPECT(what.type == cudaMemoryTypeManaged && what.devicePointer == p + 3 && what.hostPointer == p + 3);
    CHECK(cudaFree(p));
    return finish();
}
