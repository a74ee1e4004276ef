// Bit manipulation and small dot products.
extern "C" __global__ void bit_ops(const unsigned *x, const unsigned *y, unsigned *out) {
    int i = threadIdx.x;
    unsigned a = x[i], b = y[i];
    unsigned *o = out + 40 * i;
    o[0] = __popc(a); o[1] = __clz(a); o[2] = __ffs(a); o[3] = __brev(a); o[4] = __byte_perm(a, b, b); o[5] = __funnelshift_l(a, b, 5);
    o[6] = __funnelshift_rc(a, b, b); o[7] = (a & b) ^ ~(a | 0x55u); o[8] = __dp4a(a, b, 7u); o[9] = __dp4a((int)a, (int)b, -7);
    o[10] = __dp2a_lo(a, b, 1u); o[11] = __dp2a_hi((int)a, (int)b, 2); o[12] = __umulhi(a, b); o[13] = __mulhi((int)a, (int)b);
    o[14] = __umul24(a, b); o[15] = __mul24((int)a, (int)b); o[16] = __sad((int)a, (int)b, 3u); o[17] = __usad(a, b, 4u);
    o[18] = (a >> 7) & 0x1f; o[19] = (int)(a << 9) >> 20; o[20] = a / b; o[21] = a % b; o[22] = (int)a / (int)b; o[23] = (int)a % 7;
    o[24] = __fns(a, 0, 3); o[25] = __rhadd((int)a, (int)b); o[26] = __uhadd(a, b); o[27] = a << (b & 31); o[28] = (int)a >> (b & 31);
    unsigned t;
    asm("bfe.u32 %0, %1, 3, 9;" : "=r"(t) : "r"(a)); o[29] = t;
    asm("bfi.b32 %0, %1, %2, 8, 8;" : "=r"(t) : "r"(a), "r"(b)); o[30] = t;
    asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(t) : "r"(a & 31), "r"(b & 31)); o[31] = t;
    asm("szext.wrap.s32 %0, %1, %2;" : "=r"(t) : "r"(a), "r"(b)); o[32] = t;
    asm("bfind.shiftamt.u32 %0, %1;" : "=r"(t) : "r"(a)); o[33] = t;
    asm("lop3.b32 %0, %1, %2, %3, 0x1e;" : "=r"(t) : "r"(a), "r"(b), "r"(a + b)); o[34] = t;
    asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(b)); o[35] = t;
    asm("cnot.b32 %0, %1;" : "=r"(t) : "r"(a)); o[36] = t;
    asm("prmt.b32.rc16 %0, %1, %2, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(1)); o[37] = t;
    asm("{.reg .pred p, q; setp.lt.and.s32 p|q, %1, %2, 1; selp.u32 %0, 5, 6, p; @q add.u32 %0, %0, 8;}" : "=r"(t) : "r"(a), "r"(b)); o[38] = t;
    asm("slct.u32.s32 %0, %1, %2, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(-1)); o[39] = t;
    asm("mul24.lo.u32 %0, %1, %2;" : "=r"(t) : "r"(a), "r"(b)); o[7] ^= t;
    asm("mad24.hi.s32 %0, %1, %2, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(5)); o[8] ^= t;
}
