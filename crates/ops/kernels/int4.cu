// Copies of 4-bit integers into rows of bytes, into rows of 4-bit integers, and from bytes.
#include "int4.cuh"

// Distances count elements; `first` is where the first matrix begins, and `from` is a multiple of 4. What is beyond a row's
// `cols` elements is 0.
struct Copy {
    const uint8_t *from;
    void *to;
    int64_t first, from_row, from_col, from_batch, to_row, to_batch;
    int32_t rows, cols, padded_cols, reserved;
};

// Eight elements of a row, the first in the lowest bits.
__device__ __forceinline__ uint32_t eight(const Copy &c, int batch, int row, int col)
{
    int64_t at = c.first + batch * c.from_batch + row * c.from_row + col * c.from_col;
    if (c.from_col == 1 && at % 8 == 0 && col + 8 <= c.cols) return *(const uint32_t *)(c.from + at / 2);
    uint32_t word = 0;
    for (int i = 0; i < 8; ++i)
        if (col + i < c.cols) word |= (uint32_t)(int4_at(c.from, at + i * c.from_col) & 15) << 4 * i;
    return word;
}
extern "C" __global__ void int4_to_bytes(Copy c)
{
    int col = 8 * (blockIdx.x * blockDim.x + threadIdx.x), batch = blockIdx.z;
    if (col >= c.padded_cols) return;
    for (int row = blockIdx.y; row < c.rows; row += gridDim.y) {
        uint32_t word = eight(c, batch, row, col);
        uint2 bytes = make_uint2(four_bytes(word), four_bytes(word >> 16));
        int8_t *to = (int8_t *)c.to + batch * c.to_batch + row * c.to_row + col;
        if ((uint64_t)to % 8 == 0 && col + 8 <= c.padded_cols) *(uint2 *)to = bytes;
        else
            for (int i = 0; i < 8 && col + i < c.padded_cols; ++i) to[i] = (int8_t)((i < 4 ? bytes.x : bytes.y) >> 8 * (i % 4));
    }
}
// Rows of the copy are multiples of eight elements.
extern "C" __global__ void int4_to_rows(Copy c)
{
    int col = 8 * (blockIdx.x * blockDim.x + threadIdx.x), batch = blockIdx.z;
    if (col >= c.padded_cols) return;
    for (int row = blockIdx.y; row < c.rows; row += gridDim.y)
        *(uint32_t *)((uint8_t *)c.to + (batch * c.to_batch + row * c.to_row + col) / 2) = eight(c, batch, row, col);
}
// Bytes that follow each other; what 4 bits cannot hold becomes the nearest number that they can.
extern "C" __global__ void int4_from_bytes(const int8_t *from, uint8_t *to, int64_t count)
{
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < (count + 1) / 2; at += (int64_t)gridDim.x * blockDim.x) {
        int low = min(7, max(-8, (int)from[2 * at])), high = 0;
        if (2 * at + 1 < count) high = min(7, max(-8, (int)from[2 * at + 1]));
        to[at] = (uint8_t)((low & 15) | high << 4);
    }
}
