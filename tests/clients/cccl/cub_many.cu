// nvcc: -std=c++17
// Two dozen CUB algorithms, of the device, a block and a warp, against the standard library's.
#include "../../programs/check.h"
#include <algorithm>
#include <cub/cub.cuh>
#include <functional>
#include <map>
#include <numeric>
#include <random>

using Ints = std::vector<int>;
static std::mt19937 rng(11);
static Ints random_ints(size_t n, int below) { Ints v(n); for (auto &x : v) x = rng() % below; return v; }
static void done(const char *what) { printf("  %s\n", what); }

// Calls an algorithm twice, as all of them want: for the size of its workspace, then in earnest.
#define CUB(call) do { size_t bytes = 0; void *work = nullptr; CHECK(call); Device<char> space(bytes + 1); work = space.p; CHECK(call); CHECK(cudaDeviceSynchronize()); } while (0)

struct Odd { __host__ __device__ bool operator()(int x) const { return x & 1; } };
struct Larger { template <class T> __host__ __device__ T operator()(const T &a, const T &b) const { return a < b ? b : a; } };
struct Less { template <class T> __host__ __device__ bool operator()(const T &a, const T &b) const { return a < b; } };

__global__ void block_algorithms(const int *in, int *sums, int *scans, int *sorted) {
    using Reduce = cub::BlockReduce<int, 128>; using Scan = cub::BlockScan<int, 128>; using Sort = cub::BlockRadixSort<int, 128, 4>;
    __shared__ union { typename Reduce::TempStorage reduce; typename Scan::TempStorage scan; typename Sort::TempStorage sort; } s;
    int items[4], at = (blockIdx.x * 128 + threadIdx.x) * 4;
    for (int i = 0; i < 4; i++) items[i] = in[at + i];
    int sum = Reduce(s.reduce).Sum(items);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    __syncthreads();
    int out[4];
    Scan(s.scan).InclusiveSum(items, out);
    for (int i = 0; i < 4; i++) scans[at + i] = out[i];
    __syncthreads();
    Sort(s.sort).Sort(items);
    for (int i = 0; i < 4; i++) sorted[at + i] = items[i];
}

__global__ void warp_algorithms(const int *in, int *largest, int *scans) {
    using Reduce = cub::WarpReduce<int>; using Scan = cub::WarpScan<int>;
    __shared__ typename Reduce::TempStorage reduce[4]; __shared__ typename Scan::TempStorage scan[4];
    int warp = threadIdx.x / 32, at = blockIdx.x * 128 + threadIdx.x, value = in[at], sum;
    int most = Reduce(reduce[warp]).Reduce(value, Larger());
    if (threadIdx.x % 32 == 0) largest[at / 32] = most;
    Scan(scan[warp]).ExclusiveSum(value, sum);
    scans[at] = sum;
}

int main() {
    const int n = 20011;
    const Ints a = random_ints(n, 1 << 30), small = random_ints(n, 1000);
    Device<int> d(a), e(small), out(n), count(1);

    { CUB(cub::DeviceRadixSort::SortKeys(work, bytes, d.p, out.p, n)); Ints h = a; std::sort(h.begin(), h.end()); EXPECT(out.host() == h); done("radix sort"); }
    { CUB(cub::DeviceRadixSort::SortKeysDescending(work, bytes, d.p, out.p, n)); Ints h = a; std::sort(h.begin(), h.end(), std::greater<int>()); EXPECT(out.host() == h); done("radix sort, descending"); }
    { std::vector<unsigned long long> k(n); for (auto &x : k) x = (unsigned long long)rng() << 32 | rng(); std::vector<float> v(n); std::iota(v.begin(), v.end(), 0.f); Device<unsigned long long> dk(k), ko(n); Device<float> dv(v), vo(n);
      CUB(cub::DeviceRadixSort::SortPairs(work, bytes, dk.p, ko.p, dv.p, vo.p, n)); Ints order(n); std::iota(order.begin(), order.end(), 0); std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return k[x] < k[y]; });
      auto hv = vo.host(); for (int i = 0; i < n; i++) EXPECT_EQ(hv[i], (float)order[i]); done("radix sort of 64-bit pairs"); }
    { std::vector<float> k(n); for (auto &x : k) x = (float)(int)rng() / 1e5f; Device<float> dk(k), ko(n); CUB(cub::DeviceRadixSort::SortKeys(work, bytes, dk.p, ko.p, n)); std::sort(k.begin(), k.end()); EXPECT(ko.host() == k); done("radix sort of floats"); }
    { CUB(cub::DeviceRadixSort::SortKeys(work, bytes, d.p, out.p, n, 4, 12)); auto h = a; std::stable_sort(h.begin(), h.end(), [](int x, int y) { return (x >> 4 & 255) < (y >> 4 & 255); }); EXPECT(out.host() == h); done("radix sort of some bits"); }
    { Device<int> k(a); CUB(cub::DeviceMergeSort::SortKeys(work, bytes, k.p, n, Less())); Ints h = a; std::sort(h.begin(), h.end()); EXPECT(k.host() == h); done("merge sort"); }
    { CUB(cub::DeviceScan::ExclusiveSum(work, bytes, e.p, out.p, n)); Ints h(n); std::exclusive_scan(small.begin(), small.end(), h.begin(), 0); EXPECT(out.host() == h); done("exclusive sum"); }
    { CUB(cub::DeviceScan::InclusiveScan(work, bytes, d.p, out.p, Larger(), n)); Ints h(n); std::inclusive_scan(a.begin(), a.end(), h.begin(), Larger()); EXPECT(out.host() == h); done("inclusive scan with maximum"); }
    { CUB(cub::DeviceReduce::Sum(work, bytes, e.p, count.p, n)); EXPECT_EQ(count.host()[0], std::accumulate(small.begin(), small.end(), 0)); done("sum"); }
    { CUB(cub::DeviceReduce::Min(work, bytes, d.p, count.p, n)); EXPECT_EQ(count.host()[0], *std::min_element(a.begin(), a.end())); done("minimum"); }
    { CUB(cub::DeviceReduce::Reduce(work, bytes, d.p, count.p, n, Larger(), 0)); EXPECT_EQ(count.host()[0], *std::max_element(a.begin(), a.end())); done("reduce with an operator of ours"); }
    { Ints keys = random_ints(n, 200); std::sort(keys.begin(), keys.end()); Device<int> k(keys), ko(n), vo(n);
      CUB(cub::DeviceReduce::ReduceByKey(work, bytes, k.p, ko.p, e.p, vo.p, count.p, Larger(), n)); std::map<int, int> most; for (int i = 0; i < n; i++) { int &m = most[keys[i]]; m = std::max(m, small[i]); }
      EXPECT_EQ(count.host()[0], (int)most.size()); auto hk = ko.host(), hv = vo.host(); int i = 0; for (auto &kv : most) { EXPECT(hk[i] == kv.first && hv[i] == kv.second); i++; } done("reduce by key"); }
    { Ints offsets{0}; while (offsets.back() < n) offsets.push_back(std::min(n, offsets.back() + (int)(rng() % 500))); int segments = offsets.size() - 1; Device<int> o(offsets), sums(segments);
      CUB(cub::DeviceSegmentedReduce::Sum(work, bytes, e.p, sums.p, segments, o.p, o.p + 1)); auto h = sums.host(); for (int s = 0; s < segments; s++) EXPECT_EQ(h[s], std::accumulate(small.begin() + offsets[s], small.begin() + offsets[s + 1], 0)); done("segmented sum");
      CUB(cub::DeviceSegmentedSort::SortKeys(work, bytes, d.p, out.p, n, segments, o.p, o.p + 1)); Ints k = a; for (int s = 0; s < segments; s++) std::sort(k.begin() + offsets[s], k.begin() + offsets[s + 1]); EXPECT(out.host() == k); done("segmented sort"); }
    { CUB(cub::DeviceSelect::If(work, bytes, d.p, out.p, count.p, n, Odd())); Ints h; std::copy_if(a.begin(), a.end(), std::back_inserter(h), Odd()); auto g = out.host(); g.resize(count.host()[0]); EXPECT(g == h); done("select if"); }
    { std::vector<char> flags(n); for (auto &f : flags) f = rng() % 2; Device<char> f(flags); CUB(cub::DeviceSelect::Flagged(work, bytes, d.p, f.p, out.p, count.p, n)); Ints h; for (int i = 0; i < n; i++) if (flags[i]) h.push_back(a[i]); auto g = out.host(); g.resize(count.host()[0]); EXPECT(g == h); done("select flagged"); }
    { Ints s = small; std::sort(s.begin(), s.end()); Device<int> ds(s); CUB(cub::DeviceSelect::Unique(work, bytes, ds.p, out.p, count.p, n)); s.erase(std::unique(s.begin(), s.end()), s.end()); auto g = out.host(); g.resize(count.host()[0]); EXPECT(g == s); done("unique"); }
    { CUB(cub::DevicePartition::If(work, bytes, d.p, out.p, count.p, n, Odd())); auto g = out.host(); int odd = std::count_if(a.begin(), a.end(), Odd()); EXPECT_EQ(count.host()[0], odd); Ints h; std::copy_if(a.begin(), a.end(), std::back_inserter(h), Odd()); EXPECT(std::equal(h.begin(), h.end(), g.begin())); done("partition"); }
    { Device<int> bins(10); CUB(cub::DeviceHistogram::HistogramEven(work, bytes, e.p, bins.p, 11, 0, 1000, n)); Ints h(10); for (int x : small) h[x / 100]++; EXPECT(bins.host() == h); done("histogram, even"); }
    { Ints edges{0, 1, 10, 500, 1000}; Device<int> bins(4), l(edges); CUB(cub::DeviceHistogram::HistogramRange(work, bytes, e.p, bins.p, 5, l.p, n)); Ints h(4); for (int x : small) h[x < 1 ? 0 : x < 10 ? 1 : x < 500 ? 2 : 3]++; EXPECT(bins.host() == h); done("histogram, ranges"); }
    { Ints r; while ((int)r.size() < n) r.insert(r.end(), 1 + rng() % 9, (int)(rng() % 5)); r.resize(n); Device<int> dr(r), values(n), lengths(n); CUB(cub::DeviceRunLengthEncode::Encode(work, bytes, dr.p, values.p, lengths.p, count.p, n));
      auto hv = values.host(), hl = lengths.host(); Ints back; for (int i = 0; i < count.host()[0]; i++) back.insert(back.end(), hl[i], hv[i]); EXPECT(back == r); done("run-length encoding"); }
    { CUB(cub::DeviceAdjacentDifference::SubtractLeftCopy(work, bytes, e.p, out.p, n)); Ints h(n); std::adjacent_difference(small.begin(), small.end(), h.begin()); EXPECT(out.host() == h); done("adjacent difference"); }
    { const int m = 128 * 4 * 16; Ints v(small.begin(), small.begin() + m); Device<int> in(v), sums(16), scans(m), sorted(m); block_algorithms<<<16, 128>>>(in, sums, scans, sorted); CHECK(cudaDeviceSynchronize());
      auto hs = sums.host(), hc = scans.host(), ho = sorted.host(); for (int b = 0; b < 16; b++) { auto from = v.begin() + b * 512; EXPECT_EQ(hs[b], std::accumulate(from, from + 512, 0)); Ints c(512); std::partial_sum(from, from + 512, c.begin()); EXPECT(std::equal(c.begin(), c.end(), hc.begin() + b * 512)); Ints s(from, from + 512); std::sort(s.begin(), s.end()); EXPECT(std::equal(s.begin(), s.end(), ho.begin() + b * 512)); } done("block reduce, scan and radix sort"); }
    { const int m = 1024; Ints v(small.begin(), small.begin() + m); Device<int> in(v), most(m / 32), scans(m); warp_algorithms<<<8, 128>>>(in, most, scans); CHECK(cudaDeviceSynchronize());
      auto hm = most.host(), hc = scans.host(); for (int w = 0; w < m / 32; w++) { auto from = v.begin() + w * 32; EXPECT_EQ(hm[w], *std::max_element(from, from + 32)); Ints c(32); std::exclusive_scan(from, from + 32, c.begin(), 0); EXPECT(std::equal(c.begin(), c.end(), hc.begin() + w * 32)); } done("warp reduce and scan"); }
    return finish();
}
