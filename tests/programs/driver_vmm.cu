// nvcc: -lcuda
#include "check.h"
#include <cuda.h>
#define DRV(c) EXPECT_EQ((int)(c), 0)
__global__ void put(int *p, size_t n) { size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; if (i < n) p[i] = (int)i; } __global__ void get(const int *p, size_t at, int *o) { *o = p[at]; }
int main() { CHECK(cudaFree(0)); CUmemAllocationProp prop = {}; prop.type = CU_MEM_ALLOCATION_TYPE_PINNED; prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}; size_t g; DRV(cuMemGetAllocationGranularity(&g, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM)); EXPECT_EQ(g, 2u << 20); CUdeviceptr va; DRV(cuMemAddressReserve(&va, 4 * g, 0, 0, 0)); CUmemGenericAllocationHandle h[2]; CUmemAccessDesc acc = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}; for (int i = 0; i < 2; i++) { DRV(cuMemCreate(&h[i], g, &prop, 0)); DRV(cuMemMap(va + i * g, g, 0, h[i], 0)); } DRV(cuMemSetAccess(va, 2 * g, &acc, 1));
    size_t n = 2 * g / 4; put<<<(n + 255) / 256, 256>>>((int *)va, n); Device<int> o(1); get<<<1, 1>>>((int *)va, n - 1, o); EXPECT_EQ(o.host()[0], (int)(n - 1)); DRV(cuMemUnmap(va, g)); DRV(cuMemMap(va + 2 * g, g, 0, h[0], 0)); DRV(cuMemSetAccess(va + 2 * g, g, &acc, 1)); get<<<1, 1>>>((int *)(va + 2 * g), 77, o); EXPECT_EQ(o.host()[0], 77); DRV(cuMemUnmap(va + g, 2 * g)); for (auto x : h) DRV(cuMemRelease(x)); DRV(cuMemAddressFree(va, 4 * g)); return finish(); }
