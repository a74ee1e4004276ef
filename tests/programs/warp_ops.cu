#include "check.h"
__global__ void k(int *o) { int l = threadIdx.x & 31; unsigned all = 0xffffffffu; int *p = o + threadIdx.x * 10;
    p[0] = __shfl_sync(all, l * 3, 5); p[1] = __shfl_up_sync(all, l, 3); p[2] = __shfl_down_sync(all, l, 4); p[3] = __shfl_xor_sync(all, l, 7, 16);
    p[4] = __ballot_sync(all, l % 3 == 0); p[5] = __any_sync(all, l == 31) + 2 * __all_sync(all, l < 32); p[6] = __match_any_sync(all, l / 5); p[7] = __popc(__activemask()); p[8] = 0; p[9] = -1;
    if (l & 1) { p[8] = __shfl_sync(0xaaaaaaaau, l, 7); p[9] = __ballot_sync(0xaaaaaaaau, l > 15); } }
int main() { Device<int> o(640); k<<<1, 64>>>(o); auto r = o.host(); for (int t = 0; t < 64; t++) { int l = t & 31; int *p = &r[t * 10];
    EXPECT_EQ(p[0], 15); EXPECT_EQ(p[1], l < 3 ? l : l - 3); EXPECT_EQ(p[2], l > 27 ? l : l + 4); EXPECT_EQ(p[3], l ^ 7); unsigned b = 0, m = 0; for (int i = 0; i < 32; i++) { if (i % 3 == 0) b |= 1u << i; if (i / 5 == l / 5) m |= 1u << i; }
    EXPECT_EQ((unsigned)p[4], b); EXPECT_EQ(p[5], 3); EXPECT_EQ((unsigned)p[6], m); EXPECT_EQ(p[7], 32); if (l & 1) { EXPECT_EQ(p[8], 7); EXPECT_EQ((unsigned)p[9], 0xaaaa0000u); } } return finish(); }
