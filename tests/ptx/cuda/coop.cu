// Cooperative groups: tiles, reductions, coalesced groups, grid barriers.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
extern "C" __global__ void groups(const int *in, int *out) {
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    auto tile = cg::tiled_partition<8>(warp);
    int v = in[block.thread_rank()];
    int sum = cg::reduce(tile, v, cg::plus<int>());
    int high = cg::reduce(warp, v, cg::greater<int>());
    int pre = cg::exclusive_scan(tile, v);
    if (v & 1) {
        auto active = cg::coalesced_threads();
        sum += active.shfl(v, 0) + active.size() + active.thread_rank();
        active.sync();
    }
    block.sync();
    out[block.thread_rank()] = sum + high + pre + warp.any(v > 3) + tile.meta_group_rank();
}
extern "C" __global__ void grid_sum(const float *in, float *partial, float *out, int n) {
    auto grid = cg::this_grid();
    __shared__ float s;
    if (threadIdx.x == 0) s = 0;
    __syncthreads();
    float v = 0;
    for (int i = grid.thread_rank(); i < n; i += grid.size()) v += in[i];
    atomicAdd(&s, v);
    __syncthreads();
    if (threadIdx.x == 0) partial[blockIdx.x] = s;
    grid.sync();
    if (grid.thread_rank() == 0) {
        float t = 0;
        for (int b = 0; b < gridDim.x; ++b) t += partial[b];
        *out = t;
    }
}
#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
extern "C" __global__ void __cluster_dims__(2, 1, 1) cluster(int *out) {
    __shared__ int mine;
    auto c = cg::this_cluster();
    if (threadIdx.x == 0) mine = c.block_rank();
    c.sync();
    int *other = c.map_shared_rank(&mine, c.block_rank() ^ 1);
    out[blockIdx.x] = *other;
    c.sync();
}
#endif
