// nvcc: -std=c++17 -default-stream per-thread
#include "check.h"
#include <thread>
__global__ void add(int *p, int v) { atomicAdd(p, v); }
int main() { Device<int> d(8); CHECK(cudaMemset(d, 0, 32)); CHECK(cudaDeviceSynchronize()); std::vector<std::thread> t; for (int i = 0; i < 8; i++) t.emplace_back([&, i] { for (int k = 0; k < 50; k++) add<<<4, 32>>>(d.p + i, i + 1); CHECK(cudaStreamSynchronize(0)); }); for (auto &x : t) x.join(); CHECK(cudaDeviceSynchronize()); auto h = d.host(); for (int i = 0; i < 8; i++) EXPECT_EQ(h[i], 50 * 128 * (i + 1)); return finish(); }
