#include "check.h"
// Division and remainder of 128-bit integers.
typedef unsigned __int128 u128;
typedef __int128 i128;
__global__ void k(const u128 *a, const u128 *b, u128 *o, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    u128 x = a[i], y = b[i];
    unsigned long long low = (unsigned long long)y | 1;
    u128 *p = o + i * 10;
    p[0] = x / y; p[1] = x % y;
    p[2] = x / low; p[3] = x % low;
    p[4] = (i128)x / (i128)y; p[5] = (i128)x % (i128)y;
    p[6] = (i128)x / (long long)low; p[7] = (i128)x % (long long)low;
    p[8] = x * y; p[9] = (x >> (low & 127)) ^ (y << (low & 127)) ^ (u128)((i128)x >> (low & 127));
}
int main() {
    const int n = 4096;
    std::vector<u128> a(n), b(n);
    unsigned long long s = 88172645463325252ull;
    auto next = [&] { s ^= s << 13; s ^= s >> 7; s ^= s << 17; return s; };
    for (int i = 0; i < n; i++) {
        a[i] = ((u128)next() << 64 | next()) >> (i * 7 % 128);
        b[i] = ((u128)next() << 64 | next()) >> (i * 29 % 128);
        if (i % 5 == 0) b[i] = ~(u128)0 - (next() & 15);
        if (i % 7 == 0) a[i] = ~(u128)0 << (i % 128);
        if (b[i] == 0) b[i] = 3;
    }
    Device<u128> da(a), db(b), o(n * 10);
    k<<<n / 128, 128>>>(da, db, o, n);
    auto r = o.host();
    for (int i = 0; i < n; i++) {
        u128 x = a[i], y = b[i];
        unsigned long long low = (unsigned long long)y | 1;
        u128 *p = &r[i * 10];
        EXPECT(p[0] == x / y); EXPECT(p[1] == x % y);
        EXPECT(p[2] == x / low); EXPECT(p[3] == x % low);
        EXPECT(p[4] == (u128)((i128)x / (i128)y)); EXPECT(p[5] == (u128)((i128)x % (i128)y));
        EXPECT(p[6] == (u128)((i128)x / (long long)low)); EXPECT(p[7] == (u128)((i128)x % (long long)low));
        EXPECT(p[8] == x * y); EXPECT(p[9] == ((x >> (low & 127)) ^ (y << (low & 127)) ^ (u128)((i128)x >> (low & 127))));
    }
    return finish();
}
