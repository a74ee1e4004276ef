// nvcc: -std=c++17
#include "check.h"
#include <thread>
__global__ void axpy(float *y, const float *x, float a, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += a * x[i]; }
int main() { std::vector<std::thread> t; for (int id = 0; id < 6; id++) t.emplace_back([id] { cudaStream_t s; CHECK(cudaStreamCreate(&s)); const int n = 3000; std::vector<float> x(n), y(n, 1.0f); for (int i = 0; i < n; i++) x[i] = i + id; Device<float> dx(x), dy(y); for (int k = 0; k < 20; k++) axpy<<<(n + 127) / 128, 128, 0, s>>>(dy, dx, 0.5f, n); CHECK(cudaStreamSynchronize(s)); auto r = dy.host(); for (int i = 0; i < n; i++) EXPECT_EQ(r[i], 1.0f + 10.0f * (i + id)); CHECK(cudaStreamDestroy(s)); }); for (auto &x : t) x.join(); return finish(); }
