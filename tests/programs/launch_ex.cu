#include "check.h"
#include <cooperative_groups.h>
// Launches with attributes: priority, cooperative, and a kernel by its handle.
namespace cg = cooperative_groups;
__global__ void meet(int *p, int *sum) { p[blockIdx.x] = blockIdx.x + 1; cg::this_grid().sync(); if (blockIdx.x == 0 && threadIdx.x == 0) { int s = 0; for (unsigned i = 0; i < gridDim.x; i++) s += p[i]; *sum = s; } }
__global__ void plus(int *p, int a, long long b) { *p += a + (int)b; }
int main() {
    Device<int> p(4), sum(1);
    CHECK(cudaMemset(sum, 0, 4));
    cudaStream_t s;
    int least, greatest, got;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, greatest));
    CHECK(cudaStreamGetPriority(s, &got));
    EXPECT_EQ(got, greatest);
    unsigned flags = 0;
    CHECK(cudaStreamGetFlags(s, &flags));
    EXPECT_EQ(flags, (unsigned)cudaStreamNonBlocking);
    CHECK(cudaDeviceSynchronize());
    cudaLaunchAttribute at[2] = {};
    at[0].id = cudaLaunchAttributeCooperative, at[0].val.cooperative = 1;
    at[1].id = cudaLaunchAttributePriority, at[1].val.priority = least;
    cudaLaunchConfig_t c = {};
    c.gridDim = 4, c.blockDim = 32, c.stream = s, c.attrs = at, c.numAttrs = 1;
    int *pp = p, *ps = sum;
    CHECK(cudaLaunchKernelEx(&c, meet, pp, ps));
    c.gridDim = 1, c.blockDim = 1, c.attrs = at + 1;
    CHECK(cudaLaunchKernelEx(&c, plus, ps, 5, 1000ll));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(sum.host()[0], 10 + 1005);
    cudaFunction_t f;
    CHECK(cudaGetFuncBySymbol(&f, (const void *)plus));
    int a = 1;
    long long b = 2;
    void *args[] = {&ps, &a, &b};
    CHECK(cudaLaunchKernel((const void *)f, 1, 1, args, 0, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(sum.host()[0], 1018);
    void *both[] = {&pp, &ps};
    CHECK(cudaLaunchCooperativeKernel((void *)meet, 1, 1, both, 0, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(sum.host()[0], 1);
    return finish();
}
