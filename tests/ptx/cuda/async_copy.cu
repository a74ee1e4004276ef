// cp.async, pipelines, barriers, and bulk copies.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;
extern "C" __global__ void pipelined(const float *in, float *out, int n) {
    extern __shared__ float buf[];
    auto block = cg::this_thread_block();
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto pipe = cuda::make_pipeline(block, &state);
    int tile = blockDim.x;
    float sum = 0;
    pipe.producer_acquire();
    cuda::memcpy_async(block, buf, in, sizeof(float) * tile, pipe);
    pipe.producer_commit();
    for (int i = 1; i <= n; ++i) {
        if (i < n) {
            pipe.producer_acquire();
            cuda::memcpy_async(block, buf + (i & 1) * tile, in + i * tile, sizeof(float) * tile, pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        sum += buf[((i - 1) & 1) * tile + threadIdx.x];
        pipe.consumer_release();
    }
    out[threadIdx.x] = sum;
}
extern "C" __global__ void barriers(const int *in, int *out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    __shared__ int tile[256];
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    __syncthreads();
    tile[threadIdx.x] = in[threadIdx.x];
    auto token = bar.arrive();
    bar.wait(std::move(token));
    out[threadIdx.x] = tile[255 - threadIdx.x];
    bar.arrive_and_wait();
}
extern "C" __global__ void raw_async(const float4 *in, float4 *out, int valid) {
    __shared__ float4 s[64];
    unsigned p = __cvta_generic_to_shared(&s[threadIdx.x]);
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(p), "l"(in + threadIdx.x), "r"(valid));
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4;" ::"r"(p), "l"(in));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;");
    asm volatile("cp.async.wait_all;");
#endif
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x ^ 1];
}
#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)
extern "C" __global__ void bulk(const int *in, int *out) {
    __shared__ alignas(128) int tile[256];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) { init(&bar, blockDim.x); cuda::device::experimental::fence_proxy_async_shared_cta(); }
    __syncthreads();
    cuda::barrier<cuda::thread_scope_block>::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::memcpy_async(tile, in, cuda::aligned_size_t<16>(sizeof(tile)), bar);
        token = bar.arrive();
    } else token = bar.arrive();
    bar.wait(std::move(token));
    tile[threadIdx.x] += 1;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned p = __cvta_generic_to_shared(tile);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out), "r"(p), "r"(1024) : "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(out), "r"(p), "r"(1024) : "memory");
        asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}
#endif
