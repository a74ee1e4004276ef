// What the software GPU brings and no card has: products of matrices by one thread, in the widest registers of the
// processor. crates/ptx-ops/src/multiply.rs says what they compute.
#pragma once
#include <stdint.h>

extern "C" __device__ void __mica_multiply_f32(const float *a, const float *b, float *c, uint64_t sizes, uint64_t a_row, uint64_t a_col,
                                               uint64_t b_row, uint64_t c_row);
extern "C" __device__ void __mica_multiply_add_f32(const float *a, const float *b, float *c, uint64_t sizes, uint64_t a_row,
                                                   uint64_t a_col, uint64_t b_row, uint64_t c_row);

__device__ __forceinline__ uint64_t sizes_of(int rows, int cols, int depth)
{
    return (uint64_t)rows | (uint64_t)cols << 16 | (uint64_t)depth << 32;
}
