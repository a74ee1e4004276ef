// Attention without tensor cores, in 32-bit floats, for the software GPU: a thread has a query, a block 32 of them.
// All threads of a block read the same element of k and v, and neighbouring elements of everything else, which is in
// shared memory as [element][thread]. No thread reads what another one wrote, so there is no barrier.
#include "attention.cuh"

constexpr int LANES = 32, KEYS = 32, PART = 8;

template <bool PAGED> static __device__ __forceinline__ void attend(const Attention &a)
{
    extern __shared__ float memory[];
    int lane = threadIdx.x, head = blockIdx.y, batch = blockIdx.z;
    float *q = memory, *o = q + a.size * LANES, *s = o + a.size * LANES;
    Place p = place(a, batch);
    int i0 = blockIdx.x * LANES, i = i0 + lane;
    if (i0 >= p.queries) return;
    int row = i < p.queries ? i : p.queries - 1;
    const float *from = (const float *)a.q + batch * a.q_batch + head * a.q_head + (p.q0 + row) * a.q_row;
    for (int d = 0; d < a.size; ++d) {
        q[d * LANES + lane] = from[d] * a.scale;
        o[d * LANES + lane] = 0.f;
    }
    const float *k = first_key<PAGED, float>(a.k, a, p, batch, head, a.k_batch, a.k_head, a.k_row);
    const float *v = first_key<PAGED, float>(a.v, a, p, batch, head, a.v_batch, a.v_head, a.v_row);
    int first = seen_first(a, p, row), end = seen_end(a, p, row);
    // What any query of the block sees.
    int last = min(i0 + LANES, p.queries) - 1;
    int block_first = seen_first(a, p, i0) / KEYS * KEYS, block_end = seen_end(a, p, last);
    float most = -INFINITY, sum = 0.f;
    for (int j0 = block_first; j0 < block_end; j0 += KEYS) {
        float highest = most;
        for (int j = 0; j < KEYS; j += PART) {
            float acc[PART];
            const float *rows[PART];
#pragma unroll
            for (int n = 0; n < PART; ++n) {
                acc[n] = 0.f;
                rows[n] = key_row<PAGED>(k, a, batch, a.k_batch, a.k_row, min(j0 + j + n, p.keys - 1));
            }
            for (int d = 0; d < a.size; ++d) {
                float x = q[d * LANES + lane];
#pragma unroll
                for (int n = 0; n < PART; ++n) acc[n] += x * rows[n][d];
            }
#pragma unroll
            for (int n = 0; n < PART; ++n) {
                int key = j0 + j + n;
                float x = key >= first && key < end ? acc[n] : -INFINITY;
                s[(j + n) * LANES + lane] = x;
                highest = highest >= x ? highest : x;
            }
        }
        float base = highest == -INFINITY ? 0.f : highest;
        float factor = __expf(most - base);
        most = highest;
        sum *= factor;
        for (int j = 0; j < KEYS; ++j) {
            float e = __expf(s[j * LANES + lane] - base);
            s[j * LANES + lane] = e;
            sum += e;
        }
        for (int d = 0; d < a.size; d += PART) {
            float acc[PART];
#pragma unroll
            for (int n = 0; n < PART; ++n) acc[n] = o[(d + n) * LANES + lane] * factor;
            for (int j = 0; j < KEYS; ++j) {
                float x = s[j * LANES + lane];
                const float *row = key_row<PAGED>(v, a, batch, a.v_batch, a.v_row, min(j0 + j, p.keys - 1)) + d;
#pragma unroll
                for (int n = 0; n < PART; ++n) acc[n] += x * row[n];
            }
#pragma unroll
            for (int n = 0; n < PART; ++n) o[(d + n) * LANES + lane] = acc[n];
        }
    }
    if (i >= p.queries) return;
    // A query that sees no key gets zeros.
    float inverse = sum == 0.f ? 0.f : 1.f / sum;
    float *to = (float *)a.o + batch * a.o_batch + head * a.o_head + (p.q0 + i) * a.o_row;
    for (int d = 0; d < a.size; ++d) to[d] = o[d * LANES + lane] * inverse;
    if (a.lse) a.lse[((int64_t)batch * a.heads + head) * a.lse_row + i] = sum == 0.f ? -INFINITY : most + __logf(sum);
}

extern "C" __global__ void attention_rows(Attention a) { attend<false>(a); }
extern "C" __global__ void attention_rows_paged(Attention a) { attend<true>(a); }
