// 64-bit and 128-bit integers, shifts, division, carry chains.
typedef unsigned long long u64;
extern "C" __global__ void int64_ops(const long long *x, const long long *y, long long *out) {
    int i = threadIdx.x;
    long long a = x[i], b = y[i];
    u64 ua = a, ub = b;
    long long *o = out + 24 * i;
    o[0] = a + b; o[1] = a * b; o[2] = a / b; o[3] = a % b; o[4] = ua / ub; o[5] = ua % ub; o[6] = a >> (b & 63); o[7] = ua >> (ub & 63);
    o[8] = __umul64hi(ua, ub); o[9] = __mul64hi(a, b); o[10] = __popcll(ua); o[11] = __clzll(a); o[12] = __brevll(ua); o[13] = __ffsll(a);
    o[14] = a < b; o[15] = ua < ub; o[16] = min(a, b); o[17] = max(ua, ub); o[18] = llabs(a); o[19] = a << (b & 63);
    o[20] = (long long)(short)a; o[21] = (signed char)b;
}
extern "C" __global__ void int128_mul(const u64 *a, const u64 *b, u64 *out) {
    unsigned __int128 x = ((unsigned __int128)a[1] << 64) | a[0], y = ((unsigned __int128)b[1] << 64) | b[0];
    unsigned __int128 p = x * y, s = x + y, d = x - y;
    out[0] = (u64)p; out[1] = (u64)(p >> 64); out[2] = (u64)s; out[3] = (u64)(s >> 64); out[4] = (u64)d; out[5] = (u64)(d >> 64);
    out[6] = (u64)(x / y);
}
extern "C" __global__ void bigadd(const unsigned *a, const unsigned *b, unsigned *c) {
    asm volatile("add.cc.u32 %0, %4, %8;\n\taddc.cc.u32 %1, %5, %9;\n\taddc.cc.u32 %2, %6, %10;\n\taddc.u32 %3, %7, %11;"
                 : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]));
    unsigned lo, hi;
    asm("mad.lo.cc.u32 %0, %2, %3, %4;\n\tmadc.hi.u32 %1, %2, %3, 0;\n\tsub.cc.u32 %0, %0, 1;\n\tsubc.u32 %1, %1, 0;" : "=r"(lo), "=r"(hi) : "r"(a[0]), "r"(b[0]), "r"(a[1]));
    c[4] = lo; c[5] = hi;
}
