#include "check.h"
int main() { const size_t n = 1 << 20; std::vector<unsigned char> a(n), b(n); for (size_t i = 0; i < n; i++) a[i] = i * 131 >> 3; Device<unsigned char> d(n), e(n); cudaStream_t s; CHECK(cudaStreamCreate(&s));
    CHECK(cudaMemcpyAsync(d, a.data(), n, cudaMemcpyHostToDevice, s)); CHECK(cudaMemcpyAsync(e, d, n, cudaMemcpyDeviceToDevice, s)); CHECK(cudaMemcpyAsync(b.data(), e, n, cudaMemcpyDeviceToHost, s)); CHECK(cudaStreamSynchronize(s)); EXPECT(a == b);
    CHECK(cudaMemcpy(b.data(), d.p + 12345, 1000, cudaMemcpyDefault)); EXPECT(!memcmp(b.data(), a.data() + 12345, 1000));
    CHECK(cudaMemset(d, 0x5a, n)); CHECK(cudaMemsetAsync(d.p + 100, 1, 50, s)); CHECK(cudaStreamSynchronize(s)); b = d.host(); EXPECT_EQ(b[99], 0x5a); EXPECT_EQ(b[100], 1); EXPECT_EQ(b[149], 1); EXPECT_EQ(b[150], 0x5a);
    size_t pitch; unsigned char *p; CHECK(cudaMallocPitch(&p, &pitch, 100, 30)); EXPECT(pitch >= 100 && pitch % 32 == 0); CHECK(cudaMemcpy2D(p, pitch, a.data(), 111, 100, 30, cudaMemcpyHostToDevice)); CHECK(cudaMemset2D(p, pitch, 7, 10, 5)); std::vector<unsigned char> c(3000); CHECK(cudaMemcpy2D(c.data(), 100, p, pitch, 100, 30, cudaMemcpyDeviceToHost));
    for (int y = 0; y < 30; y++) for (int x = 0; x < 100; x++) EXPECT_EQ((int)c[y * 100 + x], x < 10 && y < 5 ? 7 : (int)a[y * 111 + x]); CHECK(cudaFree(p));
    return finish(); }
