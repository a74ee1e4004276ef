// Softmax and norms of rows that fit into the registers of a block: each element is read once and written once, 16 bytes
// at a time. Rows begin at multiples of 16 bytes. A block has one row, or one row for each warp (blockDim.x is 32 then). The next
// row is on its way while a row is computed.
#include "rows.cuh"

// Two elements from two floats, in one instruction.
__device__ __forceinline__ uint32_t pair_of(float low, float high)
{
    uint32_t pair = 0;
#if defined(TYPE_F16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#elif defined(TYPE_BF16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

// 16 bytes of a row.
union Piece {
    static constexpr int WIDTH = 16 / sizeof(T);
    uint4 raw;
    uint32_t words[4];
    T each[WIDTH];
    __device__ __forceinline__ void set(const float *v)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = WIDTH == 4 ? __float_as_uint(v[i]) : pair_of(v[2 * i], v[2 * i + 1]);
    }
};

// The pieces of a row that a thread has.
template <int PER> struct Row {
    static constexpr int WIDTH = Piece::WIDTH, COUNT = PER * WIDTH;
    Piece pieces[PER];

    // The column at which a piece of the thread begins.
    static __device__ __forceinline__ int start(int piece) { return (piece * blockDim.x + threadIdx.x) * WIDTH; }

    __device__ __forceinline__ void load(const T *from, int cols)
    {
#pragma unroll
        for (int p = 0; p < PER; ++p)
            if (start(p) < cols) pieces[p].raw = *(const uint4 *)(from + start(p));
    }
    // The elements times a factor; what is beyond the row's end is `rest`.
    __device__ __forceinline__ void values(float (&v)[COUNT], int cols, float factor, float rest) const
    {
#pragma unroll
        for (int p = 0; p < PER; ++p) {
            bool inside = start(p) < cols;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) v[p * WIDTH + i] = inside ? to_float(pieces[p].each[i]) * factor : rest;
        }
    }
    static __device__ __forceinline__ void store(const float (&v)[COUNT], T *to, int cols)
    {
#pragma unroll
        for (int p = 0; p < PER; ++p) {
            Piece piece;
            piece.set(v + p * WIDTH);
            if (start(p) < cols) *(uint4 *)(to + start(p)) = piece.raw;
        }
    }
};

struct Sum {
    static __device__ __forceinline__ float of(float x, float y) { return x + y; }
};
// A NaN is left out: it reaches the result through the sum.
struct Most {
    static __device__ __forceinline__ float of(float x, float y) { return fmaxf(x, y); }
};
// One value of a value of each thread, known to all threads, with one barrier. Reductions that follow each other have different
// places.
template <class Op> __device__ __forceinline__ float over_row(float x, int place)
{
    __shared__ float part[2][32];
#pragma unroll
    for (int step = 16; step; step /= 2) x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, step));
    int warps = blockDim.x / 32;
    if (warps == 1) return x;
    if (threadIdx.x % 32 == 0) part[place][threadIdx.x / 32] = x;
    __syncthreads();
    x = part[place][0];
    for (int warp = 1; warp < warps; ++warp) x = Op::of(x, part[place][warp]);
    return x;
}

// Calls `compute(row, pieces)` for each row of the block.
template <int PER, class F> __device__ __forceinline__ void each_row(const T *x, int64_t rows, int cols, F compute)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, step = (int64_t)gridDim.x * blockDim.y;
    Row<PER> now, next;
    if (row < rows) next.load(x + row * cols, cols);
    for (; row < rows; row += step) {
        now = next;
        if (row + step < rows) next.load(x + (row + step) * cols, cols);
        compute(row, now);
    }
}

template <int PER, bool MASKED>
__device__ __forceinline__ void softmax(const T *x, T *y, int64_t rows, int cols, float scale, const Mask &mask)
{
    // Powers of two are one instruction.
    float factor = scale * 1.44269504f;
    each_row<PER>(x, rows, cols, [&](int64_t row, const Row<PER> &r) {
        float v[Row<PER>::COUNT], most = -INFINITY, sum = 0;
        // Minus infinity is not seen. The factor may be negative, so that it comes before the largest is known.
        r.values(v, cols, factor, -INFINITY);
        if (MASKED) {
            int first, last;
            visible(mask, row, cols, first, last);
#pragma unroll
            for (int i = 0; i < Row<PER>::COUNT; ++i) {
                int col = Row<PER>::start(i / Row<PER>::WIDTH) + i % Row<PER>::WIDTH;
                if (col < first || col > last) v[i] = -INFINITY;
            }
        }
#pragma unroll
        for (int i = 0; i < Row<PER>::COUNT; ++i) most = Most::of(most, v[i]);
        most = over_row<Most>(most, 0);
        // A row that sees nothing, or minus infinity only, has no largest element; its sum is 0.
        float base = most == -INFINITY ? 0.f : most;
#pragma unroll
        for (int i = 0; i < Row<PER>::COUNT; ++i) sum += v[i] = exp2_approx(v[i] - base);
        sum = over_row<Sum>(sum, 1);
        float inverse = sum == 0.f ? 0.f : 1.f / sum;
#pragma unroll
        for (int i = 0; i < Row<PER>::COUNT; ++i) v[i] *= inverse;
        Row<PER>::store(v, y + row * cols, cols);
    });
}

// As `norm_forward` in rows.cu.
template <int PER>
__device__ __forceinline__ void norm(const T *x, const T *weight, const T *bias, T *y, float *stats, int64_t rows, int cols, float epsilon, int is_rms)
{
    float part = 1.f / cols;
    each_row<PER>(x, rows, cols, [&](int64_t row, const Row<PER> &r) {
        constexpr int WIDTH = Row<PER>::WIDTH;
        float v[Row<PER>::COUNT], mean = 0, square = 0;
        r.values(v, cols, 1.f, 0.f);
        if (!is_rms) {
#pragma unroll
            for (int i = 0; i < Row<PER>::COUNT; ++i) mean += v[i];
            mean = over_row<Sum>(mean, 0) * part;
        }
#pragma unroll
        for (int p = 0; p < PER; ++p) {
            if (Row<PER>::start(p) >= cols) continue;
#pragma unroll
            for (int i = p * WIDTH; i < (p + 1) * WIDTH; ++i) {
                v[i] -= mean;
                square = fmaf(v[i], v[i], square);
            }
        }
        float inverse = rsqrtf(over_row<Sum>(square, 1) * part + epsilon);
#pragma unroll
        for (int p = 0; p < PER; ++p) {
            int at = Row<PER>::start(p);
            if (at >= cols) continue;
            Piece w, b;
            if (weight) w.raw = *(const uint4 *)(weight + at);
            if (bias) b.raw = *(const uint4 *)(bias + at);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                float &to = v[p * WIDTH + i];
                to *= inverse;
                if (weight) to *= to_float(w.each[i]);
                if (bias) to += to_float(b.each[i]);
            }
        }
        Row<PER>::store(v, y + row * cols, cols);
        if (stats && threadIdx.x == 0) {
            stats[2 * row] = mean;
            stats[2 * row + 1] = inverse;
        }
        // An RMS norm has one reduction, whose place the next row uses too.
        if (is_rms && blockDim.x > 32) __syncthreads();
    });
}

// Names: pieces of 16 bytes that a thread has.
#define KERNELS(per)                                                                                                             \
    extern "C" __global__ void softmax_wide_##per(const T *x, T *y, int64_t rows, int cols, float scale, Mask mask)              \
    {                                                                                                                            \
        if (mask.queries) softmax<per, true>(x, y, rows, cols, scale, mask);                                                     \
        else softmax<per, false>(x, y, rows, cols, scale, mask);                                                                 \
    }                                                                                                                            \
    extern "C" __global__ void norm_wide_##per(const T *x, const T *weight, const T *bias, T *y, float *stats, int64_t rows,     \
                                               int cols, float epsilon, int is_rms)                                              \
    {                                                                                                                            \
        norm<per>(x, weight, bias, y, stats, rows, cols, epsilon, is_rms);                                                       \
    }
KERNELS(1)
KERNELS(2)
KERNELS(4)
