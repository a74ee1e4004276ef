// Attention as a plain loop over OpenMP threads: what a program without a library does. Arguments: heads, rows, size,
// causal. Prints seconds of the median of five runs and a sum of the result.
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    if (argc < 5) return 2;
    long heads = atol(argv[1]), rows = atol(argv[2]), size = atol(argv[3]), causal = atol(argv[4]), count = heads * rows * size;
    float *q = malloc(count * 4), *k = malloc(count * 4), *v = malloc(count * 4), *o = malloc(count * 4);
    for (long i = 0; i < count; ++i) q[i] = (i * 7 % 101) / 101.f - .5f, k[i] = (i * 13 % 103) / 103.f - .5f, v[i] = (i * 5 % 97) / 97.f - .5f;
    double times[6];
    for (int round = 0; round < 6; ++round) {
        double start = omp_get_wtime();
#pragma omp parallel for collapse(2) schedule(dynamic, 16)
        for (long h = 0; h < heads; ++h)
            for (long i = 0; i < rows; ++i) {
                long keys = causal ? i + 1 : rows;
                float *s = malloc(keys * 4), most = -INFINITY, sum = 0, scale = 1 / sqrtf(size);
                const float *x = q + (h * rows + i) * size;
                for (long j = 0; j < keys; ++j) {
                    float dot = 0;
                    for (long d = 0; d < size; ++d) dot += x[d] * k[(h * rows + j) * size + d];
                    s[j] = dot * scale;
                    if (s[j] > most) most = s[j];
                }
                for (long j = 0; j < keys; ++j) s[j] = expf(s[j] - most), sum += s[j];
                float *out = o + (h * rows + i) * size;
                for (long d = 0; d < size; ++d) out[d] = 0;
                for (long j = 0; j < keys; ++j)
                    for (long d = 0; d < size; ++d) out[d] += s[j] / sum * v[(h * rows + j) * size + d];
                free(s);
            }
        times[round] = omp_get_wtime() - start;
    }
    for (int i = 1; i < 6; ++i)
        for (int j = i + 1; j < 6; ++j)
            if (times[j] < times[i]) { double t = times[i]; times[i] = times[j]; times[j] = t; }
    double sum = 0;
    for (long i = 0; i < count; ++i) sum += o[i];
    printf("%.9f %.9f\n", times[3], sum);
    return 0;
}
