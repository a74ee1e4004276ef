// Products without tensor cores. a is [m][k], b is [k][n], each with rows of contiguous elements; other layouts and types
// are packed into these first (pack.cu). The accumulator has the type of the elements: float, or int32 for 8-bit factors.
#include "ops.cuh"

// For the software GPU: a thread computes one column of ROWS rows, so that neighbouring threads read neighbouring
// elements of b and all of them the same element of a. No shared memory and no barrier: a block is one loop.
template <class E, int ROWS, int WIDTH, bool EDGE>
__device__ __forceinline__ void rows_loop(const Factors &f, const Epilogue &e)
{
    int m0 = blockIdx.x * ROWS, n = blockIdx.y * WIDTH + threadIdx.x, batch = blockIdx.z;
    const E *b = (const E *)f.b + batch * f.b_batch + (EDGE && n >= f.n ? f.n - 1 : n);
    const E *a[ROWS];
    E acc[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        int m = m0 + i < f.m ? m0 + i : f.m - 1;
        a[i] = (const E *)f.a + batch * f.a_batch + m * f.a_row;
        acc[i] = 0;
    }
#pragma unroll 2
    for (int k = 0; k < f.k; ++k) {
        E x = b[k * f.b_row];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) acc[i] += a[i][k] * x;
    }
    if (EDGE && n >= f.n) return;
    // Through shared memory, so that the epilogue is a loop and its text is there once.
    __shared__ E done[ROWS][WIDTH];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) done[i][threadIdx.x] = acc[i];
#pragma unroll 1
    for (int i = 0; i < ROWS && m0 + i < f.m; ++i) put(e, done[i][threadIdx.x], m0 + i, n, batch);
}
template <class E, int ROWS, int WIDTH>
__device__ __forceinline__ void gemm_rows(const Factors &f, const Epilogue &e)
{
    if ((blockIdx.y + 1) * WIDTH <= f.n) rows_loop<E, ROWS, WIDTH, false>(f, e);
    else rows_loop<E, ROWS, WIDTH, true>(f, e);
}

// Stores 32 rows of a tile: row r of `done` is row 4 (r / 2) + r % 2 from m0 on.
template <class E>
static __device__ __noinline__ void store_rows(const Epilogue &e, const Factors &f, E (*done)[128], int m0, int n0, int batch)
{
#pragma unroll 1
    for (int at = threadIdx.x; at < 32 * 128; at += 256) {
        int r = at / 128, m = m0 + 4 * (r / 2) + r % 2, n = n0 + at % 128;
        if (m < f.m && n < f.n) put(e, done[r][at % 128], m, n, batch);
    }
}

// For cards: 128 x 128 elements a block of 256 threads, 8 x 8 a thread, two stages of shared memory.
template <class E>
__device__ __forceinline__ void gemm_tile(const Factors &f, const Epilogue &e)
{
    constexpr int BM = 128, BN = 128, BK = 16;
    __shared__ __align__(16) E as[2][BK][BM + 4];
    __shared__ __align__(16) E bs[2][BK][BN];
    int tiles_m = (f.m + BM - 1) / BM;
    int m0 = (blockIdx.x % tiles_m) * BM, n0 = (blockIdx.x / tiles_m) * BN, batch = blockIdx.z;
    const E *a = (const E *)f.a + batch * f.a_batch, *b = (const E *)f.b + batch * f.b_batch;
    int tid = threadIdx.x, tx = tid % 16, ty = tid / 16;
    E acc[8][8] = {}, ra[8], rb[8];
    // Each thread fetches 8 elements of a row of a, and 8 of a row of b.
    int am = tid / 2, ak = (tid % 2) * 8, bk = tid / 16, bn = (tid % 16) * 8;
    bool whole = m0 + BM <= f.m && n0 + BN <= f.n;
    auto fetch = [&](int k0) {
        if (whole && k0 + BK <= f.k) {
            const E *pa = a + (m0 + am) * f.a_row + k0 + ak, *pb = b + (k0 + bk) * f.b_row + n0 + bn;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                *(int4 *)&ra[4 * i] = *(const int4 *)(pa + 4 * i);
                *(int4 *)&rb[4 * i] = *(const int4 *)(pb + 4 * i);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                ra[i] = m0 + am < f.m && k0 + ak + i < f.k ? a[(m0 + am) * f.a_row + k0 + ak + i] : E(0);
                rb[i] = k0 + bk < f.k && n0 + bn + i < f.n ? b[(k0 + bk) * f.b_row + n0 + bn + i] : E(0);
            }
        }
    };
    auto place = [&](int stage) {
#pragma unroll
        for (int i = 0; i < 8; ++i) as[stage][ak + i][am] = ra[i];
#pragma unroll
        for (int i = 0; i < 2; ++i) *(int4 *)&bs[stage][bk][bn + 4 * i] = *(int4 *)&rb[4 * i];
    };
    fetch(0);
    place(0);
    __syncthreads();
    int stage = 0;
    for (int k0 = 0; k0 < f.k; k0 += BK) {
        if (k0 + BK < f.k) fetch(k0 + BK);
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            E fa[8], fb[8];
            *(int4 *)&fa[0] = *(int4 *)&as[stage][k][ty * 4];
            *(int4 *)&fa[4] = *(int4 *)&as[stage][k][64 + ty * 4];
            *(int4 *)&fb[0] = *(int4 *)&bs[stage][k][tx * 4];
            *(int4 *)&fb[4] = *(int4 *)&bs[stage][k][64 + tx * 4];
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) acc[i][j] += fa[i] * fb[j];
        }
        stage ^= 1;
        if (k0 + BK < f.k) place(stage);
        __syncthreads();
    }
    // Two of a thread's eight rows at a time go through shared memory, so that rows are stored as a whole and the
    // epilogue is a loop.
    E(*done)[BN] = (E(*)[BN]) & as[0][0][0];
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) {
        if (pass) __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) done[ty * 2 + i][(j / 4) * 64 + tx * 4 + j % 4] = acc[pass * 2 + i][j];
        __syncthreads();
        store_rows(e, f, done, m0 + (pass / 2) * 64 + (pass % 2) * 2, n0, batch);
    }
}

// The accumulator's type is the file's: TYPE_I8 has packed 32-bit integers.
#if defined(TYPE_I8)
typedef int32_t Acc;
#else
typedef float Acc;
#endif
extern "C" __global__ void gemm_rows8(Factors f, Epilogue e) { gemm_rows<Acc, 8, 32>(f, e); }
extern "C" __global__ void gemm_rows4(Factors f, Epilogue e) { gemm_rows<Acc, 4, 32>(f, e); }
extern "C" __global__ void gemm_rows6(Factors f, Epilogue e) { gemm_rows<Acc, 6, 32>(f, e); }
extern "C" __global__ void gemm_rows12(Factors f, Epilogue e) { gemm_rows<Acc, 12, 32>(f, e); }
extern "C" __global__ void __launch_bounds__(256, 2) gemm_tile128(Factors f, Epilogue e) { gemm_tile<Acc>(f, e); }
