// The kernels of larger.cu as a C programmer would write them; products of floats are those of bench_gcc.c.
static void matmul(const float *a, const float *b, float *c, int n);

// Processors have no products of halves: both are widened once.
static void hgemm(const float *a, const float *b, float *c, float *room, int n)
{
    _Float16 *left = (_Float16 *)(room + 2 * n * n), *right = left + n * n;
#pragma omp parallel for
    for (int i = 0; i < n * n; ++i) left[i] = a[i], right[i] = b[i];
#pragma omp parallel for
    for (int i = 0; i < n * n; ++i) room[i] = left[i], room[n * n + i] = right[i];
    matmul(room, room + n * n, c, n);
}

// Each thread counts the digits of its part, and puts its keys behind those of the threads before it.
static void radix_sort(unsigned *keys, unsigned *room, int n)
{
    static unsigned counts[256][256];
#pragma omp parallel
    {
        int threads = omp_get_num_threads(), me = omp_get_thread_num();
        int from = (long)n * me / threads, to = (long)n * (me + 1) / threads;
        for (unsigned i = from; i < (unsigned)to; ++i) keys[i] = (i ^ i >> 7) * 2654435761u;
        for (int pass = 0; pass < 4; ++pass) {
            const unsigned *in = pass % 2 ? room : keys;
            unsigned *out = pass % 2 ? keys : room, next[256] = {0}, sum = 0;
#pragma omp barrier
            for (int i = from; i < to; ++i) ++next[in[i] >> 8 * pass & 255];
            memcpy(counts[me], next, sizeof next);
#pragma omp barrier
            for (int d = 0; d < 256; ++d)
                for (int t = 0; t < threads; ++t) {
                    if (t == me) next[d] = sum;
                    sum += counts[t][d];
                }
            for (int i = from; i < to; ++i) out[next[in[i] >> 8 * pass & 255]++] = in[i];
        }
    }
}

static void spmv(const float *a, const float *b, float *c, int *begin, int *columns, int n, int times)
{
#pragma omp parallel for
    for (int row = 0; row < n; ++row) {
        int at = row / 32 * 752;
        for (int r = row & ~31; r < row; ++r) at += 8 + r * 7 % 32;
        begin[row] = at;
        for (int i = 0; i < 8 + row * 7 % 32; ++i) columns[at + i] = (unsigned)(row * 31 + i * i * 977) % n;
    }
    begin[n] = n / 32 * 752;
    for (int t = 0; t < times; ++t)
#pragma omp parallel for
        for (int row = 0; row < n; ++row) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int i = begin[row]; i < begin[row + 1]; ++i) sum += a[i] * b[columns[i]];
            c[row] += sum;
        }
}

// Real and imaginary parts apart, so that neighbours share a vector; passes of radix 4 from one buffer to another.
static void fft_pass(const float *xr, const float *xi, float *yr, float *yi, const float *pr, const float *pi, int done)
{
    for (int base = 0; base < 256; base += done)
#pragma omp simd
        for (int k = 0; k < done; ++k) {
            int j = base + k, step = k * (256 / done), to = 4 * base + k;
            float ar = xr[j], ai = xi[j], br, bi, cr, ci, dr, di;
            br = xr[j + 256] * pr[step] - xi[j + 256] * pi[step], bi = xr[j + 256] * pi[step] + xi[j + 256] * pr[step];
            cr = xr[j + 512] * pr[2 * step] - xi[j + 512] * pi[2 * step];
            ci = xr[j + 512] * pi[2 * step] + xi[j + 512] * pr[2 * step];
            dr = xr[j + 768] * pr[3 * step] - xi[j + 768] * pi[3 * step];
            di = xr[j + 768] * pi[3 * step] + xi[j + 768] * pr[3 * step];
            float er = ar + cr, ei = ai + ci, fr = ar - cr, fi = ai - ci;
            float gr = br + dr, gi = bi + di, hr = br - dr, hi = bi - di;
            yr[to] = er + gr, yi[to] = ei + gi;
            yr[to + done] = fr + hi, yi[to + done] = fi - hr;
            yr[to + 2 * done] = er - gr, yi[to + 2 * done] = ei - gi;
            yr[to + 3 * done] = fr - hi, yi[to + 3 * done] = fi + hr;
        }
}
static void fft(const float *a, float *c, int batch)
{
    float pr[1024], pi[1024];
    for (int i = 0; i < 1024; ++i) pr[i] = cosf(i * -6.2831853f / 1024), pi[i] = sinf(i * -6.2831853f / 1024);
#pragma omp parallel for
    for (int f = 0; f < batch; ++f) {
        float xr[1024], xi[1024], yr[1024], yi[1024];
        for (int i = 0; i < 1024; ++i) xr[i] = a[2048L * f + 2 * i], xi[i] = a[2048L * f + 2 * i + 1];
        fft_pass(xr, xi, yr, yi, pr, pi, 1);
        fft_pass(yr, yi, xr, xi, pr, pi, 4);
        fft_pass(xr, xi, yr, yi, pr, pi, 16);
        fft_pass(yr, yi, xr, xi, pr, pi, 64);
        fft_pass(xr, xi, yr, yi, pr, pi, 256);
        for (int i = 0; i < 1024; ++i) c[2048L * f + 2 * i] = yr[i], c[2048L * f + 2 * i + 1] = yi[i];
    }
}

static void pipeline(const float *a, const float *b, float *c, int n)
{
#pragma omp parallel for
    for (int i = 0; i < n; ++i) c[i] = ((b[0] * a[i] + b[1]) * a[i] + b[2]) * a[i] + b[3];
}

// The size of each, as in kernels.rs: the time of a name, with zeros in the output before.
static int larger(const char *name, const float *a, const float *b, float *c, double *ns, double *check)
{
    memset(c, 0, N * 4L);
    double begin = now_ns();
    long count = 1L << 20, words = 0;
    if (!strcmp(name, "sgemm")) matmul(a, b, c, 1024);
    else if (!strcmp(name, "hgemm")) hgemm(a, b, c, c + 512 * 512, 512), count = 512 * 512;
    else if (!strcmp(name, "radix_sort")) radix_sort((unsigned *)c, (unsigned *)c + (1 << 20), 1 << 20), words = count;
    else if (!strcmp(name, "spmv")) spmv(a, b, c, (int *)c + (1 << 16), (int *)c + (1 << 18), 1 << 16, 8), count = 1 << 16;
    else if (!strcmp(name, "fft")) fft(a, c, 4096), count = 1 << 23;
    else if (!strcmp(name, "pipeline")) pipeline(a, b, c, 1 << 22), count = 1 << 22;
    else return 0;
    *ns = now_ns() - begin;
    *check = words ? sum_ints((unsigned *)c, words) : sum_floats(c, count, 1);
    return 1;
}
