// nvcc: -std=c++17 -gencode arch=compute_90a,code=compute_90a
// run: --capability 9.0
#include "check.h"
// Copies by tensor maps in both directions, with zeros outside, every swizzle, reductions and multicast; products of a warpgroup
// whose factors come that way. What is expected follows from the PTX specification.
#include <cuda.h>
#include <cuda_fp16.h>
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void barrier_init(unsigned at, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.mbarrier_init.release.cluster;" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ void barrier_expect(unsigned at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ void barrier_wait(unsigned at, int parity) {
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra AGAIN;\n}" ::"r"(at), "r"(parity)
                 : "memory");
}
// Rows of 16 floats: a box of 8 by 16 from (x, y), as it lies in shared memory.
__global__ void fetch(const __grid_constant__ CUtensorMap map, int x, int y, float *out) {
    __shared__ alignas(1024) float box[8 * 16];
    __shared__ alignas(8) unsigned long long barrier;
    if (threadIdx.x == 0) {
        barrier_init(shared_address(&barrier), 1);
        barrier_expect(shared_address(&barrier), sizeof box);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                         shared_address(box)),
                     "l"(&map), "r"(x), "r"(y), "r"(shared_address(&barrier))
                     : "memory");
    }
    __syncthreads();
    barrier_wait(shared_address(&barrier), 0);
    out[threadIdx.x] = box[threadIdx.x];
}
// Stores a box, and adds it once more.
__global__ void put(const __grid_constant__ CUtensorMap map, int x, int y) {
    __shared__ alignas(1024) float box[8 * 16];
    box[threadIdx.x] = threadIdx.x;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x != 0) return;
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::"l"(&map), "r"(x), "r"(y), "r"(shared_address(box)) : "memory");
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::"l"(&map), "r"(x), "r"(y), "r"(shared_address(box)) : "memory");
}
// A block of a cluster fetches for all four.
__global__ void __cluster_dims__(4, 1, 1) multicast(const __grid_constant__ CUtensorMap map, float *out) {
    __shared__ alignas(1024) float box[8 * 16];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        barrier_init(shared_address(&barrier), 1);
        barrier_expect(shared_address(&barrier), sizeof box);
    }
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    if (threadIdx.x == 0 && rank == 2)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::
                         "r"(shared_address(box)), "l"(&map), "r"(0), "r"(8), "r"(shared_address(&barrier)), "h"((unsigned short)15) : "memory");
    barrier_wait(shared_address(&barrier), 0);
    out[blockIdx.x * 128 + threadIdx.x] = box[threadIdx.x];
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// 64 by 64 of a, times 64 by 32 of b whose rows are columns: both in rows of 128 bytes, exchanged pieces.
__global__ void product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right, float *out) {
    __shared__ alignas(1024) __half a[64 * 64], b[32 * 64];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned at = shared_address(&barrier);
    if (threadIdx.x == 0) {
        barrier_init(at, 1);
        barrier_expect(at, sizeof a + sizeof b);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2}], [%3];" ::"r"(shared_address(a)),
                     "l"(&left), "r"(0), "r"(at) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2}], [%3];" ::"r"(shared_address(b)),
                     "l"(&right), "r"(0), "r"(at) : "memory");
    }
    __syncthreads();
    barrier_wait(at, 0);
    auto factor = [](const void *p) { return (unsigned long long)(shared_address(p) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; };
    float d[16];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int step = 0; step < 4; step++)
        asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %18, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                     "%16, %17, adds, 1, 1, 0, 0;\n}"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
                       "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                     : "l"(factor(a) + step * 2), "l"(factor(b) + step * 2), "r"(step));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
    for (int i = 0; i < 16; i++) out[(row + i / 2 % 2 * 8) * 32 + i / 4 * 8 + col + i % 2] = d[i];
}
#else
__global__ void fetch(const __grid_constant__ CUtensorMap, int, int, float *) {}
__global__ void put(const __grid_constant__ CUtensorMap, int, int) {}
__global__ void multicast(const __grid_constant__ CUtensorMap, float *) {}
__global__ void product(const __grid_constant__ CUtensorMap, const __grid_constant__ CUtensorMap, float *) {}
#endif

using Encode = decltype(&cuTensorMapEncodeTiled);
static Encode encode() {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    EXPECT_EQ((int)found, (int)cudaDriverEntryPointSuccess);
    return (Encode)function;
}
static CUresult plane(CUtensorMap *map, CUtensorMapDataType type, int size, void *at, cuuint64_t width, cuuint64_t height, cuuint32_t box_width,
                      cuuint32_t box_height, CUtensorMapSwizzle swizzle) {
    static Encode function = encode();
    cuuint64_t dims[] = {width, height}, strides[] = {width * size};
    cuuint32_t box[] = {box_width, box_height}, steps[] = {1, 1};
    return function(map, type, 2, at, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}
static CUtensorMap floats(float *at, CUtensorMapSwizzle swizzle) {
    CUtensorMap map;
    EXPECT_EQ((int)plane(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, at, 40, 20, 16, 8, swizzle), 0);
    return map;
}

int main() {
    float *in, *out;
    CHECK(cudaMallocManaged(&in, 40 * 20 * 4));
    CHECK(cudaMallocManaged(&out, 4096 * 4));
    auto value = [](int x, int y) { return x < 0 || x >= 40 || y < 0 || y >= 20 ? 0.f : y * 100.f + x + 1; };
    for (int i = 0; i < 800; i++) in[i] = value(i % 40, i / 40);
    // 64 bytes of a row: four pieces, which a wider pattern exchanges.
    for (auto [swizzle, mask] : {std::pair{CU_TENSOR_MAP_SWIZZLE_NONE, 0}, {CU_TENSOR_MAP_SWIZZLE_64B, 3}}) {
        CUtensorMap map = floats(in, swizzle);
        for (auto [x, y] : {std::pair{0, 0}, {7, 5}, {-3, -2}, {30, 15}, {100, 0}}) {
            fetch<<<1, 128>>>(map, x, y, out);
            CHECK(cudaDeviceSynchronize());
            for (int i = 0; i < 128; i++) {
                int byte = i * 4, from = byte ^ ((byte >> 7 & mask) << 4);
                EXPECT_EQ(out[i], value(x + from / 4 % 16, y + from / 64));
            }
        }
    }
    multicast<<<8, 128>>>(floats(in, CU_TENSOR_MAP_SWIZZLE_NONE), out);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 8 * 128; i++) EXPECT_EQ(out[i], value(i % 16, 8 + i % 128 / 16));
    put<<<1, 128>>>(floats(in, CU_TENSOR_MAP_SWIZZLE_NONE), 35, -4);
    CHECK(cudaDeviceSynchronize());
    for (int y = 0; y < 20; y++)
        for (int x = 0; x < 40; x++) EXPECT_EQ(in[y * 40 + x], x >= 35 && y < 4 ? 2 * ((y + 4) * 16 + x - 35) : value(x, y));
    __half *a, *b;
    CHECK(cudaMallocManaged(&a, 64 * 64 * 2));
    CHECK(cudaMallocManaged(&b, 32 * 64 * 2));
    for (int i = 0; i < 64 * 64; i++) a[i] = __float2half(float(i * 7 % 11 - 5));
    for (int i = 0; i < 32 * 64; i++) b[i] = __float2half(float(i * 5 % 9 - 4));
    CUtensorMap left, right;
    EXPECT_EQ((int)plane(&left, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, a, 64, 64, 64, 64, CU_TENSOR_MAP_SWIZZLE_128B), 0);
    EXPECT_EQ((int)plane(&right, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, b, 64, 32, 64, 32, CU_TENSOR_MAP_SWIZZLE_128B), 0);
    product<<<1, 128>>>(left, right, out);
    CHECK(cudaDeviceSynchronize());
    for (int m = 0; m < 64; m++)
        for (int n = 0; n < 32; n++) {
            float sum = 0;
            for (int k = 0; k < 64; k++) sum += __half2float(a[m * 64 + k]) * __half2float(b[n * 64 + k]);
            EXPECT_EQ(out[m * 32 + n], sum);
        }
    // Maps that no driver makes.
    CUtensorMap none;
    EXPECT_EQ((int)plane(&none, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, (char *)in + 4, 40, 20, 16, 8, CU_TENSOR_MAP_SWIZZLE_NONE), (int)CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ((int)plane(&none, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, in, 40, 20, 300, 8, CU_TENSOR_MAP_SWIZZLE_NONE), (int)CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ((int)plane(&none, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, in, 40, 20, 16, 8, CU_TENSOR_MAP_SWIZZLE_32B), (int)CUDA_ERROR_INVALID_VALUE);
    // Bytes that are no map end the kernel, and nothing else.
    memset(&none, 0xff, sizeof none);
    fetch<<<1, 128>>>(none, 0, 0, out);
    EXPECT(cudaDeviceSynchronize() != cudaSuccess);
    return finish();
}
