#include "check.h"
#include <algorithm>
__global__ void step(unsigned *d, int j, int k) { unsigned i = blockIdx.x * blockDim.x + threadIdx.x, x = i ^ j; if (x > i) { bool up = !(i & k); if ((d[i] > d[x]) == up) { unsigned t = d[i]; d[i] = d[x]; d[x] = t; } } }
int main() { const int n = 1 << 13; std::vector<unsigned> v(n); unsigned s = 11; for (auto &x : v) { s = s * 1664525 + 1013904223; x = s; } Device<unsigned> d(v); for (int k = 2; k <= n; k <<= 1) for (int j = k >> 1; j; j >>= 1) step<<<n / 256, 256>>>(d, j, k); std::sort(v.begin(), v.end()); EXPECT(d.host() == v); return finish(); }
