#include "check.h"
struct Big { int v[900]; }; struct Mixed { char c; double d; short s; float4 f; };
__global__ void k(Big b, Mixed m, double *o) { int i = threadIdx.x; o[i] = b.v[i * 7 % 900] + m.c + m.d + m.s + m.f.w; }
int main() { Big b; for (int i = 0; i < 900; i++) b.v[i] = i * i; Mixed m = {3, 0.25, -7, {1, 2, 3, 4}}; Device<double> o(256); k<<<1, 256>>>(b, m, o); auto r = o.host(); for (int i = 0; i < 256; i++) EXPECT_EQ(r[i], b.v[i * 7 % 900] + 3 + 0.25 - 7 + 4); return finish(); }
