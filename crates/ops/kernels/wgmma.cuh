// Instructions of sm_90a that the kernels for Hopper use: barriers in shared memory, copies by tensor maps, products of a
// warpgroup (128 threads) whose factors are in shared memory.
#pragma once
#include "ops.cuh"

// What `cuTensorMapEncodeTiled` makes; an argument of the kernel, read by the copy unit.
struct alignas(64) TensorMap {
    uint64_t words[16];
};

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// One arrival, and so many bytes that copies will bring.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "AGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra END;\n"
                 "bra AGAIN;\n"
                 "END:\n"
                 "}" ::"r"(barrier), "r"(parity) : "memory");
}
// An arrival at the barrier that has the same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, int rank)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(barrier), "r"(rank) : "memory");
}
__device__ __forceinline__ int cluster_rank()
{
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Copies a box of a tensor with three axes into the shared memory of this block.
__device__ __forceinline__ void copy_box(uint32_t to, const TensorMap &map, int x, int y, int z, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
                     "r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier) : "memory");
}
// The same into both blocks of a cluster of two, at the same place, and counts the bytes at the barriers of both.
__device__ __forceinline__ void copy_box_to_both(uint32_t to, const TensorMap &map, int x, int y, int z, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::
                     "r"(to), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"((uint16_t)3) : "memory");
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
template <int COUNT> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

// Where a factor is in shared memory, in rows of 128 bytes whose 16-byte pieces are exchanged by the row's number; `far` and
// `near` are distances in bytes. Rows of k: eight rows are `near` apart, `far` is not used. Rows of the other axis: eight rows
// of k are `near` apart, pieces of 64 elements of the other axis `far`.
__device__ __forceinline__ uint64_t factor(uint32_t address, uint32_t far, uint32_t near)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(far >> 4) << 16 | (uint64_t)(near >> 4) << 32 | 1ull << 62;
}

#define ACC_8(c, i, at) c(at[i]), c(at[i + 1]), c(at[i + 2]), c(at[i + 3]), c(at[i + 4]), c(at[i + 5]), c(at[i + 6]), c(at[i + 7])
#define ACC_32(c, i, at) ACC_8(c, i, at), ACC_8(c, i + 8, at), ACC_8(c, i + 16, at), ACC_8(c, i + 24, at)
#define ACC_64(c, at) ACC_32(c, 0, at), ACC_32(c, 32, at)
#define ACC_128(c, at) ACC_64(c, at), ACC_32(c, 64, at), ACC_32(c, 96, at)
#define NAMES_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_128 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"


// acc = a b, or acc += a b if `adds`: 64 rows, 2 * REGISTERS columns, 32 bytes of k. `turned`: b has rows of columns.
template <class E, int REGISTERS, int TURNED> struct Wgmma;
#define WGMMA(element, accumulator, registers, turned, shape, constraint, first, second, third, options)                      \
    template <> struct Wgmma<element, registers, turned> {                                                                    \
        static __device__ __forceinline__ void run(accumulator (&acc)[registers], uint64_t a, uint64_t b, int adds)           \
        {                                                                                                                     \
            asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" third ", 0;\n"                                            \
                         "wgmma.mma_async.sync.aligned." shape " {" NAMES_##registers "}, %" first ", %" second               \
                         ", adds" options ";\n}"                                                                              \
                         : ACC_##registers(constraint, acc) : "l"(a), "l"(b), "r"(adds));                                     \
        }                                                                                                                     \
    };
#define WGMMA_HALVES(element, type)                                                                                           \
    WGMMA(element, float, 128, 0, "m64n256k16.f32." type "." type, "+f", "128", "129", "130", ", 1, 1, 0, 0")                 \
    WGMMA(element, float, 128, 1, "m64n256k16.f32." type "." type, "+f", "128", "129", "130", ", 1, 1, 0, 1")                 \
    WGMMA(element, float, 64, 0, "m64n128k16.f32." type "." type, "+f", "64", "65", "66", ", 1, 1, 0, 0")                     \
    WGMMA(element, float, 64, 1, "m64n128k16.f32." type "." type, "+f", "64", "65", "66", ", 1, 1, 0, 1")
WGMMA_HALVES(f16, "f16")
WGMMA_HALVES(bf16, "bf16")
WGMMA(int8_t, int32_t, 128, 0, "m64n256k32.s32.s8.s8", "+r", "128", "129", "130", "")
WGMMA(int8_t, int32_t, 64, 0, "m64n128k32.s32.s8.s8", "+r", "64", "65", "66", "")
