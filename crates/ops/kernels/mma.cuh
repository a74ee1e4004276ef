// Instructions of sm_80 that the kernels with tensor cores use.
#pragma once
#include "ops.cuh"

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Copies 16 bytes to shared memory; what is beyond `bytes` becomes 0.
__device__ __forceinline__ void copy_async(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;"); }
template <int LEFT> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT)); }

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
__device__ __forceinline__ void load_matrices_turned(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

// c += a b for 16 rows, 8 columns and 32 bytes of k.
#define MMA_FLOAT(shape, type)                                                                                         \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <class E> struct Mma;
template <> struct Mma<f16> {
    typedef float Acc;
    static __device__ __forceinline__ void run(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { MMA_FLOAT("m16n8k16", "f16"); }
};
template <> struct Mma<bf16> {
    typedef float Acc;
    static __device__ __forceinline__ void run(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { MMA_FLOAT("m16n8k16", "bf16"); }
};
// TF32: 32-bit floats of which the product uses the upper 19 bits.
template <> struct Mma<float> {
    typedef float Acc;
    static __device__ __forceinline__ uint32_t round(uint32_t x)
    {
        uint32_t y;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
        return y;
    }
    static __device__ __forceinline__ void run(float (&c)[4], const uint32_t (&r)[4], uint32_t b0, uint32_t b1)
    {
        uint32_t a[4] = {round(r[0]), round(r[1]), round(r[2]), round(r[3])};
        b0 = round(b0);
        b1 = round(b1);
        MMA_FLOAT("m16n8k8", "tf32");
    }
};
template <> struct Mma<int8_t> {
    typedef int32_t Acc;
    static __device__ __forceinline__ void run(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};
// Two 4-bit integers in a byte: 64 of k.
struct s4x2 { uint8_t bits; };
template <> struct Mma<s4x2> {
    typedef int32_t Acc;
    static __device__ __forceinline__ void run(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        asm volatile("mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};
