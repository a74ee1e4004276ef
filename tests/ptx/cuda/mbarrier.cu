// mbarrier instructions by hand, with labels in scopes that repeat.
extern "C" __global__ void mbar(int *out) {
    __shared__ unsigned long long bar;
    unsigned p = __cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(p), "r"(blockDim.x));
    __syncthreads();
#if __CUDA_ARCH__ >= 800
    unsigned long long state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(p));
    int done, pending;
    do asm volatile("{.reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}" : "=r"(done) : "r"(p), "l"(state)); while (!done);
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(state));
    out[threadIdx.x] = pending;
#endif
#if __CUDA_ARCH__ >= 900
    for (int phase = 1; phase < 3; ++phase) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(p), "r"(0) : "memory");
        asm volatile("{\n.reg .pred P1;\nLAB_WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1, 1000;\n@P1 bra DONE;\nbra LAB_WAIT;\nDONE:\n}" ::"r"(p), "r"(phase & 1) : "memory");
    }
    asm volatile("{\n.reg .pred P1;\nLAB_WAIT:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 P1, [%0], %1;\n@P1 bra DONE;\nbra LAB_WAIT;\nDONE:\n}" ::"r"(p), "r"(0) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;");
#endif
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(p));
}
