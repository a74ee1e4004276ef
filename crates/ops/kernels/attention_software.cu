// Attention in 32-bit floats on the software GPU: a thread has a query, a block 32 of them. Scores and outputs lie in shared
// memory as [element][thread]; the first thread has the device compute both products (crates/ptx-ops/src/multiply.rs), all
// threads compute the weights between them. No card has that function, so no card is given this file.
#include "attention.cuh"
#include "software.cuh"

constexpr int LANES = 32, KEYS = 128;
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

__device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Keys j0.. of a tile whose rows are beside each other: all of them, or those up to the end of a page.
template <bool PAGED> __device__ __forceinline__ int run_of(const Attention &a, int j0, int count)
{
    return PAGED ? min(count, a.page_rows - j0 % a.page_rows) : count;
}
template <bool PAGED>
__device__ __forceinline__ void scores(const Attention &a, const float *k, const float *q, float *s, int batch, int j0, int count)
{
#pragma unroll 1
    for (int j = 0; j < count;) {
        int run = run_of<PAGED>(a, j0 + j, count - j);
        const float *from = key_row<PAGED>(k, a, batch, a.k_batch, a.k_row, j0 + j);
        __mica_multiply_f32(from, q, s + j * LANES, sizes_of(run, LANES, a.size), a.k_row, 1, LANES, LANES);
        j += run;
    }
}
template <bool PAGED>
__device__ __forceinline__ void outputs(const Attention &a, const float *v, const float *s, float *o, int batch, int j0, int count)
{
#pragma unroll 1
    for (int j = 0; j < count;) {
        int run = run_of<PAGED>(a, j0 + j, count - j);
        const float *from = key_row<PAGED>(v, a, batch, a.v_batch, a.v_row, j0 + j);
        __mica_multiply_add_f32(from, s + j * LANES, o, sizes_of(a.size, LANES, run), 1, a.v_row, LANES, LANES);
        j += run;
    }
}

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
    // Scores are exponents of two.
    float scale = a.scale * LOG2_E;
#pragma unroll 1
    for (int d = 0; d < a.size; ++d) {
        q[d * LANES + lane] = from[d] * scale;
        o[d * LANES + lane] = 0.f;
    }
    const float *k = first_key<PAGED, float>(a.k, a, p, batch, head, a.k_batch, a.k_head, a.k_row);
    const float *v = first_key<PAGED, float>(a.v, a, p, batch, head, a.v_batch, a.v_head, a.v_row);
    int first = seen_first(a, p, row), end = seen_end(a, p, row);
    // What any query of the block sees, and what all see.
    int last = min(i0 + LANES, p.queries) - 1;
    int block_first = seen_first(a, p, i0), block_end = seen_end(a, p, last);
    int all_first = seen_first(a, p, last), all_end = seen_end(a, p, i0);
    float most = -INFINITY, sum = 0.f;
#pragma unroll 1
    for (int j0 = block_first; j0 < block_end; j0 += KEYS) {
        int count = min(KEYS, block_end - j0);
        __syncthreads();
        if (lane == 0) scores<PAGED>(a, k, q, s, batch, j0, count);
        __syncthreads();
        if (j0 < all_first || j0 + count > all_end) {
#pragma unroll 1
            for (int j = 0; j < count; ++j) {
                float x = s[j * LANES + lane];
                s[j * LANES + lane] = j0 + j >= first && j0 + j < end ? x : -INFINITY;
            }
        }
        float highest = most;
#pragma unroll 4
        for (int j = 0; j < count; ++j) {
            float x = s[j * LANES + lane];
            highest = highest >= x ? highest : x;
        }
        float base = highest == -INFINITY ? 0.f : highest;
        float factor = power_of_two(most - base);
        most = highest;
        sum *= factor;
#pragma unroll 4
        for (int j = 0; j < count; ++j) {
            float e = power_of_two(s[j * LANES + lane] - base);
            s[j * LANES + lane] = e;
            sum += e;
        }
#pragma unroll 4
        for (int d = 0; d < a.size; ++d) o[d * LANES + lane] *= factor;
        __syncthreads();
        if (lane == 0) outputs<PAGED>(a, v, s, o, batch, j0, count);
    }
    __syncthreads();
    if (i >= p.queries) return;
    // A query that sees no key gets zeros.
    float inverse = sum == 0.f ? 0.f : 1.f / sum;
    float *to = (float *)a.o + batch * a.o_batch + head * a.o_head + (p.q0 + i) * a.o_row;
#pragma unroll 1
    for (int d = 0; d < a.size; ++d) to[d] = o[d * LANES + lane] * inverse;
    if (a.lse) a.lse[((int64_t)batch * a.heads + head) * a.lse_row + i] = sum == 0.f ? -INFINITY : most * LN_2 + __logf(sum);
}

extern "C" __global__ void __launch_bounds__(32) attention_panels(Attention a) { attend<false>(a); }
extern "C" __global__ void __launch_bounds__(32) attention_panels_paged(Attention a) { attend<true>(a); }
