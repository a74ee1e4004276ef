// Tiled matrix products in several types, one with register blocking.
template <typename T, int N> __device__ void tiled(const T *a, const T *b, T *c, int m, int n, int k) {
    __shared__ T as[N][N], bs[N][N + 1];
    int row = blockIdx.y * N + threadIdx.y, col = blockIdx.x * N + threadIdx.x;
    T sum = 0;
    for (int t = 0; t < k; t += N) {
        as[threadIdx.y][threadIdx.x] = row < m && t + threadIdx.x < k ? a[row * k + t + threadIdx.x] : T(0);
        bs[threadIdx.y][threadIdx.x] = col < n && t + threadIdx.y < k ? b[(t + threadIdx.y) * n + col] : T(0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; ++i) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = sum;
}
extern "C" __global__ void matmul_f32(const float *a, const float *b, float *c, int m, int n, int k) { tiled<float, 16>(a, b, c, m, n, k); }
extern "C" __global__ void matmul_f64(const double *a, const double *b, double *c, int m, int n, int k) { tiled<double, 16>(a, b, c, m, n, k); }
extern "C" __global__ void matmul_i32(const int *a, const int *b, int *c, int m, int n, int k) { tiled<int, 16>(a, b, c, m, n, k); }

extern "C" __global__ void matmul_regs(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int n) {
    __shared__ float as[8][128], bs[8][128];
    float acc[8][8] = {};
    int tx = threadIdx.x & 15, ty = threadIdx.x >> 4;
    for (int k0 = 0; k0 < n; k0 += 8) {
        for (int i = threadIdx.x; i < 1024; i += 256) {
            as[i & 7][i >> 3] = a[(blockIdx.y * 128 + (i >> 3)) * n + k0 + (i & 7)];
            bs[i >> 7][i & 127] = b[(k0 + (i >> 7)) * n + blockIdx.x * 128 + (i & 127)];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            float x[8], y[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) { x[i] = as[k][ty * 8 + i]; y[i] = bs[k][tx * 8 + i]; }
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
        }
        __syncthreads();
    }
    for (int i = 0; i < 8; ++i)
        for (int j = 0; j < 8; ++j) c[(blockIdx.y * 128 + ty * 8 + i) * n + blockIdx.x * 128 + tx * 8 + j] = acc[i][j];
}
