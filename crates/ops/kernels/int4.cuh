// 4-bit integers with a sign: two in a byte, the first in the lower half.
#pragma once
#include "ops.cuh"

__device__ __forceinline__ int32_t int4_at(const uint8_t *p, int64_t at)
{
    return (int8_t)(p[at >> 1] << (at & 1 ? 0 : 4)) >> 4;
}
// Four in the lower half of a word become four bytes.
__device__ __forceinline__ uint32_t four_bytes(uint32_t x)
{
    x &= 0xffffu;
    x = (x | x << 8) & 0x00ff00ffu;
    x = (x | x << 4) & 0x0f0f0f0fu;
    // A sign in bit 3 fills the upper half of its byte.
    return x | (x & 0x08080808u) * 0x1eu;
}
