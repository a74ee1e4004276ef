// Kernels of the interpreter's tests. The PTX beside this file is made from it:
//   nvcc -ptx -arch=compute_80 -lineinfo kernels.cu -o kernels.ptx
#include <cooperative_groups.h>
#include <cstdint>
#include <cstdio>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include <cassert>

namespace cg = cooperative_groups;

extern "C" {

__global__ void vadd(const float *a, const float *b, float *c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

__global__ void reduce(const int *in, int *out, int n) {
  __shared__ int s[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = i < n ? in[i] : 0;
  __syncthreads();
  for (int d = blockDim.x / 2; d > 0; d >>= 1) {
    if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(out, s[0]);
}

__global__ void warp_sums(const int *in, int *out) {
  int v = in[threadIdx.x];
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffff, v, d);
  unsigned odd = __ballot_sync(0xffffffff, in[threadIdx.x] & 1);
  unsigned same = __match_any_sync(0xffffffff, in[threadIdx.x] % 3);
  int biggest = __reduce_max_sync(0xffffffff, in[threadIdx.x]);
  out[threadIdx.x * 4] = v;
  out[threadIdx.x * 4 + 1] = odd;
  out[threadIdx.x * 4 + 2] = same;
  out[threadIdx.x * 4 + 3] = biggest;
}

// Divergent halves of a warp, each with its own shuffles.
__global__ void divergent(int *out) {
  int lane = threadIdx.x & 31;
  int v = lane;
  if (lane < 16) {
    v = __shfl_sync(0x0000ffff, v * 2, 3);
  } else {
    for (int i = 0; i < lane; i++) v += i;
    v = __shfl_down_sync(0xffff0000, v, 1);
  }
  __syncwarp();
  out[threadIdx.x] = v + __popc(__activemask());
}

__global__ void aggregated(int *counter, int *out) {
  auto g = cg::coalesced_threads();
  if (threadIdx.x % 3 == 0) {
    auto h = cg::coalesced_threads();
    int base = 0;
    if (h.thread_rank() == 0) base = atomicAdd(counter, h.size());
    out[threadIdx.x] = h.shfl(base, 0) + h.thread_rank();
  } else {
    out[threadIdx.x] = -1;
  }
  (void)g;
}

__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__global__ void recursion(int *out) { out[threadIdx.x] = fib(threadIdx.x); }

struct Big {
  int v[6];
  double d;
};
__device__ __noinline__ Big twice(Big b) {
  for (int i = 0; i < 6; i++) b.v[i] *= 2;
  b.d *= 2;
  return b;
}
__global__ void structs(Big in, int *out) {
  Big b = twice(in);
  out[threadIdx.x] = b.v[threadIdx.x % 6] + (int)b.d;
}

typedef int (*Function)(int);
__device__ __noinline__ int add_one(int x) { return x + 1; }
__device__ __noinline__ int square(int x) { return x * x; }
__device__ Function table[2] = {add_one, square};
__global__ void pointers(int *out) { out[threadIdx.x] = table[threadIdx.x & 1](threadIdx.x); }

__global__ void local_array(const int *index, int *out) {
  int a[16];
  for (int i = 0; i < 16; i++) a[i] = i * i + threadIdx.x;
  out[threadIdx.x] = a[index[threadIdx.x] & 15];
}

__global__ void dynamic_shared(int *out) {
  extern __shared__ int s[];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}

__constant__ int weights[4] = {1, 10, 100, 1000};
__device__ int counter = 5;
__device__ int *counter_address = &counter;
__global__ void constants(int *out) {
  out[threadIdx.x] = weights[threadIdx.x & 3];
  atomicAdd(counter_address, 1);
}

__global__ void prints(int x) { printf("x is %d\n", x); }
__global__ void asserts(int x) { assert(x == 3); }
__global__ void heap(int *out) {
  int *p = (int *)malloc(64);
  for (int i = 0; i < 16; i++) p[i] = i + threadIdx.x;
  int sum = 0;
  for (int i = 0; i < 16; i++) sum += p[i];
  free(p);
  out[threadIdx.x] = sum;
}

__global__ void wild(int *p) { *p = 1; }
__global__ void unaligned(char *p) { *(int *)(p + 1) = 1; }
__global__ void traps() { __trap(); }
__global__ void forever(volatile int *p) {
  while (*p == 0) {
  }
}

__global__ void spin_lock(int *lock, int *value) {
  for (int i = 0; i < 3; i++) {
    bool done = false;
    while (!done) {
      if (atomicCAS(lock, 0, 1) == 0) {
        *value = *value + 1;
        __threadfence();
        atomicExch(lock, 0);
        done = true;
      }
    }
  }
}

__global__ void wmma_half(const half *a, const half *b, float *c) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, half, row_major> fa;
  fragment<matrix_b, 16, 16, 16, half, col_major> fb;
  fragment<accumulator, 16, 16, 16, float> fc;
  fill_fragment(fc, 1.0f);
  load_matrix_sync(fa, a, 16);
  load_matrix_sync(fb, b, 16);
  mma_sync(fc, fa, fb, fc);
  store_matrix_sync(c, fc, 16, mem_row_major);
}

// C = A * B with ldmatrix and mma.m16n8k16, A row-major 16x16, B row-major 16x8.
__global__ void mma_half(const half *a, const half *b, float *c) {
  __shared__ __align__(16) half sa[16 * 16], sb[16 * 8];
  int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) sa[i] = a[i];
  for (int i = lane; i < 128; i += 32) sb[i] = b[i];
  __syncwarp();
  unsigned ra[4], rb[2];
  unsigned pa = (unsigned)__cvta_generic_to_shared(&sa[(lane % 16) * 16 + (lane / 16) * 8]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa));
  unsigned pb = (unsigned)__cvta_generic_to_shared(&sb[(lane % 16) * 8]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb));
  float d[4] = {0, 0, 0, 0};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
  int row = lane / 4, col = (lane % 4) * 2;
  c[row * 8 + col] = d[0];
  c[row * 8 + col + 1] = d[1];
  c[(row + 8) * 8 + col] = d[2];
  c[(row + 8) * 8 + col + 1] = d[3];
}

__global__ void async_copy(const int4 *in, int *out) {
  __shared__ int4 s[64];
  unsigned p = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(p), "l"(in + threadIdx.x));
  asm volatile("cp.async.commit_group;");
  asm volatile("cp.async.wait_group 0;");
  __syncthreads();
  int4 v = s[63 - threadIdx.x];
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}

__global__ void barrier_object(int *out) {
  __shared__ uint64_t bar;
  __shared__ int data[64];
  unsigned p = (unsigned)__cvta_generic_to_shared(&bar);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(p), "r"(64));
  __syncthreads();
  for (int phase = 0; phase < 3; phase++) {
    data[threadIdx.x] = threadIdx.x + phase;
    uint64_t state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(p));
    int done = 0;
    while (!done)
      asm volatile("{ .reg .pred q; mbarrier.test_wait.shared.b64 q, [%1], %2; selp.b32 %0, 1, 0, q; }"
                   : "=r"(done) : "r"(p), "l"(state));
    int v = data[63 - threadIdx.x];
    __syncthreads();
    out[threadIdx.x * 3 + phase] = v;
  }
}

__global__ void named_barriers(int *out) {
  __shared__ int s[2];
  int half = threadIdx.x / 64;
  if (threadIdx.x % 64 == 0) s[half] = half + 7;
  if (half == 0) asm volatile("bar.sync 1, 64;");
  else asm volatile("bar.sync 2, 64;");
  int any = __syncthreads_or(threadIdx.x == 5), count = __syncthreads_count(threadIdx.x < 10);
  out[threadIdx.x] = s[half] * 1000 + any * 100 + count;
}

__global__ void mismatched(int *out) {
  if (threadIdx.x < 16) {
    __shfl_sync(0xffffffff, 1, 0);
  } else {
    asm volatile("bar.sync 3, 64;");
  }
  out[threadIdx.x] = 1;
}

__global__ void halves(const half2 *a, const half2 *b, half2 *c, const __nv_bfloat16 *d, float *e) {
  int i = threadIdx.x;
  c[i] = __hfma2(a[i], b[i], __floats2half2_rn(1.5f, -0.25f));
  e[i] = __bfloat162float(__hmul(d[i], d[i]));
}

__global__ void texture(cudaTextureObject_t t, float *out) {
  out[threadIdx.x] = tex2D<float>(t, threadIdx.x % 4 + 0.5f, threadIdx.x / 4 + 0.5f);
}

__global__ void doubles(const double *a, double *out) {
  int i = threadIdx.x;
  out[i] = sqrt(a[i]) + a[i] / 3.0 + (double)(long long)a[i];
}

__global__ void bits(const unsigned *a, unsigned *out) {
  unsigned x = a[threadIdx.x];
  out[threadIdx.x] = __popc(x) + __clz(x) * 100 + __ffs(x) * 10000 + (__brev(x) & 0xff) * 1000000;
}

__global__ void integers64(const long long *a, long long *out) {
  int i = threadIdx.x;
  long long x = a[i];
  out[i] = x / 7 + x % 1000 + __mul64hi(x, x) + (x >> 3);
}

__global__ void transcendental(const float *a, float *out) {
  int i = threadIdx.x;
  out[i * 4] = sinf(a[i]);
  out[i * 4 + 1] = expf(a[i]);
  out[i * 4 + 2] = logf(fabsf(a[i]) + 1.0f);
  out[i * 4 + 3] = powf(fabsf(a[i]), 1.5f);
}
}
