// Half and bfloat16 arithmetic, scalar and packed, and conversions with 8-bit floats.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
extern "C" __global__ void half_ops(const __half *x, const __half *y, __half *out) {
    int i = threadIdx.x;
    __half a = x[i], b = y[i];
    __half *o = out + 24 * i;
    o[0] = __hadd(a, b); o[1] = __hmul(a, b); o[2] = __hfma(a, b, a); o[3] = __hdiv(a, b); o[4] = hsqrt(a); o[5] = hexp(a);
    o[6] = __hmax(a, b); o[7] = __hmin_nan(a, b); o[8] = __habs(a); o[9] = __hneg(a); o[10] = hsin(a); o[11] = htanh(a);
    o[12] = __float2half_rz(__half2float(a)); o[13] = __int2half_rn(__half2int_rd(b)); o[14] = __hadd_sat(a, b); o[15] = hrcp(a);
    o[16] = __hlt(a, b) ? a : b; o[17] = __double2half((double)__half2float(a)); o[18] = htrunc(a); o[19] = __hfma_sat(a, b, b);
}
extern "C" __global__ void half2_dot(const __half2 *x, const __half2 *y, float *out, int n) {
    __half2 s = __float2half2_rn(0.f);
    for (int i = threadIdx.x; i < n; i += blockDim.x) s = __hfma2(x[i], y[i], s);
    s = __hadd2(s, __hmul2(__lowhigh2highlow(s), __floats2half2_rn(0.5f, 2.f)));
    if (__hbgt2(s, x[0])) s = h2sqrt(s);
    s = __hmax2(s, __habs2(y[0]));
    unsigned m = __heq2_mask(s, x[0]);
    atomicAdd(out, __low2float(s) + __high2float(s) + m);
}
#if __CUDA_ARCH__ >= 800 || !defined(__CUDA_ARCH__)
extern "C" __global__ void bf16_ops(const __nv_bfloat16 *x, const __nv_bfloat16 *y, __nv_bfloat16 *out) {
    int i = threadIdx.x;
    __nv_bfloat16 a = x[i], b = y[i];
    __nv_bfloat16 *o = out + 12 * i;
    o[0] = __hadd(a, b); o[1] = __hmul(a, b); o[2] = __hfma(a, b, a); o[3] = __float2bfloat16_rz(__bfloat162float(a)); o[4] = __hmax(a, b);
    o[5] = hexp2(a); o[6] = __habs(a); o[7] = __int2bfloat16_rn(i); o[8] = htanh(b); o[9] = __hfma_relu(a, b, a);
    __nv_bfloat162 p = __floats2bfloat162_rn(1.5f, (float)b);
    o[10] = __low2bfloat16(__hmul2(p, p)); o[11] = __high2bfloat16(__hmax2(p, p));
}
#endif
extern "C" __global__ void fp8(const float2 *x, unsigned short *out, float2 *back, const __half2 *h) {
    int i = threadIdx.x;
    __nv_fp8x2_e4m3 a(x[i]);
    __nv_fp8x2_e5m2 b(h[i]);
    out[2 * i] = a.__x; out[2 * i + 1] = b.__x;
    back[2 * i] = (float2)a; back[2 * i + 1] = (float2)b;
}
extern "C" __global__ void half_atomics(__half *h, __half2 *h2, __nv_bfloat162 *b2, __nv_bfloat16 *b) {
    atomicAdd(h, __float2half(1.f));
    atomicAdd(h2, __float2half2_rn(2.f));
#if __CUDA_ARCH__ >= 800
    atomicAdd(b2, __float2bfloat162_rn(1.f));
    atomicAdd(b, __float2bfloat16(1.f));
#endif
}
