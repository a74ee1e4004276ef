// Larger kernels of `mica bench software`: each takes two inputs, one output and a size, and keeps what lies between its
// launches behind the output.
// Compiled by: nvcc -ptx -std=c++17 -arch=compute_80 larger.cu
#include <cuda/barrier>
#include <cuda_fp16.h>
#include <mma.h>

#define ARGS const float *a, const float *b, float *c, int n
#define ALL 0xffffffffu

// A block 128 x 128 elements, a warp 32 x 64 of them, a thread 8 x 8.
extern "C" __global__ void __launch_bounds__(256) sgemm(ARGS)
{
    __shared__ float left[8][128], right[8][128];
    int t = threadIdx.x, warp = t / 32, lane = t % 32;
    int row = warp / 2 * 32 + lane / 8 * 8, col = warp % 2 * 64 + lane % 8 * 8;
    const float *a0 = a + (size_t)blockIdx.y * 128 * n, *b0 = b + blockIdx.x * 128;
    float sum[8][8] = {};
    for (int k = 0; k < n; k += 8) {
        float4 x = *(const float4 *)(a0 + (size_t)(t / 2) * n + k + t % 2 * 4);
        float4 y = *(const float4 *)(b0 + (size_t)(k + t / 32) * n + t % 32 * 4);
        for (int i = 0; i < 4; ++i) left[t % 2 * 4 + i][t / 2] = (&x.x)[i];
        *(float4 *)&right[t / 32][t % 32 * 4] = y;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float u[8], v[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) u[j] = left[i][row + j], v[j] = right[i][col + j];
#pragma unroll
            for (int r = 0; r < 8; ++r)
#pragma unroll
                for (int s = 0; s < 8; ++s) sum[r][s] += u[r] * v[s];
        }
        __syncthreads();
    }
    for (int r = 0; r < 8; ++r)
        for (int s = 0; s < 8; s += 4)
            *(float4 *)(c + ((size_t)blockIdx.y * 128 + row + r) * n + blockIdx.x * 128 + col + s) =
                make_float4(sum[r][s], sum[r][s + 1], sum[r][s + 2], sum[r][s + 3]);
}

// Products of halves on tensor cores: a block 64 x 64 elements, a warp 16 x 32 of them.
extern "C" __global__ void hgemm_round(ARGS)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __half *halves = (__half *)(c + n * n);
    halves[i] = __float2half(a[i]);
    halves[n * n + i] = __float2half(b[i]);
}
extern "C" __global__ void __launch_bounds__(256) hgemm(ARGS)
{
    using namespace nvcuda::wmma;
    __shared__ __half left[64][32], right[32][64];
    const __half *a0 = (const __half *)(c + n * n) + (size_t)blockIdx.y * 64 * n;
    const __half *b0 = (const __half *)(c + n * n) + (size_t)n * n + blockIdx.x * 64;
    int t = threadIdx.x, warp = t / 32, row = warp / 2 * 16, col = warp % 2 * 32;
    fragment<accumulator, 16, 16, 16, float> sum[2];
    for (int j = 0; j < 2; ++j) fill_fragment(sum[j], 0);
    for (int k = 0; k < n; k += 32) {
        *(uint4 *)&left[t / 4][t % 4 * 8] = *(const uint4 *)(a0 + (size_t)(t / 4) * n + k + t % 4 * 8);
        *(uint4 *)&right[t / 8][t % 8 * 8] = *(const uint4 *)(b0 + (size_t)(k + t / 8) * n + t % 8 * 8);
        __syncthreads();
        for (int i = 0; i < 32; i += 16) {
            fragment<matrix_a, 16, 16, 16, __half, row_major> x;
            load_matrix_sync(x, &left[row][i], 32);
            for (int j = 0; j < 2; ++j) {
                fragment<matrix_b, 16, 16, 16, __half, row_major> y;
                load_matrix_sync(y, &right[i][col + 16 * j], 64);
                mma_sync(sum[j], x, y, sum[j]);
            }
        }
        __syncthreads();
    }
    for (int j = 0; j < 2; ++j)
        store_matrix_sync(c + ((size_t)blockIdx.y * 64 + row) * n + blockIdx.x * 64 + col + 16 * j, sum[j], n, mem_row_major);
}

// Keys by four passes of eight bits: a block counts 4096 keys by digit, one block sums the counts, each warp puts its 512
// keys in order. Keys of even passes lie at the output, of odd ones behind it, counts behind these.
#define TILE 4096
static __device__ unsigned *counts_of(float *c, int n) { return (unsigned *)c + 2 * n; }
extern "C" __global__ void sort_keys(ARGS)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    ((unsigned *)c)[i] = (i ^ i >> 7) * 2654435761u;
}
template <int PASS> static __device__ void sort_count(float *c, int n)
{
    __shared__ unsigned digits[256];
    const unsigned *keys = (unsigned *)c + PASS % 2 * n + blockIdx.x * TILE;
    digits[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < TILE; i += blockDim.x) atomicAdd(&digits[keys[i] >> 8 * PASS & 255], 1);
    __syncthreads();
    counts_of(c, n)[threadIdx.x * gridDim.x + blockIdx.x] = digits[threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(1024) sort_sums(ARGS)
{
    __shared__ unsigned part[32];
    int per = 256 * (n / TILE) / 1024, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned *counts = counts_of(c, n) + threadIdx.x * per, sum = 0;
    for (int i = 0; i < per; ++i) sum += counts[i];
    unsigned up = sum;
    for (int d = 1; d < 32; d *= 2) {
        unsigned u = __shfl_up_sync(ALL, up, d);
        if (lane >= d) up += u;
    }
    if (lane == 31) part[warp] = up;
    __syncthreads();
    unsigned before = up - sum;
    for (int i = 0; i < warp; ++i) before += part[i];
    for (int i = 0; i < per; ++i) {
        unsigned count = counts[i];
        counts[i] = before, before += count;
    }
}
template <int PASS> static __device__ void sort_move(float *c, int n)
{
    __shared__ unsigned next[8][256];
    const unsigned *keys = (unsigned *)c + PASS % 2 * n + blockIdx.x * TILE;
    unsigned *to = (unsigned *)c + (1 - PASS % 2) * n;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int d = lane; d < 256; d += 32) next[warp][d] = 0;
    __syncwarp();
    for (int i = lane; i < TILE / 8; i += 32) atomicAdd(&next[warp][keys[warp * (TILE / 8) + i] >> 8 * PASS & 255], 1);
    __syncthreads();
    unsigned before = counts_of(c, n)[threadIdx.x * gridDim.x + blockIdx.x];
    for (int w = 0; w < 8; ++w) {
        unsigned count = next[w][threadIdx.x];
        next[w][threadIdx.x] = before, before += count;
    }
    __syncthreads();
    for (int i = lane; i < TILE / 8; i += 32) {
        unsigned key = keys[warp * (TILE / 8) + i], digit = key >> 8 * PASS & 255;
        unsigned same = __match_any_sync(ALL, digit), at = next[warp][digit] + __popc(same & ((1u << lane) - 1));
        __syncwarp();
        if (same >> lane == 1) next[warp][digit] = at + 1;
        __syncwarp();
        to[at] = key;
    }
}
#define PASS(p) \
    extern "C" __global__ void sort_count##p(ARGS) { sort_count<p>(c, n); } \
    extern "C" __global__ void sort_move##p(ARGS) { sort_move<p>(c, n); }
PASS(0)
PASS(1)
PASS(2)
PASS(3)

// Rows of 8 to 39 elements, 752 in 32 rows; columns and where rows begin lie behind the output. A warp a row.
static __device__ int *columns_of(float *c, int n) { return (int *)c + 2 * n; }
extern "C" __global__ void spmv_fill(ARGS)
{
    int row = blockIdx.x * blockDim.x + threadIdx.x, begin = row / 32 * 752;
    for (int r = row & ~31; r < row; ++r) begin += 8 + r * 7 % 32;
    ((int *)c)[n + row] = begin;
    for (int i = 0; i < 8 + row * 7 % 32; ++i) columns_of(c, n)[begin + i] = (unsigned)(row * 31 + i * i * 977) % n;
}
extern "C" __global__ void spmv(ARGS)
{
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    int begin = ((int *)c)[n + row], end = row + 1 < n ? ((int *)c)[n + row + 1] : n / 32 * 752;
    float sum = 0;
    for (int i = begin + lane; i < end; i += 32) sum += a[i] * b[columns_of(c, n)[i]];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(ALL, sum, d);
    if (lane == 0) c[row] += sum;
}

// 1024 complex numbers a block, five passes of radix 4 in shared memory. Powers of the root lie behind the output.
extern "C" __global__ void fft_powers(ARGS)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float2 power;
    sincospif(i / -512.f, &power.y, &power.x);
    ((float2 *)c)[n + i] = power;
}
static __device__ float2 times(float2 x, float2 y) { return make_float2(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x); }
static __device__ float2 plus(float2 x, float2 y) { return make_float2(x.x + y.x, x.y + y.y); }
static __device__ float2 minus(float2 x, float2 y) { return make_float2(x.x - y.x, x.y - y.y); }
extern "C" __global__ void __launch_bounds__(256) fft(ARGS)
{
    __shared__ float2 room[1024];
    const float2 *in = (const float2 *)a + (size_t)blockIdx.x * 1024, *powers = (const float2 *)c + n;
    float2 *out = (float2 *)c + (size_t)blockIdx.x * 1024, v[4];
    int j = threadIdx.x;
    for (int r = 0; r < 4; ++r) v[r] = in[j + 256 * r];
#pragma unroll
    for (int done = 1; done < 1024; done *= 4) {
        int k = j % done;
        for (int r = 1; r < 4; ++r) v[r] = times(v[r], powers[r * k * (256 / done)]);
        float2 p = plus(v[0], v[2]), q = minus(v[0], v[2]), s = plus(v[1], v[3]), d = minus(v[1], v[3]);
        float2 turned = make_float2(d.y, -d.x);
        v[0] = plus(p, s), v[1] = plus(q, turned), v[2] = minus(p, s), v[3] = minus(q, turned);
        float2 *to = done == 256 ? out : room;
        __syncthreads();
        for (int r = 0; r < 4; ++r) to[(j - k) * 4 + k + r * done] = v[r];
        __syncthreads();
        if (done < 256)
            for (int r = 0; r < 4; ++r) v[r] = room[j + 256 * r];
    }
}

// Half of the threads bring 2048 elements to shared memory while the other half computes on the 2048 before.
#define PIECE 2048
extern "C" __global__ void __launch_bounds__(256) pipeline(ARGS)
{
    using barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ float piece[2][PIECE];
    __shared__ alignas(barrier) unsigned char room[4][sizeof(barrier)];
    barrier *full = (barrier *)room[0], *free = (barrier *)room[2];
    if (threadIdx.x < 2) init(full + threadIdx.x, 256), init(free + threadIdx.x, 256);
    __syncthreads();
    int pieces = n / PIECE / gridDim.x, t = threadIdx.x % 128;
    size_t first = (size_t)blockIdx.x * pieces * PIECE;
    if (threadIdx.x < 128) {
        for (int p = 0; p < pieces; ++p) {
            free[p % 2].arrive_and_wait();
            for (int i = t; i < PIECE; i += 128) piece[p % 2][i] = a[first + p * PIECE + i];
            (void)full[p % 2].arrive();
        }
    } else {
        (void)free[0].arrive(), (void)free[1].arrive();
        for (int p = 0; p < pieces; ++p) {
            full[p % 2].arrive_and_wait();
            for (int i = t; i < PIECE; i += 128) {
                float x = piece[p % 2][i];
                c[first + p * PIECE + i] = ((b[0] * x + b[1]) * x + b[2]) * x + b[3];
            }
            if (p + 2 < pieces) (void)free[p % 2].arrive();
        }
    }
}
