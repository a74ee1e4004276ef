// Bitonic sort in shared memory, odd-even merge in global, and one radix pass.
extern "C" __global__ void bitonic(unsigned *data) {
    extern __shared__ unsigned s[];
    unsigned t = threadIdx.x, n = blockDim.x;
    s[t] = data[blockIdx.x * n + t];
    for (unsigned k = 2; k <= n; k <<= 1)
        for (unsigned j = k >> 1; j > 0; j >>= 1) {
            __syncthreads();
            unsigned o = t ^ j;
            if (o > t) {
                bool up = (t & k) == 0;
                unsigned a = s[t], b = s[o];
                if ((a > b) == up) { s[t] = b; s[o] = a; }
            }
        }
    __syncthreads();
    data[blockIdx.x * n + t] = s[t];
}

extern "C" __global__ void odd_even(float *keys, int *values, int n, int phase) {
    int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x) + phase;
    if (i + 1 >= n) return;
    float a = keys[i], b = keys[i + 1];
    if (a > b) {
        keys[i] = b; keys[i + 1] = a;
        int v = values[i]; values[i] = values[i + 1]; values[i + 1] = v;
    }
}

extern "C" __global__ void radix_split(const unsigned *in, unsigned *out, int bit) {
    __shared__ unsigned counts[32];
    unsigned t = threadIdx.x, lane = t & 31, warp = t >> 5;
    unsigned v = in[t];
    bool zero = ((v >> bit) & 1) == 0;
    unsigned ballot = __ballot_sync(~0u, zero);
    unsigned before = __popc(ballot & ((1u << lane) - 1));
    if (lane == 0) counts[warp] = __popc(ballot);
    int total = __syncthreads_count(zero);
    unsigned base = 0;
    for (unsigned w = 0; w < warp; ++w) base += counts[w];
    unsigned zeros_before = base + before;
    unsigned at = zero ? zeros_before : total + t - zeros_before;
    out[at] = v;
}
