#include "check.h"
__global__ void force(const float4 *p, float3 *f, int n) { extern __shared__ float4 s[]; int i = blockIdx.x * blockDim.x + threadIdx.x; float4 me = p[i]; float3 a = {0, 0, 0};
    for (int t = 0; t < n; t += blockDim.x) { s[threadIdx.x] = p[t + threadIdx.x]; __syncthreads(); for (int j = 0; j < blockDim.x; j++) { float dx = s[j].x - me.x, dy = s[j].y - me.y, dz = s[j].z - me.z; float d = dx * dx + dy * dy + dz * dz + 0.01f; float r = rsqrtf(d); float k = s[j].w * r * r * r; a.x += dx * k; a.y += dy * k; a.z += dz * k; } __syncthreads(); }
    f[i] = a; }
int main() { const int n = 1024; std::vector<float4> p(n); for (int i = 0; i < n; i++) p[i] = make_float4(sinf(i), cosf(2 * i), sinf(3 * i), 1.0f + i % 3);
    Device<float4> d(p); Device<float3> f(n); force<<<n / 128, 128, 128 * sizeof(float4)>>>(d, f, n); auto r = f.host();
    for (int i = 0; i < n; i += 37) { double x = 0, y = 0, z = 0, m = 0; for (int j = 0; j < n; j++) { double dx = p[j].x - p[i].x, dy = p[j].y - p[i].y, dz = p[j].z - p[i].z, q = dx * dx + dy * dy + dz * dz + 0.01, k = p[j].w / (q * sqrt(q)); x += dx * k; y += dy * k; z += dz * k; m += fabs(k); } EXPECT(fabs(r[i].x - x) < 1e-4 * m && fabs(r[i].y - y) < 1e-4 * m && fabs(r[i].z - z) < 1e-4 * m); }
    return finish(); }
