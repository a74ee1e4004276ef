#include "check.h"
// Pinned memory of every kind; copies from it wait for nobody; registered memory anywhere in a page.
__global__ void inc(int *p, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) p[i]++; }
int main() {
    const int n = 50000;
    for (unsigned flags : {0u, (unsigned)cudaHostAllocPortable, (unsigned)cudaHostAllocMapped, (unsigned)cudaHostAllocWriteCombined}) {
        int *h, *d;
        unsigned got = 99;
        CHECK(cudaHostAlloc(&h, n * 4, flags));
        CHECK(cudaHostGetFlags(&got, h));
        EXPECT_EQ(got & flags, flags);
        CHECK(cudaHostGetDevicePointer(&d, h, 0));
        for (int i = 0; i < n; i++) h[i] = i;
        inc<<<(n + 255) / 256, 256>>>(d, n);
        CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < n; i++) EXPECT_EQ(h[i], i + 1);
        Device<int> copy(n);
        cudaStream_t s;
        CHECK(cudaStreamCreate(&s));
        CHECK(cudaMemcpyAsync(copy, h, n * 4, cudaMemcpyHostToDevice, s));
        inc<<<(n + 255) / 256, 256, 0, s>>>(copy, n);
        CHECK(cudaMemcpyAsync(h, copy, n * 4, cudaMemcpyDeviceToHost, s));
        CHECK(cudaStreamSynchronize(s));
        EXPECT_EQ(h[n - 1], n + 1);
        CHECK(cudaStreamDestroy(s));
        CHECK(cudaFreeHost(h));
    }
    std::vector<int> v(30000, 1);
    int *inside = v.data() + 1001;
    CHECK(cudaHostRegister(inside, 20000 * 4, cudaHostRegisterDefault));
    Device<int> copy(20000);
    CHECK(cudaMemcpyAsync(copy, inside, 20000 * 4, cudaMemcpyHostToDevice, 0));
    inc<<<100, 256>>>(copy, 20000);
    CHECK(cudaMemcpyAsync(inside, copy, 20000 * 4, cudaMemcpyDeviceToHost, 0));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaHostUnregister(inside));
    for (int i = 0; i < 30000; i++) EXPECT_EQ(v[i], i >= 1001 && i < 21001 ? 2 : 1);
    EXPECT_ERROR(cudaHostAlloc(&inside, 4, 0x80), cudaErrorInvalidValue);
    cudaGetLastError();
    return finish();
}
