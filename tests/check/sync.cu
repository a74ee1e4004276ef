// Seeded mistakes: barriers and masks. See README.md for what the comments mean.
#define KERNEL extern "C" __global__ void

// expect: synccheck/divergent-barrier
KERNEL barrier_in_both_branches(int *a, int *b, int *freed, int n) {
    if (threadIdx.x % 2) {
        a[threadIdx.x] = 1;
        __syncthreads(); // <-
    } else {
        a[threadIdx.x] = 2;
        __syncthreads(); // <-
    }
}

// expect: synccheck/*
KERNEL barrier_in_half_a_warp(int *a, int *b, int *freed, int n) {
    if (threadIdx.x % 32 < 16) __syncthreads(); // <-
    a[threadIdx.x] = 1;
    __syncthreads(); // <-
    a[threadIdx.x] = 2;
}

// expect: synccheck/*
KERNEL loops_of_different_length(int *a, int *b, int *freed, int n) {
    for (int i = 0; i < 1 + (int)(threadIdx.x % 2); i++) {
        a[threadIdx.x] += i;
        __syncthreads(); // <-
    }
    a[threadIdx.x] += 1;
    asm volatile("bar.sync 1, 64;" ::: "memory"); // <-
}

// expect: synccheck/never-completes
KERNEL barrier_of_too_many(int *a, int *b, int *freed, int n) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory"); // <-
    else asm volatile("bar.sync 2, 64;" ::: "memory"); // <-
}

// expect: synccheck/not-in-mask
KERNEL syncwarp_without_self(int *a, int *b, int *freed, int n) {
    if (threadIdx.x % 32 == 5) __syncwarp(1 << 6 | (n & 1)); // <-
    else if (threadIdx.x % 32 == 6) __syncwarp(1 << 6 | (n & 1));
}

// expect: synccheck/not-in-mask
KERNEL shuffle_without_self(int *a, int *b, int *freed, int n) {
    unsigned mask = threadIdx.x % 32 < 16 ? 0xffffu << (n >> 8 << 4) : 0xffffu << (n >> 8 << 4);
    a[threadIdx.x] = __shfl_sync(mask, a[threadIdx.x], 20); // <-
}

// expect: synccheck/*
KERNEL shuffle_from_absent(int *a, int *b, int *freed, int n) {
    int v = a[threadIdx.x];
    if (threadIdx.x % 32 < 16) v += __shfl_down_sync(0xffff, v, 8); // <-
    a[threadIdx.x] = v;
}

// expect: synccheck/never-completes
KERNEL masks_disagree(int *a, int *b, int *freed, int n) {
    unsigned mask = threadIdx.x % 2 ? 0xffffffffu : 0x7fffffffu + (n >> 9);
    a[threadIdx.x] = __ballot_sync(mask, a[threadIdx.x] & 1); // <-
    __syncthreads(); // <-
}

// expect: synccheck/never-completes
KERNEL others_wait_elsewhere(int *a, int *b, int *freed, int n) {
    int v = a[threadIdx.x];
    if (threadIdx.x % 32 < 16) v = __shfl_xor_sync(0xffffffff, v, 16); // <-
    __syncthreads(); // <-
    a[threadIdx.x] = v;
}

// expect: synccheck/never-completes
KERNEL syncwarp_and_barrier(int *a, int *b, int *freed, int n) {
    if (threadIdx.x % 32 < 8) __syncwarp(0xffffffff); // <-
    else __syncthreads(); // <-
}

// expect: none
KERNEL right_early_exit(int *a, int *b, int *freed, int n) {
    if (threadIdx.x >= 32) return;
    __syncthreads();
    a[threadIdx.x] = 1;
}

// expect: none
KERNEL right_masks(int *a, int *b, int *freed, int n) {
    int v = a[threadIdx.x];
    if (threadIdx.x % 32 < 16) {
        for (int step = 8; step > 0; step /= 2) v += __shfl_down_sync(0xffff, v, step, 16);
        __syncwarp(0xffff);
    }
    unsigned m = __ballot_sync(0xffffffff, v & 1);
    __syncthreads();
    a[threadIdx.x] = v + m;
}

// expect: none
KERNEL right_named(int *a, int *b, int *freed, int n) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 32;" ::: "memory");
    else asm volatile("bar.sync 2, 32;" ::: "memory");
    __syncthreads();
    a[threadIdx.x] = 1;
}
