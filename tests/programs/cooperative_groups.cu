// nvcc: -std=c++17
#include "check.h"
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void k(const int *in, int *out, int *blocks) { auto b = cg::this_thread_block(); auto w = cg::tiled_partition<32>(b); auto q = cg::tiled_partition<4>(w); int v = in[blockIdx.x * blockDim.x + threadIdx.x]; int s = cg::reduce(w, v, cg::plus<int>()); int m = cg::reduce(q, v, cg::greater<int>()); __shared__ int t; if (b.thread_rank() == 0) t = 0; b.sync(); if (w.thread_rank() == 0) atomicAdd(&t, s); b.sync(); out[blockIdx.x * blockDim.x + threadIdx.x] = m + q.shfl(v, 1) + (int)q.meta_group_rank(); if (b.thread_rank() == 0) blocks[blockIdx.x] = t; }
int main() { const int n = 512; std::vector<int> v(n); for (int i = 0; i < n; i++) v[i] = i * 7919 % 257; Device<int> d(v), o(n), b(4); k<<<4, 128>>>(d, o, b); auto r = o.host(); auto s = b.host(); for (int i = 0; i < n; i++) { int q = i & ~3, m = 0; for (int j = 0; j < 4; j++) m = std::max(m, v[q + j]); EXPECT_EQ(r[i], m + v[q + 1] + (i % 32) / 4); } for (int i = 0; i < 4; i++) { int t = 0; for (int j = 0; j < 128; j++) t += v[i * 128 + j]; EXPECT_EQ(s[i], t); } return finish(); }
