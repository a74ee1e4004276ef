// Gradients of attention on Hopper, without a matrix of scores (Dao, 2023; Shah and others, 2024).
//
// A block has 128 keys of a head of keys and goes through the tiles of 64 queries that see some of them, of all heads of queries
// that share the head. One warpgroup has the copy unit fetch queries and gradients of the output; two others have 64 keys each
// and keep the sums of the gradients of their keys and values in registers. Scores and weights are computed with a row for each
// key, so that weights are at once the first factor, in registers, of the products that add to those sums:
//
//   weights = exp(keys queries' - log sums)        values' gradient += weights gradient
//   part = weights (values gradient' - delta)      keys' gradient += part queries        queries' gradient += part' keys
//
// The last product is over all keys of the block: both groups write their part to shared memory, and each adds its share of the
// columns to the result in memory, which is kept in 32-bit floats. The order of these additions is not fixed.
//
// Shared memory: keys and values [SIZE / 64][128][64], stages of queries and of gradients [SIZE / 64][64][64], parts
// [128 keys][64 queries] of two tiles, log sums and deltas of each stage, barriers.
#include "attention_wgmma.cuh"

// `delta` is the sum of the products of a row of the output and its gradient; `dq` has the shape of the queries, without gaps.
struct Gradients {
    const float *delta;
    float *dq;
    void *dk, *dv;
    int64_t k_batch, k_head, k_row;
};

// 64 rows and columns. Both factors are in shared memory, in rows of the axis that the product sums over.
template <class E> struct WgmmaColumns;
// The same, both in rows of the other axes.
template <class E> struct WgmmaScores;
#define WGMMA_64(name, type, turned)                                                                                          \
    template <> struct name {                                                                                                 \
        static __device__ __forceinline__ void run(float (&acc)[32], uint64_t a, uint64_t b, int adds)                        \
        {                                                                                                                     \
            asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %34, 0;\n"                                                   \
                         "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" NAMES_32 "}, %32, %33"              \
                         ", adds, 1, 1, " turned ";\n}"                                                                       \
                         : ROWS_32("+f", acc) : "l"(a), "l"(b), "r"(adds));                                                   \
        }                                                                                                                     \
    };
WGMMA_64(WgmmaScores<f16>, "f16", "0, 0")
WGMMA_64(WgmmaScores<bf16>, "bf16", "0, 0")
WGMMA_64(WgmmaColumns<f16>, "f16", "1, 1")
WGMMA_64(WgmmaColumns<bf16>, "bf16", "1, 1")

__device__ __forceinline__ void add_pair(float *to, float x, float y)
{
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

template <int SIZE>
struct Back {
    static constexpr int KEYS = 128, QUERIES = 64, STAGES = 2, PIECES = SIZE / 64, OUT = SIZE / 2;
    static constexpr int K_BYTES = KEYS * SIZE * 2, Q_BYTES = QUERIES * SIZE * 2, PART_BYTES = KEYS * QUERIES * 2;
    // Barriers of 8 bytes: keys and values are there; then for each stage: it is there, it is read.
    static constexpr int ROWS_AT = 2 * K_BYTES + 2 * STAGES * Q_BYTES + 2 * PART_BYTES, BARRIERS_AT = ROWS_AT + STAGES * QUERIES * 8;
    static constexpr int SHARED_BYTES = BARRIERS_AT + 8 + STAGES * 16;

    struct Work {
        int j0, head, batch, first_tile, tiles;
        char *memory;
        uint32_t base;

        __device__ __forceinline__ uint32_t keys() const { return base; }
        __device__ __forceinline__ uint32_t values() const { return base + K_BYTES; }
        __device__ __forceinline__ uint32_t queries(int n) const { return base + 2 * K_BYTES + n % STAGES * 2 * Q_BYTES; }
        __device__ __forceinline__ uint32_t gradient(int n) const { return queries(n) + Q_BYTES; }
        __device__ __forceinline__ uint32_t part(int n) const { return base + 2 * K_BYTES + 2 * STAGES * Q_BYTES + n % 2 * PART_BYTES; }
        // Logarithms of sums (of base 2), then deltas.
        __device__ __forceinline__ float *rows(int n) const { return (float *)(memory + ROWS_AT) + n % STAGES * 2 * QUERIES; }
        __device__ __forceinline__ uint32_t block_there() const { return base + BARRIERS_AT; }
        __device__ __forceinline__ uint32_t there(int n) const { return base + BARRIERS_AT + 8 + n % STAGES * 16; }
        __device__ __forceinline__ uint32_t read(int n) const { return there(n) + 8; }
        // First query of tile n, and its head.
        __device__ __forceinline__ int row(int n) const { return (first_tile + n % tiles) * QUERIES; }
        __device__ __forceinline__ int query_head(const Attention &a, int n) const { return head * a.group + n / tiles; }
        __device__ __forceinline__ int steps(const Attention &a) const { return tiles * a.group; }
    };
    static __device__ __forceinline__ int parity(int n) { return n / STAGES % 2; }

    // The first warp of its group.
    static __device__ __forceinline__ void fetch(const Attention &a, const Gradients &g, const Work &w, const TensorMap &q, const TensorMap &k, const TensorMap &v, const TensorMap &dy)
    {
        int lane = threadIdx.x % 32;
        if (lane == 0) {
            barrier_expect(w.block_there(), 2 * K_BYTES);
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                copy_box(w.keys() + piece * KEYS * 128, k, piece * 64, w.j0, w.head, w.batch, w.block_there());
                copy_box(w.values() + piece * KEYS * 128, v, piece * 64, w.j0, w.head, w.batch, w.block_there());
            }
        }
        for (int n = 0; n < w.steps(a); ++n) {
            int i0 = w.row(n), head = w.query_head(a, n);
            barrier_wait(w.read(n), parity(n) ^ 1);
            if (lane == 0) {
                barrier_expect(w.there(n), 2 * Q_BYTES);
#pragma unroll
                for (int piece = 0; piece < PIECES; ++piece) {
                    copy_box(w.queries(n) + piece * QUERIES * 128, q, piece * 64, i0, head, w.batch, w.there(n));
                    copy_box(w.gradient(n) + piece * QUERIES * 128, dy, piece * 64, i0, head, w.batch, w.there(n));
                }
            }
            const float *log_sums = a.lse + ((int64_t)w.batch * a.heads + head) * a.lse_row, *delta = g.delta + ((int64_t)w.batch * a.heads + head) * a.lse_row;
            float *rows = w.rows(n);
#pragma unroll
            for (int row = lane; row < QUERIES; row += 32) {
                int i = i0 + row;
                float sum = i < a.queries ? log_sums[i] * 1.4426950408889634f : INFINITY;
                // A query that sees no key has no weights.
                rows[row] = sum == -INFINITY ? INFINITY : sum;
                rows[QUERIES + row] = i < a.queries ? delta[i] : 0.f;
            }
            barrier_arrive(w.there(n));
        }
    }

    // A warpgroup with its 64 keys. Thread's element e of eight columns n: row lane / 4 + e / 2 * 8 of the 16 rows of its warp,
    // column n * 8 + lane % 4 * 2 + e % 2.
    struct Group {
        float dk[OUT], dv[OUT];
        // Row of the thread among the keys of the block.
        int row, group;

        template <bool MASKED>
        __device__ __forceinline__ void step(const Attention &a, const Gradients &g, const Place &place, const Work &w, float scale, int n)
        {
            float s[32], dp[32];
            uint32_t p[4][4];
            const float *rows = w.rows(n) + threadIdx.x % 4 * 2;
            barrier_wait(w.there(n), parity(n));
            wgmma_fence();
            multiply(s, w.keys(), w.queries(n));
            multiply(dp, w.values(), w.gradient(n));
            wgmma_wait<1>();
            weights<MASKED>(a, place, s, rows, scale, w.j0 + row, w.row(n) + threadIdx.x % 4 * 2);
            pack(p, s);
            wgmma_fence();
            add(dv, p, w.gradient(n));
            wgmma_wait<1>();
#pragma unroll
            for (int c = 0; c < 8; ++c)
#pragma unroll
                for (int e = 0; e < 4; ++e) s[c * 4 + e] *= dp[c * 4 + e] - rows[QUERIES + c * 8 + e % 2];
            uint32_t part[4][4];
            pack(part, s);
            put_part(w, part, n);
            // Both groups' parts are there.
            asm volatile("fence.proxy.async.shared::cta;\nbar.sync 1, 256;" ::: "memory");
            if (SIZE == 128 || n % 2 == group) {
                float dq[32];
                wgmma_fence();
                begin_queries(dq, w, n);
                add(dk, part, w.queries(n));
                wgmma_wait<1>();
                store_queries(a, g, w, dq, n);
            } else {
                wgmma_fence();
                add(dk, part, w.queries(n));
            }
            wgmma_wait<0>();
            if (threadIdx.x % 32 == 0) barrier_arrive(w.read(n));
        }
        // Rows of this group's keys or values with rows of queries or gradients.
        __device__ __forceinline__ void multiply(float (&to)[32], uint32_t keys, uint32_t queries)
        {
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                uint64_t x = factor(keys + piece * KEYS * 128 + group * 64 * 128, 16, 1024), y = factor(queries + piece * QUERIES * 128, 16, 1024);
#pragma unroll
                for (int step = 0; step < 4; ++step) WgmmaScores<T>::run(to, x + step * 2, y + step * 2, piece > 0 || step > 0);
            }
            wgmma_commit();
        }
        __device__ __forceinline__ void add(float (&to)[OUT], const uint32_t (&rows)[4][4], uint32_t columns)
        {
            uint64_t y = factor(columns, QUERIES * 128, 1024);
#pragma unroll
            for (int step = 0; step < 4; ++step) WgmmaRows<T, OUT>::run(to, rows[step], y + step * 128);
            wgmma_commit();
        }
        // 64 columns of the sum over all keys of the block. Heads of 64 have no more, so the groups take turns.
        __device__ __forceinline__ void begin_queries(float (&dq)[32], const Work &w, int n)
        {
            uint64_t x = factor(w.part(n), 16, 1024), y = factor(w.keys() + (SIZE == 128 ? group : 0) * KEYS * 128, 16, 1024);
#pragma unroll
            for (int step = 0; step < KEYS / 16; ++step) WgmmaColumns<T>::run(dq, x + step * 128, y + step * 128, step > 0);
            wgmma_commit();
        }
        template <bool MASKED>
        __device__ __forceinline__ void weights(const Attention &a, const Place &place, float (&s)[32], const float *rows, float scale, int j, int i)
        {
#pragma unroll
            for (int c = 0; c < 8; ++c)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    int query = i + c * 8 + e, first = MASKED ? seen_first(a, place, query) : 0, end = MASKED ? seen_end(a, place, query) : 0;
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        float weight = exp2_fast(s[c * 4 + half * 2 + e] * scale - rows[c * 8 + e]);
                        int key = j + half * 8;
                        s[c * 4 + half * 2 + e] = MASKED && (key < first || key >= end) ? 0.f : weight;
                    }
                }
        }
        static __device__ __forceinline__ void pack(uint32_t (&p)[4][4], const float (&s)[32])
        {
#pragma unroll
            for (int step = 0; step < 4; ++step)
#pragma unroll
                for (int i = 0; i < 4; ++i) p[step][i] = pair(s[step * 8 + i * 2], s[step * 8 + i * 2 + 1]);
        }
        // Rows of 128 bytes whose 16-byte pieces are exchanged by the row's number.
        __device__ __forceinline__ void put_part(const Work &w, const uint32_t (&part)[4][4], int n)
        {
            char *to = w.memory + (w.part(n) - w.base) + row * 128 + threadIdx.x % 4 * 4;
#pragma unroll
            for (int c = 0; c < 8; ++c) {
                int piece = (c ^ (row & 7)) << 4;
                *(uint32_t *)(to + piece) = part[c / 2][c % 2 * 2];
                *(uint32_t *)(to + 8 * 128 + piece) = part[c / 2][c % 2 * 2 + 1];
            }
        }
        __device__ __forceinline__ void store_queries(const Attention &a, const Gradients &g, const Work &w, float (&dq)[32], int n)
        {
            int first = w.row(n) + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, column = (SIZE == 128 ? group * 64 : 0) + threadIdx.x % 4 * 2;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int i = first + half * 8;
                if (i >= a.queries) continue;
                float *to = g.dq + (((int64_t)w.batch * a.heads + w.query_head(a, n)) * a.queries + i) * a.size;
#pragma unroll
                for (int c = 0; c < 8; ++c)
                    if (column + c * 8 < a.size) add_pair(to + column + c * 8, dq[c * 4 + half * 2], dq[c * 4 + half * 2 + 1]);
            }
        }
        __device__ __forceinline__ void store(const Attention &a, const Gradients &g, const Place &place, const Work &w)
        {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int j = w.j0 + row + half * 8;
                if (j >= place.keys) continue;
                int64_t at = w.batch * g.k_batch + w.head * g.k_head + j * g.k_row;
#pragma unroll
                for (int d = 0; d < SIZE / 8; ++d) {
                    int column = d * 8 + threadIdx.x % 4 * 2, i = d * 4 + half * 2;
                    if (column >= a.size) continue;
                    *(uint32_t *)((T *)g.dk + at + column) = pair(dk[i] * a.scale, dk[i + 1] * a.scale);
                    *(uint32_t *)((T *)g.dv + at + column) = pair(dv[i], dv[i + 1]);
                }
            }
        }
        __device__ __forceinline__ void run(const Attention &a, const Gradients &g, const Place &place, const Work &w)
        {
            float scale = a.scale * 1.4426950408889634f;
#pragma unroll
            for (int i = 0; i < OUT; ++i) dk[i] = dv[i] = 0.f;
            if (w.tiles > 0) barrier_wait(w.block_there(), 0);
            for (int n = 0; n < w.steps(a); ++n) {
                int i0 = w.row(n), last = min(i0 + QUERIES, place.queries) - 1;
                bool all_seen = w.j0 + KEYS <= seen_end(a, place, i0) && w.j0 >= seen_first(a, place, last);
                // Keys beyond the last one are masked too. They are zeros, but their weights exp(0 - log sum) are not: where all
                // scores of a query are low, weight times delta is no finite number of 16 bits, and that times zero is none.
                if (all_seen) step<false>(a, g, place, w, scale, n);
                else step<true>(a, g, place, w, scale, n);
            }
            store(a, g, place, w);
        }
    };

    static __device__ __forceinline__ void run(const Attention &a, const Gradients &g, const TensorMap &q, const TensorMap &k, const TensorMap &v, const TensorMap &dy)
    {
        extern __shared__ __align__(1024) char memory[];
        Place place = {0, 0, a.queries, a.keys};
        Work w;
        w.j0 = blockIdx.x * KEYS;
        w.head = blockIdx.y;
        w.batch = blockIdx.z;
        w.memory = memory;
        w.base = shared_address(memory);
        // Queries first..end see some of the keys.
        int ahead = place.keys - place.queries, last_key = min(w.j0 + KEYS, place.keys) - 1;
        int first = a.causal ? max(0, w.j0 - ahead) : 0;
        int end = a.window ? min(place.queries, max(0, last_key - ahead + a.window)) : place.queries;
        w.first_tile = first / QUERIES;
        w.tiles = max(0, (end + QUERIES - 1) / QUERIES - w.first_tile);
        if (threadIdx.x == 0) {
            barrier_init(w.block_there(), 1);
            for (int stage = 0; stage < STAGES; ++stage) {
                // The copies, and each lane that writes log sums; each warp that computes.
                barrier_init(w.there(stage), 33);
                barrier_init(w.read(stage), 8);
            }
            asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
        }
        __syncthreads();
        if (threadIdx.x < 128) {
            fewer_registers<24>();
            if (threadIdx.x < 32 && w.tiles > 0) fetch(a, g, w, q, k, v, dy);
        } else {
            more_registers<240>();
            Group group;
            group.group = threadIdx.x / 128 - 1;
            group.row = group.group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
            group.run(a, g, place, w);
        }
    }
};

#define KERNEL(size)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(384, 1)                                                                    \
        flash_back_##size(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,                         \
                          const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dy,                        \
                          const __grid_constant__ Attention a, const __grid_constant__ Gradients g)                         \
    {                                                                                                                       \
        Back<size>::run(a, g, q, k, v, dy);                                                                                 \
    }
KERNEL(64)
KERNEL(128)

// The sum of the products of each row of two matrices without gaps: a warp for each row.
extern "C" __global__ void __launch_bounds__(256) flash_delta(const T *y, const T *dy, float *delta, int64_t rows, int size)
{
    int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (row >= rows) return;
    float sum = 0.f;
    for (int d = threadIdx.x % 32; d < size; d += 32) sum += to_float(y[row * size + d]) * to_float(dy[row * size + d]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) delta[row] = sum;
}
