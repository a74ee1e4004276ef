#include "check.h"
#include <set>
// What a stream is asked about: priority, flags, number, device, attributes.
__global__ void nothing() {}
int main() {
    int least = 0, greatest = 0, p = 77;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    EXPECT(greatest <= least);
    cudaStream_t low, high, beyond, plain;
    CHECK(cudaStreamCreateWithPriority(&low, cudaStreamNonBlocking, least));
    CHECK(cudaStreamCreateWithPriority(&high, cudaStreamDefault, greatest));
    // Numbers outside the range are brought into it.
    CHECK(cudaStreamCreateWithPriority(&beyond, cudaStreamNonBlocking, greatest - 1000));
    CHECK(cudaStreamCreate(&plain));
    CHECK(cudaStreamGetPriority(low, &p)); EXPECT_EQ(p, least);
    CHECK(cudaStreamGetPriority(high, &p)); EXPECT_EQ(p, greatest);
    CHECK(cudaStreamGetPriority(beyond, &p)); EXPECT_EQ(p, greatest);
    CHECK(cudaStreamGetPriority(plain, &p)); EXPECT_EQ(p, 0);
    CHECK(cudaStreamGetPriority(0, &p)); EXPECT_EQ(p, 0);
    unsigned flags = 9;
    CHECK(cudaStreamGetFlags(low, &flags)); EXPECT_EQ(flags, (unsigned)cudaStreamNonBlocking);
    CHECK(cudaStreamGetFlags(high, &flags)); EXPECT_EQ(flags, (unsigned)cudaStreamDefault);
    for (cudaStream_t s : {low, high, beyond, plain}) nothing<<<1, 1, 0, s>>>();
    CHECK(cudaDeviceSynchronize());
#if CUDART_VERSION >= 12000
    std::set<unsigned long long> ids;
    for (cudaStream_t s : {low, high, beyond, plain, (cudaStream_t)cudaStreamLegacy, (cudaStream_t)cudaStreamPerThread}) { unsigned long long id; CHECK(cudaStreamGetId(s, &id)); ids.insert(id); }
    EXPECT_EQ(ids.size(), (size_t)6);
    unsigned long long once, again;
    CHECK(cudaStreamGetId(0, &once)); CHECK(cudaStreamGetId(cudaStreamLegacy, &again));
    EXPECT_EQ(once, again);
#endif
#if CUDART_VERSION >= 12080
    int device = 9;
    CHECK(cudaStreamGetDevice(low, &device)); EXPECT_EQ(device, 0);
#endif
#if CUDART_VERSION >= 12000
    cudaStreamAttrValue value = {}, got = {};
    value.syncPolicy = cudaSyncPolicyYield;
    CHECK(cudaStreamSetAttribute(low, cudaStreamAttributeSynchronizationPolicy, &value));
    CHECK(cudaStreamGetAttribute(low, cudaStreamAttributeSynchronizationPolicy, &got));
    EXPECT(got.syncPolicy == cudaSyncPolicyYield);
    CHECK(cudaStreamCopyAttributes(plain, low));
    CHECK(cudaStreamGetAttribute(plain, cudaStreamAttributeSynchronizationPolicy, &got));
    EXPECT(got.syncPolicy == cudaSyncPolicyYield);
#endif
    for (cudaStream_t s : {low, high, beyond, plain}) CHECK(cudaStreamDestroy(s));
    EXPECT_ERROR(cudaStreamCreateWithFlags(&plain, 8), cudaErrorInvalidValue);
    cudaGetLastError();
    return finish();
}
