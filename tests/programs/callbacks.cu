#include "check.h"
#include <atomic>
__global__ void one(int *p) { *p += 1; } static std::atomic<int> order{0}; static void first(void *p) { *(int *)p = ++order; } static void CUDART_CB second(cudaStream_t, cudaError_t e, void *p) { *(int *)p = e == cudaSuccess ? ++order : -1; }
int main() { cudaStream_t s; CHECK(cudaStreamCreate(&s)); Device<int> d(1); CHECK(cudaMemset(d, 0, 4)); int a = 0, b = 0; one<<<1, 1, 0, s>>>(d); CHECK(cudaLaunchHostFunc(s, first, &a)); one<<<1, 1, 0, s>>>(d); CHECK(cudaStreamAddCallback(s, second, &b, 0)); CHECK(cudaStreamSynchronize(s)); EXPECT_EQ(a, 1); EXPECT_EQ(b, 2); EXPECT_EQ(d.host()[0], 2); return finish(); }
