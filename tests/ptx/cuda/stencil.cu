// Heat diffusion in 2D and a 3D seven-point stencil.
#define R 4
__constant__ float weights[2 * R + 1];

extern "C" __global__ void stencil_1d(const float *in, float *out, int n) {
    __shared__ float tile[256 + 2 * R];
    int g = blockIdx.x * blockDim.x + threadIdx.x, l = threadIdx.x + R;
    tile[l] = g < n ? in[g] : 0.f;
    if (threadIdx.x < R) {
        tile[l - R] = g >= R ? in[g - R] : 0.f;
        tile[l + blockDim.x] = g + (int)blockDim.x < n ? in[g + blockDim.x] : 0.f;
    }
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int o = -R; o <= R; ++o) sum += weights[o + R] * tile[l + o];
    if (g < n) out[g] = sum;
}

extern "C" __global__ void heat_2d(const double *__restrict__ in, double *__restrict__ out, int w, int h, double k) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x <= 0 || y <= 0 || x >= w - 1 || y >= h - 1) return;
    int i = y * w + x;
    out[i] = in[i] + k * (in[i - 1] + in[i + 1] + in[i - w] + in[i + w] - 4 * in[i]);
}

extern "C" __global__ void stencil_3d(const float *in, float *out, dim3 size) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= size.x - 1 || y >= size.y - 1) return;
    size_t plane = (size_t)size.x * size.y, i = plane + y * size.x + x;
    float below = in[i - plane], here = in[i], above;
    for (unsigned z = 1; z < size.z - 1; ++z, i += plane) {
        above = in[i + plane];
        out[i] = 0.4f * here + 0.1f * (below + above + in[i - 1] + in[i + 1] + in[i - size.x] + in[i + size.x]);
        below = here;
        here = above;
    }
}
