/* Stands in for cuBLASLt: computes products of matrices in columns from the descriptors it is given, in host memory or, where
   the process has a driver library, in device memory. Built by the tests. FAKE_VERSION is what it says it is. */
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION 130100
#endif

enum { R_32F = 0, R_16F = 2, R_8I = 3, R_32I = 10, R_16BF = 14 };
enum { OK = 0, INVALID = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

typedef struct { int type; uint64_t rows, cols; int64_t ld; int32_t count; int64_t stride; } layout;
typedef struct { int compute, scale, turn_a, turn_b; uint32_t epilogue; void *bias; int bias_type; } operation;
typedef struct { uint64_t workspace; uint32_t alignment[4]; } preference;
typedef struct { uint64_t words[8]; } algorithm;
typedef struct { algorithm algo; size_t workspace; int state; float waves; int reserved[4]; } heuristic;

static int made; /* descriptors and handles that nobody destroyed */
int fake_living(void) { return made; }
static void *make(size_t size) { made++; return calloc(1, size); }
static int drop(void *it) { if (!it) return INVALID; made--; free(it); return OK; }

size_t cublasLtGetVersion(void) { return FAKE_VERSION; }
int cublasLtCreate(void **handle) { *handle = make(8); return OK; }
int cublasLtDestroy(void *handle) { return drop(handle); }

int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
    operation *it = make(sizeof *it);
    it->compute = compute; it->scale = scale; it->epilogue = 1; it->bias_type = -1;
    *out = it;
    return OK;
}
static int put(void *field, size_t size, const void *value, size_t given) {
    if (size != given) return INVALID;
    memcpy(field, value, size);
    return OK;
}
int cublasLtMatmulDescSetAttribute(operation *it, int attribute, const void *value, size_t size) {
    switch (attribute) {
        case 3: return put(&it->turn_a, 4, value, size);
        case 4: return put(&it->turn_b, 4, value, size);
        case 7: return put(&it->epilogue, 4, value, size);
        case 8: return put(&it->bias, 8, value, size);
        case 26: return put(&it->bias_type, 4, value, size);
        default: return INVALID;
    }
}
int cublasLtMatmulDescDestroy(void *it) { return drop(it); }

int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t cols, int64_t ld) {
    layout *it = make(sizeof *it);
    *it = (layout){type, rows, cols, ld, 1, 0};
    *out = it;
    return OK;
}
int cublasLtMatrixLayoutSetAttribute(layout *it, int attribute, const void *value, size_t size) {
    switch (attribute) {
        case 5: return put(&it->count, 4, value, size);
        case 6: return put(&it->stride, 8, value, size);
        default: return INVALID;
    }
}
int cublasLtMatrixLayoutDestroy(void *it) { return drop(it); }

int cublasLtMatmulPreferenceCreate(void **out) { *out = make(sizeof(preference)); return OK; }
int cublasLtMatmulPreferenceSetAttribute(preference *it, int attribute, const void *value, size_t size) {
    if (attribute == 1) return put(&it->workspace, 8, value, size);
    if (attribute >= 5 && attribute <= 8) return put(&it->alignment[attribute - 5], 4, value, size);
    return INVALID;
}
int cublasLtMatmulPreferenceDestroy(void *it) { return drop(it); }

/* Whether the shapes fit each other and the types are a row of the library's table. */
static int fits(const operation *op, const layout *a, const layout *b, const layout *c, const layout *d) {
    uint64_t m = op->turn_a ? a->cols : a->rows, k = op->turn_a ? a->rows : a->cols;
    uint64_t k2 = op->turn_b ? b->cols : b->rows, n = op->turn_b ? b->rows : b->cols;
    if (k != k2 || d->rows != m || d->cols != n || c->rows != m || c->cols != n) return INVALID;
    const layout *all[] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        if (all[i]->ld < (int64_t)all[i]->rows || all[i]->count != d->count) return INVALID;
    if (a->type != b->type || c->type != d->type) return INVALID;
    if (a->type == R_8I) return op->compute == 72 && op->scale == R_32I && d->type == R_32I && op->turn_a ? OK : NOT_SUPPORTED;
    if (op->scale != R_32F || (d->type != R_32F && d->type != a->type)) return NOT_SUPPORTED;
    if (op->compute != 68 && a->type != R_32F) return NOT_SUPPORTED;
    return op->compute == 68 || op->compute == 69 || op->compute == 77 ? OK : NOT_SUPPORTED;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, operation *op, layout *a, layout *b, layout *c, layout *d,
                                   preference *wishes, int most, heuristic *out, int *count) {
    (void)handle;
    int status = fits(op, a, b, c, d);
    if (status) return status;
    for (int i = 0; i < 4; i++)
        if (!wishes->alignment[i]) return INVALID;
    /* The second wants a workspace, the third more than anyone has. */
    size_t workspaces[] = {0, 4096, (size_t)1 << 50};
    for (*count = 0; *count < most && *count < 3; ++*count) {
        memset(&out[*count], 0, sizeof *out);
        out[*count].algo.words[0] = 100 + *count;
        out[*count].workspace = workspaces[*count];
    }
    return OK;
}

static double load(const char *from, int type, int64_t at) {
    uint16_t half; uint32_t bits; float f; int32_t i;
    switch (type) {
        case R_32F: memcpy(&f, from + 4 * at, 4); return f;
        case R_32I: memcpy(&i, from + 4 * at, 4); return i;
        case R_8I: return ((const int8_t *)from)[at];
        case R_16BF: memcpy(&half, from + 2 * at, 2); bits = (uint32_t)half << 16; memcpy(&f, &bits, 4); return f;
        default: {
            memcpy(&half, from + 2 * at, 2);
            int e = half >> 10 & 31, m = half & 1023;
            double v = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
            return half >> 15 ? -v : v;
        }
    }
}
/* The tests use values that every type has exactly. */
static void store(char *to, int type, int64_t at, double value) {
    float f = (float)value; int32_t i = (int32_t)value; uint32_t bits; uint16_t half;
    switch (type) {
        case R_32F: memcpy(to + 4 * at, &f, 4); return;
        case R_32I: memcpy(to + 4 * at, &i, 4); return;
        case R_16BF: memcpy(&bits, &f, 4); half = bits >> 16; memcpy(to + 2 * at, &half, 2); return;
        default: {
            int e; double m = frexp(fabs(value), &e);
            half = value == 0 ? 0 : (uint16_t)((e + 14) << 10 | ((int)(m * 2048) & 1023));
            half |= value < 0 ? 0x8000 : 0;
            memcpy(to + 2 * at, &half, 2);
        }
    }
}

static size_t width(int type) { return type == R_8I ? 1 : type == R_16F || type == R_16BF ? 2 : 4; }
static size_t bytes(const layout *l) {
    int64_t stacks = l->count > 1 ? (l->count - 1) * l->stride : 0;
    return (stacks + (l->cols - 1) * l->ld + l->rows) * width(l->type);
}

/* Device memory comes and goes through the driver library, if the process has one. */
typedef int copy_to_host(void *, uint64_t, size_t);
typedef int copy_to_device(uint64_t, const void *, size_t);
static void *fetch(const void *from, size_t size, void *stream) {
    void *here = malloc(size);
    int (*wait)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "cuStreamSynchronize");
    copy_to_host *copy = (copy_to_host *)dlsym(RTLD_DEFAULT, "cuMemcpyDtoH_v2");
    if (!copy) { memcpy(here, from, size); return here; }
    if (wait(stream) || copy(here, (uint64_t)from, size)) { free(here); return NULL; }
    return here;
}
static int give(void *to, void *from, size_t size) {
    copy_to_device *copy = (copy_to_device *)dlsym(RTLD_DEFAULT, "cuMemcpyHtoD_v2");
    int failed = 0;
    if (copy) failed = copy((uint64_t)to, from, size); else memcpy(to, from, size);
    return failed ? EXECUTION_FAILED : OK;
}

int cublasLtMatmul(void *handle, operation *op, const void *alpha, const void *a, layout *la, const void *b, layout *lb,
                   const void *beta, const void *c, layout *lc, void *d, layout *ld, const algorithm *algo, void *workspace,
                   size_t size, void *stream) {
    (void)handle;
    int status = fits(op, la, lb, lc, ld);
    if (status) return status;
    if (algo->words[0] == 101 && (size < 4096 || !workspace)) return INVALID;
    if ((op->epilogue & 4) && !op->bias) return INVALID;
    double x = op->scale == R_32I ? *(const int32_t *)alpha : *(const float *)alpha;
    double y = op->scale == R_32I ? *(const int32_t *)beta : *(const float *)beta;
    uint64_t m = ld->rows, n = ld->cols, k = op->turn_a ? la->rows : la->cols;
    int bias_type = op->bias_type < 0 ? ld->type : op->bias_type;
    char *ha = fetch(a, bytes(la), stream), *hb = fetch(b, bytes(lb), stream), *hd = fetch(d, bytes(ld), stream);
    char *hc = y ? fetch(c, bytes(lc), stream) : NULL;
    char *bias = op->epilogue & 4 ? fetch(op->bias, m * width(bias_type), stream) : NULL;
    if (!ha || !hb || !hd) return EXECUTION_FAILED;
    for (int64_t s = 0; s < ld->count; s++)
        for (uint64_t i = 0; i < m; i++)
            for (uint64_t j = 0; j < n; j++) {
                double sum = 0;
                for (uint64_t p = 0; p < k; p++) {
                    int64_t at = s * la->stride + (op->turn_a ? i * la->ld + p : p * la->ld + i);
                    int64_t bt = s * lb->stride + (op->turn_b ? p * lb->ld + j : j * lb->ld + p);
                    sum += load(ha, la->type, at) * load(hb, lb->type, bt);
                }
                sum *= x;
                if (y) sum += y * load(hc, lc->type, s * lc->stride + j * lc->ld + i);
                if (bias) sum += load(bias, bias_type, i);
                if ((op->epilogue & 2) && sum < 0) sum = 0;
                store(hd, ld->type, s * ld->stride + j * ld->ld + i, sum);
            }
    status = give(d, hd, bytes(ld));
    free(ha); free(hb); free(hc); free(hd); free(bias);
    return status;
}
