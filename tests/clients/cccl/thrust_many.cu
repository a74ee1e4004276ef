// nvcc: -std=c++17 --extended-lambda
// Two dozen Thrust algorithms against the standard library's.
#include "../../programs/check.h"
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <cuda/std/tuple>
#include <thrust/adjacent_difference.h>
#include <thrust/binary_search.h>
#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/extrema.h>
#include <thrust/gather.h>
#include <thrust/inner_product.h>
#include <thrust/iterator/zip_iterator.h>
#include <thrust/logical.h>
#include <thrust/merge.h>
#include <thrust/partition.h>
#include <thrust/reduce.h>
#include <thrust/remove.h>
#include <thrust/scan.h>
#include <thrust/scatter.h>
#include <thrust/sequence.h>
#include <thrust/set_operations.h>
#include <thrust/sort.h>
#include <thrust/tabulate.h>
#include <thrust/transform_reduce.h>
#include <thrust/unique.h>

using Ints = std::vector<int>;
static std::mt19937 rng(7);
static Ints random_ints(size_t n, int below) { Ints v(n); for (auto &x : v) x = rng() % below; return v; }
template <class T> static std::vector<T> host(const thrust::device_vector<T> &d) { std::vector<T> v(d.size()); thrust::copy(d.begin(), d.end(), v.begin()); return v; }
static void done(const char *what) { printf("  %s\n", what); }

struct Odd { __host__ __device__ bool operator()(int x) const { return x & 1; } };
struct Square { __host__ __device__ long long operator()(int x) const { return (long long)x * x; } };

int main() {
    const size_t n = 20011;
    const Ints a = random_ints(n, 100000), b = random_ints(n, 100000);
    thrust::device_vector<int> d(a.begin(), a.end());

    { auto s = d; auto h = a; thrust::sort(s.begin(), s.end()); std::sort(h.begin(), h.end()); EXPECT(host(s) == h); done("sort"); }
    { auto s = d; auto h = a; thrust::sort(s.begin(), s.end(), thrust::greater<int>()); std::sort(h.begin(), h.end(), std::greater<int>()); EXPECT(host(s) == h); done("sort, descending"); }
    { std::vector<double> h(n); for (size_t i = 0; i < n; i++) h[i] = sin(a[i]); thrust::device_vector<double> s(h.begin(), h.end());
      thrust::sort(s.begin(), s.end()); std::sort(h.begin(), h.end()); EXPECT(host(s) == h); done("sort of doubles"); }
    { Ints keys = random_ints(n, 50), order(n); std::iota(order.begin(), order.end(), 0);
      thrust::device_vector<int> k(keys.begin(), keys.end()), v(n); thrust::sequence(v.begin(), v.end());
      thrust::stable_sort_by_key(k.begin(), k.end(), v.begin());
      std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return keys[x] < keys[y]; }); EXPECT(host(v) == order); done("stable_sort_by_key"); }
    { thrust::device_vector<int> s(n); Ints h(n); thrust::inclusive_scan(d.begin(), d.end(), s.begin()); std::partial_sum(a.begin(), a.end(), h.begin()); EXPECT(host(s) == h); done("inclusive_scan"); }
    { thrust::device_vector<int> s(n); Ints h(n); thrust::exclusive_scan(d.begin(), d.end(), s.begin(), 0, thrust::maximum<int>());
      int m = 0; for (size_t i = 0; i < n; i++) { h[i] = m; m = std::max(m, a[i]); } EXPECT(host(s) == h); done("exclusive_scan with maximum"); }
    { Ints keys(n), h(n); for (size_t i = 0; i < n; i++) keys[i] = i / 37; thrust::device_vector<int> k(keys.begin(), keys.end()), s(n);
      thrust::exclusive_scan_by_key(k.begin(), k.end(), d.begin(), s.begin());
      for (size_t i = 0; i < n; i++) h[i] = i % 37 ? h[i - 1] + a[i - 1] : 0; EXPECT(host(s) == h); done("exclusive_scan_by_key"); }
    { Ints keys = random_ints(n, 300); std::sort(keys.begin(), keys.end()); thrust::device_vector<int> k(keys.begin(), keys.end()), ko(n), vo(n);
      auto end = thrust::reduce_by_key(k.begin(), k.end(), d.begin(), ko.begin(), vo.begin()); std::map<int, int> sums; for (size_t i = 0; i < n; i++) sums[keys[i]] += a[i];
      size_t count = end.first - ko.begin(); EXPECT_EQ(count, sums.size()); auto hk = host(ko), hv = host(vo); size_t i = 0; for (auto &kv : sums) { EXPECT(hk[i] == kv.first && hv[i] == kv.second); i++; } done("reduce_by_key"); }
    { Ints keys = random_ints(n, 300); std::sort(keys.begin(), keys.end()); thrust::device_vector<int> k(keys.begin(), keys.end()); auto v = d;
      auto end = thrust::unique_by_key(k.begin(), k.end(), v.begin()); Ints first; for (size_t i = 0; i < n; i++) if (!i || keys[i] != keys[i - 1]) first.push_back(a[i]);
      v.resize(end.second - v.begin()); EXPECT(host(v) == first); done("unique_by_key"); }
    { auto u = d; thrust::sort(u.begin(), u.end()); u.erase(thrust::unique(u.begin(), u.end()), u.end()); Ints h = a; std::sort(h.begin(), h.end()); h.erase(std::unique(h.begin(), h.end()), h.end()); EXPECT(host(u) == h); done("unique"); }
    { EXPECT_EQ(thrust::reduce(d.begin(), d.end(), 0ll), std::accumulate(a.begin(), a.end(), 0ll)); done("reduce"); }
    { long long h = 0; for (int x : a) h += (long long)x * x; EXPECT_EQ(thrust::transform_reduce(d.begin(), d.end(), Square(), 0ll, thrust::plus<long long>()), h); done("transform_reduce"); }
    { thrust::device_vector<int> e(b.begin(), b.end()); EXPECT_EQ(thrust::inner_product(d.begin(), d.end(), e.begin(), 0ll, thrust::plus<long long>(), thrust::multiplies<long long>()), std::inner_product(a.begin(), a.end(), b.begin(), 0ll, std::plus<long long>(), std::multiplies<long long>())); done("inner_product"); }
    { auto p = d; auto at = thrust::stable_partition(p.begin(), p.end(), Odd()); Ints h = a; auto hat = std::stable_partition(h.begin(), h.end(), Odd()); EXPECT_EQ(at - p.begin(), hat - h.begin()); EXPECT(host(p) == h); done("stable_partition"); }
    { Ints x = a, y = b; std::sort(x.begin(), x.end()); std::sort(y.begin(), y.end()); thrust::device_vector<int> dx(x.begin(), x.end()), dy(y.begin(), y.end()), o(2 * n);
      Ints h(2 * n); thrust::merge(dx.begin(), dx.end(), dy.begin(), dy.end(), o.begin()); std::merge(x.begin(), x.end(), y.begin(), y.end(), h.begin()); EXPECT(host(o) == h); done("merge");
      auto e = thrust::set_intersection(dx.begin(), dx.end(), dy.begin(), dy.end(), o.begin()); auto he = std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), h.begin());
      o.resize(e - o.begin()); h.resize(he - h.begin()); EXPECT(host(o) == h); done("set_intersection");
      thrust::device_vector<int> q(b.begin(), b.end()), l(n); thrust::lower_bound(dx.begin(), dx.end(), q.begin(), q.end(), l.begin()); Ints hl(n); for (size_t i = 0; i < n; i++) hl[i] = std::lower_bound(x.begin(), x.end(), b[i]) - x.begin(); EXPECT(host(l) == hl); done("lower_bound"); }
    { thrust::device_vector<int> o(n); Ints h(n); thrust::adjacent_difference(d.begin(), d.end(), o.begin()); std::adjacent_difference(a.begin(), a.end(), h.begin()); EXPECT(host(o) == h); done("adjacent_difference"); }
    { Ints map(n); std::iota(map.begin(), map.end(), 0); std::shuffle(map.begin(), map.end(), rng); thrust::device_vector<int> m(map.begin(), map.end()), s(n), g(n);
      thrust::scatter(d.begin(), d.end(), m.begin(), s.begin()); thrust::gather(m.begin(), m.end(), s.begin(), g.begin()); EXPECT(host(g) == a); done("scatter and gather"); }
    { auto at = thrust::min_element(d.begin(), d.end()); EXPECT_EQ(at - d.begin(), std::min_element(a.begin(), a.end()) - a.begin()); auto mm = thrust::minmax_element(d.begin(), d.end()); EXPECT_EQ((int)*mm.second, *std::max_element(a.begin(), a.end())); done("min_element, minmax_element"); }
    { thrust::device_vector<int> o(n); auto e = thrust::copy_if(d.begin(), d.end(), o.begin(), Odd()); o.resize(e - o.begin()); Ints h; std::copy_if(a.begin(), a.end(), std::back_inserter(h), Odd()); EXPECT(host(o) == h); done("copy_if"); }
    { auto r = d; r.erase(thrust::remove_if(r.begin(), r.end(), Odd()), r.end()); Ints h = a; h.erase(std::remove_if(h.begin(), h.end(), Odd()), h.end()); EXPECT(host(r) == h); done("remove_if"); }
    { thrust::device_vector<int> o(n); thrust::tabulate(o.begin(), o.end(), [] __device__(int i) { return i * i % 101; }); auto h = host(o); for (size_t i = 0; i < n; i++) EXPECT_EQ(h[i], (int)((int)i * (int)i % 101)); done("tabulate with a lambda"); }
    { thrust::device_vector<int> e(b.begin(), b.end()), o(n); auto z = thrust::make_zip_iterator(cuda::std::make_tuple(d.begin(), e.begin()));
      thrust::transform(z, z + n, o.begin(), [] __device__(cuda::std::tuple<int, int> t) { return cuda::std::get<0>(t) - cuda::std::get<1>(t); }); auto h = host(o); for (size_t i = 0; i < n; i++) EXPECT_EQ(h[i], a[i] - b[i]); done("transform over a zip_iterator"); }
    { EXPECT(thrust::any_of(d.begin(), d.end(), Odd())); EXPECT(!thrust::all_of(d.begin(), d.end(), Odd())); EXPECT_EQ(thrust::count_if(d.begin(), d.end(), Odd()), std::count_if(a.begin(), a.end(), Odd())); done("any_of, all_of, count_if"); }
    { cudaStream_t s; CHECK(cudaStreamCreate(&s)); auto p = d; auto h = a; thrust::sort(thrust::cuda::par.on(s), p.begin(), p.end()); CHECK(cudaStreamSynchronize(s)); std::sort(h.begin(), h.end()); EXPECT(host(p) == h); CHECK(cudaStreamDestroy(s)); done("sort on a stream"); }
    return finish();
}
