// nvcc: -std=c++17 -gencode arch=compute_80,code=compute_80
#include "check.h"
// Tiles wider than a warp: their threads meet in shared memory that the program sets aside.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
template <unsigned N> __global__ void tiles(const int *in, int *sum, int *in_scan, int *ex_scan, int *other, int *votes) {
    __shared__ cg::block_tile_memory<512> memory;
    auto block = cg::this_thread_block(memory);
    auto tile = cg::tiled_partition<N>(block);
    int i = blockIdx.x * blockDim.x + threadIdx.x, v = in[i];
    sum[i] = cg::reduce(tile, v, cg::plus<int>());
    in_scan[i] = cg::inclusive_scan(tile, v);
    ex_scan[i] = cg::exclusive_scan(tile, v, cg::plus<int>());
    other[i] = tile.shfl(v, N - 3);
    votes[i] = tile.any(v == 250) * 2 + tile.all(v >= 0);
    tile.sync();
}
template <unsigned N> void check(const std::vector<int> &v) {
    const int n = v.size();
    Device<int> d(v), a(n), b(n), c(n), o(n), w(n);
    tiles<N><<<n / 512, 512>>>(d, a, b, c, o, w);
    CHECK(cudaDeviceSynchronize());
    auto sum = a.host(), in = b.host(), ex = c.host(), other = o.host(), votes = w.host();
    for (int t = 0; t < n; t += N) {
        int total = 0, any = 0;
        for (unsigned j = 0; j < N; j++) any |= v[t + j] == 250;
        for (unsigned j = 0; j < N; j++) {
            EXPECT_EQ(ex[t + j], total);
            total += v[t + j];
            EXPECT_EQ(in[t + j], total);
            EXPECT_EQ(other[t + j], v[t + N - 3]);
            EXPECT_EQ(votes[t + j], any * 2 + 1);
        }
        for (unsigned j = 0; j < N; j++) EXPECT_EQ(sum[t + j], total);
    }
}
int main() {
    std::vector<int> v(1536);
    for (int i = 0; i < 1536; i++) v[i] = i * 7919 % 257;
    check<64>(v);
    check<128>(v);
    check<256>(v);
    check<512>(v);
    return finish();
}
