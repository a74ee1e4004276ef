// Device heap, dynamic shared memory, constants, volatile, caches, managed memory, initialized globals.
__constant__ int primes[8] = {2, 3, 5, 7, 11, 13, 17, 19};
__constant__ struct { float scale; short bias[3]; double table[2]; } config = {1.5f, {1, -2, 3}, {0.25, 4.0}};
__device__ int counter = 42;
__device__ unsigned long long big = 0x123456789abcdef0ull;
__device__ float matrix[3][4] = {{1, 2}, {3, 4, 5, 6}};
__device__ const char *names[3] = {"alpha", "beta", "gamma"};
__device__ int *pointer_to_counter = &counter;
__managed__ int shared_with_host = 7;
static __device__ double hidden[16];

extern "C" __global__ void heap(int **out, int n) {
    int *p = (int *)malloc(n * sizeof(int));
    if (!p) { out[threadIdx.x] = nullptr; return; }
    for (int i = 0; i < n; ++i) p[i] = i * threadIdx.x;
    out[threadIdx.x] = p;
    int *q = new int[4];
    q[0] = p[0];
    delete[] q;
}
extern "C" __global__ void release(int **in) { free(in[threadIdx.x]); }
extern "C" __global__ void globals(int *out, volatile int *flag) {
    int i = threadIdx.x;
    out[i] = primes[i & 7] + (int)(config.scale * config.bias[i % 3] + config.table[i & 1]) + counter + (int)big + (int)matrix[i % 3][i & 3] + names[i % 3][i & 1] + *pointer_to_counter;
    shared_with_host += 1;
    hidden[i & 15] = i;
    while (*flag == 0) {}
    *flag = 2;
    out[i] += (int)hidden[(i + 1) & 15];
}
extern "C" __global__ void dynamic(int *out, int a, int b) {
    extern __shared__ char raw[];
    int *x = (int *)raw;
    double *y = (double *)(raw + a);
    x[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = b;
    __syncthreads();
    out[threadIdx.x] = x[blockDim.x - 1 - threadIdx.x] + (int)y[0];
}
extern "C" __global__ void caches(const int4 *in, int4 *out) {
    int i = threadIdx.x;
    int4 a = __ldg(in + i), b = __ldcs(in + i), c = __ldcg(in + i), d = __ldca(in + i);
    __stcs(out + i, make_int4(a.x, b.y, c.z, d.w));
    __stwt(out + i + 1, a);
    __stcg(out + i + 2, b);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(in));
    asm volatile("prefetchu.L1 [%0];" ::"l"(in));
    asm volatile("{.reg .b64 pol; createpolicy.fractional.L2::evict_last.b64 pol, 1.0; ld.global.L1::no_allocate.L2::cache_hint.L2::256B.v4.s32 {%0,%1,%2,%3}, [%4], pol;}" : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w) : "l"(in));
    out[i + 3] = a;
    asm volatile("st.relaxed.gpu.global.s32 [%0], 1; ld.acquire.sys.global.s32 %1, [%0]; st.release.cta.s32 [%0], %1; ld.volatile.s32 %1, [%0];" ::"l"(out), "r"(a.x));
    asm volatile("discard.global.L2 [%0], 128; applypriority.global.L2::evict_normal [%0], 128;" ::"l"(out));
}
extern "C" __global__ void bytes(const signed char *a, unsigned char *b, const short *c, unsigned short *d, const bool *e) {
    int i = threadIdx.x;
    b[i] = a[i] * 3; d[i] = c[i] + a[i]; if (e[i]) b[i] ^= 1;
}
