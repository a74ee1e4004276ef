// nvcc: -std=c++17
#include "check.h"
#include <thrust/device_vector.h>
#include <thrust/sort.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/transform.h>
#include <thrust/sequence.h>
#include <thrust/unique.h>
#include <thrust/count.h>
#include <algorithm>
#include <numeric>
struct Odd { __host__ __device__ bool operator()(int x) const { return x & 1; } };
int main() { const int n = 20000; std::vector<int> h(n); unsigned x = 3; for (auto &v : h) { x = x * 1103515245 + 12345; v = (x >> 8) % 5000; } thrust::device_vector<int> d(h.begin(), h.end()); thrust::sort(d.begin(), d.end()); std::sort(h.begin(), h.end()); std::vector<int> r(n); thrust::copy(d.begin(), d.end(), r.begin()); EXPECT(r == h); EXPECT_EQ(thrust::reduce(d.begin(), d.end(), 0LL), std::accumulate(h.begin(), h.end(), 0LL)); EXPECT_EQ((int)thrust::count_if(d.begin(), d.end(), Odd()), (int)std::count_if(h.begin(), h.end(), Odd())); thrust::device_vector<int> s(n); thrust::inclusive_scan(d.begin(), d.end(), s.begin()); std::vector<int> w(n); std::partial_sum(h.begin(), h.end(), w.begin()); thrust::copy(s.begin(), s.end(), r.begin()); EXPECT(r == w); auto e = thrust::unique(d.begin(), d.end()); h.erase(std::unique(h.begin(), h.end()), h.end()); EXPECT_EQ((size_t)(e - d.begin()), h.size()); return finish(); }
