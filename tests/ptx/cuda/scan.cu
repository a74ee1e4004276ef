// Inclusive and exclusive prefix sums.
extern "C" __global__ void scan_inclusive(const int *in, int *out, int *totals, int n) {
    __shared__ int sums[32];
    int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    int i = blockIdx.x * blockDim.x + t;
    int v = i < n ? in[i] : 0;
    for (int d = 1; d < 32; d <<= 1) {
        int u = __shfl_up_sync(~0u, v, d);
        if (lane >= d) v += u;
    }
    if (lane == 31) sums[warp] = v;
    __syncthreads();
    if (warp == 0) {
        int s = lane < (blockDim.x >> 5) ? sums[lane] : 0;
        for (int d = 1; d < 32; d <<= 1) {
            int u = __shfl_up_sync(~0u, s, d);
            if (lane >= d) s += u;
        }
        sums[lane] = s;
    }
    __syncthreads();
    if (warp > 0) v += sums[warp - 1];
    if (i < n) out[i] = v;
    if (t == blockDim.x - 1) totals[blockIdx.x] = v;
}

extern "C" __global__ void scan_add(int *out, const int *totals, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int add = 0;
    for (int b = 0; b < blockIdx.x; ++b) add += totals[b];
    if (i < n) out[i] += add;
}

// Work-efficient scan with bank padding.
extern "C" __global__ void scan_blelloch(float *data, int n) {
    extern __shared__ float temp[];
    int t = threadIdx.x, offset = 1;
    temp[2 * t] = data[2 * t];
    temp[2 * t + 1] = data[2 * t + 1];
    for (int d = n >> 1; d > 0; d >>= 1) {
        __syncthreads();
        if (t < d) temp[offset * (2 * t + 2) - 1] += temp[offset * (2 * t + 1) - 1];
        offset *= 2;
    }
    if (t == 0) temp[n - 1] = 0;
    for (int d = 1; d < n; d *= 2) {
        offset >>= 1;
        __syncthreads();
        if (t < d) {
            int a = offset * (2 * t + 1) - 1, b = offset * (2 * t + 2) - 1;
            float x = temp[a];
            temp[a] = temp[b];
            temp[b] += x;
        }
    }
    __syncthreads();
    data[2 * t] = temp[2 * t];
    data[2 * t + 1] = temp[2 * t + 1];
}
