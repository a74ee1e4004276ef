#include "check.h"
// Where pointers lead: device, pinned, registered, managed memory, and memory CUDA knows nothing of.
__device__ int variable;
int main() {
    cudaPointerAttributes a;
    int local = 0, *d, *h, *m;
    CHECK(cudaMalloc(&d, 4000));
    CHECK(cudaMallocHost(&h, 4000));
    CHECK(cudaMallocManaged(&m, 4000));
    CHECK(cudaPointerGetAttributes(&a, d + 10));
    EXPECT_EQ(a.type, cudaMemoryTypeDevice);
    EXPECT(a.devicePointer == d + 10 && a.hostPointer == nullptr && a.device == 0);
    CHECK(cudaPointerGetAttributes(&a, h + 10));
    EXPECT_EQ(a.type, cudaMemoryTypeHost);
    EXPECT(a.hostPointer == h + 10 && a.devicePointer != nullptr);
    CHECK(cudaPointerGetAttributes(&a, m));
    EXPECT_EQ(a.type, cudaMemoryTypeManaged);
    EXPECT(a.hostPointer == m && a.devicePointer == m);
    CHECK(cudaPointerGetAttributes(&a, &local));
    EXPECT_EQ(a.type, cudaMemoryTypeUnregistered);
    void *v;
    size_t bytes;
    CHECK(cudaGetSymbolAddress(&v, variable));
    CHECK(cudaGetSymbolSize(&bytes, variable));
    EXPECT_EQ(bytes, 4u);
    CHECK(cudaPointerGetAttributes(&a, v));
    EXPECT_EQ(a.type, cudaMemoryTypeDevice);
    // Copies that are told nothing find the way themselves.
    int five = 5, six = 0;
    CHECK(cudaMemcpy(d, &five, 4, cudaMemcpyDefault));
    CHECK(cudaMemcpy(h, d, 4, cudaMemcpyDefault));
    CHECK(cudaMemcpy(m, h, 4, cudaMemcpyDefault));
    CHECK(cudaMemcpy(v, m, 4, cudaMemcpyDefault));
    CHECK(cudaMemcpy(&six, v, 4, cudaMemcpyDefault));
    EXPECT_EQ(six, 5);
    EXPECT_EQ(h[0], 5);
    EXPECT_EQ(m[0], 5);
    CHECK(cudaMemcpy(&local, &six, 4, cudaMemcpyDefault));
    EXPECT_EQ(local, 5);
    CHECK(cudaFreeHost(h));
    CHECK(cudaFree(m));
    CHECK(cudaFree(d));
    EXPECT_ERROR(cudaFreeHost(&local), cudaErrorInvalidValue);
    cudaGetLastError();
    return finish();
}
