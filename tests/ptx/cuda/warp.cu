// Shuffles, votes, matches, warp reductions.
extern "C" __global__ void warp_ops(const int *in, int *out, const long long *in64, double *outd) {
    int t = threadIdx.x, lane = t & 31, v = in[t];
    int *o = out + 32 * t;
    o[0] = __shfl_sync(~0u, v, 3); o[1] = __shfl_up_sync(~0u, v, 1); o[2] = __shfl_down_sync(~0u, v, 2, 16); o[3] = __shfl_xor_sync(~0u, v, 5, 8);
    o[4] = __all_sync(~0u, v > 0); o[5] = __any_sync(~0u, v > 0); o[6] = __ballot_sync(~0u, v & 1); o[7] = __uni_sync(~0u, v == 0);
    o[8] = __activemask(); o[9] = __match_any_sync(~0u, v);
    int pred;
    o[10] = __match_all_sync(~0u, v, &pred); o[11] = pred;
    o[12] = __match_any_sync(~0u, in64[t]);
    outd[t] = __shfl_xor_sync(~0u, (double)in64[t], 1);
    if (lane < 16) { __syncwarp(0xffff); o[13] = __shfl_sync(0xffff, v, lane ^ 1); }
#if __CUDA_ARCH__ >= 800
    o[14] = __reduce_add_sync(~0u, v); o[15] = __reduce_max_sync(~0u, v); o[16] = __reduce_and_sync(~0u, (unsigned)v); o[17] = __reduce_min_sync(~0u, (unsigned)v);
    o[18] = __reduce_xor_sync(~0u, (unsigned)v);
#endif
    o[19] = __syncthreads_count(v); o[20] = __syncthreads_and(v); o[21] = __syncthreads_or(v);
    unsigned m;
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(m)); o[22] = m;
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(m)); o[23] = m;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(m)); o[24] = m;
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p; elect.sync %0|p, 0xffffffff; @p add.u32 %0, %0, 100;}" : "=r"(m)); o[25] = m;
#endif
}
extern "C" __global__ void named_barriers(int *data) {
    if (threadIdx.x < 64) {
        data[threadIdx.x] = 1;
        asm volatile("bar.arrive 1, 128;");
        asm volatile("barrier.sync 2, 64;");
    } else {
        asm volatile("bar.sync 1, 128;");
        data[threadIdx.x] = data[threadIdx.x - 64];
        asm volatile("barrier.sync.aligned 3, %0;" ::"r"(blockDim.x - 64));
    }
    int r;
    asm volatile("{.reg .pred p, q; setp.ne.s32 p, %1, 0; bar.red.and.pred q, 0, !p; selp.s32 %0, 1, 0, q;}" : "=r"(r) : "r"(data[0]));
    data[threadIdx.x] += r;
}
