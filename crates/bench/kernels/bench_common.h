// What both comparisons of `mica bench software` share: the data, and one line per question:
// a name on standard input, nanoseconds and a checksum on standard output.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N = 1 << 24, BODIES = 16384, ORDER = 1024, SIDE = 4096, IMAGE = 512, LIMIT = 500, JACOBI = 4096 };
#define SOFTENING 0.01f

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void fill(float *a, float *b, unsigned char *bytes)
{
    for (int i = 0; i < N; ++i) {
        a[i] = (i * 7LL % 101) / 50.f;
        b[i] = (i * 13LL % 103) / 50.f - 1;
        bytes[i] = i * 2654435761u >> 24;
    }
}

static double sum_floats(const float *p, long count, long step)
{
    double sum = 0;
    for (long i = 0; i < count; i += step) sum += fabs(p[i]);
    return sum;
}

static double sum_ints(const unsigned *p, long count)
{
    double sum = 0;
    for (long i = 0; i < count; ++i) sum += (double)p[i] * (i % 97 + 1);
    return sum;
}
