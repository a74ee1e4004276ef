// Sums by shared memory, by shuffles, and by atomics.
template <typename T> __device__ T warp_sum(T v) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    return v;
}

template <typename T> __device__ void block_sum(const T *in, T *out, int n) {
    __shared__ T part[32];
    T sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += in[i];
    sum = warp_sum(sum);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < (blockDim.x + 31) / 32 ? part[threadIdx.x] : T(0);
        sum = warp_sum(sum);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}

extern "C" __global__ void sum_f32(const float *in, float *out, int n) { block_sum(in, out, n); }
extern "C" __global__ void sum_i32(const int *in, int *out, int n) { block_sum(in, out, n); }
extern "C" __global__ void sum_f64(const double *in, double *out, int n) { block_sum(in, out, n); }

extern "C" __global__ void max_tree(const int *in, int *out, int n) {
    extern __shared__ int tile[];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    tile[t] = i < n ? in[i] : -2147483647 - 1;
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        __syncthreads();
        if (t < s) tile[t] = max(tile[t], tile[t + s]);
    }
    if (t == 0) out[blockIdx.x] = tile[0];
}
