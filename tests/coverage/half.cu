// What `mica cov` says of this file is compared with half.lcov by `cargo test -p mica-backend-software --test coverage`, and,
// built as a program, by `cargo xtask suite coverage`.

// Used by two kernels, in one of them after it was called.
static __device__ __noinline__ int twice(int x) {
    if (x > 1000) {
        return -1;
    }
    return 2 * x;
}

static __device__ __forceinline__ int thrice(int x) {
    return 3 * x;
}

extern "C" __global__ void half(int *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (n > 5) {
        out[i] = twice(i);
    } else {
        out[i] = thrice(i) - n;
    }
}

extern "C" __global__ void also(int *out, int n) {
    for (int i = 0; i < n; i++) {
        out[threadIdx.x] += twice(i);
    }
}

extern "C" __global__ void never(int *out, int n) {
    out[threadIdx.x] = n;
}

template <typename T>
__global__ void shaped(T *out, int n) {
    if (sizeof(T) > 4) {
        out[threadIdx.x] = T(n) / 3;
    }
    if (n < 0) {
        out[threadIdx.x] = T(1);
    }
    out[threadIdx.x] += T(n);
}

template __global__ void shaped<int>(int *, int);
template __global__ void shaped<double>(double *, int);

#ifndef KERNELS_ONLY
#include <cstdio>
#include <cstdlib>
#include <sys/wait.h>
#include <unistd.h>

// Runs `half` with the number of its argument; with `children`, starts itself again for several numbers.
int main(int argc, char **argv) {
    if (argc > 1 && atoi(argv[1]) < 0) {
        for (const char *n : {"3", "9", "9"}) {
            pid_t child = fork();
            if (child == 0) {
                execl(argv[0], argv[0], n, nullptr);
                _exit(127);
            }
            waitpid(child, nullptr, 0);
        }
        return 0;
    }
    int n = argc > 1 ? atoi(argv[1]) : 9;
    int *out;
    cudaMalloc(&out, 4096);
    cudaMemset(out, 0, 4096);
    half<<<2, 32>>>(out, n);
    also<<<1, 32>>>(out, n);
    also<<<1, 32>>>(out, n);
    shaped<int><<<1, 32>>>(out, n);
    int code = cudaDeviceSynchronize();
    printf("%d\n", code);
    cudaFree(out);
    return code;
}
#endif
