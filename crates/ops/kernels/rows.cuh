// What kernels on rows share: reductions over a block, and which columns a row sees.
#pragma once
#include "ops.cuh"

__device__ __forceinline__ float combine(float x, float y, int op)
{
    if (op == 0) return x + y;
    if (x != x) return x;
    return (op == 1 ? y > x : y < x) || y != y ? y : x;
}
// The sum (op 0), largest (1) or smallest (2) of a value of each thread, known to all threads.
__device__ __forceinline__ float over_block(float x, int op)
{
    __shared__ float part[33];
#pragma unroll
    for (int step = 16; step; step /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, step), op);
    int warps = blockDim.x / 32;
    if (warps == 1) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x < 32) {
        x = threadIdx.x < warps ? part[threadIdx.x] : part[0];
        if (op == 0 && threadIdx.x >= warps) x = 0;
#pragma unroll
        for (int step = 16; step; step /= 2) x = combine(x, __shfl_xor_sync(0xffffffffu, x, step), op);
        if (threadIdx.x == 0) part[32] = x;
    }
    __syncthreads();
    return part[32];
}

// Row r of x may see columns from first to last: with `queries`, row r % queries + offset of a causal matrix.
struct Mask {
    int32_t queries, offset, window, reserved;
};
__device__ __forceinline__ void visible(const Mask &mask, int64_t row, int cols, int &first, int &last)
{
    first = 0;
    last = cols - 1;
    if (!mask.queries) return;
    int at = (int)(row % mask.queries) + mask.offset;
    if (at < last) last = at;
    if (mask.window && at - mask.window + 1 > 0) first = at - mask.window + 1;
}

// 2^x; results that are too small for a normal float are 0.
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
