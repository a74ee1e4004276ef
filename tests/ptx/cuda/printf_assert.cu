// Output, assertions, traps.
#include <cassert>
#include <cstdio>
struct Pair { short a; double b; };
extern "C" __global__ void say(int n, const char *name) {
    printf("block %d thread %d of %s: %f %lld %c %%\n", blockIdx.x, threadIdx.x, name, 1.5 * n, (long long)n << 33, 'x');
    if (n < 0) printf("plain\n");
}
extern "C" __global__ void check(const int *data, int n) {
    int i = threadIdx.x;
    assert(i < n && "index in range");
    if (data[i] == 13) __trap();
    if (data[i] == 14) __brkpt();
}
extern "C" __global__ void many(Pair p, float f) { printf("%hd %g %g %p %s %u %x %5.2f\n", p.a, p.b, f, &p, "str", 7u, 255, 3.14); }
