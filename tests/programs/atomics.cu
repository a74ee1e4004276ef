#include "check.h"
__global__ void k(int *i, unsigned *u, float *f, double *d, unsigned long long *l) { int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&i[0], t); atomicSub(&i[1], 1); atomicMin(&i[2], 5000 - t); atomicMax(&i[3], t); atomicAnd(&u[0], ~(1u << (t & 31))); atomicOr(&u[1], 1u << (t & 31)); atomicXor(&u[2], (unsigned)t); atomicInc(&u[3], 99); atomicDec(&u[4], 49);
    atomicAdd(f, 0.5f); atomicAdd(d, 0.25); atomicAdd(&l[0], 1ull << 33); atomicMax(&l[1], (unsigned long long)t << 32); int old; do { old = i[4]; } while (atomicCAS(&i[4], old, old + 2) != old); atomicExch(&i[5], t); }
// A vector with an order is one access of a GPU: a status never comes with another one's value.
__global__ void pairs(unsigned *p, unsigned long long *q, int *torn) {
    unsigned *mine = p + 2 * (threadIdx.x % 48);
    unsigned long long *wide = q + 2 * (threadIdx.x % 48);
    for (unsigned i = 1; i < 20000; i++) {
        if (blockIdx.x == 0) {
            asm volatile("st.relaxed.gpu.v2.u32 [%0], {%1, %2};" ::"l"(mine), "r"(i), "r"(i) : "memory");
            asm volatile("st.relaxed.gpu.v2.u64 [%0], {%1, %2};" ::"l"(wide), "l"((unsigned long long)i << 32), "l"((unsigned long long)i << 32) : "memory");
        } else {
            unsigned a, b;
            unsigned long long c, d;
            asm volatile("ld.relaxed.gpu.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(mine) : "memory");
            asm volatile("ld.relaxed.gpu.v2.u64 {%0, %1}, [%2];" : "=l"(c), "=l"(d) : "l"(wide) : "memory");
            if (a != b) atomicAdd(torn, 1);
            if (c != d) atomicAdd(torn + 1, 1);
        }
    }
}
int main() { Device<int> i(6); Device<unsigned> u(5); Device<float> f(1); Device<double> d(1); Device<unsigned long long> l(2); CHECK(cudaMemset(i, 0, 24)); CHECK(cudaMemset(u, 0, 20)); CHECK(cudaMemset(u, 0xff, 4)); CHECK(cudaMemset(f, 0, 4)); CHECK(cudaMemset(d, 0, 8)); CHECK(cudaMemset(l, 0, 16));
    Device<unsigned> p(96); Device<unsigned long long> q(96); Device<int> torn(2); CHECK(cudaMemset(p, 0, 384)); CHECK(cudaMemset(q, 0, 768)); CHECK(cudaMemset(torn, 0, 8));
    pairs<<<2, 64>>>(p, q, torn); CHECK(cudaDeviceSynchronize()); EXPECT_EQ(torn.host()[0], 0); EXPECT_EQ(torn.host()[1], 0);
    k<<<16, 256>>>(i, u, f, d, l); auto a = i.host(); auto b = u.host(); int n = 4096; EXPECT_EQ(a[0], n * (n - 1) / 2); EXPECT_EQ(a[1], -n); EXPECT_EQ(a[2], 0); EXPECT_EQ(a[3], n - 1); EXPECT_EQ(a[4], 2 * n); EXPECT(a[5] >= 0 && a[5] < n);
    EXPECT_EQ(b[0], 0u); EXPECT_EQ(b[1], 0xffffffffu); EXPECT_EQ(b[2], 0u); EXPECT_EQ(b[3], 4096u % 100); EXPECT(b[4] < 50); EXPECT_EQ(f.host()[0], 2048.0f); EXPECT_EQ(d.host()[0], 1024.0); EXPECT_EQ(l.host()[0], 4096ull << 33); EXPECT_EQ(l.host()[1], 4095ull << 32); return finish(); }
