// Products of floats with weights of 4 bits: each group of neighbouring inputs of an output has a scale. Weights are
// [output][input]; a row has whole groups, and a group whole words of eight weights.
#include "int4.cuh"

// One warp for each group: the largest magnitude becomes 7.
extern "C" __global__ void int4_quantize(const T *from, uint8_t *to, float *scales, int64_t groups, int size)
{
    int lane = threadIdx.x;
    for (int64_t group = blockIdx.x; group < groups; group += gridDim.x) {
        const T *values = from + group * size;
        float largest = 0.f;
        for (int i = lane; i < size; i += 32) {
            float x = fabsf(to_float(values[i]));
            // A NaN stays one: no number of 4 bits could stand for it.
            largest = x > largest || x != x ? x : largest;
        }
#pragma unroll
        for (int step = 16; step; step /= 2) {
            float other = __shfl_xor_sync(0xffffffffu, largest, step);
            largest = other > largest || other != other ? other : largest;
        }
        float scale = largest / 7.f, factor = largest > 0.f ? 7.f / largest : 0.f;
        for (int i = lane; i < size / 8; i += 32) {
            uint32_t word = 0;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                int x = __float2int_rn(to_float(values[8 * i + j]) * factor);
                word |= (uint32_t)(min(7, max(-7, x)) & 15) << 4 * j;
            }
            ((uint32_t *)(to + group * size / 2))[i] = word;
        }
        if (lane == 0) scales[group] = scale;
    }
}
__device__ __forceinline__ float weight(uint32_t word, int at) { return (float)((int32_t)(word << (28 - 4 * at)) >> 28); }

// A thread for eight weights.
extern "C" __global__ void int4_dequantize(const uint32_t *from, const float *scales, T *to, int64_t words, int size)
{
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < words; at += (int64_t)gridDim.x * blockDim.x) {
        uint32_t word = from[at];
        float scale = scales[8 * at / size];
#pragma unroll
        for (int j = 0; j < 8; ++j) to[8 * at + j] = from_float<T>(weight(word, j) * scale);
    }
}

// Few rows of x: weights are read once, as they are. A warp has OUTPUTS outputs of up to ROWS rows.
constexpr int OUTPUTS = 4;
template <int ROWS>
__device__ __forceinline__ void product(const T *x, int64_t x_row, const uint32_t *weights, const float *scales, const Epilogue &e, int m, int n, int k, int size)
{
    int lane = threadIdx.x, n0 = (blockIdx.x * blockDim.y + threadIdx.y) * OUTPUTS, m0 = blockIdx.y * ROWS, groups = k / size;
    if (n0 >= n) return;
    float acc[OUTPUTS][ROWS] = {};
    for (int at = lane; at < k / 8; at += 32) {
        float xs[ROWS][8];
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) xs[i][j] = m0 + i < m ? to_float(x[(m0 + i) * x_row + 8 * at + j]) : 0.f;
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o) {
            int64_t output = min(n0 + o, n - 1);
            uint32_t word = weights[output * (k / 8) + at];
            float scale = scales[output * groups + 8 * at / size];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                float sum = 0.f;
#pragma unroll
                for (int j = 0; j < 8; ++j) sum += xs[i][j] * weight(word, j);
                acc[o][i] += scale * sum;
            }
        }
    }
    // Every lane has every sum, and stores the one of its number: the epilogue's text is there once.
    float own = 0.f;
#pragma unroll
    for (int o = 0; o < OUTPUTS; ++o)
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float sum = acc[o][i];
#pragma unroll
            for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (lane == o * ROWS + i) own = sum;
        }
    int row = m0 + lane % ROWS, col = n0 + lane / ROWS;
    if (lane < OUTPUTS * ROWS && row < m && col < n) put(e, own, row, col, 0);
}
#define PRODUCT(rows)                                                                                                          \
    extern "C" __global__ void __launch_bounds__(128) int4_product##rows(const T *x, int64_t x_row, const uint32_t *weights,   \
        const float *scales, Epilogue e, int m, int n, int k, int size)                                                        \
    {                                                                                                                          \
        product<rows>(x, x_row, weights, scales, e, m, n, k, size);                                                            \
    }
PRODUCT(1)
PRODUCT(4)
