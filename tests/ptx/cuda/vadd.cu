// Element-wise arithmetic: the thin slice.
extern "C" __global__ void vadd(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ void saxpy(float k, const float4 *x, float4 *y, unsigned n) {
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float4 v = x[i], w = y[i];
        w.x += k * v.x; w.y += k * v.y; w.z += k * v.z; w.w += k * v.w;
        y[i] = w;
    }
}
