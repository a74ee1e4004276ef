// Operations on rows of contiguous elements, one block for each row: softmax, norms, cross entropy, reductions; then
// what works on columns, embeddings and random numbers. Sums are in 32-bit floats; sums of 16-bit elements too.
#include "rows.cuh"

extern "C" __global__ void softmax_forward(const T *x, T *y, int64_t rows, int cols, float scale, Mask mask)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * cols;
        T *to = y + row * cols;
        int first, last;
        visible(mask, row, cols, first, last);
        float most = -INFINITY, sum = 0;
        for (int i = first + threadIdx.x; i <= last; i += blockDim.x) most = combine(most, to_float(from[i]) * scale, 1);
        most = over_block(most, 1);
        // A row that sees nothing, or minus infinity only, has no largest element; its sum is 0.
        float base = most == -INFINITY ? 0.f : most;
        for (int i = first + threadIdx.x; i <= last; i += blockDim.x) sum += __expf(to_float(from[i]) * scale - base);
        sum = over_block(sum, 0);
        float factor = sum == 0.f ? 0.f : 1.f / sum;
        for (int i = threadIdx.x; i < cols; i += blockDim.x)
            to[i] = from_float<T>(i < first || i > last ? 0.f : __expf(to_float(from[i]) * scale - base) * factor);
    }
}
extern "C" __global__ void softmax_backward(const T *y, const T *dy, T *dx, int64_t rows, int cols, float scale)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        int64_t at = row * cols;
        float sum = 0;
        for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += to_float(y[at + i]) * to_float(dy[at + i]);
        sum = over_block(sum, 0);
        for (int i = threadIdx.x; i < cols; i += blockDim.x)
            dx[at + i] = from_float<T>(scale * to_float(y[at + i]) * (to_float(dy[at + i]) - sum));
    }
}

// y = (x - mean) / sqrt(var + epsilon) * weight + bias; an RMS norm has no mean. `stats` keeps mean and 1 / deviation.
extern "C" __global__ void norm_forward(const T *x, const T *weight, const T *bias, T *y, float *stats, int64_t rows, int cols, float epsilon, int is_rms)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * cols;
        float mean = 0, square = 0;
        if (!is_rms) {
            for (int i = threadIdx.x; i < cols; i += blockDim.x) mean += to_float(from[i]);
            mean = over_block(mean, 0) / cols;
        }
        for (int i = threadIdx.x; i < cols; i += blockDim.x) {
            float d = to_float(from[i]) - mean;
            square += d * d;
        }
        float inverse = rsqrtf(over_block(square, 0) / cols + epsilon);
        for (int i = threadIdx.x; i < cols; i += blockDim.x) {
            float v = (to_float(from[i]) - mean) * inverse;
            if (weight) v *= to_float(weight[i]);
            if (bias) v += to_float(bias[i]);
            y[row * cols + i] = from_float<T>(v);
        }
        if (stats && threadIdx.x == 0) {
            stats[2 * row] = mean;
            stats[2 * row + 1] = inverse;
        }
    }
}
extern "C" __global__ void norm_backward(const T *x, const T *weight, const T *dy, const float *stats, T *dx, int64_t rows, int cols, int is_rms)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        int64_t at = row * cols;
        float mean = stats[2 * row], inverse = stats[2 * row + 1], along = 0, sum = 0;
        for (int i = threadIdx.x; i < cols; i += blockDim.x) {
            float g = to_float(dy[at + i]) * (weight ? to_float(weight[i]) : 1.f);
            along += g * (to_float(x[at + i]) - mean) * inverse;
            sum += g;
        }
        along = over_block(along, 0) / cols;
        sum = is_rms ? 0.f : over_block(sum, 0) / cols;
        for (int i = threadIdx.x; i < cols; i += blockDim.x) {
            float g = to_float(dy[at + i]) * (weight ? to_float(weight[i]) : 1.f);
            dx[at + i] = from_float<T>(inverse * (g - sum - (to_float(x[at + i]) - mean) * inverse * along));
        }
    }
}
// Gradients of weight and bias: a thread for each column and part of the rows; the results were set to 0 before.
extern "C" __global__ void norm_backward_weights(const T *x, const T *dy, const float *stats, float *dw, float *db, int64_t rows, int cols)
{
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    float w = 0, b = 0;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        float g = to_float(dy[row * cols + col]);
        w += g * (to_float(x[row * cols + col]) - stats[2 * row]) * stats[2 * row + 1];
        b += g;
    }
    atomicAdd(dw + col, w);
    if (db) atomicAdd(db + col, b);
}

// loss[row] = log(sum(exp(x))) - x[target]; dx = (softmax(x) - one at the target) * scale. A target below 0 is left out.
extern "C" __global__ void cross_entropy(const T *x, const int32_t *targets, float *loss, T *dx, int64_t rows, int cols, float scale)
{
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T *from = x + row * cols;
        int target = targets[row];
        float most = -INFINITY, sum = 0;
        for (int i = threadIdx.x; i < cols; i += blockDim.x) most = combine(most, to_float(from[i]), 1);
        most = over_block(most, 1);
        for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += __expf(to_float(from[i]) - most);
        sum = over_block(sum, 0);
        bool counts = target >= 0 && target < cols;
        if (threadIdx.x == 0) loss[row] = counts ? __logf(sum) + most - to_float(from[target]) : target < 0 ? 0.f : NAN;
        if (dx)
            for (int i = threadIdx.x; i < cols; i += blockDim.x)
                dx[row * cols + i] = from_float<T>(counts ? scale * (__expf(to_float(from[i]) - most) / sum - (i == target)) : 0.f);
    }
}

// Reductions: op 0 sum, 1 largest, 2 smallest; the result is f32. Rows: over contiguous elements.
extern "C" __global__ void reduce_rows(const T *x, float *y, int64_t rows, int64_t cols, int op, float factor)
{
    float start = op == 0 ? 0.f : op == 1 ? -INFINITY : INFINITY;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float sum = start;
        for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) sum = combine(sum, to_float(x[row * cols + i]), op);
        sum = over_block(sum, op);
        if (threadIdx.x == 0) y[row] = sum * factor;
    }
}
// Columns: x is [outer][rows][cols], the result [outer][cols].
extern "C" __global__ void reduce_cols(const T *x, float *y, int64_t rows, int64_t cols, int op, float factor)
{
    int64_t col = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) return;
    const T *from = x + blockIdx.y * rows * cols + col;
    float sum = op == 0 ? 0.f : op == 1 ? -INFINITY : INFINITY;
    for (int64_t row = 0; row < rows; ++row) sum = combine(sum, to_float(from[row * cols]), op);
    y[blockIdx.y * cols + col] = sum * factor;
}

// Rows of a table by number. A number outside of the table gives a row of NaN, and no gradient.
extern "C" __global__ void embedding_forward(const T *table, const int32_t *ids, T *y, int vocabulary, int width)
{
    int id = ids[blockIdx.x];
    bool known = id >= 0 && id < vocabulary;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        y[(int64_t)blockIdx.x * width + i] = known ? table[(int64_t)id * width + i] : from_float<T>(NAN);
}
extern "C" __global__ void embedding_backward(const T *dy, const int32_t *ids, float *dtable, int vocabulary, int width)
{
    int id = ids[blockIdx.x];
    if (id < 0 || id >= vocabulary) return;
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        atomicAdd(dtable + (int64_t)id * width + i, to_float(dy[(int64_t)blockIdx.x * width + i]));
}

// Philox 4x32 with ten rounds (Salmon et al., 2011): counter (index, 0, stream), key (seed).
__device__ __forceinline__ void philox(uint32_t (&c)[4], uint32_t k0, uint32_t k1)
{
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[0] = n0;
        c[1] = (uint32_t)b;
        c[2] = n2;
        c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}
// Four numbers a thread: uniform in [low, low + width), or normal with mean `low` and deviation `width`.
extern "C" __global__ void random_fill(T *y, int64_t count, uint64_t seed, uint64_t stream, float low, float width, int is_normal)
{
    int64_t group = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (group * 4 >= count) return;
    uint32_t c[4] = {(uint32_t)group, (uint32_t)(group >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    float v[4];
    if (is_normal) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            // Box and Muller; the first number is never 0.
            float radius = sqrtf(-2.f * __logf(((c[i] >> 8) + 1) * 0x1p-24f)), angle = (c[i + 1] >> 8) * 0x1p-24f * 6.2831853f;
            v[i] = radius * cosf(angle);
            v[i + 1] = radius * sinf(angle);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = (c[i] >> 8) * 0x1p-24f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (group * 4 + i < count) y[group * 4 + i] = from_float<T>(low + width * v[i]);
}
