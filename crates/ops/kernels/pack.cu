// Copies a matrix of any strides into rows of contiguous elements, with a change of type; what is beyond the matrix is 0.
#include "ops.cuh"

struct Pack {
    const void *from;
    void *to;
    int64_t from_row, from_col, from_batch, to_row, to_batch;
    int32_t rows, cols, padded_cols, reserved;
};

template <class From, class To> struct Convert { static __device__ __forceinline__ To of(From x) { return from_float<To>(to_float(x)); } };
template <class E> struct Convert<E, E> { static __device__ __forceinline__ E of(E x) { return x; } };
template <> struct Convert<int8_t, int32_t> { static __device__ __forceinline__ int32_t of(int8_t x) { return x; } };

// Threads along the columns of the result.
template <class From, class To> __device__ __forceinline__ void pack_rows(const Pack &p)
{
    int col = blockIdx.x * blockDim.x + threadIdx.x, batch = blockIdx.z;
    if (col >= p.padded_cols) return;
    for (int row = blockIdx.y; row < p.rows; row += gridDim.y) {
        To x = To();
        if (col < p.cols) x = Convert<From, To>::of(((const From *)p.from)[batch * p.from_batch + row * p.from_row + col * p.from_col]);
        ((To *)p.to)[batch * p.to_batch + row * p.to_row + col] = x;
    }
}
// Through a tile of shared memory, where the columns of the source are contiguous.
template <class From, class To> __device__ __forceinline__ void pack_tiles(const Pack &p)
{
    __shared__ To tile[32][33];
    int batch = blockIdx.z;
    for (int i = threadIdx.y; i < 32; i += 8) {
        int row = blockIdx.y * 32 + threadIdx.x, col = blockIdx.x * 32 + i;
        To x = To();
        if (row < p.rows && col < p.cols)
            x = Convert<From, To>::of(((const From *)p.from)[batch * p.from_batch + row * p.from_row + col * p.from_col]);
        tile[i][threadIdx.x] = x;
    }
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += 8) {
        int row = blockIdx.y * 32 + i, col = blockIdx.x * 32 + threadIdx.x;
        if (row < p.rows && col < p.padded_cols) ((To *)p.to)[batch * p.to_batch + row * p.to_row + col] = tile[threadIdx.x][i];
    }
}
// `wide`: to the type that products are computed in; `same`: the type stays.
#if defined(TYPE_I8)
typedef int32_t Wide;
#else
typedef float Wide;
#endif
extern "C" __global__ void pack_rows_wide(Pack p) { pack_rows<T, Wide>(p); }
extern "C" __global__ void pack_tiles_wide(Pack p) { pack_tiles<T, Wide>(p); }
extern "C" __global__ void pack_rows_same(Pack p) { pack_rows<T, T>(p); }
extern "C" __global__ void pack_tiles_same(Pack p) { pack_tiles<T, T>(p); }
