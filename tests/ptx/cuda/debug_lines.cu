// Compiled with line information, so faults can name a source line.
__device__ __forceinline__ float load(const float *p, int i) { return p[i]; }
extern "C" __global__ void with_lines(const float *in, float *out, int n) {
    int i = threadIdx.x;
    if (i < n)
        out[i] = load(in, i) * 2.f;
    out[i + 1] =
        load(in, i + 1);
}
