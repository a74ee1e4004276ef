// Products on Hopper. a is [m][k]; b is [n][k], or [k][n] for 16-bit elements. Both come through tensor maps with the axes
// (contiguous, other, batch).
//
// A sum may be divided along k: the parts are a stack of products, each `k_step` further along k, and `gemm_parts` adds them up.
#include "gemm_wgmma.cuh"

template <int BM, int BN, bool TURNED, bool THIN> struct Matrices {
    const TensorMap &a, &b;
    const Factors &f;

    template <class Place> __device__ __forceinline__ void first(uint32_t to, const Place &p, int k, uint32_t full) const
    {
        int batch = f.a_batch ? p.batch : 0, x = p.batch * f.k_step + k, rank = cluster_rank();
        if (THIN) copy_box_to_both(to + rank * (BM / 2) * 128, a, x, p.m0 + rank * (BM / 2), batch, full);
        else copy_box(to, a, x, p.m0, batch, full);
    }
    template <class Place> __device__ __forceinline__ void second(uint32_t to, const Place &p, int k, uint32_t full) const
    {
        int batch = f.b_batch ? p.batch : 0, x = p.batch * f.k_step + k, rank = cluster_rank();
        if (THIN && !TURNED) return copy_box(to, b, x, p.n0, batch, full);
        if (!TURNED) return copy_box_to_both(to + rank * (BN / 2) * 128, b, x, p.n0 + rank * (BN / 2), batch, full);
        constexpr int PIECES = THIN ? BN / 64 : BN / 128;
#pragma unroll
        for (int i = 0; i < PIECES; ++i) {
            int piece = THIN ? i : rank * PIECES + i;
            if (THIN) copy_box(to + piece * 64 * 128, b, p.n0 + piece * 64, x, batch, full);
            else copy_box_to_both(to + piece * 64 * 128, b, p.n0 + piece * 64, x, batch, full);
        }
    }
};

// The sums of parts of k, added up, with the epilogue: `from` is [parts][m][n].
extern "C" __global__ void gemm_parts(Epilogue e, const Acc *from, int m, int n, int parts)
{
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, size = (int64_t)m * n;
    if (at >= size) return;
    Acc sum = 0;
    for (int part = 0; part < parts; ++part) sum += from[part * size + at];
    put(e, sum, (int)(at / n), (int)(at % n), 0);
}

#define KERNEL(name, groups, columns, stages, turned, thin)                                                                          \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128 + 128 * groups, 1)                                    \
        name(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, Factors f, Epilogue e, int batches)           \
    {                                                                                                                                \
        Matrices<64 * groups, columns, turned, thin> matrices{a, b, f};                                                              \
        Tile<groups, columns, stages, turned, thin>::run(matrices, f, e, batches);                                                   \
    }
// Names: columns of a block, or rows of one that has few; then the layout of b: `nk` or `kn`.
#define KERNELS(layout, turned)                             \
    KERNEL(wgmma_256_##layout, 2, 256, 4, turned, false)    \
    KERNEL(wgmma_128_##layout, 2, 128, 5, turned, false)    \
    KERNEL(wgmma_thin128_##layout, 2, 128, 5, turned, true) \
    KERNEL(wgmma_thin64_##layout, 1, 128, 6, turned, true)
KERNELS(nk, false)
#if defined(TYPE_F16) || defined(TYPE_BF16)
KERNELS(kn, true)
#endif
