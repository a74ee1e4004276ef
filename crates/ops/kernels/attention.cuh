// What the attention kernels share: their parameters, and which keys a query sees.
#pragma once
#include "ops.cuh"

// Strides count elements; elements of a head are contiguous. With `starts_*` the batch's matrices are rows
// starts[b]..starts[b + 1] of one long matrix. `group` query heads share a head of keys and values. `lse` keeps the
// logarithm of each row's sum, [batch][head][query], for the backward pass. With `table` keys and values are in pages of
// `page_rows` rows: a stack of k and v is a page, and row j of batch b is row j % page_rows of page
// table[b * table_row + j / page_rows]; batch b has lengths[b] rows.
struct Attention {
    const void *q, *k, *v;
    void *o;
    float *lse;
    const int32_t *starts_q, *starts_k, *table, *lengths;
    int64_t q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row;
    int32_t queries, keys, heads, group, size, causal, window, lse_row, table_row, page_rows;
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
    if (a.lengths) p.keys = min(max(a.lengths[batch], 0), a.keys);
    return p;
}
// Where the keys or values of a head begin: those of a batch, or with pages those of page 0.
template <bool PAGED, class E>
__device__ __forceinline__ const E *first_key(const void *from, const Attention &a, const Place &p, int batch, int head, int64_t stack, int64_t by_head, int64_t row)
{
    const E *first = (const E *)from + head / a.group * by_head;
    return PAGED ? first : first + batch * stack + p.k0 * row;
}
// Row j of them.
template <bool PAGED, class E>
__device__ __forceinline__ const E *key_row(const E *first, const Attention &a, int batch, int64_t stack, int64_t row, int j)
{
    if (!PAGED) return first + j * row;
    int64_t page = a.table[batch * a.table_row + j / a.page_rows];
    return first + page * stack + j % a.page_rows * row;
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
