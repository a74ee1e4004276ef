// What every program of the suite shares: checks that say what was wrong, and the last line "ok".
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <cuda_runtime.h>

// What was not as expected so far: a program goes on to its end, so that one run shows everything that differs.
static int mismatches = 0;
static inline void mismatch() { if (++mismatches == 50) { printf("too much is wrong; gave up\n"); exit(1); } }

#define CHECK(call) do { cudaError_t e_ = (call); if (e_ != cudaSuccess) { \
    printf("%s:%d: %s gave %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(e_)); exit(1); } } while (0)
#define EXPECT(condition) do { if (!(condition)) { \
    printf("%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); mismatch(); } } while (0)
#define EXPECT_EQ(a, b) do { auto a_ = (a); auto b_ = (b); if (!(a_ == b_)) { \
    printf("%s:%d: %s is %.17g, expected %s = %.17g\n", __FILE__, __LINE__, #a, (double)a_, #b, (double)b_); mismatch(); } } while (0)
#define EXPECT_ERROR(call, wanted) do { cudaError_t e_ = (call); if (e_ != (wanted)) { \
    printf("%s:%d: %s gave %s, expected %s\n", __FILE__, __LINE__, #call, cudaGetErrorName(e_), cudaGetErrorName(wanted)); mismatch(); } } while (0)

static inline int finish() {
    if (mismatches) return 1;
    printf("ok\n");
    return 0;
}

// Device memory that frees itself.
template <class T> struct Device {
    T *p = nullptr; size_t n;
    explicit Device(size_t n) : n(n) { CHECK(cudaMalloc(&p, n * sizeof(T))); }
    explicit Device(const std::vector<T> &v) : Device(v.size()) { CHECK(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice)); }
    Device(const Device &) = delete;
    ~Device() { cudaFree(p); }
    operator T *() { return p; }
    std::vector<T> host() { std::vector<T> v(n); CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost)); return v; }
};
