#include "check.h"
// Pools the program makes, their books, and the one a device uses.
__global__ void put(int *p, int v) { p[threadIdx.x] = v; }
int main() {
    int supported = 0;
    CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
    EXPECT_EQ(supported, 1);
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t pool, standard, now;
    CHECK(cudaMemPoolCreate(&pool, &props));
    CHECK(cudaDeviceGetDefaultMemPool(&standard, 0));
    unsigned long long threshold = 1 << 20, used = 7;
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    threshold = 0;
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    EXPECT_EQ(threshold, 1ull << 20);
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    int *p;
    CHECK(cudaMallocFromPoolAsync(&p, 128, pool, s));
    put<<<1, 32, 0, s>>>(p, 9);
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    EXPECT(used >= 128);
    int h[32];
    CHECK(cudaMemcpyAsync(h, p, 128, cudaMemcpyDeviceToHost, s));
    CHECK(cudaFreeAsync(p, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(h[31], 9);
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    EXPECT_EQ(used, 0ull);
    CHECK(cudaDeviceSetMemPool(0, pool));
    CHECK(cudaDeviceGetMemPool(&now, 0));
    EXPECT(now == pool);
    CHECK(cudaDeviceSetMemPool(0, standard));
    CHECK(cudaMemPoolTrimTo(pool, 0));
    CHECK(cudaMemPoolDestroy(pool));
    EXPECT_ERROR(cudaMemPoolDestroy(standard), cudaErrorInvalidValue);
    cudaGetLastError();
    return finish();
}
