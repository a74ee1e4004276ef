// Every kind of atomic, in every scope and space.
#include <cuda/atomic>
extern "C" __global__ void atomics_global(int *i, unsigned *u, unsigned long long *l, float *f, double *d, long long *s) {
    int t = threadIdx.x;
    int r = atomicAdd(i, t) + atomicSub(i + 1, t) + atomicExch(i + 2, t) + atomicMin(i + 3, t) + atomicMax(i + 4, t);
    r += atomicCAS(i + 5, 0, t) + atomicAnd(i + 6, t) + atomicOr(i + 7, t) + atomicXor(i + 8, t);
    unsigned v = atomicInc(u, 100) + atomicDec(u + 1, 100) + atomicMin(u + 2, 7u) + atomicMax(u + 3, 9u);
    unsigned long long w = atomicAdd(l, 1ull) + atomicCAS(l + 1, 0ull, 5ull) + atomicExch(l + 2, 6ull) + atomicMax(l + 3, 7ull) + atomicAnd(l + 4, 15ull);
    s[0] = atomicMin(s + 1, -5ll) + atomicMax(s + 2, 5ll);
    f[t] = atomicAdd(f + 100, 1.5f) + atomicExch(f + 101, 2.f);
    d[t] = atomicAdd(d + 100, 2.5);
    i[16 + t] = r; u[16 + t] = v; l[16 + t] = w;
}
extern "C" __global__ void atomics_shared(int *out) {
    __shared__ int a[4];
    __shared__ unsigned long long b;
    __shared__ float f;
    if (threadIdx.x == 0) { a[0] = a[1] = a[2] = a[3] = 0; b = 0; f = 0; }
    __syncthreads();
    atomicAdd(&a[0], 1); atomicMax(&a[1], threadIdx.x); atomicCAS(&a[2], 0, (int)threadIdx.x); atomicXor(&a[3], 1);
    atomicAdd(&b, 3ull); atomicAdd(&f, 0.5f);
    __syncthreads();
    if (threadIdx.x == 0) { out[0] = a[0]; out[1] = a[1]; out[2] = a[3]; out[3] = (int)b; out[4] = (int)f; }
}
extern "C" __global__ void atomics_scopes(int *p, unsigned short *q) {
    atomicAdd_block(p, 1); atomicAdd_system(p + 1, 1); atomicCAS_block(p + 2, 1, 2); atomicExch_system(p + 3, 4);
    atomicCAS(q, (unsigned short)1, (unsigned short)2);
    __threadfence_block(); __threadfence(); __threadfence_system();
}
extern "C" __global__ void atomics_std(int *flag, int *data, cuda::atomic<int, cuda::thread_scope_device> *a) {
    cuda::atomic_ref<int, cuda::thread_scope_block> ref(*flag);
    ref.store(1, cuda::memory_order_release);
    while (ref.load(cuda::memory_order_acquire) == 0) {}
    a->fetch_add(2, cuda::memory_order_acq_rel);
    a->fetch_sub(1, cuda::memory_order_seq_cst);
    int expected = 3;
    a->compare_exchange_strong(expected, 4, cuda::memory_order_relaxed);
    cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_system);
    data[0] = a->exchange(7) + expected;
}
extern "C" __global__ void vector_atomics(float2 *a, float4 *b) {
#if __CUDA_ARCH__ >= 900
    float2 o = atomicAdd(a, make_float2(1, 2));
    atomicAdd(b, make_float4(o.x, o.y, 3, 4));
#endif
}
