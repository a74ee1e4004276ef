// Attention with tensor cores: keys and values pass through shared memory in tiles, scores never leave the registers
// (Dao, 2023). Four warps; a warp has ROWS queries. 16-byte pieces of rows are exchanged so that eight rows of a column
// of pieces are in different banks.
#pragma once
#include "attention.cuh"
#include "mma.cuh"

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint32_t pair(float x, float y)
{
    uint32_t both;
#if defined(TYPE_F16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
#endif
    return both;
}

template <int SIZE, int ROWS, int KEYS, bool PAGED>
struct Flash {
    static constexpr int WARPS = 4, THREADS = 128, QUERIES = WARPS * ROWS, MT = ROWS / 16, NT = KEYS / 8, DT = SIZE / 8, PIECES = SIZE / 8;
    static constexpr int ROW_BYTES = SIZE * 2, Q_BYTES = QUERIES * ROW_BYTES, K_BYTES = KEYS * ROW_BYTES;

    static __device__ __forceinline__ uint32_t at(int row, int piece)
    {
        int other = SIZE == 32 ? (row >> 1) & 3 : row & 7;
        return row * ROW_BYTES + ((piece ^ other) << 4);
    }
    // Rows first.. of a matrix, of which `row_of` says where each is; what is beyond its rows or the head's size becomes 0.
    template <int COUNT, class RowOf>
    static __device__ __forceinline__ void fetch(uint32_t to, const RowOf &row_of, int first, int rows, int size)
    {
#pragma unroll
        for (int n = 0; n < COUNT * PIECES / THREADS; ++n) {
            int index = threadIdx.x + n * THREADS, row = index / PIECES, piece = index % PIECES;
            bool there = first + row < rows && piece * 8 < size;
            copy_async(to + at(row, piece), there ? row_of(first + row) + piece * 8 : row_of(0), there ? 16 : 0);
        }
    }

    static __device__ __forceinline__ void run(const Attention &a)
    {
        extern __shared__ __align__(128) char memory[];
        int head = blockIdx.y, batch = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        Place p = place(a, batch);
        // The longest rows of a causal matrix first.
        int i0 = (a.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * QUERIES;
        if (i0 >= p.queries) return;
        const T *q = (const T *)a.q + batch * a.q_batch + head * a.q_head + p.q0 * a.q_row;
        const T *k = first_key<PAGED, T>(a.k, a, p, batch, head, a.k_batch, a.k_head, a.k_row);
        const T *v = first_key<PAGED, T>(a.v, a, p, batch, head, a.v_batch, a.v_head, a.v_row);
        auto query = [&](int i) { return q + i * a.q_row; };
        auto key = [&](int j) { return key_row<PAGED>(k, a, batch, a.k_batch, a.k_row, j); };
        auto value = [&](int j) { return key_row<PAGED>(v, a, batch, a.v_batch, a.v_row, j); };
        uint32_t qs = shared_address(memory), ks = qs + Q_BYTES, vs = ks + K_BYTES;
        int last = min(i0 + QUERIES, p.queries) - 1;
        int begin = seen_first(a, p, i0) / KEYS, tiles = (seen_end(a, p, last) + KEYS - 1) / KEYS;
        float o[MT][DT][4] = {}, most[MT][2], sum[MT][2] = {};
#pragma unroll
        for (int m = 0; m < MT; ++m) most[m][0] = most[m][1] = -INFINITY;
        float scale = a.scale * 1.4426950408889634f;
        fetch<QUERIES>(qs, query, i0, p.queries, a.size);
        if (begin < tiles) fetch<KEYS>(ks, key, begin * KEYS, p.keys, a.size);
        copies_commit();
        for (int tile = begin; tile < tiles; ++tile) {
            int j0 = tile * KEYS;
            fetch<KEYS>(vs, value, j0, p.keys, a.size);
            copies_commit();
            copies_wait<1>();
            __syncthreads();
            float s[MT][NT][4] = {};
#pragma unroll
            for (int step = 0; step < SIZE / 16; ++step) {
                uint32_t fq[MT][4];
#pragma unroll
                for (int m = 0; m < MT; ++m) load_matrices(fq[m], qs + at(warp * ROWS + m * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
                for (int n = 0; n < NT / 2; ++n) {
                    uint32_t fk[4];
                    load_matrices(fk, ks + at(n * 16 + (lane & 7) + ((lane >> 4) << 3), step * 2 + ((lane >> 3) & 1)));
#pragma unroll
                    for (int m = 0; m < MT; ++m) {
                        Mma<T>::run(s[m][2 * n], fq[m], fk[0], fk[1]);
                        Mma<T>::run(s[m][2 * n + 1], fq[m], fk[2], fk[3]);
                    }
                }
            }
            __syncthreads();
            if (tile + 1 < tiles) fetch<KEYS>(ks, key, j0 + KEYS, p.keys, a.size);
            copies_commit();
            // Only tiles at an edge have keys that some query does not see.
            if (j0 + KEYS > seen_end(a, p, i0) || (a.window && j0 < seen_first(a, p, last))) mask(a, p, s, i0 + warp * ROWS, j0);
            softmax(s, o, most, sum, scale);
            copies_wait<1>();
            __syncthreads();
#pragma unroll
            for (int step = 0; step < KEYS / 16; ++step) {
                uint32_t fp[MT][4];
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    fp[m][0] = pair(s[m][2 * step][0], s[m][2 * step][1]);
                    fp[m][1] = pair(s[m][2 * step][2], s[m][2 * step][3]);
                    fp[m][2] = pair(s[m][2 * step + 1][0], s[m][2 * step + 1][1]);
                    fp[m][3] = pair(s[m][2 * step + 1][2], s[m][2 * step + 1][3]);
                }
#pragma unroll
                for (int d = 0; d < DT / 2; ++d) {
                    uint32_t fv[4];
                    load_matrices_turned(fv, vs + at(step * 16 + lane % 16, d * 2 + lane / 16));
#pragma unroll
                    for (int m = 0; m < MT; ++m) {
                        Mma<T>::run(o[m][2 * d], fp[m], fv[0], fv[1]);
                        Mma<T>::run(o[m][2 * d + 1], fp[m], fv[2], fv[3]);
                    }
                }
            }
            __syncthreads();
        }
        copies_wait<0>();
        store(a, p, o, most, sum, scale, i0 + warp * ROWS, head, batch);
    }

    // Thread's element e of tile (m, n): row m * 16 + lane / 4 + (e / 2) * 8, column n * 8 + lane % 4 * 2 + e % 2.
    static __device__ __forceinline__ void mask(const Attention &a, const Place &p, float (&s)[MT][NT][4], int i0, int j0)
    {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int i = i0 + m * 16 + lane / 4 + half * 8, first = seen_first(a, p, i), end = seen_end(a, p, i);
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        int j = j0 + n * 8 + lane % 4 * 2 + e;
                        if (j < first || j >= end) s[m][n][half * 2 + e] = -INFINITY;
                    }
            }
    }

    static __device__ __forceinline__ void softmax(float (&s)[MT][NT][4], float (&o)[MT][DT][4], float (&most)[MT][2], float (&sum)[MT][2], float scale)
    {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float high = most[m][half];
#pragma unroll
                for (int n = 0; n < NT; ++n) high = fmaxf(high, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
                float base = high == -INFINITY ? 0.f : high * scale;
                float factor = exp2_fast(most[m][half] * scale - base), part = 0.f;
                most[m][half] = high;
#pragma unroll
                for (int n = 0; n < NT; ++n)
#pragma unroll
                    for (int e = half * 2; e < half * 2 + 2; ++e) {
                        s[m][n][e] = exp2_fast(s[m][n][e] * scale - base);
                        part += s[m][n][e];
                    }
                sum[m][half] = sum[m][half] * factor + part;
#pragma unroll
                for (int d = 0; d < DT; ++d) {
                    o[m][d][half * 2] *= factor;
                    o[m][d][half * 2 + 1] *= factor;
                }
            }
    }

    static __device__ __forceinline__ void store(const Attention &a, const Place &p, float (&o)[MT][DT][4], float (&most)[MT][2], float (&sum)[MT][2], float scale, int i0, int head, int batch)
    {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float total = sum[m][half];
                total += __shfl_xor_sync(0xffffffffu, total, 1);
                total += __shfl_xor_sync(0xffffffffu, total, 2);
                int i = i0 + m * 16 + lane / 4 + half * 8;
                if (i >= p.queries) continue;
                float inverse = total == 0.f ? 0.f : 1.f / total;
                T *to = (T *)a.o + batch * a.o_batch + head * a.o_head + (p.q0 + i) * a.o_row;
#pragma unroll
                for (int d = 0; d < DT; ++d) {
                    int at = d * 8 + lane % 4 * 2;
                    if (at < a.size) *(uint32_t *)(to + at) = pair(o[m][d][half * 2] * inverse, o[m][d][half * 2 + 1] * inverse);
                }
                if (a.lse && lane % 4 == 0)
                    a.lse[((int64_t)batch * a.heads + head) * a.lse_row + i] = total == 0.f ? -INFINITY : (most[m][half] * scale + __log2f(total)) * 0.69314718f;
            }
    }
};
