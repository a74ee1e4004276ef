// nvcc: -std=c++17 -gencode arch=compute_90,code=compute_90
// run: --capability 9.0
#include "check.h"
// Clusters of blocks: launch attributes, ranks, shared memory of other blocks, barriers, occupancy.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Each block gives its numbers to the next one of its cluster, and takes them from there with a plain pointer.
__global__ void ring(int *out) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ int own[64];
    unsigned rank = cluster.block_rank(), next = (rank + 1) % cluster.num_blocks();
    own[threadIdx.x] = blockIdx.x * 1000 + threadIdx.x;
    cluster.sync();
    int *theirs = cluster.map_shared_rank(own, next);
    int seen = theirs[63 - threadIdx.x];
    unsigned owner = cluster.query_shared_rank(theirs);
    cluster.sync();
    out[blockIdx.x * 64 + threadIdx.x] = seen * 10 + owner;
}
// A histogram that the blocks of a cluster share: atomics in the memory of others.
template <int BLOCKS> __global__ void __cluster_dims__(BLOCKS, 1, 1) histogram(const int *in, int *out) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ int bins[16];
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    cluster.sync();
    int bin = in[blockIdx.x * blockDim.x + threadIdx.x] % (16 * BLOCKS);
    atomicAdd(cluster.map_shared_rank(bins, bin / 16) + bin % 16, 1);
    cluster.sync();
    if (threadIdx.x < 16) atomicAdd(out + cluster.block_rank() * 16 + threadIdx.x, bins[threadIdx.x]);
}
// Two blocks of two by two: coordinates, and instructions with addresses of .shared::cluster.
__global__ void __cluster_dims__(2, 2, 1) places(int *out) {
    cg::cluster_group cluster = cg::this_cluster();
    __shared__ int word;
    unsigned at = (unsigned)__cvta_generic_to_shared(&word), far, rank = cluster.block_rank(), seen, x, y, clusters;
    if (threadIdx.x == 0) {
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(at), "r"(3 - rank));
        asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(far), "r"(100 + rank) : "memory");
    }
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(seen) : "r"(at));
    asm volatile("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(x));
    asm volatile("mov.u32 %0, %%cluster_ctaid.y;" : "=r"(y));
    asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(clusters));
    bool right = word == 100 + (int)(3 - rank) && seen == rank && x == blockIdx.x % 2 && y == blockIdx.y % 2 && clusters == gridDim.x / 2;
    if (threadIdx.x == 0) out[blockIdx.y * gridDim.x + blockIdx.x] = right && rank == x + 2 * y;
}
// Arrivals at a barrier of another block: the last block waits for all.
__global__ void __cluster_dims__(4, 1, 1) remote_arrivals(int *out) {
    __shared__ alignas(8) unsigned long long barrier;
    __shared__ int sum;
    cg::cluster_group cluster = cg::this_cluster();
    unsigned at = (unsigned)__cvta_generic_to_shared(&barrier), last;
    if (threadIdx.x == 0) {
        sum = 0;
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 3;" ::"r"(at));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster.sync();
    if (threadIdx.x == 0 && cluster.block_rank() < 3) {
        atomicAdd(cluster.map_shared_rank(&sum, 3), (int)cluster.block_rank() + 1);
        asm volatile("mapa.shared::cluster.u32 %0, %1, 3;" : "=r"(last) : "r"(at));
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(last) : "memory");
    }
    if (cluster.block_rank() == 3) {
        asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
                     "@!done bra AGAIN;\n}" ::"r"(at) : "memory");
        if (threadIdx.x == 0) out[blockIdx.x / 4] = sum;
    }
    cluster.sync();
}
#else
__global__ void ring(int *) {}
template <int BLOCKS> __global__ void histogram(const int *, int *) {}
__global__ void places(int *) {}
__global__ void remote_arrivals(int *) {}
#endif

static cudaError_t launch_ring(int blocks, int in_cluster, int *out) {
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = 64;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = in_cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, ring, out);
}

int main() {
    int *out, *in, has = 0;
    CHECK(cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, 0));
    EXPECT_EQ(has, 1);
    CHECK(cudaMallocManaged(&out, 4096 * sizeof(int)));
    CHECK(cudaMallocManaged(&in, 4096 * sizeof(int)));
    for (int size : {1, 2, 4, 8}) {
        int blocks = 16;
        CHECK(launch_ring(blocks, size, out));
        CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < blocks * 64; i++) {
            int block = i / 64, first = block / size * size, rank = (block - first + 1) % size;
            EXPECT_EQ(out[i], ((first + rank) * 1000 + 63 - i % 64) * 10 + rank);
        }
    }
    EXPECT_ERROR(launch_ring(10, 4, out), cudaErrorInvalidClusterSize);
    EXPECT_ERROR(launch_ring(64, 32, out), cudaErrorInvalidClusterSize);
    cudaGetLastError();
    for (int i = 0; i < 2048; i++) in[i] = i * 7919 + i / 3;
    int expected[64] = {};
    for (int i = 0; i < 2048; i++) expected[in[i] % 64]++;
    memset(out, 0, 64 * sizeof(int));
    histogram<4><<<16, 128>>>(in, out);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 64; i++) EXPECT_EQ(out[i], expected[i]);
    places<<<dim3(6, 4), 32>>>(out);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 24; i++) EXPECT_EQ(out[i], 1);
    remote_arrivals<<<12, 64>>>(out);
    CHECK(cudaDeviceSynchronize());
    for (int i = 0; i < 3; i++) EXPECT_EQ(out[i], 6);
    cudaLaunchConfig_t config = {};
    config.gridDim = 16;
    config.blockDim = 64;
    int clusters = 0, largest = 0;
    CHECK(cudaOccupancyMaxActiveClusters(&clusters, ring, &config));
    CHECK(cudaOccupancyMaxPotentialClusterSize(&largest, ring, &config));
    EXPECT(clusters > 0);
    EXPECT_EQ(largest, 8);
    return finish();
}
