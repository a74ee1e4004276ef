// Seeded mistakes: accesses that nothing orders. See README.md for what the comments mean.
#define KERNEL extern "C" __global__ void

// expect: racecheck/read-after-write
KERNEL no_barrier(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    s[threadIdx.x] = a[threadIdx.x]; // <-
    a[threadIdx.x] = s[63 - threadIdx.x]; // <-
}

// expect: racecheck/write-after-read
KERNEL no_second_barrier(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    for (int i = 0; i < 3; i++) {
        s[threadIdx.x] = a[threadIdx.x] + i; // <-
        __syncthreads();
        a[threadIdx.x] = s[63 - threadIdx.x]; // <-
    }
}

// expect: racecheck/write-after-write
KERNEL all_write_one(int *a, int *b, int *freed, int n) {
    __shared__ int s;
    s = threadIdx.x; // <-
    __syncthreads();
    a[threadIdx.x] = s;
}

// expect: racecheck/read-after-write
KERNEL shared_counter(int *a, int *b, int *freed, int n) {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    count++; // <-
    __syncthreads();
    if (threadIdx.x == 0) a[0] = count;
}

// expect: racecheck/*
KERNEL reduction_without_barrier(int *a, int *b, int *freed, int n) {
    __shared__ int s[128];
    s[threadIdx.x] = a[threadIdx.x];
    s[threadIdx.x + 64] = a[threadIdx.x];
    __syncthreads();
    for (int step = 64; step > 0; step /= 2)
        if (threadIdx.x < step) s[threadIdx.x] += s[threadIdx.x + step]; // <-
    if (threadIdx.x == 0) a[0] = s[0];
}

// expect: racecheck/*
KERNEL scan_in_place(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    s[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    for (int step = 1; step < 64; step *= 2) {
        int v = threadIdx.x >= step ? s[threadIdx.x - step] : 0; // <-
        s[threadIdx.x] += v; // <-
        __syncthreads();
    }
    a[threadIdx.x] = s[threadIdx.x];
}

// expect: racecheck/read-after-write
KERNEL stencil_edge(int *a, int *b, int *freed, int n) {
    __shared__ int s[66];
    s[threadIdx.x + 1] = a[threadIdx.x];
    if (threadIdx.x == 0) s[0] = 0;
    __syncthreads();
    if (threadIdx.x == 0) s[65] = 7; // <-
    a[threadIdx.x] = s[threadIdx.x] + s[threadIdx.x + 2]; // <-
}

// expect: racecheck/read-after-write
KERNEL warp_barrier_for_block(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    s[threadIdx.x] = a[threadIdx.x]; // <-
    __syncwarp();
    a[threadIdx.x] = s[63 - threadIdx.x]; // <-
}

// expect: racecheck/read-after-write
KERNEL lanes_without_syncwarp(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    s[threadIdx.x] = a[threadIdx.x]; // <-
    a[threadIdx.x] = s[threadIdx.x ^ 1]; // <-
}

// expect: racecheck/missing-syncwarp
KERNEL volatile_lanes(int *a, int *b, int *freed, int n) {
    __shared__ volatile int s[96];
    s[threadIdx.x] = a[threadIdx.x];
    s[threadIdx.x + 32] = 0;
    __syncthreads();
    if (threadIdx.x < 16) {
        s[threadIdx.x] = s[threadIdx.x] + s[threadIdx.x + 8]; // <-
        s[threadIdx.x] = s[threadIdx.x] + s[threadIdx.x + 4]; // <-
    }
}

// expect: racecheck/read-after-write
KERNEL syncwarp_of_others(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    s[threadIdx.x] = a[threadIdx.x]; // <-
    if (threadIdx.x % 32 < 16) __syncwarp(0xffff);
    else __syncwarp(0xffff0000);
    a[threadIdx.x] = s[threadIdx.x ^ 16]; // <-
}

// expect: racecheck/read-after-write
KERNEL two_named_barriers(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    s[threadIdx.x] = a[threadIdx.x]; // <-
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 32;" ::: "memory");
    else asm volatile("bar.sync 2, 32;" ::: "memory");
    a[threadIdx.x] = s[63 - threadIdx.x]; // <-
}

// expect: racecheck/write-after-read
KERNEL producer_overtakes(int *a, int *b, int *freed, int n) {
    __shared__ int s[32];
    for (int i = 0; i < 3; i++) {
        if (threadIdx.x < 32) {
            s[threadIdx.x] = i; // <-
            asm volatile("bar.arrive 1, 64;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            a[threadIdx.x] = s[threadIdx.x - 32]; // <-
        }
    }
}

// expect: racecheck/*
KERNEL bytes_of_a_word(int *a, int *b, int *freed, int n) {
    __shared__ unsigned char s[64];
    s[threadIdx.x] = threadIdx.x; // <-
    s[(threadIdx.x + 1) % 64] = threadIdx.x; // <-
    __syncthreads();
    a[threadIdx.x] = s[threadIdx.x];
}

// expect: racecheck/read-after-write
KERNEL atomic_then_plain_read(int *a, int *b, int *freed, int n) {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    atomicAdd(&count, 1); // <-
    a[threadIdx.x] = count; // <-
}

// expect: racecheck/*
KERNEL histogram_without_atomics(int *a, int *b, int *freed, int n) {
    __shared__ int bins[4];
    if (threadIdx.x < 4) bins[threadIdx.x] = 0;
    __syncthreads();
    bins[threadIdx.x % 4] += 1; // <-
    __syncthreads();
    if (threadIdx.x < 4) a[threadIdx.x] = bins[threadIdx.x];
}

// expect: racecheck/read-after-write
KERNEL barrier_in_one_branch(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    s[threadIdx.x] = a[threadIdx.x]; // <-
    if (n > 1000) __syncthreads();
    a[threadIdx.x] = s[(threadIdx.x + 32) % 64]; // <-
}

// expect: racecheck/write-after-read
KERNEL double_buffer_too_short(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    s[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    int left = s[(threadIdx.x + 63) % 64]; // <-
    s[threadIdx.x] = left; // <-
    __syncthreads();
    a[threadIdx.x] = s[threadIdx.x];
}

// expect: racecheck/write-after-write
// launch: grid 2 block 32
KERNEL blocks_write_one(int *a, int *b, int *freed, int n) { a[threadIdx.x] = blockIdx.x + 500; } // <-

// expect: racecheck/*
// launch: grid 4 block 64
KERNEL stencil_in_place(int *a, int *b, int *freed, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > 0 && i < n - 1) a[i] = a[i - 1] + a[i + 1]; // <-
}

// expect: racecheck/read-after-write
// launch: grid 2 block 32
KERNEL global_counter(int *a, int *b, int *freed, int n) { a[0] = a[0] + 1; } // <-

// expect: racecheck/read-after-write
// launch: grid 2 block 32
KERNEL reads_other_block(int *a, int *b, int *freed, int n) {
    a[blockIdx.x * 32 + threadIdx.x] = blockIdx.x; // <-
    __syncthreads();
    if (blockIdx.x == 1) a[128 + threadIdx.x] = a[threadIdx.x]; // <-
}

// expect: racecheck/read-after-write
// launch: grid 2 block 32
KERNEL flag_without_fence(int *a, int *b, int *freed, int n) {
    if (blockIdx.x == 0) {
        a[threadIdx.x] = 7; // <-
        __syncthreads();
        if (threadIdx.x == 0) atomicExch(a + 200, -1);
    } else {
        if (threadIdx.x == 0) while (atomicAdd(a + 200, 0) != -1) {}
        __syncthreads();
        a[64 + threadIdx.x] = a[threadIdx.x]; // <-
    }
}

// expect: racecheck/*
// launch: grid 2 block 32
KERNEL plain_flag(int *a, int *b, int *freed, int n) {
    if (blockIdx.x == 0 && threadIdx.x == 0) a[200] = -1; // <-
    if (blockIdx.x == 1 && threadIdx.x == 0) a[64] = a[200]; // <-
}

// expect: racecheck/read-after-write
// launch: grid 4 block 32
KERNEL last_block_without_fence(int *a, int *b, int *freed, int n) {
    __shared__ bool last;
    a[blockIdx.x * 32 + threadIdx.x] = 3; // <-
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(a + 250, 1) == 250 + 3;
    __syncthreads();
    if (last) a[200 + threadIdx.x] = a[threadIdx.x] + a[threadIdx.x + 32]; // <-
}

// expect: racecheck/write-after-write
KERNEL threads_of_block_write_global(int *a, int *b, int *freed, int n) { a[threadIdx.x / 2] = threadIdx.x + 500; } // <-

// expect: none
KERNEL right_tile(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    for (int i = 0; i < 3; i++) {
        s[threadIdx.x] = a[threadIdx.x] + i;
        __syncthreads();
        a[threadIdx.x] = s[63 - threadIdx.x];
        __syncthreads();
    }
}

// expect: none
KERNEL right_same_value(int *a, int *b, int *freed, int n) {
    __shared__ int s;
    s = 1;
    __syncthreads();
    a[threadIdx.x] = s;
}

// expect: none
KERNEL right_lanes(int *a, int *b, int *freed, int n) {
    __shared__ int s[64];
    s[threadIdx.x] = a[threadIdx.x];
    __syncwarp();
    int v = s[threadIdx.x ^ 1];
    __syncwarp();
    s[threadIdx.x] = v;
}

// expect: none
KERNEL right_volatile_lanes(int *a, int *b, int *freed, int n) {
    __shared__ volatile int s[96];
    s[threadIdx.x] = a[threadIdx.x];
    s[threadIdx.x + 32] = 0;
    __syncthreads();
    int v = s[threadIdx.x];
    for (int step = 16; step > 0; step /= 2) {
        if (threadIdx.x < 32) v += s[threadIdx.x + step];
        __syncwarp();
        if (threadIdx.x < 32) s[threadIdx.x] = v;
        __syncwarp();
    }
}

// expect: none
KERNEL right_producer(int *a, int *b, int *freed, int n) {
    __shared__ int s[32];
    for (int i = 0; i < 3; i++) {
        if (threadIdx.x < 32) {
            s[threadIdx.x] = i;
            asm volatile("bar.arrive 1, 64;" ::: "memory");
            asm volatile("bar.sync 2, 64;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            a[threadIdx.x] = s[threadIdx.x - 32];
            asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    }
}

// expect: none
// launch: grid 2 block 32
KERNEL right_flag(int *a, int *b, int *freed, int n) {
    if (blockIdx.x == 0) {
        a[threadIdx.x] = 7;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicExch(a + 200, -1);
        }
    } else {
        if (threadIdx.x == 0) while (atomicAdd(a + 200, 0) != -1) {}
        __syncthreads();
        a[64 + threadIdx.x] = a[threadIdx.x];
    }
}

// expect: none
// launch: grid 4 block 32
KERNEL right_last_block(int *a, int *b, int *freed, int n) {
    __shared__ bool last;
    a[blockIdx.x * 32 + threadIdx.x] = 3;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(a + 250, 1) == 250 + 3;
    }
    __syncthreads();
    if (last) a[200 + threadIdx.x] = a[threadIdx.x] + a[threadIdx.x + 32];
}

// expect: none
// launch: grid 4 block 64
KERNEL right_histogram(int *a, int *b, int *freed, int n) {
    __shared__ int bins[4];
    if (threadIdx.x < 4) bins[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(bins + threadIdx.x % 4, 1);
    __syncthreads();
    if (threadIdx.x < 4) atomicAdd(a + threadIdx.x, bins[threadIdx.x]);
}

// expect: racecheck/missing-syncwarp
KERNEL volatile_lanes_of_global_memory(int *a, int *b, int *freed, int n) {
    volatile int *sums = a;
    if (threadIdx.x < 16) {
        sums[threadIdx.x] += sums[threadIdx.x + 8]; // <-
        sums[threadIdx.x] += sums[threadIdx.x + 4]; // <-
    }
}

// expect: none
KERNEL right_turns_in_global_memory(int *a, int *b, int *freed, int n) {
    volatile int *turn = a;
    while (*turn != threadIdx.x) {}
    *turn = threadIdx.x + 1;
}

// expect: none
// launch: grid 4 block 32
KERNEL right_counter_that_is_reset(int *a, int *b, int *freed, int n) {
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(a + 250, 1) == 250 + 3) a[250] = 250;
    }
}

// expect: racecheck/write-after-write
// launch: grid 4 block 32
KERNEL counter_reset_by_the_first(int *a, int *b, int *freed, int n) {
    if (threadIdx.x == 0) {
        __threadfence();
        if (atomicAdd(a + 250, 1) == 250) a[250] = 250; // <-
    }
}
