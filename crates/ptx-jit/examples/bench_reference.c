// What the benchmark compares with: plain loops, and SIMD by hand where gcc finds none.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif
static double now(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec * 1e3 + t.tv_nsec * 1e-6; }
#define TIME(name, runs, body) { double best = 1e30; for (int r = 0; r < runs; ++r) { double t = now(); body; t = now() - t; if (t < best) best = t; } printf("%s %.2f\n", name, best); }
__attribute__((noinline)) static void vadd(const float *a, const float *b, float *c, int n) { for (int i = 0; i < n; ++i) c[i] = a[i] + b[i]; }
__attribute__((noinline)) static void matmul(const float *a, const float *b, float *c, int n) {
    for (int i = 0; i < n * n; ++i) c[i] = 0;
    for (int ib = 0; ib < n; ib += 64) for (int kb = 0; kb < n; kb += 64) for (int jb = 0; jb < n; jb += 256)
        for (int i = ib; i < ib + 64; ++i) for (int k = kb; k < kb + 64; ++k) { float x = a[i * n + k]; for (int j = jb; j < jb + 256; ++j) c[i * n + j] += x * b[k * n + j]; }
}
__attribute__((noinline)) static void mandelbrot(int *out, int w, int h, int limit) {
    for (int y = 0; y < h; ++y) for (int x = 0; x < w; ++x) {
        float cr = -2.f + 3.f * x / w, ci = -1.5f + 3.f * y / h, zr = 0, zi = 0; int i = 0;
        while (i < limit && zr * zr + zi * zi < 4.f) { float t = zr * zr - zi * zi + cr; zi = 2.f * zr * zi + ci; zr = t; ++i; }
        out[y * w + x] = i;
    }
}
__attribute__((noinline)) static void nbody_plain(const float *p, float *o, int n, float eps2) {
    for (int i = 0; i < n; ++i) { float ax = 0, ay = 0, az = 0;
        for (int j = 0; j < n; ++j) { float dx = p[4*j] - p[4*i], dy = p[4*j+1] - p[4*i+1], dz = p[4*j+2] - p[4*i+2];
            float r2 = dx*dx + dy*dy + dz*dz + eps2, inv = 1.f / sqrtf(r2), s = p[4*j+3] * inv * inv * inv; ax += dx*s; ay += dy*s; az += dz*s; }
        o[4*i] = ax; o[4*i+1] = ay; o[4*i+2] = az; }
}
__attribute__((noinline)) static void nbody_simd(const float *p, float *o, int n, float eps2) {
#ifdef __AVX2__
    for (int i = 0; i < n; i += 8) {
        float t[3][8]; for (int l = 0; l < 8; ++l) for (int d = 0; d < 3; ++d) t[d][l] = p[4*(i+l)+d];
        __m256 x = _mm256_loadu_ps(t[0]), y = _mm256_loadu_ps(t[1]), z = _mm256_loadu_ps(t[2]), ax = _mm256_setzero_ps(), ay = ax, az = ax, e = _mm256_set1_ps(eps2), h = _mm256_set1_ps(.5f), th = _mm256_set1_ps(1.5f);
        for (int j = 0; j < n; ++j) {
            __m256 dx = _mm256_sub_ps(_mm256_set1_ps(p[4*j]), x), dy = _mm256_sub_ps(_mm256_set1_ps(p[4*j+1]), y), dz = _mm256_sub_ps(_mm256_set1_ps(p[4*j+2]), z);
            __m256 r2 = _mm256_fmadd_ps(dx, dx, _mm256_fmadd_ps(dy, dy, _mm256_fmadd_ps(dz, dz, e)));
            __m256 v = _mm256_rsqrt_ps(r2); v = _mm256_mul_ps(v, _mm256_fnmadd_ps(_mm256_mul_ps(h, r2), _mm256_mul_ps(v, v), th));
            __m256 s = _mm256_mul_ps(_mm256_set1_ps(p[4*j+3]), _mm256_mul_ps(v, _mm256_mul_ps(v, v)));
            ax = _mm256_fmadd_ps(dx, s, ax); ay = _mm256_fmadd_ps(dy, s, ay); az = _mm256_fmadd_ps(dz, s, az);
        }
        _mm256_storeu_ps(t[0], ax); _mm256_storeu_ps(t[1], ay); _mm256_storeu_ps(t[2], az);
        for (int l = 0; l < 8; ++l) for (int d = 0; d < 3; ++d) o[4*(i+l)+d] = t[d][l];
    }
#else
    nbody_plain(p, o, n, eps2);
#endif
}
int main(void) {
    int n = 1 << 24; float *a = malloc(n * 4), *b = malloc(n * 4), *c = malloc(n * 4); int *m = malloc(n * 4);
    for (int i = 0; i < n; ++i) { a[i] = (i * 7 % 101) / 50.f - 1; b[i] = (i * 13 % 103) / 50.f - 1; c[i] = 0; m[i] = 0; }
    TIME("vadd", 5, vadd(a, b, c, n));
    TIME("nbody_plain", 1, nbody_plain(a, c, 16384, 0.01f));
    TIME("nbody", 2, nbody_simd(a, c, 16384, 0.01f));
    TIME("matmul", 2, matmul(a, b, c, 1024));
    TIME("mandelbrot", 1, mandelbrot(m, 1024, 1024, 1000));
    return 0;
}
