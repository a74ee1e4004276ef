#include "check.h"
__global__ void step(const float *in, float *out, int n) { int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z * blockDim.z + threadIdx.z; if (x >= n || y >= n || z >= n) return;
    int i = (z * n + y) * n + x; if (!x || !y || !z || x == n - 1 || y == n - 1 || z == n - 1) { out[i] = in[i]; return; } out[i] = in[i] * 0.5f + (in[i - 1] + in[i + 1] + in[i - n] + in[i + n] + in[i - n * n] + in[i + n * n]) * 0.0625f; }
int main() { const int n = 40; std::vector<float> v(n * n * n); for (size_t i = 0; i < v.size(); i++) v[i] = i * 37 % 64; Device<float> a(v), b(v.size()); float *p = a, *q = b;
    for (int t = 0; t < 6; t++) { step<<<dim3(5, 10, 10), dim3(8, 4, 4)>>>(p, q, n); std::swap(p, q); } std::vector<float> w(v.size());
    for (int t = 0; t < 6; t++) { for (int z = 0; z < n; z++) for (int y = 0; y < n; y++) for (int x = 0; x < n; x++) { int i = (z * n + y) * n + x; w[i] = (!x || !y || !z || x == n - 1 || y == n - 1 || z == n - 1) ? v[i] : v[i] * 0.5f + (v[i - 1] + v[i + 1] + v[i - n] + v[i + n] + v[i - n * n] + v[i + n * n]) * 0.0625f; } std::swap(v, w); }
    auto r = a.host(); for (size_t i = 0; i < v.size(); i++) EXPECT(fabs(r[i] - v[i]) < 1e-4); return finish(); }
