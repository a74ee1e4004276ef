// The kernels of `mica bench software --only corners`: one operation each, STEPS times a thread.
// Compiled by: nvcc -ptx -std=c++17 -arch=compute_80 corners.cu
#include <cuda/barrier>

#define STEPS 64
#define FOR_STEPS _Pragma("unroll 4") for (int i = 0; i < STEPS; ++i)
#define ALL 0xffffffffu

static __device__ int me() { return blockIdx.x * blockDim.x + threadIdx.x; }

// Texels lie in the middle of whole numbers, so a texture with a point filter and one with a linear filter read
// different things from the same coordinates.
extern "C" __global__ void texture(float *out, cudaTextureObject_t t)
{
    float sum = 0, x = threadIdx.x + 0.3f, y = blockIdx.x % 256 + 0.6f;
    FOR_STEPS sum += tex2D<float>(t, x + i, y);
    out[me()] = sum;
}

extern "C" __global__ void shuffle(unsigned *out)
{
    unsigned v = me();
    FOR_STEPS v += __shfl_xor_sync(ALL, v, 1 + (i & 15));
    out[me()] = v;
}

extern "C" __global__ void ballot(unsigned *out)
{
    unsigned v = me();
    FOR_STEPS v += __ballot_sync(ALL, v >> (i & 7) & 1);
    out[me()] = v;
}

extern "C" __global__ void match_any(unsigned *out)
{
    unsigned v = me();
    FOR_STEPS v += __match_any_sync(ALL, (v + i) & 7);
    out[me()] = v;
}

extern "C" __global__ void redux(unsigned *out)
{
    unsigned v = me();
    FOR_STEPS v += __reduce_add_sync(ALL, v ^ i);
    out[me()] = v;
}

extern "C" __global__ void fast_math(float *out)
{
    float sum = 0, x = (me() & 1023) * 0.003f - 1.5f;
    FOR_STEPS sum += __sinf(x + i * 0.01f) + __expf(x - i * 0.01f);
    out[me()] = sum;
}

extern "C" __global__ void exact_math(float *out)
{
    float sum = 0, x = (me() & 1023) * 0.003f - 1.5f;
    FOR_STEPS sum += sinf(x + i * 0.01f) + expf(x - i * 0.01f);
    out[me()] = sum;
}

extern "C" __global__ void mma(float *out)
{
    float d[4] = {0, 0, 0, 0};
    unsigned a[4], b[2];
    for (int i = 0; i < 4; ++i) a[i] = 0x3c003800u + (threadIdx.x << i);
    for (int i = 0; i < 2; ++i) b[i] = 0x38003400u + (threadIdx.x << i);
    FOR_STEPS
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    out[me()] = d[0] + d[1] + d[2] + d[3];
}

// One block: the time of a round is the block's.
extern "C" __global__ void arrive_and_wait(unsigned *out)
{
    using barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ alignas(barrier) unsigned char room[sizeof(barrier)];
    barrier &b = *reinterpret_cast<barrier *>(room);
    if (threadIdx.x == 0) init(&b, blockDim.x);
    __syncthreads();
    FOR_STEPS b.arrive_and_wait();
    out[me()] = threadIdx.x;
}

// As PolyBench's jacobi-1D: 4096 elements, two kernels a step.
extern "C" __global__ void jacobi_step(const float *a, float *b, int n)
{
    int i = me();
    if (i > 0 && i < n - 1) b[i] = 0.33333f * (a[i - 1] + a[i] + a[i + 1]);
}

extern "C" __global__ void jacobi_copy(float *a, const float *b, int n)
{
    int i = me();
    if (i > 0 && i < n - 1) a[i] = b[i];
}
