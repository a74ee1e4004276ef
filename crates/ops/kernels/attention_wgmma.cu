// Attention on Hopper: a warpgroup of threads has the copy unit fetch tiles of keys and values, two others compute with 64
// queries each (Shah and others, 2024).
//
// The tiles of a block are computed from the last one to the first, so that those with keys that some query does not see come
// first. A warpgroup begins the scores of a tile and the product of the weights and values of the tile before, then computes
// the weights of the new tile while that product runs. Two warpgroups take turns at beginning products, so that one computes
// weights while the tensor cores work for the other.
//
// Shared memory: queries [SIZE / 64][QUERIES][64], then the stages of keys and of values [SIZE / 64][KEYS][64], then barriers.
#include "attention_wgmma.cuh"

// Scores of 176 keys.
#define ACC_88(c, at) ACC_64(c, at), ACC_8(c, 64, at), ACC_8(c, 72, at), ACC_8(c, 80, at)
#define NAMES_88 NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87"
WGMMA(f16, float, 88, 0, "m64n176k16.f32.f16.f16", "+f", "88", "89", "90", ", 1, 1, 0, 0")
WGMMA(bf16, float, 88, 0, "m64n176k16.f32.bf16.bf16", "+f", "88", "89", "90", ", 1, 1, 0, 0")

template <int SIZE, int KEYS, int STAGES>
struct Flash {
    static constexpr int GROUPS = 2, QUERIES = 64 * GROUPS, PIECES = SIZE / 64, SCORES = KEYS / 2, OUT = SIZE / 2;
    static constexpr int Q_BYTES = QUERIES * SIZE * 2, TILE_BYTES = KEYS * SIZE * 2;
    // Barriers of 8 bytes: the queries are there; then for each stage: keys are there, keys are read, and the same of values.
    static constexpr int SHARED_BYTES = Q_BYTES + 2 * STAGES * TILE_BYTES + 8 + STAGES * 32;

    // What a block computes.
    struct Work {
        int i0, head, batch, begin, end;
        uint32_t q, k, v, barriers;

        __device__ __forceinline__ uint32_t keys(int n) const { return k + n % STAGES * TILE_BYTES; }
        __device__ __forceinline__ uint32_t values(int n) const { return v + n % STAGES * TILE_BYTES; }
        __device__ __forceinline__ uint32_t keys_there(int n) const { return barriers + 8 + n % STAGES * 32; }
        __device__ __forceinline__ uint32_t keys_read(int n) const { return keys_there(n) + 8; }
        __device__ __forceinline__ uint32_t values_there(int n) const { return keys_there(n) + 16; }
        __device__ __forceinline__ uint32_t values_read(int n) const { return keys_there(n) + 24; }
    };
    static __device__ __forceinline__ int parity(int n) { return n / STAGES % 2; }

    static __device__ __forceinline__ void fetch_tile(uint32_t to, const TensorMap &map, int row, int head, int batch, uint32_t there)
    {
        barrier_expect(there, TILE_BYTES);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) copy_box(to + piece * KEYS * 128, map, piece * 64, row, head, batch, there);
    }
    static __device__ __forceinline__ void fetch(const Attention &a, const Work &w, const TensorMap &q, const TensorMap &k, const TensorMap &v)
    {
        int shared_head = w.head / a.group;
        barrier_expect(w.barriers, Q_BYTES);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) copy_box(w.q + piece * QUERIES * 128, q, piece * 64, w.i0, w.head, w.batch, w.barriers);
        // The keys of a tile are needed before the values of the tile before it.
        for (int n = 0; n <= w.end - w.begin; ++n) {
            if (n < w.end - w.begin) {
                barrier_wait(w.keys_read(n), parity(n) ^ 1);
                fetch_tile(w.keys(n), k, (w.end - 1 - n) * KEYS, shared_head, w.batch, w.keys_there(n));
            }
            if (n > 0) {
                barrier_wait(w.values_read(n - 1), parity(n - 1) ^ 1);
                fetch_tile(w.values(n - 1), v, (w.end - n) * KEYS, shared_head, w.batch, w.values_there(n - 1));
            }
        }
    }

    // A warpgroup with its 64 queries. Thread's element e of eight columns n: row lane / 4 + e / 2 * 8 of the 16 rows of its
    // warp, column n * 8 + lane % 4 * 2 + e % 2.
    struct Group {
        float o[OUT], s[SCORES], most[2], sum[2], factor[2];
        uint32_t p[KEYS / 16][4];
        // Row of the thread, and the group's number.
        int row, group;

        __device__ __forceinline__ void wait_for_turn() { asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory"); }
        __device__ __forceinline__ void give_turn() { asm volatile("bar.arrive %0, 256;" ::"r"(2 - group) : "memory"); }
        static __device__ __forceinline__ void release(uint32_t barrier)
        {
            if (threadIdx.x % 128 == 0) barrier_arrive(barrier);
        }

        __device__ __forceinline__ void begin_scores(const Work &w, int n)
        {
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                uint64_t q = ::factor(w.q + piece * QUERIES * 128 + group * 64 * 128, 16, 1024);
                uint64_t k = ::factor(w.keys(n) + piece * KEYS * 128, 16, 1024);
#pragma unroll
                for (int step = 0; step < 4; ++step) Wgmma<T, SCORES, 0>::run(s, q + step * 2, k + step * 2, piece > 0 || step > 0);
            }
            wgmma_commit();
        }
        __device__ __forceinline__ void begin_sums(const Work &w, int n)
        {
            uint64_t v = ::factor(w.values(n), KEYS * 128, 1024);
#pragma unroll
            for (int step = 0; step < KEYS / 16; ++step) WgmmaRows<T, OUT>::run(o, p[step], v + step * 128);
            wgmma_commit();
        }
        __device__ __forceinline__ void mask(const Attention &a, const Place &place, int j0)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int i = row + half * 8, first = seen_first(a, place, i) - j0 - threadIdx.x % 4 * 2, end = seen_end(a, place, i) - j0 - threadIdx.x % 4 * 2;
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        int j = n * 8 + e;
                        if (j < first || j >= end) s[n * 4 + half * 2 + e] = -INFINITY;
                    }
            }
        }
        // Scores become weights; `factor` is what earlier sums are multiplied with.
        __device__ __forceinline__ void weigh(float scale)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float high = most[half];
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n) high = fmaxf(high, fmaxf(s[n * 4 + half * 2], s[n * 4 + half * 2 + 1]));
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
                high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
                float base = high == -INFINITY ? 0.f : high * scale, part = 0.f;
                factor[half] = exp2_fast(most[half] * scale - base);
                most[half] = high;
#pragma unroll
                for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
                    for (int e = half * 2; e < half * 2 + 2; ++e) {
                        s[n * 4 + e] = exp2_fast(s[n * 4 + e] * scale - base);
                        part += s[n * 4 + e];
                    }
                sum[half] = sum[half] * factor[half] + part;
            }
        }
        __device__ __forceinline__ void pack()
        {
#pragma unroll
            for (int step = 0; step < KEYS / 16; ++step)
#pragma unroll
                for (int i = 0; i < 4; ++i) p[step][i] = pair(s[step * 8 + i * 2], s[step * 8 + i * 2 + 1]);
        }
        // Tiles n.. of the block down to tile `last`.
        template <bool MASKED>
        __device__ __forceinline__ void tiles(const Attention &a, const Place &place, const Work &w, float scale, int &n, int last)
        {
            for (; w.end - 1 - n >= last; ++n) {
                barrier_wait(w.keys_there(n), parity(n));
                wait_for_turn();
                wgmma_fence();
                begin_scores(w, n);
                barrier_wait(w.values_there(n - 1), parity(n - 1));
                wgmma_fence();
                begin_sums(w, n - 1);
                // The other group has as many tiles: nobody waits for the turn after the last one.
                if (group == 0 || n < w.end - w.begin - 1) give_turn();
                wgmma_wait<1>();
                release(w.keys_read(n));
                if (MASKED) mask(a, place, (w.end - 1 - n) * KEYS);
                weigh(scale);
                wgmma_wait<0>();
                release(w.values_read(n - 1));
#pragma unroll
                for (int d = 0; d < SIZE / 8; ++d)
#pragma unroll
                    for (int e = 0; e < 4; ++e) o[d * 4 + e] *= factor[e / 2];
                pack();
            }
        }
        __device__ __forceinline__ void run(const Attention &a, const Place &place, const Work &w)
        {
            float scale = a.scale * 1.4426950408889634f;
#pragma unroll
            for (int i = 0; i < OUT; ++i) o[i] = 0.f;
            most[0] = most[1] = -INFINITY;
            sum[0] = sum[1] = 0.f;
            if (w.begin < w.end) {
                if (group == 1) give_turn();
                barrier_wait(w.barriers, 0);
                barrier_wait(w.keys_there(0), 0);
                wait_for_turn();
                wgmma_fence();
                begin_scores(w, 0);
                if (group == 0 || w.end - w.begin > 1) give_turn();
                wgmma_wait<0>();
                release(w.keys_read(0));
                mask(a, place, (w.end - 1) * KEYS);
                weigh(scale);
                pack();
                int n = 1, last_row = min(w.i0 + QUERIES, place.queries) - 1;
                int all_see = seen_end(a, place, w.i0) / KEYS, all_begin = (seen_first(a, place, last_row) + KEYS - 1) / KEYS;
                tiles<true>(a, place, w, scale, n, max(w.begin, all_see));
                tiles<false>(a, place, w, scale, n, max(w.begin, all_begin));
                tiles<true>(a, place, w, scale, n, w.begin);
                barrier_wait(w.values_there(n - 1), parity(n - 1));
                wgmma_fence();
                begin_sums(w, n - 1);
                wgmma_wait<0>();
            }
            store(a, place, w, scale);
        }
        __device__ __forceinline__ void store(const Attention &a, const Place &place, const Work &w, float scale)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float total = sum[half];
                total += __shfl_xor_sync(0xffffffffu, total, 1);
                total += __shfl_xor_sync(0xffffffffu, total, 2);
                int i = row + half * 8;
                if (i >= place.queries) continue;
                float inverse = total == 0.f ? 0.f : 1.f / total;
                T *to = (T *)a.o + w.batch * a.o_batch + w.head * a.o_head + i * a.o_row;
#pragma unroll
                for (int d = 0; d < SIZE / 8; ++d) {
                    int at = d * 8 + threadIdx.x % 4 * 2;
                    if (at < a.size) *(uint32_t *)(to + at) = pair(o[d * 4 + half * 2] * inverse, o[d * 4 + half * 2 + 1] * inverse);
                }
                if (a.lse && threadIdx.x % 4 == 0)
                    a.lse[((int64_t)w.batch * a.heads + w.head) * a.lse_row + i] = total == 0.f ? -INFINITY : (most[half] * scale + __log2f(total)) * 0.69314718f;
            }
        }
    };

    static __device__ __forceinline__ void run(const Attention &a, const TensorMap &q, const TensorMap &k, const TensorMap &v)
    {
        extern __shared__ __align__(1024) char memory[];
        Place place = {0, 0, a.queries, a.keys};
        Work w;
        // The longest rows of a causal matrix first.
        w.i0 = (a.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * QUERIES;
        w.head = blockIdx.y;
        w.batch = blockIdx.z;
        w.q = shared_address(memory);
        w.k = w.q + Q_BYTES;
        w.v = w.k + STAGES * TILE_BYTES;
        w.barriers = w.v + STAGES * TILE_BYTES;
        w.begin = seen_first(a, place, w.i0) / KEYS;
        w.end = (seen_end(a, place, min(w.i0 + QUERIES, place.queries) - 1) + KEYS - 1) / KEYS;
        if (threadIdx.x == 0) {
            barrier_init(w.barriers, 1);
            for (int stage = 0; stage < STAGES; ++stage) {
                barrier_init(w.keys_there(stage), 1);
                barrier_init(w.keys_read(stage), GROUPS);
                barrier_init(w.values_there(stage), 1);
                barrier_init(w.values_read(stage), GROUPS);
            }
            asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
        }
        __syncthreads();
        if (threadIdx.x < 128) {
            fewer_registers<24>();
            if (threadIdx.x == 0 && w.begin < w.end) fetch(a, w, q, k, v);
        } else {
            more_registers<240>();
            Group group;
            group.group = threadIdx.x / 128 - 1;
            group.row = w.i0 + group.group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
            group.run(a, place, w);
        }
    }
};

// The kernel, the most elements of a head, keys of a tile, stages. Where heads are short, longer tiles are faster.
#define KERNEL(name, size, keys, stages)                                                                    \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                    \
        name(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,                      \
             const __grid_constant__ TensorMap v, const __grid_constant__ Attention a)                      \
    {                                                                                                       \
        Flash<size, keys, stages>::run(a, q, k, v);                                                         \
    }
KERNEL(flash_wgmma_64, 64, 176, 2)
KERNEL(flash_wgmma_128, 128, 128, 2)
