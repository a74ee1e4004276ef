// Block and warp algorithms of CUB, and a Thrust sequence on the device.
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_merge_sort.cuh>
#include <thrust/execution_policy.h>
#include <thrust/functional.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>
extern "C" __global__ void cub_block(const int *in, int *out) {
    typedef cub::BlockReduce<int, 128> Reduce;
    typedef cub::BlockScan<int, 128> Scan;
    typedef cub::BlockRadixSort<int, 128, 4> Sort;
    __shared__ union { Reduce::TempStorage reduce; Scan::TempStorage scan; Sort::TempStorage sort; } temp;
    int items[4];
    for (int i = 0; i < 4; ++i) items[i] = in[threadIdx.x * 4 + i];
    int total = Reduce(temp.reduce).Sum(items[0] + items[1]);
    __syncthreads();
    int prefix;
    Scan(temp.scan).ExclusiveSum(items[0], prefix);
    __syncthreads();
    Sort(temp.sort).Sort(items);
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = items[i] + prefix;
    if (threadIdx.x == 0) out[512] = total;
}
extern "C" __global__ void thrust_seq(int *data, int n, int *out) {
    thrust::sort(thrust::seq, data, data + n, thrust::greater<int>());
    *out = thrust::reduce(thrust::seq, data, data + n, 0, thrust::maximum<int>());
}
