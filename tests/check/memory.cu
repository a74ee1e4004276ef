// Seeded mistakes: addresses, and reads of memory that nobody wrote. See README.md for what the comments mean.
#include <cassert>
#define KERNEL extern "C" __global__ void

// expect: memcheck/out-of-bounds
KERNEL write_past_end(int *a, int *b, int *freed, int n) { a[n] = 1; } // <-

// expect: memcheck/out-of-bounds
KERNEL read_past_end(int *a, int *b, int *freed, int n) { a[0] = a[n + threadIdx.x]; } // <-

// expect: memcheck/out-of-bounds
KERNEL write_before_start(int *a, int *b, int *freed, int n) { a[-1 - (int)threadIdx.x] = 1; } // <-

// expect: memcheck/out-of-bounds
KERNEL read_in_red_zone(int *a, int *b, int *freed, int n) { a[0] = a[n + 20]; } // <-

// expect: memcheck/out-of-bounds
// launch: grid 4 block 128
KERNEL too_many_threads(int *a, int *b, int *freed, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    a[i] = i; // <-
}

// expect: memcheck/out-of-bounds
// launch: grid 1 block 1
KERNEL loop_one_too_far(int *a, int *b, int *freed, int n) {
    for (int i = 0; i <= n; i++)
        a[i] = i; // <-
}

// expect: memcheck/out-of-bounds
KERNEL atomic_past_end(int *a, int *b, int *freed, int n) { atomicAdd(a + n + 1, 1); } // <-

// expect: memcheck/out-of-bounds
KERNEL vector_past_end(int *a, int *b, int *freed, int n) { ((int4 *)a)[n / 4] = make_int4(1, 2, 3, 4); } // <-

// expect: memcheck/out-of-bounds
KERNEL byte_past_end(int *a, int *b, int *freed, int n) { ((char *)a)[4 * n] = 1; } // <-

// expect: memcheck/use-after-free
KERNEL read_freed(int *a, int *b, int *freed, int n) { a[threadIdx.x] = freed[threadIdx.x]; } // <-

// expect: memcheck/use-after-free
KERNEL write_freed(int *a, int *b, int *freed, int n) { freed[threadIdx.x] = 1; } // <-

// expect: memcheck/use-after-free
KERNEL atomic_on_freed(int *a, int *b, int *freed, int n) { atomicExch(freed + 8, 1); } // <-

// expect: memcheck/null-pointer
KERNEL read_null(int *a, int *b, int *freed, int n) { a[0] = *(volatile int *)(size_t)(n - 256); } // <-

// expect: memcheck/null-pointer
KERNEL write_null_member(int *a, int *b, int *freed, int n) { ((volatile int *)(size_t)(n - 256))[6] = 1; } // <-

// expect: memcheck/invalid-address
KERNEL wild_pointer(int *a, int *b, int *freed, int n) { *(int *)(0x123400000000ull + 4 * n) = 1; } // <-

// expect: memcheck/misaligned
KERNEL misaligned_read(int *a, int *b, int *freed, int n) { a[0] = *(int *)((char *)a + 6); } // <-

// expect: memcheck/misaligned
KERNEL misaligned_vector(int *a, int *b, int *freed, int n) { *(int4 *)(a + 1) = make_int4(1, 2, 3, 4); } // <-

// expect: memcheck/misaligned
KERNEL misaligned_double(int *a, int *b, int *freed, int n) { ((double *)(a + 1))[threadIdx.x] = 1.0; } // <-

// expect: memcheck/out-of-bounds
KERNEL shared_past_end(int *a, int *b, int *freed, int n) {
    __shared__ volatile int s[64];
    s[threadIdx.x + n] = 1; // <-
}

// expect: memcheck/out-of-bounds
// launch: grid 1 block 64 shared 128
KERNEL dynamic_shared_too_small(int *a, int *b, int *freed, int n) {
    extern __shared__ volatile int s[];
    s[threadIdx.x] = 1; // <-
}

// expect: memcheck/out-of-bounds
KERNEL local_past_end(int *a, int *b, int *freed, int n) {
    volatile int own[16];
    for (int i = 0; i < 16; i++) own[i] = i;
    own[n * n] = 5; // <-
    a[threadIdx.x] = own[n & 15];
}

// expect: memcheck/out-of-bounds
// launch: grid 1 block 1
KERNEL heap_past_end(int *a, int *b, int *freed, int n) {
    int *p = (int *)malloc(16);
    p[4] = n; // <-
    free(p);
}

// expect: memcheck/out-of-bounds
// launch: grid 1 block 1
KERNEL heap_after_free(int *a, int *b, int *freed, int n) {
    volatile int *p = (volatile int *)malloc(16);
    p[0] = n;
    free((void *)p);
    p[1] = n; // <-
}

// expect: memcheck/assert
KERNEL failed_assertion(int *a, int *b, int *freed, int n) { assert(threadIdx.x != 5); }

// expect: memcheck/trap
KERNEL trapped(int *a, int *b, int *freed, int n) {
    if (threadIdx.x == 7) __trap(); // <-
}

// expect: initcheck/uninitialized-read
KERNEL read_unwritten(int *a, int *b, int *freed, int n) { a[threadIdx.x] = b[threadIdx.x]; } // <-

// expect: initcheck/uninitialized-read
KERNEL add_to_unwritten(int *a, int *b, int *freed, int n) { b[threadIdx.x] += 1; } // <-

// expect: initcheck/uninitialized-read
KERNEL count_in_unwritten(int *a, int *b, int *freed, int n) { atomicAdd(b, 1); } // <-

// expect: initcheck/uninitialized-read
KERNEL half_written(int *a, int *b, int *freed, int n) {
    if (threadIdx.x < 32) b[threadIdx.x] = 1;
    __syncthreads();
    a[threadIdx.x] = b[threadIdx.x]; // <-
}

// expect: initcheck/uninitialized-read
KERNEL unwritten_vector(int *a, int *b, int *freed, int n) {
    int4 v = ((int4 *)b)[threadIdx.x]; // <-
    a[threadIdx.x] = v.x + v.y;
}

// expect: initcheck/uninitialized-read
KERNEL unwritten_shared(int *a, int *b, int *freed, int n) {
    __shared__ volatile int s[64];
    a[threadIdx.x] = s[threadIdx.x]; // <-
}

// expect: initcheck/uninitialized-read
KERNEL half_written_shared(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    if (threadIdx.x < 32) s[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    a[threadIdx.x] = s[threadIdx.x]; // <-
}

// expect: initcheck/uninitialized-read
// launch: grid 1 block 64 shared 512
KERNEL unwritten_dynamic_shared(int *a, int *b, int *freed, int n) {
    extern __shared__ int d[];
    d[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    a[threadIdx.x] = d[threadIdx.x + 64]; // <-
}

// expect: initcheck/uninitialized-read
KERNEL sum_begins_nowhere(int *a, int *b, int *freed, int n) {
    __shared__ int sum;
    atomicAdd(&sum, a[threadIdx.x]); // <-
    __syncthreads();
    if (threadIdx.x == 0) a[0] = sum;
}

// expect: none
KERNEL right_bounds(int *a, int *b, int *freed, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] = i;
}

// expect: none
KERNEL right_heap(int *a, int *b, int *freed, int n) {
    int *p = (int *)malloc(16);
    p[3] = threadIdx.x;
    a[threadIdx.x] = p[3];
    free(p);
}

// expect: none
KERNEL right_structures(int *a, int *b, int *freed, int n) {
    struct Gap { char c; int i; };
    Gap *g = (Gap *)b;
    g[threadIdx.x].c = 1;
    g[threadIdx.x].i = 2;
    Gap copy = g[threadIdx.x];
    a[threadIdx.x] = copy.c + copy.i;
}

// expect: none
KERNEL right_sum(int *a, int *b, int *freed, int n) {
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, a[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) a[0] = sum;
}
