#include "check.h"
// The books of a memory pool: what is used, what is kept, the highest of both, and trimming.
static unsigned long long get(cudaMemPool_t p, cudaMemPoolAttr a) { unsigned long long v = ~0ull; CHECK(cudaMemPoolGetAttribute(p, a, &v)); return v; }
__global__ void put(int *p, int v) { p[threadIdx.x] = v; }
int main() {
    cudaMemPool_t pool;
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    CHECK(cudaMemPoolCreate(&pool, &props));
    for (cudaMemPoolAttr a : {cudaMemPoolReuseFollowEventDependencies, cudaMemPoolReuseAllowOpportunistic, cudaMemPoolReuseAllowInternalDependencies}) {
        int on = 0, off = 0;
        CHECK(cudaMemPoolGetAttribute(pool, a, &on)); EXPECT_EQ(on, 1);
        CHECK(cudaMemPoolSetAttribute(pool, a, &off));
        CHECK(cudaMemPoolGetAttribute(pool, a, &on)); EXPECT_EQ(on, 0);
    }
    EXPECT_EQ(get(pool, cudaMemPoolAttrReleaseThreshold), 0ull);
    unsigned long long keep = 64 << 20;
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    const size_t piece = 4 << 20;
    int *p[4];
    for (int i = 0; i < 4; i++) { CHECK(cudaMallocFromPoolAsync(&p[i], piece, pool, s)); put<<<1, 32, 0, s>>>(p[i], i); }
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(get(pool, cudaMemPoolAttrUsedMemCurrent), 4ull * piece);
    EXPECT(get(pool, cudaMemPoolAttrReservedMemCurrent) >= 4ull * piece);
    for (int i = 0; i < 4; i++) CHECK(cudaFreeAsync(p[i], s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(get(pool, cudaMemPoolAttrUsedMemCurrent), 0ull);
    EXPECT_EQ(get(pool, cudaMemPoolAttrUsedMemHigh), 4ull * piece);
    // Up to the threshold what is free may stay.
    EXPECT(get(pool, cudaMemPoolAttrReservedMemCurrent) <= keep);
    size_t before, after, total;
    CHECK(cudaMemGetInfo(&before, &total));
    CHECK(cudaMemPoolTrimTo(pool, 0));
    CHECK(cudaMemGetInfo(&after, &total));
    EXPECT_EQ(get(pool, cudaMemPoolAttrReservedMemCurrent), 0ull);
    EXPECT(after >= before);
    EXPECT(get(pool, cudaMemPoolAttrReservedMemHigh) >= 4ull * piece);
    // A high mark can only be set back to what is now.
    unsigned long long zero = 0, one = 1;
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
    EXPECT_EQ(get(pool, cudaMemPoolAttrUsedMemHigh), 0ull);
    EXPECT_ERROR(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &one), cudaErrorInvalidValue);
    cudaGetLastError();
    EXPECT_ERROR(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &zero), cudaErrorInvalidValue);
    cudaGetLastError();
    cudaMemLocation here = {};
    here.type = cudaMemLocationTypeDevice;
    cudaMemAccessFlags access;
    CHECK(cudaMemPoolGetAccess(&access, pool, &here));
    EXPECT(access == cudaMemAccessFlagsProtReadWrite);
    // A pool that is destroyed while memory of it lives goes on until that is freed.
    CHECK(cudaMallocFromPoolAsync(&p[0], piece, pool, s));
    CHECK(cudaMemPoolDestroy(pool));
    put<<<1, 32, 0, s>>>(p[0], 9);
    int h[32];
    CHECK(cudaMemcpyAsync(h, p[0], sizeof h, cudaMemcpyDeviceToHost, s));
    CHECK(cudaFreeAsync(p[0], s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(h[31], 9);
    return finish();
}
