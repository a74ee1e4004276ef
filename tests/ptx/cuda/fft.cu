// A radix-2 transform in shared memory, with library and fast sines.
extern "C" __global__ void fft(float2 *data, int log2n, int inverse) {
    extern __shared__ float2 s[];
    int n = 1 << log2n, t = threadIdx.x;
    for (int i = t; i < n; i += blockDim.x) s[__brev(i) >> (32 - log2n)] = data[blockIdx.x * n + i];
    __syncthreads();
    for (int len = 2; len <= n; len <<= 1) {
        for (int i = t; i < n / 2; i += blockDim.x) {
            int half = len / 2, k = i & (half - 1), base = (i / half) * len + k;
            float angle = (inverse ? 6.28318530718f : -6.28318530718f) * k / len;
            float c, d;
            sincosf(angle, &d, &c);
            float2 u = s[base], v = s[base + half];
            float2 w = make_float2(v.x * c - v.y * d, v.x * d + v.y * c);
            s[base] = make_float2(u.x + w.x, u.y + w.y);
            s[base + half] = make_float2(u.x - w.x, u.y - w.y);
        }
        __syncthreads();
    }
    for (int i = t; i < n; i += blockDim.x) data[blockIdx.x * n + i] = s[i];
}
extern "C" __global__ void twiddles(float2 *out, int n) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < n) out[k] = make_float2(__cosf(-6.2831853f * k / n), __sinf(-6.2831853f * k / n));
}
