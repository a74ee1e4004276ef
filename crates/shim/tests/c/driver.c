// A stand-in for the driver: a few dozen entry points that count their calls and keep simple books.
// It holds no GPU memory; addresses are numbers. Real enough to see what a shim passes on.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
typedef int CUresult;
typedef uint64_t CUdeviceptr;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int inited, retained;
static uint64_t used, next_address = 0x700000000000ull;
static struct { uint64_t at, bytes; int pool; } blocks[65536];
static int block_count;
// Pools grow and shrink by 32 MiB, or by as much as they may hold. One that was destroyed ends with its last allocation.
#define POOLS 64
#define STEP (32u << 20)
static struct { uint64_t reserved, live, step; int made; } pools[POOLS] = { { 0, 0, STEP, 1 } };
static __thread void *current;

// Read by the test programs through dlsym of this library.
API uint64_t standin_launches, standin_syncs, standin_allocs, standin_frees, standin_peak;
API uint64_t standin_capacity = 1ull << 40;
// What a GPU would have given away, now and at most: all but what pools' allocations take of their pools.
API uint64_t standin_physical, standin_physical_peak;
static void physical(int64_t bytes) {
    standin_physical += bytes;
    if (standin_physical > standin_physical_peak) standin_physical_peak = standin_physical;
}

// Every so many calls that make or end something fail, where STANDIN_FAILS says how many; but not stream-ordered frees, by
// which the shim takes back what a pool had no room for.
static __thread int surely;
static int fails(void) {
    static __thread unsigned calls;
    const char *every = getenv("STANDIN_FAILS");
    return every && !surely && ++calls % atoi(every) == 0;
}

// Use and peak over all processes that name the same file in STANDIN_SHARED.
static uint64_t *shared;
__attribute__((constructor)) static void share(void) {
    const char *path = getenv("STANDIN_SHARED");
    int fd = path ? open(path, O_RDWR) : -1;
    if (fd >= 0) shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (shared == MAP_FAILED) shared = 0;
}
static void account(uint64_t bytes) {
    if (!shared) return;
    uint64_t now = __atomic_add_fetch(&shared[0], bytes, __ATOMIC_SEQ_CST), peak = shared[1];
    while (now < 1ull << 60 && now > peak && !__atomic_compare_exchange_n(&shared[1], &peak, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}

static uint64_t freed_at, freed_bytes; // the last piece freed to a pool, given out again
static int freed_pool;
// Of a pool by its number from 1 on, or of the device itself.
static uint64_t take(uint64_t bytes, int pool) {
    if (fails()) return 0;
    pthread_mutex_lock(&lock);
    uint64_t at = 0;
    if (used + bytes <= standin_capacity) {
        at = next_address;
        if (pool) {
            uint64_t live = pools[pool - 1].live += bytes;
            for (; pools[pool - 1].reserved < live; physical(pools[pool - 1].step)) pools[pool - 1].reserved += pools[pool - 1].step;
        } else physical(bytes);
        if (pool && freed_bytes == bytes && freed_pool == pool) { at = freed_at; freed_bytes = 0; }
        else next_address += (bytes + 511) & ~511ull;
        used += bytes;
        account(bytes);
        if (used > standin_peak) standin_peak = used;
        int slot = 0;
        while (slot < block_count && blocks[slot].at) slot++;
        if (slot == block_count) block_count++;
        blocks[slot].at = at;
        blocks[slot].bytes = bytes;
        blocks[slot].pool = pool;
    }
    pthread_mutex_unlock(&lock);
    return at;
}

static uint64_t give(uint64_t at, int *pool) {
    uint64_t bytes = 0;
    if (fails()) return 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < block_count; i++) {
        if (blocks[i].at == at) {
            bytes = blocks[i].bytes;
            *pool = blocks[i].pool;
            if (*pool) {
                freed_at = at, freed_bytes = bytes, freed_pool = *pool;
                if (!(pools[*pool - 1].live -= bytes) && !pools[*pool - 1].made) {
                    physical(-(int64_t)pools[*pool - 1].reserved);
                    pools[*pool - 1].reserved = freed_bytes = 0;
                }
            } else physical(-(int64_t)bytes);
            blocks[i].at = 0;
            used -= bytes;
            account(-bytes);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

API CUresult cuInit(unsigned flags) { (void)flags; inited = 1; return 0; }
API CUresult cuDriverGetVersion(int *v) { *v = 13000; return 0; }
API CUresult cuDeviceGet(int *d, int n) { *d = n; return inited ? 0 : 3; }
API CUresult cuDeviceGetCount(int *n) { *n = 1; return inited ? 0 : 3; }
API CUresult cuDeviceGetAttribute(int *v, int which, int d) { (void)d; *v = which == 16 ? 132 : which == 39 ? 2048 : 1; return 0; }
API CUresult cuDeviceTotalMem_v2(size_t *bytes, int d) { (void)d; *bytes = standin_capacity; return 0; }
API CUresult cuDevicePrimaryCtxRetain(void **ctx, int d) { (void)d; if (!ctx) return 1; retained++; *ctx = (void *)0x1000; return 0; }
API CUresult cuDevicePrimaryCtxRelease_v2(int d) { (void)d; if (retained) retained--; return 0; }
API CUresult cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { (void)d; *flags = 0; *active = retained > 0; return 0; }
API CUresult cuCtxSetCurrent(void *ctx) { current = ctx; return 0; }
API CUresult cuCtxGetCurrent(void **ctx) { *ctx = current; return 0; }
API CUresult cuCtxGetDevice(int *d) { *d = 0; return current ? 0 : 201; }
API CUresult cuCtxGetLimit(size_t *v, unsigned which) { *v = which == 2 ? 8u << 20 : 1024; return 0; }
API CUresult cuCtxSetLimit(unsigned which, size_t v) { (void)which; (void)v; return 0; }
API uint64_t standin_synced; // contexts that were waited for, a bit each
API CUresult cuCtxCreate_v2(void **ctx, unsigned flags, int d) { (void)flags; (void)d; if (!ctx) return 1; *ctx = current = (void *)0x2000; return 0; }
static int attached;
API CUresult cuCtxAttach(void **ctx, unsigned flags) { (void)flags; attached++; *ctx = current; return 0; }
API CUresult cuCtxDetach(void *ctx) { if (ctx != current) return 201; if (attached) attached--; else current = 0; return 0; }
API CUresult cuCtxDestroy_v2(void *ctx) { if (ctx == current) current = 0; return 0; }
API CUresult cuGreenCtxCreate(void **green, void *what, int d, unsigned f) { (void)what; (void)d; (void)f; retained++; *green = (void *)0x5000; return 0; }
API CUresult cuGreenCtxDestroy(void *green) { if (green != (void *)0x5000) return 1; retained--; return 0; }
API CUresult cuCtxFromGreenCtx(void **ctx, void *green) { (void)green; *ctx = (void *)0x6000; return 0; }
// While the file named in STANDIN_HOLD is there, work does not finish; beside it another says that somebody waits.
static void hold(void) {
    const char *path = getenv("STANDIN_HOLD");
    char inside[4096];
    if (!path || access(path, F_OK)) return;
    snprintf(inside, sizeof inside, "%s.inside", path);
    close(open(inside, O_CREAT | O_WRONLY, 0600));
    while (!access(path, F_OK)) usleep(1000);
}
static int waiting; // in cuCtxSynchronize now
API CUresult cuCtxSynchronize(void) {
    __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
    hold();
    __atomic_sub_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
    __atomic_or_fetch(&standin_synced, 1ull << ((uintptr_t)current >> 12), __ATOMIC_RELAXED);
    __atomic_add_fetch(&standin_syncs, 1, __ATOMIC_RELAXED);
    return current ? 0 : 201;
}
// Graphs with allocation nodes: memory is reserved at the first launch and kept until trimmed.
static uint64_t graph_bytes[4096], exec_bytes[4096], graph_reserved, captured_bytes;
#define GRAPH 0x10000
#define EXEC 0x20000
static int graph_count, exec_count;
API CUresult cuStreamWaitValue32_v2(void *s, CUdeviceptr p, uint32_t value, unsigned f) { (void)s; (void)p; (void)f; return value == 7 ? 0 : 1; }
API CUresult cuEventRecord(void *e, void *s) { (void)e; (void)s; return 0; }
API CUresult cuEventSynchronize(void *e) { (void)e; __atomic_add_fetch(&standin_syncs, 1, __ATOMIC_RELAXED); return 0; }
// Work of this stream never ends.
#define STUCK ((void *)0x57)
API CUresult cuStreamQuery(void *s) { return s == STUCK ? 600 : 0; }
API CUresult cuStreamSynchronize(void *s) { while (s == STUCK) pause(); __atomic_add_fetch(&standin_syncs, 1, __ATOMIC_RELAXED); return 0; }
static void *captured;
API uint64_t standin_broken; // captures begun while a context was waited for
API CUresult cuStreamBeginCapture_v2(void *s, int mode) {
    (void)mode;
    captured = s;
    standin_broken += waiting;
    return 0;
}
static void *capture_graph; // where what is captured goes, if it is not a graph of its own
API CUresult cuStreamBeginCaptureToGraph(void *s, void *g, const void *needs, const void *data, size_t count, int mode) {
    (void)needs; (void)data; (void)count;
    capture_graph = g;
    return cuStreamBeginCapture_v2(s, mode);
}
// Streams 0x5 and 0x6 end well, any other was invalidated.
API CUresult cuStreamEndCapture(void *s, void **g) {
    captured = 0;
    *g = capture_graph ? capture_graph : (void *)(intptr_t)(GRAPH + graph_count++);
    graph_bytes[(intptr_t)*g - GRAPH] += captured_bytes;
    captured_bytes = 0;
    capture_graph = 0;
    return (uintptr_t)s > 6 ? 901 : 0;
}
API CUresult cuStreamDestroy_v2(void *s) { if (s == captured) captured = 0; return 0; }
API CUresult cuStreamIsCapturing(void *s, int *status) { *status = s == captured; return 0; }
API CUresult cuMemGetInfo_v2(size_t *f, size_t *t) { if (t) *t = standin_capacity; if (f) *f = standin_capacity - used; return 0; }

API CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes) {
    __atomic_add_fetch(&standin_allocs, 1, __ATOMIC_RELAXED);
    if (!bytes || !p) return 1;
    *p = take(bytes, 0);
    return *p ? 0 : 2;
}
API CUresult cuMemAllocManaged(CUdeviceptr *p, size_t bytes, unsigned f) { (void)f; return cuMemAlloc_v2(p, bytes); }
API CUresult cuMemAllocPitch_v2(CUdeviceptr *p, size_t *pitch, size_t w, size_t h, unsigned e) {
    (void)e;
    if (!p || !pitch) return 1;
    *pitch = (w + 1023) & ~1023ull; // wider than the shim foresees
    return cuMemAlloc_v2(p, *pitch * h);
}
#define DEFAULT_POOL 0x2000
static int pool_of(void *pool) { return ((uintptr_t)pool - DEFAULT_POOL) / 0x1000 + 1; }
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *p, size_t bytes, void *pool, void *s) {
    if (!p || !pool) return 1;
    if (captured && s == captured) { captured_bytes += bytes; *p = 0x600000000000ull; return 0; }
    *p = take(bytes, pool_of(pool));
    return *p ? 0 : 2;
}
API CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, void *s) { return cuMemAllocFromPoolAsync(p, bytes, (void *)DEFAULT_POOL, s); }
API CUresult cuMemFree_v2(CUdeviceptr p) {
    int pool = 0;
    uint64_t bytes = give(p, &pool);
    if (!bytes) return 1;
    __atomic_add_fetch(&standin_frees, 1, __ATOMIC_RELAXED);
    return 0;
}
API CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t bytes, void *s) { (void)p; return value == 0x5A && bytes == 4 << 20 && s == (void *)5 ? 0 : 1; }
API CUresult cuMemcpyHtoA_v2(void *a, size_t offset, const void *from, size_t bytes) { (void)from; return a == (void *)0xA && offset == 3 && bytes == 2 << 20 ? 0 : 1; }
API CUresult cuMemcpyAtoHAsync_v2(void *to, void *a, size_t offset, size_t bytes, void *s) { (void)to; return a == (void *)0xA && offset == 4 && bytes == 2 << 20 && s == (void *)5 ? 0 : 1; }
API CUresult cuMemcpyAtoA_v2(void *to, size_t a, void *from, size_t b, size_t bytes) { return to == (void *)0xA && a == 1 && from == (void *)0xB && b == 2 && bytes == 2 << 20 ? 0 : 1; }
API CUresult cuMemMapArrayAsync(void *maps, unsigned count, void *s) { return count == (maps ? 1 : 9) && s == (void *)5 ? 0 : 1; }
API CUresult cuMemFreeAsync(CUdeviceptr p, void *s) {
    (void)s;
    surely = 1;
    CUresult result = cuMemFree_v2(p);
    surely = 0;
    return result;
}
API CUresult cuDeviceGetMemPool(void **pool, int d) { (void)d; *pool = (void *)DEFAULT_POOL; return 0; }
API CUresult cuMemPoolGetAttribute(void *pool, int which, void *v) { int n = pool_of(pool) - 1; *(uint64_t *)v = which == 5 ? pools[n].reserved : pools[n].live; return 0; }
API CUresult cuMemPoolTrimTo(void *pool, size_t keep) {
    if (!pool) return 1;
    int n = pool_of(pool) - 1;
    pthread_mutex_lock(&lock);
    uint64_t step = pools[n].step;
    for (; pools[n].reserved >= pools[n].live + step && pools[n].reserved >= keep + step; physical(-(int64_t)step)) pools[n].reserved -= step;
    pthread_mutex_unlock(&lock);
    return 0;
}
API CUresult cuMemPoolCreate(void **pool, const void *props) {
    if (!pool || !props) return 1;
    pthread_mutex_lock(&lock);
    int n = 0;
    while (n < POOLS && (pools[n].made || pools[n].live)) n++;
    uint64_t most = ((const uint64_t *)props)[3];
    if (n < POOLS) pools[n].made = 1, pools[n].step = most && most < STEP ? most : STEP;
    pthread_mutex_unlock(&lock);
    *pool = (void *)(uintptr_t)(DEFAULT_POOL + 0x1000 * n);
    return n < POOLS ? 0 : 2;
}
API CUresult cuMemPoolDestroy(void *pool) {
    if (!pool || fails()) return 1;
    int n = pool_of(pool) - 1;
    pthread_mutex_lock(&lock);
    pools[n].made = 0;
    if (!pools[n].live) { physical(-(int64_t)pools[n].reserved); pools[n].reserved = 0; }
    if (freed_pool == n + 1) freed_bytes = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}
#include "physical.h"
API CUresult cuMemRetainAllocationHandle(uint64_t *h, void *p) { (void)p; if (!h) return 1; *h = next_address; return 0; }
API CUresult cuArray3DCreate_v2(void **a, const void *d) { if (!a || !d) return 1; *a = (void *)take(1, 0); return *a ? 0 : 2; }
API CUresult cuArray3DCreate(void **a, const unsigned *d) { if (!a || !d) return 1; *a = (void *)take((uint64_t)d[0] * d[1] * d[2], 0); return *a ? 0 : 2; }
API CUresult cuArrayCreate(void **a, const unsigned *d) { if (!a || !d) return 1; *a = (void *)take((uint64_t)d[0] * d[1], 0); return *a ? 0 : 2; }
API CUresult cuArrayDestroy(void *a) { int p = 0; return give((uint64_t)a, &p) ? 0 : 400; }

// The arguments of the last launch that was no ordinary one: eleven, the stream in its configuration, and whether the stack
// was not aligned.
API uint64_t standin_seen[13];
static int seen(const void *frame, uint64_t stream, const uint64_t *a, int count, int result) {
    memcpy(standin_seen, a, count * sizeof *a);
    standin_seen[11] = stream;
    standin_seen[12] = (uintptr_t)frame % 16;
    return result;
}
API CUresult cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sh, void *s, void **params, void **extra) {
    const uint64_t a[] = { (uint64_t)f, gx, gy, gz, bx, by, bz, sh, (uint64_t)s, (uint64_t)params, (uint64_t)extra };
    if ((uint64_t)f >> 44 == 0xF) return seen(__builtin_frame_address(0), 0, a, 11, 40);
    if ((uint64_t)f != 0xF00D || (uint64_t)s != 0x5 || (uint64_t)extra != 0xE0) return 999;
    __atomic_add_fetch(&standin_launches, 1, __ATOMIC_RELAXED);
    return 0;
}
API CUresult cuLaunchKernel_ptsz(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sh, void *s, void **params, void **extra) {
    const uint64_t a[] = { (uint64_t)f, gx, gy, gz, bx, by, bz, sh, (uint64_t)s, (uint64_t)params, (uint64_t)extra };
    if ((uint64_t)f >> 44 == 0xF) return seen(__builtin_frame_address(0), 0, a, 11, 41);
    cuLaunchKernel(f, gx, gy, gz, bx, by, bz, sh, s, params, extra);
    return 77; // tells the variants apart
}
static int launch_ex(const void *frame, const char *config, void *f, void **params, void **extra, int result) {
    const uint64_t a[] = { (uint64_t)config, (uint64_t)f, (uint64_t)params, (uint64_t)extra };
    return config ? seen(frame, *(const uint64_t *)(config + 32), a, 4, result) : 1;
}
API CUresult cuLaunchKernelEx(const char *c, void *f, void **params, void **extra) { return launch_ex(__builtin_frame_address(0), c, f, params, extra, 42); }
API CUresult cuLaunchKernelEx_ptsz(const char *c, void *f, void **params, void **extra) { return launch_ex(__builtin_frame_address(0), c, f, params, extra, 43); }
API CUresult cuGraphCreate(void **g, unsigned f) { (void)f; *g = (void *)(intptr_t)(GRAPH + graph_count++); return 0; }
API CUresult cuGraphDestroy(void *g) { (void)g; return 0; }
API CUresult cuGraphAddMemAllocNode(void **n, void *g, const void *needs, size_t count, char *params) {
    (void)needs; (void)count;
    if (!n || !params) return 1;
    graph_bytes[(intptr_t)g - GRAPH] += *(size_t *)(params + 104);
    *n = (void *)1;
    return 0;
}
API CUresult cuGraphAddNode_v2(void **n, void *g, const void *needs, const void *data, size_t count, char *params) {
    (void)data;
    if (*(int *)params == 10) return cuGraphAddMemAllocNode(n, g, needs, count, params + 16);
    if (*(int *)params != 4) return 1;
    graph_bytes[(intptr_t)g - GRAPH] += graph_bytes[*(intptr_t *)(params + 16) - GRAPH];
    return 0;
}
API CUresult cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long f) {
    (void)f;
    if (!e) return 1;
    *e = (void *)(intptr_t)(EXEC + exec_count++);
    exec_bytes[(intptr_t)*e - EXEC] = graph_bytes[(intptr_t)g - GRAPH];
    return 0;
}
API CUresult cuGraphExecDestroy(void *e) { (void)e; return 0; }
API CUresult cuGraphLaunch(void *e, void *s) {
    (void)s;
    uint64_t need = exec_bytes[(intptr_t)e - EXEC];
    if (need > graph_reserved) graph_reserved = need; // ended graphs' memory is used again
    return 0;
}
API CUresult cuDeviceGetGraphMemAttribute(int d, int which, void *v) { (void)d; *(uint64_t *)v = which == 2 ? graph_reserved : 0; return 0; }
API CUresult cuDeviceGraphMemTrim(int d) { (void)d; graph_reserved = 0; return 0; }

API CUresult cuModuleLoadData(void **m, const void *image) { if (!m || !image) return 1; *m = (void *)take(1, 0); return *m ? 0 : 2; }
API CUresult cuModuleUnload(void *m) { int p = 0; return give((uint64_t)m, &p) || !m ? 0 : 400; }
// A kernel named after its local memory.
API CUresult cuModuleGetFunction(void **f, void *m, const char *name) { (void)m; if (!f || !name) return 1; *f = (void *)strtoull(name, 0, 0); return 0; }
API CUresult cuFuncGetAttribute(int *v, int which, void *f) { *v = which == 3 ? (int)(intptr_t)f : 0; return 0; }
// And all the kernels of a module or a library.
static CUresult all_of(void **f, unsigned count) { for (unsigned i = 0; i < count && i < 2; i++) f[i] = (void *)(intptr_t)(i ? 1088 : 1000); return 0; }
API CUresult cuModuleGetFunctionCount(unsigned *count, void *m) { (void)m; *count = 2; return 0; }
API CUresult cuModuleEnumerateFunctions(void **f, unsigned count, void *m) { (void)m; return all_of(f, count); }
API CUresult cuLibraryGetKernelCount(unsigned *count, void *l) { (void)l; *count = 2; return 0; }
API CUresult cuLibraryEnumerateKernels(void **k, unsigned count, void *l) { (void)l; return all_of(k, count); }
API CUresult cuKernelGetAttribute(int *v, int which, void *k, int d) { (void)d; return cuFuncGetAttribute(v, which, k); }
API CUresult cuFuncLoad(void *f) { (void)f; return 0; }
API CUresult cuModuleLoad(void **m, const char *path) { return cuModuleLoadData(m, path); }
API CUresult cuTexRefSetMipmapLevelBias(void *t, float bias) { (void)t; return bias == 2.5f ? 0 : 1; }
API CUresult cuCtxGetDevice_v2(int *d, void *ctx) { (void)ctx; *d = 42; return 0; }
// Of a release newer than the shim.
API CUresult cuMemTieredAllocNew(void) { return 0; }
API CUresult cuMemAlloc_v3(int tier, CUdeviceptr *p, size_t bytes) { return tier == 3 ? cuMemAlloc_v2(p, bytes) : 1; }
API CUresult cuLaunchSwarmNew(int a, int b, int c, int d, int e, int f, int g, double h) {
    return a == 1 && b == 2 && c == 3 && d == 4 && e == 5 && f == 6 && g == 7 && h == 0.5 ? 1234 : 999;
}

// A driver may hand out another address than it exports.
static CUresult unexported_free(CUdeviceptr p) { return cuMemFree_v2(p); }

static const struct { const char *name; int version; int per_thread; void *address; } EXPORTS[] = {
    { "cuMemFree", 3020, 0, unexported_free },
    { "cuLaunchKernel", 7000, 1, cuLaunchKernel_ptsz }, { "cuLaunchKernel", 4000, 0, cuLaunchKernel },
    { "cuMemAlloc", 14000, 0, cuMemAlloc_v3 }, { "cuMemAlloc", 3020, 0, cuMemAlloc_v2 }, { "cuCtxGetDevice", 13000, 0, cuCtxGetDevice_v2 },
    { "cuCtxGetDevice", 2000, 0, cuCtxGetDevice }, { "cuInit", 2000, 0, cuInit },
    { "cuMemTieredAllocNew", 14000, 0, cuMemTieredAllocNew }, { "cuDeviceGet", 2000, 0, cuDeviceGet },
};
API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, unsigned *found) {
    if (found) *found = 0;
    for (unsigned i = 0; i < sizeof EXPORTS / sizeof *EXPORTS; i++) {
        if (strcmp(name, EXPORTS[i].name) || EXPORTS[i].version > version || (EXPORTS[i].per_thread && !(flags & 2))) continue;
        *out = EXPORTS[i].address;
        return 0;
    }
    if (!strcmp(name, "cuGetProcAddress")) { *out = cuGetProcAddress_v2; return 0; }
    *out = 0;
    return 500;
}
