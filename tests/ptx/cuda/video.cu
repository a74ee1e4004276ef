// SIMD-within-a-register intrinsics and the video instructions behind them.
extern "C" __global__ void simd_bytes(const unsigned *x, const unsigned *y, unsigned *out) {
    int i = threadIdx.x;
    unsigned a = x[i], b = y[i];
    unsigned *o = out + 32 * i;
    o[0] = __vadd4(a, b); o[1] = __vsub2(a, b); o[2] = __vabsdiffu4(a, b); o[3] = __vmaxs2(a, b); o[4] = __vminu4(a, b); o[5] = __vsadu4(a, b);
    o[6] = __vavgu4(a, b); o[7] = __vcmpeq4(a, b); o[8] = __vsetltu2(a, b); o[9] = __vaddus2(a, b); o[10] = __vsubss4(a, b); o[11] = __vabs2(a); o[12] = __vneg4(a);
    o[13] = __vimax3_s32(a, b, 5); o[14] = __viaddmax_s32_relu(a, b, 3); o[15] = __vibmax_u16x2(a, b, (bool *)&o[30], (bool *)&o[31]);
    unsigned t;
    asm("vadd.u32.u32.u32.sat %0, %1.b0, %2.h1;" : "=r"(t) : "r"(a), "r"(b)); o[16] = t;
    asm("vsub.s32.s32.u32.add %0, %1, %2.b3, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(7)); o[17] = t;
    asm("vabsdiff.u32.u32.u32 %0.b1, %1, %2, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(7)); o[18] = t;
    asm("vshl.u32.u32.u32.clamp %0, %1, %2;" : "=r"(t) : "r"(a), "r"(b)); o[19] = t;
    asm("vset.u32.u32.lt %0, %1, %2;" : "=r"(t) : "r"(a), "r"(b)); o[20] = t;
    asm("vmad.s32.s32.s32.shr7 %0, %1.h0, -%2.h1, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(3)); o[21] = t;
    asm("vadd4.u32.u32.u32.add %0, %1, %2, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(3)); o[22] = t;
    asm("vmin2.s32.s32.s32 %0.h0, %1.h01, %2.h32, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(3)); o[23] = t;
    asm("vset4.u32.u32.ge %0.b31, %1, %2.b7531, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(3)); o[24] = t;
    asm("vavrg4.s32.s32.s32 %0, %1, %2, %3;" : "=r"(t) : "r"(a), "r"(b), "r"(3)); o[25] = t;
}
