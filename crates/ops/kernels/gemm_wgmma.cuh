// Tiles of products on Hopper: two warpgroups multiply what a third one has the copy unit fetch. Where the factors come from is
// said by a `Source`: the product of two matrices, or a convolution.
//
// A cluster of two blocks computes 256 rows: each block fetches its own 128 rows of a and one half of the columns of b, for both.
// Where there are few rows, the two blocks compute different columns: each fetches its own columns of b and one half of the rows
// of a, for both. Blocks stay and go on to the next tile, so that factors of the next tile are fetched while a tile is stored.
//
// Shared memory has stages of 128 bytes of k:
//
//   stage 0: a [BM rows][128 bytes], b [BN columns][128 bytes] or [BN / 64][64 of k][64 columns]
//   …
//   sums of each multiplying warpgroup on their way out, then barriers: `full` and `empty` of each stage
#pragma once
#include "wgmma.cuh"

#if defined(TYPE_I8)
typedef int32_t Acc;
constexpr int RESULT = I32;
#elif defined(TYPE_F16)
typedef float Acc;
constexpr int RESULT = F16;
__device__ __forceinline__ uint32_t pair_of(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
#else
typedef float Acc;
constexpr int RESULT = BF16;
__device__ __forceinline__ uint32_t pair_of(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
#endif

// Whether sums are stored as they are, 16 bytes of a row at a time.
__device__ __forceinline__ bool only_stores(const Epilogue &e)
{
    constexpr int SIZE = RESULT == I32 ? 4 : 2;
    bool plain = !e.c && !e.bias && !e.residual && e.activation == NONE && e.alpha == 1.f && e.scale == 1.f && e.type == RESULT;
    return plain && e.d_col == 1 && ((uint64_t)e.d | e.d_row * SIZE | e.d_batch * SIZE) % 16 == 0;
}

// GROUPS warpgroups multiply, 64 rows each; THIN: the blocks of a cluster share rows and not columns.
template <int GROUPS, int BN, int STAGES, bool TURNED, bool THIN> struct Tile {
    static constexpr int BM = 64 * GROUPS, BK = 128 / sizeof(T), STEPS = 4, REGISTERS = BN / 2;
    // Rows and columns of a cluster.
    static constexpr int CM = THIN ? BM : 2 * BM, CN = THIN ? 2 * BN : BN;
    static constexpr int A_BYTES = BM * 128, B_BYTES = BN * 128, STAGE_BYTES = A_BYTES + B_BYTES;
    static constexpr int CHUNK = 64, PITCH = CHUNK + 4, SUMS_BYTES = 64 * PITCH * 4;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + GROUPS * SUMS_BYTES + STAGES * 16;

    struct Place {
        int m0, n0, batch;
    };
    // Clusters that run at the same time share rows of a and columns of b: groups of eight rows of tiles, column by column.
    static __device__ __forceinline__ Place place(const Factors &f, int tile)
    {
        int tiles_m = (f.m + CM - 1) / CM, tiles_n = (f.n + CN - 1) / CN;
        int batch = tile / (tiles_m * tiles_n);
        tile -= batch * tiles_m * tiles_n;
        int group = tile / (8 * tiles_n), first = group * 8, height = min(tiles_m - first, 8), within = tile - first * tiles_n;
        int rank = cluster_rank();
        return Place{(first + within % height) * CM + (THIN ? 0 : rank * BM), within / height * CN + (THIN ? rank * BN : 0), batch};
    }
    static __device__ __forceinline__ int tiles(const Factors &f, int batches)
    {
        return (f.m + CM - 1) / CM * ((f.n + CN - 1) / CN) * batches;
    }

    // `source` copies its parts of step `step` of a tile to shared memory.
    template <class Source>
    static __device__ __forceinline__ void fetch(const Source &source, const Factors &f, int batches, uint32_t base, uint32_t barriers)
    {
        int at = 0;
        for (int tile = blockIdx.x / 2; tile < tiles(f, batches); tile += gridDim.x / 2) {
            Place p = place(f, tile);
            for (int k = 0; k < f.k; k += BK, ++at) {
                int stage = at % STAGES;
                uint32_t full = barriers + stage * 16, to = base + stage * STAGE_BYTES;
                barrier_wait(full + 8, at / STAGES % 2 ^ 1);
                barrier_expect(full, STAGE_BYTES);
                source.first(to, p, k, full);
                source.second(to + A_BYTES, p, k, full);
            }
        }
    }

    static __device__ __forceinline__ void release(uint32_t barriers, int at)
    {
        if (threadIdx.x % 128 != 0) return;
        barrier_arrive_at(barriers + at % STAGES * 16 + 8, 0);
        barrier_arrive_at(barriers + at % STAGES * 16 + 8, 1);
    }

    static __device__ __forceinline__ void multiply(const Factors &f, const Epilogue &e, int batches, uint32_t base, uint32_t barriers, Acc *sums)
    {
        int group = threadIdx.x / 128 - 1, at = 0;
        for (int tile = blockIdx.x / 2; tile < tiles(f, batches); tile += gridDim.x / 2) {
            Acc acc[REGISTERS];
            int first = at;
            for (int k = 0; k < f.k; k += BK, ++at) {
                int stage = at % STAGES;
                barrier_wait(barriers + stage * 16, at / STAGES % 2);
                uint32_t from = base + stage * STAGE_BYTES;
                uint64_t a = factor(from + group * 64 * 128, 16, 1024);
                uint64_t b = TURNED ? factor(from + A_BYTES, 64 * 128, 1024) : factor(from + A_BYTES, 16, 1024);
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < STEPS; ++step)
                    Wgmma<T, REGISTERS, TURNED>::run(acc, a + step * 2, b + step * (TURNED ? 128 : 2), k > 0 || step > 0);
                wgmma_commit();
                wgmma_wait<1>();
                if (at > first) release(barriers, at - 1);
            }
            wgmma_wait<0>();
            release(barriers, at - 1);
            Place p = place(f, tile);
            store(f, e, acc, sums, p.m0 + group * 64, p.n0, p.batch, group);
        }
    }

    // 64 columns at a time go through shared memory, so that rows are stored and the epilogue is a loop.
    static __device__ __forceinline__ void store(const Factors &f, const Epilogue &e, Acc (&acc)[REGISTERS], Acc *sums, int m0, int n0, int batch, int group)
    {
        int thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
        bool plain = n0 + BN <= f.n && m0 + 64 <= f.m && only_stores(e);
#pragma unroll
        for (int c = 0; c < BN; c += CHUNK) {
#pragma unroll
            for (int j = 0; j < CHUNK / 8; ++j) {
                Acc *to = sums + row * PITCH + j * 8 + lane % 4 * 2;
                int i = (c / 8 + j) * 4;
                to[0] = acc[i];
                to[1] = acc[i + 1];
                to[8 * PITCH] = acc[i + 2];
                to[8 * PITCH + 1] = acc[i + 3];
            }
            group_sync(group);
            if (plain) wide_rows(e, sums, m0, n0 + c, batch, thread);
            else rows(f, e, sums, m0, n0 + c, batch, thread);
            group_sync(group);
        }
    }
    static __device__ __forceinline__ void group_sync(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

    static __device__ __forceinline__ void wide_rows(const Epilogue &e, const Acc *sums, int m0, int n0, int batch, int thread)
    {
        // Elements in 16 bytes, threads for a row, bytes of an element.
        constexpr int WIDTH = RESULT == I32 ? 4 : 8, ROW = CHUNK / WIDTH, SIZE = 16 / WIDTH;
        int col = thread % ROW * WIDTH;
#pragma unroll
        for (int r = thread / ROW; r < 64; r += 128 / ROW) {
            const Acc *from = sums + r * PITCH + col;
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#if defined(TYPE_I8)
                words[i] = from[i];
#else
                words[i] = pair_of(from[2 * i], from[2 * i + 1]);
#endif
            }
            char *to = (char *)e.d + (batch * e.d_batch + (m0 + r) * e.d_row + n0 + col) * SIZE;
            *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
    static __device__ __noinline__ void rows(const Factors &f, const Epilogue &e, const Acc *sums, int m0, int n0, int batch, int thread)
    {
#pragma unroll 1
        for (int at = thread; at < 64 * CHUNK; at += 128) {
            int m = m0 + at / CHUNK, n = n0 + at % CHUNK;
            if (m < f.m && n < f.n) put(e, sums[at / CHUNK * PITCH + at % CHUNK], m, n, batch);
        }
    }

    template <class Source>
    static __device__ __forceinline__ void run(const Source &source, const Factors &f, const Epilogue &e, int batches)
    {
        extern __shared__ __align__(1024) char memory[];
        uint32_t base = shared_address(memory), barriers = base + STAGES * STAGE_BYTES + GROUPS * SUMS_BYTES;
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < STAGES; ++stage) {
                barrier_init(barriers + stage * 16, 1);
                // Each warpgroup of two blocks.
                barrier_init(barriers + stage * 16 + 8, 2 * GROUPS);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        cluster_sync();
        if (threadIdx.x < 128) {
            if (GROUPS == 2) fewer_registers<24>();
            if (threadIdx.x == 0) fetch(source, f, batches, base, barriers);
            __syncwarp();
        } else {
            if (GROUPS == 2) more_registers<240>();
            int group = threadIdx.x / 128 - 1;
            multiply(f, e, batches, base, barriers, (Acc *)(memory + STAGES * STAGE_BYTES + group * SUMS_BYTES));
        }
        // The other block may still copy into this one's memory, or arrive at its barriers.
        cluster_sync();
    }
};
