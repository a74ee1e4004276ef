// Products with tensor cores. a is [m][k]; b is [n][k], or [k][n] for 16-bit elements. Rows are contiguous, begin at
// multiples of 16 bytes and are multiples of 16 bytes apart.
//
// Shared memory has stages of 128 bytes of k: 64 elements of 16 bits, 128 of 8, 32 of 32. 16-byte pieces of a row are
// exchanged by the row's number, so that eight rows of a column of pieces are in different banks.
//
// 4-bit integers come as bytes of two: k, distances and columns of k count such bytes.
#include "mma.cuh"

#if defined(TYPE_I4)
typedef s4x2 E;
#else
typedef T E;
#endif

template <int BM, int BN, int WARPS_M, int WARPS_N, int STAGES, bool TURNED>
struct Tile {
    typedef Mma<E>::Acc Acc;
    static constexpr int THREADS = WARPS_M * WARPS_N * 32, BK = 128 / sizeof(E);
    static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N, MT = WM / 16, NT = WN / 8;
    static constexpr int A_BYTES = BM * 128, B_BYTES = BN * 128, STAGE_BYTES = A_BYTES + B_BYTES;

    static __device__ __forceinline__ void fetch(const Factors &f, const E *a, const E *b, int m0, int n0, int k0, uint32_t stage)
    {
        int tid = threadIdx.x;
#pragma unroll
        for (int i = 0; i < BM * 8 / THREADS; ++i) {
            int at = tid + i * THREADS, row = at / 8, piece = at % 8, k = k0 + piece * (16 / (int)sizeof(E));
            int bytes = m0 + row < f.m ? (f.k - k) * (int)sizeof(E) : 0;
            bytes = bytes < 0 ? 0 : bytes > 16 ? 16 : bytes;
            const E *from = bytes > 0 ? a + (m0 + row) * f.a_row + k : a;
            copy_async(stage + row * 128 + ((piece ^ (row & 7)) << 4), from, bytes);
        }
        stage += A_BYTES;
        if (!TURNED) {
#pragma unroll
            for (int i = 0; i < BN * 8 / THREADS; ++i) {
                int at = tid + i * THREADS, row = at / 8, piece = at % 8, k = k0 + piece * (16 / (int)sizeof(E));
                int bytes = n0 + row < f.n ? (f.k - k) * (int)sizeof(E) : 0;
                bytes = bytes < 0 ? 0 : bytes > 16 ? 16 : bytes;
                const E *from = bytes > 0 ? b + (n0 + row) * f.b_row + k : b;
                copy_async(stage + row * 128 + ((piece ^ (row & 7)) << 4), from, bytes);
            }
        } else {
            // 64 rows of k, each BN elements of 2 bytes.
            constexpr int PIECES = BN / 8;
#pragma unroll
            for (int i = 0; i < 64 * PIECES / THREADS; ++i) {
                int at = tid + i * THREADS, row = at / PIECES, piece = at % PIECES, n = n0 + piece * 8;
                int bytes = k0 + row < f.k ? (f.n - n) * 2 : 0;
                bytes = bytes < 0 ? 0 : bytes > 16 ? 16 : bytes;
                const E *from = bytes > 0 ? b + (k0 + row) * f.b_row + n : b;
                copy_async(stage + row * (BN * 2) + ((piece ^ (row & 7)) << 4), from, bytes);
            }
        }
    }

    static __device__ __forceinline__ void multiply(Acc (&acc)[MT][NT][4], uint32_t stage, int wm, int wn)
    {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            uint32_t fa[MT][4], fb[NT / 2][4];
#pragma unroll
            for (int i = 0; i < MT; ++i) {
                int row = wm + i * 16 + lane % 16, piece = step * 2 + lane / 16;
                load_matrices(fa[i], stage + row * 128 + ((piece ^ (row & 7)) << 4));
            }
#pragma unroll
            for (int j = 0; j < NT / 2; ++j) {
                if (!TURNED) {
                    int row = wn + j * 16 + (lane & 7) + ((lane >> 4) << 3), piece = step * 2 + ((lane >> 3) & 1);
                    load_matrices(fb[j], stage + A_BYTES + row * 128 + ((piece ^ (row & 7)) << 4));
                } else {
                    int row = step * 16 + lane % 16, piece = (wn + j * 16) / 8 + lane / 16;
                    load_matrices_turned(fb[j], stage + A_BYTES + row * (BN * 2) + ((piece ^ (row & 7)) << 4));
                }
            }
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int j = 0; j < NT; ++j) Mma<E>::run(acc[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
        }
    }

    static __device__ __forceinline__ void run(const Factors &f, const Epilogue &e)
    {
        extern __shared__ __align__(128) char memory[];
        // Blocks that run at the same time share rows of a and b: groups of eight rows of tiles, column by column.
        int tiles_m = (f.m + BM - 1) / BM, tiles_n = (f.n + BN - 1) / BN;
        int group = blockIdx.x / (8 * tiles_n), first = group * 8, height = min(tiles_m - first, 8);
        int within = blockIdx.x - first * tiles_n;
        int m0 = (first + within % height) * BM, n0 = within / height * BN, batch = blockIdx.z;
        const E *a = (const E *)f.a + batch * f.a_batch, *b = (const E *)f.b + batch * f.b_batch;
        int warp = threadIdx.x / 32, wm = warp / WARPS_N * WM, wn = warp % WARPS_N * WN;
        uint32_t base = shared_address(memory);
        Acc acc[MT][NT][4] = {};
        int steps = (f.k + BK - 1) / BK;
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            if (s < steps) fetch(f, a, b, m0, n0, s * BK, base + s * STAGE_BYTES);
            copies_commit();
        }
        for (int s = 0; s < steps; ++s) {
            copies_wait<STAGES - 2>();
            __syncthreads();
            int next = s + STAGES - 1;
            if (next < steps) fetch(f, a, b, m0, n0, next * BK, base + next % STAGES * STAGE_BYTES);
            copies_commit();
            multiply(acc, base + s % STAGES * STAGE_BYTES, wm, wn);
        }
        copies_wait<0>();
        __syncthreads();
        store(f, e, acc, (Acc *)memory, m0, n0, wm, wn, batch);
    }

    // Sixteen rows of each warp at a time go through shared memory, so that the epilogue is a loop.
    static __device__ __forceinline__ void store(const Factors &f, const Epilogue &e, Acc (&acc)[MT][NT][4], Acc *done, int m0, int n0, int wm, int wn, int batch)
    {
        int lane = threadIdx.x % 32, row = wm / WM * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < MT; ++i) {
            if (i) __syncthreads();
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                Acc *to = done + row * (BN + 4) + wn + j * 8 + lane % 4 * 2;
                to[0] = acc[i][j][0];
                to[1] = acc[i][j][1];
                to[8 * (BN + 4)] = acc[i][j][2];
                to[8 * (BN + 4) + 1] = acc[i][j][3];
            }
            __syncthreads();
            rows(f, e, done, m0 + i * 16, n0, batch);
        }
    }
    static __device__ __noinline__ void rows(const Factors &f, const Epilogue &e, const Acc *done, int m0, int n0, int batch)
    {
#pragma unroll 1
        for (int at = threadIdx.x; at < WARPS_M * 16 * BN; at += THREADS) {
            int r = at / BN, m = m0 + r / 16 * WM + r % 16, n = n0 + at % BN;
            if (m < f.m && n < f.n) put(e, done[r * (BN + 4) + at % BN], m, n, batch);
        }
    }
};

// Names: rows and columns of a block, then the layout of b: `nk` or `kn`.
#define KERNELS(layout, turned)                                                                                              \
    extern "C" __global__ void __launch_bounds__(256) mma_128x256_##layout(Factors f, Epilogue e) { Tile<128, 256, 2, 4, 3, turned>::run(f, e); } \
    extern "C" __global__ void __launch_bounds__(256) mma_128x128_##layout(Factors f, Epilogue e) { Tile<128, 128, 2, 4, 3, turned>::run(f, e); } \
    extern "C" __global__ void __launch_bounds__(128) mma_64x64_##layout(Factors f, Epilogue e) { Tile<64, 64, 2, 2, 4, turned>::run(f, e); }     \
    extern "C" __global__ void __launch_bounds__(128) mma_16x128_##layout(Factors f, Epilogue e) { Tile<16, 128, 1, 4, 4, turned>::run(f, e); }
KERNELS(nk, false)
#if defined(TYPE_F16) || defined(TYPE_BF16)
KERNELS(kn, true)
#endif
