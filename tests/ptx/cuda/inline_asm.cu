// What people write by hand: special registers, timers, conversions, odd corners.
extern "C" __global__ void special(unsigned *out, unsigned long long *out64) {
    unsigned v; unsigned long long w;
#define READ(i, name) asm volatile("mov.u32 %0, %%" name ";" : "=r"(v)); out[i] = v
    READ(0, "tid.x"); READ(1, "ntid.y"); READ(2, "ctaid.z"); READ(3, "nctaid.x"); READ(4, "laneid"); READ(5, "nwarpid"); READ(6, "nsmid");
    READ(7, "lanemask_ge"); READ(8, "clock"); READ(9, "globaltimer_lo"); READ(10, "dynamic_smem_size"); READ(11, "total_smem_size"); READ(12, "envreg3");
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(w)); out64[0] = w;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(w)); out64[1] = w;
    asm volatile("mov.u64 %0, %%gridid;" : "=l"(w)); out64[2] = w;
    out64[3] = clock64();
    __nanosleep(100);
    asm volatile("pmevent 1;");
}
extern "C" __global__ void spaces(int *p, int *out) {
    __shared__ int s;
    int l = out[0];
    int *generic = out[1] ? &s : out[2] ? &l : p;
    out[3] = __isShared(generic) + 2 * __isGlobal(generic) + 4 * __isLocal(generic);
    *generic = 5;
    out[4] = s + l;
    unsigned long long a;
    asm("cvta.to.global.u64 %0, %1;" : "=l"(a) : "l"(p)); out[5] = (int)a;
}
extern "C" __global__ void conversions(const float *f, const int *i, const double *d, long long *o) {
    float x = f[0]; double y = d[0]; int k = i[0];
    o[0] = __float2int_rn(x); o[1] = __float2uint_ru(x); o[2] = __float2ll_rz(x); o[3] = __double2int_rd(y); o[4] = __float_as_int(__int2float_rd(k)); o[5] = (unsigned char)k;
    o[6] = (short)x; o[7] = (unsigned short)(unsigned)y; o[8] = __float2ull_rn(x); o[9] = __double_as_longlong((double)k); o[10] = __float_as_int((float)y);
    int t; unsigned short h;
    asm("cvt.sat.u8.s32 %0, %1;" : "=r"(t) : "r"(k)); o[11] = t;
    asm("cvt.rni.ftz.sat.s8.f32 %0, %1;" : "=r"(t) : "f"(x)); o[12] = t;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); o[13] = h;
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;" : "=r"(t) : "r"(k), "r"(k + 1)); o[14] = t;
    asm("cvt.rzi.f32.f32 %0, %1;" : "=f"(x) : "f"(x)); o[15] = (int)x;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(t) : "f"(x)); o[16] = t;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %1;" : "=r"(t) : "f"(x)); o[17] = t;
#endif
    asm("{.reg .f16 a; .reg .b32 v; cvt.rn.f16.f32 a, %1; mov.b32 v, {a, a}; mov.b32 %0, v;}" : "=r"(t) : "f"(x)); o[18] = t;
    asm volatile("{.reg .pred p0; testp.infinite.f32 p0, %0; @p0 exit; copysign.f32 %0, %0, 0fBF800000;}" : "+f"(x)); o[19] = (int)x;
}
