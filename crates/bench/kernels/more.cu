// More kernels of `mica bench software`: each takes two inputs, one output and a size.
// Compiled by: nvcc -ptx -std=c++17 -arch=compute_80 more.cu

#define ARGS const float *a, const float *b, float *c, int n
#define ALL 0xffffffffu

template <class F> static __device__ float over_block(float v, F join)
{
    __shared__ float part[8];
    for (int d = 16; d > 0; d /= 2) v = join(v, __shfl_xor_sync(ALL, v, d));
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (int i = 1; i < 8; ++i) v = join(v, part[i]);
    return v;
}
static __device__ float block_sum(float v) { return over_block(v, [](float x, float y) { return x + y; }); }
static __device__ float block_max(float v) { return over_block(v, [](float x, float y) { return fmaxf(x, y); }); }

// A block a row of n elements.
extern "C" __global__ void softmax(ARGS)
{
    const float *row = a + (size_t)blockIdx.x * n;
    float *out = c + (size_t)blockIdx.x * n, most = -INFINITY, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
    most = block_max(most);
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += out[i] = __expf(row[i] - most);
    float scale = 1.f / block_sum(sum);
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] *= scale;
}

extern "C" __global__ void layer_norm(ARGS)
{
    const float *row = a + (size_t)blockIdx.x * n;
    float *out = c + (size_t)blockIdx.x * n, sum = 0, squares = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += row[i];
    float mean = block_sum(sum) / n;
    for (int i = threadIdx.x; i < n; i += blockDim.x) squares += (row[i] - mean) * (row[i] - mean);
    float scale = rsqrtf(block_sum(squares) / n + 1e-5f);
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = (row[i] - mean) * scale * b[i] + b[n + i];
}

// Nine weights, along rows into shared memory, then along columns; the border stays as it is.
extern "C" __global__ void convolution(ARGS)
{
    __shared__ float in[40][40], rows[40][32];
    int x0 = blockIdx.x * 32, y0 = blockIdx.y * 32, tx = threadIdx.x, ty = threadIdx.y;
    for (int y = ty; y < 40; y += 8)
        for (int x = tx; x < 40; x += 32) {
            int gx = min(max(x0 + x - 4, 0), n - 1), gy = min(max(y0 + y - 4, 0), n - 1);
            in[y][x] = a[gy * n + gx];
        }
    __syncthreads();
    for (int y = ty; y < 40; y += 8) {
        float sum = 0;
        for (int k = 0; k < 9; ++k) sum += b[k] * in[y][tx + k];
        rows[y][tx] = sum;
    }
    __syncthreads();
    for (int y = ty; y < 32; y += 8) {
        float sum = 0;
        for (int k = 0; k < 9; ++k) sum += b[k] * rows[y + k][tx];
        c[(y0 + y) * n + x0 + tx] = sum;
    }
}

// Inclusive sums: within blocks of 1024, of the blocks' sums, then added.
static __device__ float scan_block(float v)
{
    __shared__ float part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int d = 1; d < 32; d *= 2) {
        float u = __shfl_up_sync(ALL, v, d);
        if (lane >= d) v += u;
    }
    if (lane == 31) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        float p = lane < warps ? part[lane] : 0;
        for (int d = 1; d < 32; d *= 2) {
            float u = __shfl_up_sync(ALL, p, d);
            if (lane >= d) p += u;
        }
        part[lane] = p;
    }
    __syncthreads();
    return v + (warp ? part[warp - 1] : 0);
}
extern "C" __global__ void scan_blocks(ARGS)
{
    int at = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    float4 v = *(const float4 *)(a + at);
    v.y += v.x, v.z += v.y, v.w += v.z;
    float before = scan_block(v.w) - v.w;
    *(float4 *)(c + at) = make_float4(v.x + before, v.y + before, v.z + before, v.w + before);
    if (threadIdx.x == blockDim.x - 1) c[n + blockIdx.x] = v.w + before;
}
extern "C" __global__ void scan_sums(ARGS)
{
    float carry = 0;
    __shared__ float last;
    for (int base = 0; base < n / 1024; base += blockDim.x) {
        float v = scan_block(c[n + base + threadIdx.x]) + carry;
        c[n + base + threadIdx.x] = v;
        if (threadIdx.x == blockDim.x - 1) last = v;
        __syncthreads();
        carry = last;
    }
}
extern "C" __global__ void scan_add(ARGS)
{
    if (blockIdx.x == 0) return;
    float before = c[n + blockIdx.x - 1];
    float4 *at = (float4 *)c + blockIdx.x * blockDim.x + threadIdx.x, v = *at;
    *at = make_float4(v.x + before, v.y + before, v.z + before, v.w + before);
}

// Keeps the elements above one; a warp reserves its places with one atomic. The counter lies behind the output.
extern "C" __global__ void compaction(ARGS)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    float v = a[i];
    unsigned kept = __ballot_sync(ALL, v > 1.f), at = 0;
    if (lane == 0 && kept) at = atomicAdd((unsigned *)c + n, __popc(kept));
    at = __shfl_sync(ALL, at, 0);
    if (v > 1.f) c[at + __popc(kept & ((1u << lane) - 1))] = v;
}

// Counts keys in a table of 2n places with open addressing: a key and its count each.
extern "C" __global__ void hash_table(ARGS)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, *table = (unsigned *)c, mask = 2 * n - 1;
    unsigned key = (i * 2654435761u >> 13) % n + 1, slot = key * 2246822519u >> 7 & mask;
    for (;; slot = slot + 1 & mask) {
        unsigned old = atomicCAS(table + 2 * slot, 0, key);
        if (old == 0 || old == key) break;
    }
    atomicAdd(table + 2 * slot + 1, 1);
}

// Spheres (x, y, z, radius) in shared memory, one bounce of light from above.
extern "C" __global__ void ray_tracer(ARGS)
{
    __shared__ float4 spheres[64];
    int t = threadIdx.y * blockDim.x + threadIdx.x;
    if (t < 64) spheres[t] = make_float4(b[4 * t] * 6, b[4 * t + 1] * 6, 8 + b[4 * t + 2] * 4, .3f + a[t] * .4f);
    __syncthreads();
    int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
    float dx = 2.f * px / n - 1, dy = 2.f * py / n - 1, dz = 1, inv = rsqrtf(dx * dx + dy * dy + dz * dz), near = 1e9f;
    dx *= inv, dy *= inv, dz *= inv;
    int hit = -1;
    for (int s = 0; s < 64; ++s) {
        float4 q = spheres[s];
        float along = dx * q.x + dy * q.y + dz * q.z, d = along * along - (q.x * q.x + q.y * q.y + q.z * q.z) + q.w * q.w;
        if (d > 0) {
            float far = along - sqrtf(d);
            if (far > 0 && far < near) near = far, hit = s;
        }
    }
    float light = .1f;
    if (hit >= 0) {
        float4 q = spheres[hit];
        float x = dx * near, y = dy * near, z = dz * near, up = (y - q.y) / q.w;
        bool shadow = false;
        for (int s = 0; s < 64 && !shadow; ++s) {
            float4 o = spheres[s];
            float ex = o.x - x, ez = o.z - z;
            shadow = s != hit && o.y > y && ex * ex + ez * ez < o.w * o.w;
        }
        light = fmaxf(up, 0) * (shadow ? .3f : 1.f) + .2f;
    }
    c[py * n + px] = light;
}

// A thread a query; eight heads of 64 values; keys are `a`, values are `b`, queries are keys too.
extern "C" __global__ void __launch_bounds__(128) attention(ARGS)
{
    __shared__ float keys[32][64], values[32][64];
    const float *ka = a + (size_t)blockIdx.y * n * 64, *vb = b + (size_t)blockIdx.y * n * 64;
    int q = blockIdx.x * blockDim.x + threadIdx.x;
    float query[64], out[64] = {}, most = -INFINITY, sum = 0;
    for (int d = 0; d < 64; ++d) query[d] = ka[q * 64 + d] * .125f;
    for (int base = 0; base < n; base += 32) {
        for (int i = threadIdx.x; i < 32 * 64; i += blockDim.x) {
            keys[i / 64][i % 64] = ka[base * 64 + i];
            values[i / 64][i % 64] = vb[base * 64 + i];
        }
        __syncthreads();
        for (int k = 0; k < 32; ++k) {
            float s = 0;
#pragma unroll
            for (int d = 0; d < 64; ++d) s += query[d] * keys[k][d];
            float next = fmaxf(most, s), keep = __expf(most - next), p = __expf(s - next);
            sum = sum * keep + p, most = next;
#pragma unroll
            for (int d = 0; d < 64; ++d) out[d] = out[d] * keep + p * values[k][d];
        }
        __syncthreads();
    }
    float *to = c + ((size_t)blockIdx.y * n + q) * 64;
    for (int d = 0; d < 64; ++d) to[d] = out[d] / sum;
}
