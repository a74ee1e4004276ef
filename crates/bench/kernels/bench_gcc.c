// What a C programmer would write, compiled on the spot by gcc -O3 -march=native -fopenmp.
#include "bench_common.h"
#include <omp.h>
#include "more_gcc.h"
#include "larger_gcc.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
typedef __m512 V;
#define SET _mm512_set1_ps
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define SUB _mm512_sub_ps
#define MUL _mm512_mul_ps
#define FMA _mm512_fmadd_ps
#define FNMA _mm512_fnmadd_ps
#define RSQRT _mm512_rsqrt14_ps
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
typedef __m256 V;
#define SET _mm256_set1_ps
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define SUB _mm256_sub_ps
#define MUL _mm256_mul_ps
#define FMA _mm256_fmadd_ps
#define FNMA _mm256_fnmadd_ps
#define RSQRT _mm256_rsqrt_ps
#endif

static void vadd(const float *a, const float *b, float *c, int n)
{
#pragma omp parallel for
    for (int i = 0; i < n; ++i) c[i] = a[i] + b[i];
}

// SIMD by hand: a vector of bodies against one other at a time, one Newton step on the estimate.
static void nbody(const float *p, float *o, int n)
{
#ifdef LANES
#pragma omp parallel for
    for (int i = 0; i < n; i += LANES) {
        float t[3][LANES];
        for (int l = 0; l < LANES; ++l)
            for (int d = 0; d < 3; ++d) t[d][l] = p[4 * (i + l) + d];
        V x = LOAD(t[0]), y = LOAD(t[1]), z = LOAD(t[2]);
        V ax = SET(0), ay = ax, az = ax, e = SET(SOFTENING), half = SET(.5f), most = SET(1.5f);
        for (int j = 0; j < n; ++j) {
            V dx = SUB(SET(p[4 * j]), x), dy = SUB(SET(p[4 * j + 1]), y), dz = SUB(SET(p[4 * j + 2]), z);
            V r2 = FMA(dx, dx, FMA(dy, dy, FMA(dz, dz, e)));
            V v = RSQRT(r2);
            v = MUL(v, FNMA(MUL(half, r2), MUL(v, v), most));
            V s = MUL(SET(p[4 * j + 3]), MUL(v, MUL(v, v)));
            ax = FMA(dx, s, ax), ay = FMA(dy, s, ay), az = FMA(dz, s, az);
        }
        STORE(t[0], ax), STORE(t[1], ay), STORE(t[2], az);
        for (int l = 0; l < LANES; ++l) {
            for (int d = 0; d < 3; ++d) o[4 * (i + l) + d] = t[d][l];
            o[4 * (i + l) + 3] = 0;
        }
    }
#else
#pragma omp parallel for
    for (int i = 0; i < n; ++i) {
        float x = 0, y = 0, z = 0;
        for (int j = 0; j < n; ++j) {
            float dx = p[4 * j] - p[4 * i], dy = p[4 * j + 1] - p[4 * i + 1], dz = p[4 * j + 2] - p[4 * i + 2];
            float v = 1.f / sqrtf(dx * dx + dy * dy + dz * dz + SOFTENING), s = p[4 * j + 3] * v * v * v;
            x += dx * s, y += dy * s, z += dz * s;
        }
        o[4 * i] = x, o[4 * i + 1] = y, o[4 * i + 2] = z, o[4 * i + 3] = 0;
    }
#endif
}

static void matmul(const float *a, const float *b, float *c, int n)
{
    memset(c, 0, sizeof(float) * n * n);
#pragma omp parallel for
    for (int ib = 0; ib < n; ib += 64)
        for (int kb = 0; kb < n; kb += 64)
            for (int jb = 0; jb < n; jb += 256)
                for (int i = ib; i < ib + 64; ++i)
                    for (int k = kb; k < kb + 64; ++k) {
                        float x = a[i * n + k];
                        for (int j = jb; j < jb + 256; ++j) c[i * n + j] += x * b[k * n + j];
                    }
}

static void mandelbrot(int *out, int w, int h, int limit)
{
#pragma omp parallel for schedule(dynamic, 8)
    for (int y = 0; y < h; ++y)
        for (int x = 0; x < w; ++x) {
            float cr = -2.f + 3.f * x / w, ci = -1.5f + 3.f * y / h, zr = 0, zi = 0;
            int i = 0;
            while (i < limit && zr * zr + zi * zi < 4.f) {
                float t = zr * zr - zi * zi + cr;
                zi = 2.f * zr * zi + ci;
                zr = t;
                ++i;
            }
            out[y * w + x] = i;
        }
}

static float reduction(const float *a, int n)
{
    float sum = 0;
#pragma omp parallel for simd reduction(+ : sum)
    for (int i = 0; i < n; ++i) sum += a[i];
    return sum;
}

static void histogram(const unsigned char *in, unsigned *out, int n)
{
    memset(out, 0, 256 * sizeof *out);
#pragma omp parallel
    {
        unsigned bins[256] = {0};
#pragma omp for nowait
        for (int i = 0; i < n; ++i) ++bins[in[i]];
#pragma omp critical
        for (int i = 0; i < 256; ++i) out[i] += bins[i];
    }
}

static void stencil(const float *in, float *out, int n)
{
#pragma omp parallel for
    for (int y = 1; y < n - 1; ++y)
        for (int x = 1; x < n - 1; ++x)
            out[y * n + x] = .25f * (in[y * n + x - 1] + in[y * n + x + 1] + in[(y - 1) * n + x] + in[(y + 1) * n + x]);
}

// Too short for a second thread.
static void jacobi(float *restrict a, float *restrict b, int n, int steps)
{
    for (int t = 0; t < steps; ++t) {
        for (int i = 1; i < n - 1; ++i) b[i] = .33333f * (a[i - 1] + a[i] + a[i + 1]);
        for (int i = 1; i < n - 1; ++i) a[i] = b[i];
    }
}

int main(void)
{
    float *a = malloc(N * 4L), *b = malloc(N * 4L), *c = calloc(N, 4);
    unsigned char *bytes = malloc(N);
    unsigned bins[256];
    if (!a || !b || !c || !bytes) return 1;
    fill(a, b, bytes);
    char name[64];
    while (scanf("%63s", name) == 1) {
        double check = 0, begin = now_ns(), end;
        if (!strcmp(name, "vadd")) {
            vadd(a, b, c, N), end = now_ns(), check = sum_floats(c, N, 997);
        } else if (!strcmp(name, "nbody")) {
            nbody(a, c, BODIES), end = now_ns(), check = sum_floats(c, 4L * BODIES, 1);
        } else if (!strcmp(name, "matmul")) {
            matmul(a, b, c, ORDER), end = now_ns(), check = sum_floats(c, 1L * ORDER * ORDER, 1);
        } else if (!strcmp(name, "mandelbrot")) {
            mandelbrot((int *)c, IMAGE, IMAGE, LIMIT), end = now_ns();
            check = sum_ints((unsigned *)c, 1L * IMAGE * IMAGE);
        } else if (!strcmp(name, "reduction")) {
            check = fabs(reduction(a, N)), end = now_ns();
        } else if (!strcmp(name, "histogram")) {
            histogram(bytes, bins, N), end = now_ns(), check = sum_ints(bins, 256);
        } else if (!strcmp(name, "stencil")) {
            memset(c, 0, N * 4L), begin = now_ns();
            stencil(a, c, SIDE), end = now_ns(), check = sum_floats(c, N, 997);
        } else if (!strcmp(name, "jacobi")) {
            for (int i = 0; i < JACOBI; ++i) c[i] = (i * 7 % 101) / 50.f;
            begin = now_ns(), jacobi(c, c + JACOBI, JACOBI, 500), end = now_ns(), check = sum_floats(c, JACOBI, 1);
        } else if (more(name, a, b, c, &end, &check) || larger(name, a, b, c, &end, &check)) {
            begin = 0;
        } else {
            return 2;
        }
        printf("%.0f %.9e\n", end - begin, check);
        fflush(stdout);
    }
    return 0;
}
