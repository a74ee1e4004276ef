// What the attention kernels share: their parameters, and which keys a query sees.
#pragma once
#include "ops.cuh"

// Strides count elements; elements of a head are contiguous. With `starts_*` the batch's matrices are rows
// starts[b]..starts[b + 1] of one long matrix. `group` query heads share a head of keys and values. `lse` keeps the
// logarithm of each row's sum, [batch][head][query], for the backward pass.
struct Attention {
    const void *q, *k, *v;
    void *o;
    float *lse;
    const int32_t *starts_q, *starts_k;
    int64_t q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row;
    int32_t queries, keys, heads, group, size, causal, window, lse_row;
    float scale, reserved;
};

// One head of one batch: rows of q and k, and the first row of each.
struct Place {
    int64_t q0, k0;
    int queries, keys;
};
__device__ __forceinline__ Place place(const Attention &a, int batch)
{
    Place p = {0, 0, a.queries, a.keys};
    if (a.starts_q) {
        p.q0 = a.starts_q[batch];
        p.queries = a.starts_q[batch + 1] - (int)p.q0;
    }
    if (a.starts_k) {
        p.k0 = a.starts_k[batch];
        p.keys = a.starts_k[batch + 1] - (int)p.k0;
    }
    return p;
}
// Keys first..end that query i sees: the last query sees the last key.
__device__ __forceinline__ int seen_first(const Attention &a, const Place &p, int i)
{
    return a.window ? max(0, i + p.keys - p.queries - a.window + 1) : 0;
}
__device__ __forceinline__ int seen_end(const Attention &a, const Place &p, int i)
{
    return a.causal ? min(p.keys, max(0, i + p.keys - p.queries + 1)) : p.keys;
}
