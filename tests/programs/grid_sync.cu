// nvcc: -std=c++17
#include "check.h"
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void k(int *p, int rounds) { auto g = cg::this_grid(); int i = (int)g.thread_rank(), n = (int)g.size(); for (int r = 0; r < rounds; r++) { int v = p[(i + 1) % n]; g.sync(); p[i] = v + 1; g.sync(); } }
int main() { int ok = 0; CHECK(cudaDeviceGetAttribute(&ok, cudaDevAttrCooperativeLaunch, 0)); EXPECT_EQ(ok, 1); const int b = 2, t = 64, n = b * t; std::vector<int> v(n); for (int i = 0; i < n; i++) v[i] = i; Device<int> d(v); int *p = d; int r = 5; void *a[] = {&p, &r}; CHECK(cudaLaunchCooperativeKernel((void *)k, dim3(b), dim3(t), a, 0, 0)); CHECK(cudaDeviceSynchronize()); auto h = d.host(); for (int i = 0; i < n; i++) EXPECT_EQ(h[i], (i + 5) % n + 5); void *x[] = {&p, &r}; EXPECT_ERROR(cudaLaunchCooperativeKernel((void *)k, dim3(1000000), dim3(1024), x, 0, 0), cudaErrorCooperativeLaunchTooLarge); return finish(); }
