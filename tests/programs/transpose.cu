#include "check.h"
__global__ void tr(const int *in, int *out, int w, int h) { __shared__ int t[32][33]; int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) if (x < w && y + j < h) t[threadIdx.y + j][threadIdx.x] = in[(y + j) * w + x]; __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y; for (int j = 0; j < 32; j += 8) if (x < h && y + j < w) out[(y + j) * h + x] = t[threadIdx.x][threadIdx.y + j]; }
int main() { const int w = 150, h = 77; std::vector<int> v(w * h); for (int i = 0; i < w * h; i++) v[i] = i; Device<int> a(v), b(w * h);
    tr<<<dim3((w + 31) / 32, (h + 31) / 32), dim3(32, 8)>>>(a, b, w, h); auto r = b.host(); for (int y = 0; y < h; y++) for (int x = 0; x < w; x++) EXPECT_EQ(r[x * h + y], v[y * w + x]); return finish(); }
