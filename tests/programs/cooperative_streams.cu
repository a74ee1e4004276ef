#include "check.h"
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
// Cooperative grids on several streams, through each way to launch them; one that cannot fit is refused.
__global__ void rounds(int *sums, int n) {
    cg::grid_group grid = cg::this_grid();
    for (int r = 0; r < n; r++) {
        if (threadIdx.x == 0) atomicAdd(&sums[r], 1);
        grid.sync();
        // Everybody has arrived: all see the same sum.
        if (*(volatile int *)&sums[r] != (int)gridDim.x) sums[n] = -1;
        grid.sync();
    }
}
int main() {
    int supported = 0, processors = 0, per = 0;
    CHECK(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0));
    EXPECT_EQ(supported, 1);
    CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, rounds, 64, 0));
    EXPECT(per > 0);
    const int streams = 3, n = 10;
    cudaStream_t s[streams];
    std::vector<Device<int> *> d;
    int blocks = processors * per < 8 ? processors * per : 8;
    for (int i = 0; i < streams; i++) {
        CHECK(cudaStreamCreate(&s[i]));
        d.push_back(new Device<int>(n + 1));
        CHECK(cudaMemset(*d[i], 0, (n + 1) * 4));
    }
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < streams; i++) {
        int *p = *d[i], count = n;
        void *args[] = {&p, &count};
        if (i < 2) { CHECK(cudaLaunchCooperativeKernel((void *)rounds, dim3(blocks), dim3(64), args, 0, s[i])); continue; }
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeCooperative;
        attribute.val.cooperative = 1;
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(blocks); config.blockDim = dim3(64); config.stream = s[i]; config.attrs = &attribute; config.numAttrs = 1;
        CHECK(cudaLaunchKernelExC(&config, (void *)rounds, args));
    }
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < streams; i++) { auto h = d[i]->host(); for (int r = 0; r < n; r++) EXPECT_EQ(h[r], blocks); EXPECT_EQ(h[n], 0); }
    int *p = *d[0], count = n;
    void *args[] = {&p, &count};
    EXPECT_ERROR(cudaLaunchCooperativeKernel((void *)rounds, dim3(processors * per + 1), dim3(64), args, 0, s[0]), cudaErrorCooperativeLaunchTooLarge);
    EXPECT_ERROR(cudaGetLastError(), cudaErrorCooperativeLaunchTooLarge);
    CHECK(cudaDeviceSynchronize());
    return finish();
}
