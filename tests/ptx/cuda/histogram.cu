// Counts of bytes, privatized in shared memory.
extern "C" __global__ void histogram(const unsigned char *in, unsigned *bins, size_t n) {
    __shared__ unsigned local[256];
    for (int b = threadIdx.x; b < 256; b += blockDim.x) local[b] = 0;
    __syncthreads();
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += stride)
        atomicAdd(&local[in[i]], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < 256; b += blockDim.x) atomicAdd(&bins[b], local[b]);
}

extern "C" __global__ void histogram_u32(const uint4 *in, unsigned *bins, int n, int shift) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint4 v = in[i];
    atomicInc(&bins[(v.x >> shift) & 255], 0xffffffffu);
    atomicInc(&bins[(v.y >> shift) & 255], 0xffffffffu);
    atomicAdd(&bins[(v.z >> shift) & 255], 1u);
    atomicAdd(&bins[__byte_perm(v.w, 0, 0x4440)], 1u);
}
