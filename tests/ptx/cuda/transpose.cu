// Transposes, naive and tiled.
extern "C" __global__ void transpose_naive(const float *in, float *out, int w, int h) {
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) if (x < w && y + j < h) out[x * h + y + j] = in[(y + j) * w + x];
}
extern "C" __global__ void transpose_tiled(const float *in, float *out, int w, int h) {
    __shared__ float tile[32][33];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) if (x < w && y + j < h) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * w + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) if (x < h && y + j < w) out[(y + j) * h + x] = tile[threadIdx.x][threadIdx.y + j];
}
extern "C" __global__ void transpose_b8(const uchar4 *in, uchar4 *out, int w) {
    int x = threadIdx.x, y = threadIdx.y;
    uchar4 v = in[y * w + x];
    out[x * w + y] = make_uchar4(v.w, v.z, v.y, v.x);
}
