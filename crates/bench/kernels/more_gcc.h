// The kernels of more.cu as a C programmer would write them.
__attribute__((simd("notinbranch"))) float expf(float);

static void softmax(const float *a, float *c, int rows, int n)
{
#pragma omp parallel for
    for (int r = 0; r < rows; ++r) {
        const float *row = a + (long)r * n;
        float *out = c + (long)r * n, most = row[0], sum = 0;
#pragma omp simd reduction(max : most)
        for (int i = 0; i < n; ++i) most = row[i] > most ? row[i] : most;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; ++i) sum += out[i] = expf(row[i] - most);
        for (int i = 0; i < n; ++i) out[i] *= 1 / sum;
    }
}

static void layer_norm(const float *a, const float *b, float *c, int rows, int n)
{
#pragma omp parallel for
    for (int r = 0; r < rows; ++r) {
        const float *row = a + (long)r * n;
        float *out = c + (long)r * n, sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; ++i) sum += row[i];
        float mean = sum / n;
#pragma omp simd reduction(+ : squares)
        for (int i = 0; i < n; ++i) squares += (row[i] - mean) * (row[i] - mean);
        float scale = 1 / sqrtf(squares / n + 1e-5f);
        for (int i = 0; i < n; ++i) out[i] = (row[i] - mean) * scale * b[i] + b[n + i];
    }
}

static int within(int v, int n) { return v < 0 ? 0 : v >= n ? n - 1 : v; }

// Rows into a second image, then columns.
static void convolution(const float *a, const float *b, float *c, float *rows, int n)
{
#pragma omp parallel
    {
#pragma omp for
        for (int y = 0; y < n; ++y) {
            const float *in = a + (long)y * n;
            float *out = rows + (long)y * n;
            for (int x = 4; x < n - 4; ++x) {
                float sum = 0;
                for (int k = 0; k < 9; ++k) sum += b[k] * in[x + k - 4];
                out[x] = sum;
            }
            for (int i = 0; i < 8; ++i) {
                int x = i < 4 ? i : n - 8 + i;
                out[x] = 0;
                for (int k = 0; k < 9; ++k) out[x] += b[k] * in[within(x + k - 4, n)];
            }
        }
#pragma omp for
        for (int y = 0; y < n; ++y)
            for (int x = 0; x < n; ++x) {
                float sum = 0;
                for (int k = 0; k < 9; ++k) sum += b[k] * rows[(long)within(y + k - 4, n) * n + x];
                c[(long)y * n + x] = sum;
            }
    }
}

// Each thread sums its part, then writes it with the sum of the parts before.
static void scan(const float *a, float *c, int n)
{
    float sums[257] = {0};
#pragma omp parallel
    {
        int threads = omp_get_num_threads(), me = omp_get_thread_num();
        int from = (long)n * me / threads, to = (long)n * (me + 1) / threads;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = from; i < to; ++i) sum += a[i];
        sums[me + 1] = sum;
#pragma omp barrier
        sum = 0;
        for (int i = 0; i <= me; ++i) sum += sums[i];
        for (int i = from; i < to; ++i) c[i] = sum += a[i];
    }
}

// Each thread counts what it keeps, then writes to its own place.
static void compaction(const float *a, float *c, int n)
{
    int counts[257] = {0};
#pragma omp parallel
    {
        int threads = omp_get_num_threads(), me = omp_get_thread_num(), count = 0;
        int from = (long)n * me / threads, to = (long)n * (me + 1) / threads;
        for (int i = from; i < to; ++i) count += a[i] > 1;
        counts[me + 1] = count;
#pragma omp barrier
        int at = 0;
        for (int i = 0; i <= me; ++i) at += counts[i];
        int end = at + count;
        for (int i = from; i < to && at < end; ++i) c[at] = a[i], at += a[i] > 1;
    }
}

static void hash_table(unsigned *table, int n)
{
    unsigned mask = 2 * n - 1;
#pragma omp parallel for
    for (unsigned i = 0; i < (unsigned)n; ++i) {
        unsigned key = (i * 2654435761u >> 13) % n + 1, slot = key * 2246822519u >> 7 & mask;
        for (;; slot = (slot + 1) & mask) {
            unsigned old = __atomic_load_n(table + 2 * slot, __ATOMIC_RELAXED);
            if (old == key) break;
            if (old == 0 && __atomic_compare_exchange_n(table + 2 * slot, &old, key, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) break;
            if (old == key) break;
        }
        __atomic_fetch_add(table + 2 * slot + 1, 1, __ATOMIC_RELAXED);
    }
}

static void ray_tracer(const float *a, const float *b, float *c, int n)
{
    float qx[64], qy[64], qz[64], qr[64];
    for (int s = 0; s < 64; ++s)
        qx[s] = b[4 * s] * 6, qy[s] = b[4 * s + 1] * 6, qz[s] = 8 + b[4 * s + 2] * 4, qr[s] = .3f + a[s] * .4f;
#pragma omp parallel for schedule(dynamic, 8)
    for (int py = 0; py < n; ++py)
        for (int px = 0; px < n; ++px) {
            float dx = 2.f * px / n - 1, dy = 2.f * py / n - 1, dz = 1, inv = 1 / sqrtf(dx * dx + dy * dy + dz * dz), near = 1e9f;
            dx *= inv, dy *= inv, dz *= inv;
            int hit = -1;
            for (int s = 0; s < 64; ++s) {
                float along = dx * qx[s] + dy * qy[s] + dz * qz[s];
                float d = along * along - (qx[s] * qx[s] + qy[s] * qy[s] + qz[s] * qz[s]) + qr[s] * qr[s];
                if (d <= 0) continue;
                float far = along - sqrtf(d);
                if (far > 0 && far < near) near = far, hit = s;
            }
            float light = .1f;
            if (hit >= 0) {
                float x = dx * near, y = dy * near, z = dz * near, up = (y - qy[hit]) / qr[hit];
                int shadow = 0;
                for (int s = 0; s < 64 && !shadow; ++s) {
                    float ex = qx[s] - x, ez = qz[s] - z;
                    shadow = s != hit && qy[s] > y && ex * ex + ez * ez < qr[s] * qr[s];
                }
                light = (up > 0 ? up : 0) * (shadow ? .3f : 1.f) + .2f;
            }
            c[py * n + px] = light;
        }
}

// The scores of a query first, then their exponentials, then the sum of the values.
static void attention(const float *a, const float *b, float *c, int heads, int n)
{
#pragma omp parallel for
    for (int hq = 0; hq < heads * n; ++hq) {
        const float *keys = a + (long)(hq / n) * n * 64, *values = b + (long)(hq / n) * n * 64;
        const float *query = keys + hq % n * 64;
        float scores[4096], most = -1e30f, sum = 0, out[64] = {0};
        for (int k = 0; k < n; ++k) {
            float s = 0;
#pragma omp simd reduction(+ : s)
            for (int d = 0; d < 64; ++d) s += query[d] * keys[k * 64 + d];
            scores[k] = s * .125f;
        }
        for (int k = 0; k < n; ++k) most = scores[k] > most ? scores[k] : most;
#pragma omp simd reduction(+ : sum)
        for (int k = 0; k < n; ++k) sum += scores[k] = expf(scores[k] - most);
        for (int k = 0; k < n; ++k)
            for (int d = 0; d < 64; ++d) out[d] += scores[k] * values[k * 64 + d];
        for (int d = 0; d < 64; ++d) c[(long)hq * 64 + d] = out[d] / sum;
    }
}

// The size of each, as in kernels.rs: the time of a name, with zeros in the output before.
static int more(const char *name, const float *a, const float *b, float *c, double *ns, double *check)
{
    static float *rows;
    if (!rows) rows = malloc(4L << 22);
    memset(c, 0, N * 4L);
    double begin = now_ns();
    long count = 1L << 22;
    if (!strcmp(name, "softmax")) softmax(a, c, 4096, 1024);
    else if (!strcmp(name, "layer_norm")) layer_norm(a, b, c, 4096, 1024);
    else if (!strcmp(name, "convolution")) convolution(a, b, c, rows, 2048);
    else if (!strcmp(name, "scan")) scan(a, c, 1 << 22);
    else if (!strcmp(name, "compaction")) compaction(a, c, 1 << 22);
    else if (!strcmp(name, "hash_table")) hash_table((unsigned *)c, 1 << 20), count = 0;
    else if (!strcmp(name, "ray_tracer")) ray_tracer(a, b, c, 512), count = 512 * 512;
    else if (!strcmp(name, "attention")) attention(a, b, c, 4, 512), count = 4 * 512 * 64;
    else return 0;
    *ns = now_ns() - begin;
    if (count) *check = sum_floats(c, count, 1);
    // Keys lie in any order: their products with the counts are summed.
    else for (long i = 0; i < 2L << 20; ++i) *check += (double)((unsigned *)c)[2 * i] * ((unsigned *)c)[2 * i + 1];
    return 1;
}
