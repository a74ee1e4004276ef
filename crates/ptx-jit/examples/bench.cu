// The kernels that the benchmark times. Compiled by: nvcc -ptx -arch=compute_80 bench.cu
extern "C" __global__ void vadd(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void nbody(const float4 *pos, float4 *acc, int n, float eps2) {
    __shared__ float4 tile[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 p = pos[i];
    float ax = 0, ay = 0, az = 0;
    for (int base = 0; base < n; base += 256) {
        tile[threadIdx.x] = pos[base + threadIdx.x];
        __syncthreads();
        for (int k = 0; k < 256; ++k) {
            float4 q = tile[k];
            float dx = q.x - p.x, dy = q.y - p.y, dz = q.z - p.z;
            float r2 = dx * dx + dy * dy + dz * dz + eps2;
            float inv = rsqrtf(r2);
            float s = q.w * inv * inv * inv;
            ax += dx * s; ay += dy * s; az += dz * s;
        }
        __syncthreads();
    }
    acc[i] = make_float4(ax, ay, az, 0);
}

template <int N> __device__ void tiled(const float *a, const float *b, float *c, int n) {
    __shared__ float as[N][N], bs[N][N];
    int row = blockIdx.y * N + threadIdx.y, col = blockIdx.x * N + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < n; t += N) {
        as[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
        bs[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + col];
        __syncthreads();
        for (int i = 0; i < N; ++i) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + col] = sum;
}
extern "C" __global__ void matmul16(const float *a, const float *b, float *c, int n) { tiled<16>(a, b, c, n); }
extern "C" __global__ void matmul32(const float *a, const float *b, float *c, int n) { tiled<32>(a, b, c, n); }

extern "C" __global__ void mandelbrot(int *out, int width, int height, int limit) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float cr = -2.f + 3.f * x / width, ci = -1.5f + 3.f * y / height, zr = 0, zi = 0;
    int i = 0;
    while (i < limit && zr * zr + zi * zi < 4.f) {
        float t = zr * zr - zi * zi + cr;
        zi = 2.f * zr * zi + ci;
        zr = t;
        ++i;
    }
    out[y * width + x] = i;
}

extern "C" __global__ void reduce(const float *in, float *out, int n) {
    __shared__ float part[8];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 8) {
        sum = part[threadIdx.x];
        for (int d = 4; d > 0; d /= 2) sum += __shfl_down_sync(0xffu, sum, d);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}

extern "C" __global__ void histogram(const unsigned char *in, unsigned *out, int n) {
    __shared__ unsigned bins[256];
    bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[in[i]], 1u);
    __syncthreads();
    atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
}

extern "C" __global__ void stencil(const float *in, float *out, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) return;
    out[y * n + x] = 0.25f * (in[y * n + x - 1] + in[y * n + x + 1] + in[(y - 1) * n + x] + in[(y + 1) * n + x]);
}
