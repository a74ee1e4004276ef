// What the attention kernels for Hopper share: conversions, copies of boxes of tensors with four axes, products whose first factor is
// in registers.
#pragma once
#include "attention.cuh"
#include "wgmma.cuh"

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint32_t pair(float x, float y)
{
    uint32_t both;
#if defined(TYPE_F16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
#endif
    return both;
}

// Copies a box of a tensor with four axes into shared memory.
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap &map, int x, int y, int z, int w, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::
                     "r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// acc += a b: 64 rows of a in registers, b is 16 rows of 2 * REGISTERS contiguous columns in shared memory.
template <class E, int REGISTERS> struct WgmmaRows;
#define NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ROWS_32(c, at) ACC_32(c, 0, at)
#define ROWS_64(c, at) ACC_64(c, at)
#define WGMMA_ROWS(element, registers, shape, type, a0, a1, a2, a3, b)                                                            \
    template <> struct WgmmaRows<element, registers> {                                                                            \
        static __device__ __forceinline__ void run(float (&acc)[registers], const uint32_t (&a)[4], uint64_t from)                \
        {                                                                                                                         \
            asm volatile("{\n.reg .pred adds;\nsetp.eq.b32 adds, 0, 0;\n"                                                         \
                         "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" NAMES_##registers                       \
                         "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b ", adds, 1, 1, 1;\n}"                                     \
                         : ROWS_##registers("+f", acc) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(from));                  \
        }                                                                                                                         \
    };
WGMMA_ROWS(f16, 32, "m64n64k16", "f16", "32", "33", "34", "35", "36")
WGMMA_ROWS(bf16, 32, "m64n64k16", "bf16", "32", "33", "34", "35", "36")
WGMMA_ROWS(f16, 64, "m64n128k16", "f16", "64", "65", "66", "67", "68")
WGMMA_ROWS(bf16, 64, "m64n128k16", "bf16", "64", "65", "66", "67", "68")
