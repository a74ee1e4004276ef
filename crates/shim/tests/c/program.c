// Small CUDA programs, chosen by the first argument. Linked to no CUDA library: they open
// libcuda.so.1 as cudart does. Each prints one line and exits 0 if what it checks itself held.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t CUdeviceptr;
static void *lib, *standin;
static void *sym(const char *name) {
    void *p = dlsym(lib, name);
    if (!p) { printf("missing %s\n", name); exit(3); }
    return p;
}
#define F(type, name, ...) ((type(*)(__VA_ARGS__))sym(name))
static uint64_t counter(const char *name) { uint64_t *p = dlsym(standin, name); return p ? *p : ~0ull; }
#define CHECK(x) do { long long got_ = (x); if (got_) { printf("%s = %lld\n", #x, got_); exit(1); } } while (0)
#define EXPECT(x) do { if (!(x)) { printf("not so: %s\n", #x); exit(1); } } while (0)

static void start(void) {
    CHECK(F(int, "cuInit", unsigned)(0));
    void *ctx;
    CHECK(F(int, "cuDevicePrimaryCtxRetain", void **, int)(&ctx, 0));
    CHECK(F(int, "cuCtxSetCurrent", void *)(ctx));
}
typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int launch(launch_t f) { return f((void *)0xF00D, 1, 1, 1, 1, 1, 1, 0, (void *)0x5, 0, (void **)0xE0); }
#include "launches.h"

static int forward(void) {
    // Before cuInit, the very first call resolves everything with its float argument unharmed.
    CHECK(F(int, "cuTexRefSetMipmapLevelBias", void *, float)(0, 2.5f));
    start();
    CHECK(launch((launch_t)sym("cuLaunchKernel")));
    EXPECT(counter("standin_launches") == 1);
    // The driver here lacks this one.
    EXPECT(F(int, "cuTexRefDestroy", void *)(0) == 801);
    puts("ok");
    return 0;
}

// A function of a release newer than the shim, by dlsym and as a program linked to it finds it.
static int newer(void) {
    int (*call)(int, int, int, int, int, int, int, double) = sym("cuLaunchSwarmNew");
    EXPECT(call(1, 2, 3, 4, 5, 6, 7, 0.5) == 1234);
    EXPECT(call(1, 2, 3, 4, 5, 6, 7, 0.5) == 1234);
    EXPECT(dlsym(RTLD_DEFAULT, "cuLaunchSwarmNew") == (void *)call);
    EXPECT(!dlsym(lib, "cuNobodyHasThis"));
    start();
    CHECK(launch((launch_t)sym("cuLaunchKernel")));
    EXPECT(dlopen("libcuda.so.1", RTLD_NOW) == lib);
    puts("ok");
    return 0;
}

static int lookup(void) {
    int (*get)(const char *, void **, int, uint64_t, unsigned *) = sym("cuGetProcAddress_v2");
    void *p;
    CHECK(get("cuInit", &p, 12000, 0, 0));
    CHECK(((int (*)(unsigned))p)(0));
    start();
    CHECK(get("cuLaunchKernel", &p, 12000, 0, 0));
    CHECK(launch((launch_t)p));
    void *standin_launch = dlsym(standin, "cuLaunchKernel");
    EXPECT(getenv("MICA_HOST_SOCKET") ? p != standin_launch : p == standin_launch);
    CHECK(get("cuLaunchKernel", &p, 12000, 2, 0));
    EXPECT(launch((launch_t)p) == 77);
    int d = 0;
    CHECK(get("cuCtxGetDevice", &p, 12000, 0, 0));
    CHECK(((int (*)(int *))p)(&d));
    EXPECT(d == 0);
    CHECK(get("cuCtxGetDevice", &p, 13000, 0, 0));
    CHECK(((int (*)(int *, void *))p)(&d, 0));
    EXPECT(d == 42);
    // PyTorch asks for the device ten times a launch: whoever looked the function up has the driver's own.
    EXPECT(p == dlsym(standin, "cuCtxGetDevice_v2"));
    // Numba calls the second version as if it were the first: what stands for a context never was one.
    if (getenv("MICA_HOST_SOCKET")) {
        CHECK(((int (*)(int *, void *))sym("cuCtxGetDevice_v2"))(&d, (void *)0x123456789));
        EXPECT(d == 0);
    }
    CHECK(get("cuMemTieredAllocNew", &p, 14000, 0, 0));
    // A newer version of what the shim knows has arguments of its own.
    CUdeviceptr a;
    CHECK(get("cuMemAlloc", &p, 14000, 0, 0));
    CHECK(((int (*)(int, CUdeviceptr *, size_t))p)(3, &a, 4096));
    CHECK(get("cuMemAlloc", &p, 13000, 0, 0));
    CHECK(((int (*)(CUdeviceptr *, size_t))p)(&a, 4096));
    // Found by its name where the driver hands out an address that it does not export.
    size_t before, after, total;
    CHECK(F(int, "cuMemGetInfo_v2", size_t *, size_t *)(&before, &total));
    CHECK(get("cuMemFree", &p, 13000, 0, 0));
    CHECK(((int (*)(CUdeviceptr))p)(a));
    CHECK(F(int, "cuMemGetInfo_v2", size_t *, size_t *)(&after, &total));
    EXPECT(after - before == 4096);
    EXPECT(get("", &p, 12000, 0, 0) == 500);
    puts("ok");
    return 0;
}

// Allocates pieces of argv[2] bytes until refused, frees one, allocates it again, frees all.
static int fill(size_t piece, size_t last) {
    int (*alloc)(CUdeviceptr *, size_t) = sym("cuMemAlloc_v2");
    int (*release)(CUdeviceptr) = sym("cuMemFree_v2");
    start();
    static CUdeviceptr p[100000];
    size_t n = 0;
    int r;
    while ((r = alloc(&p[n], piece)) == 0) n++;
    EXPECT(r == 2);
    CUdeviceptr extra;
    if (last) {
        CHECK(alloc(&extra, last));
        EXPECT(alloc(&p[n], 1) == 2);
        CHECK(release(extra));
    }
    CHECK(release(p[0]));
    CHECK(alloc(&p[0], piece));
    EXPECT(release(12345) != 0);
    size_t f, t;
    CHECK(F(int, "cuMemGetInfo_v2", size_t *, size_t *)(&f, &t));
    size_t total;
    CHECK(F(int, "cuDeviceTotalMem_v2", size_t *, int)(&total, 0));
    printf("%zu pieces, free %zu of %zu, device %zu\n", n, f, t, total);
    for (size_t i = 0; i < n; i++) CHECK(release(p[i]));
    return 0;
}

static int kinds(void) {
    start();
    CUdeviceptr p;
    size_t pitch;
    CHECK(F(int, "cuMemAllocPitch_v2", CUdeviceptr *, size_t *, size_t, size_t, unsigned)(&p, &pitch, 100, 4, 4));
    CHECK(F(int, "cuMemFree_v2", CUdeviceptr)(p));
    CHECK(F(int, "cuMemAllocManaged", CUdeviceptr *, size_t, unsigned)(&p, 5 << 20, 1));
    CHECK(F(int, "cuMemFree_v2", CUdeviceptr)(p));
    struct { int type, handles, where, id; void *win; uint64_t flags; } prop = { 1, 0, 1, 0, 0, 0 };
    uint64_t h, again;
    CHECK(F(int, "cuMemCreate", uint64_t *, size_t, void *, unsigned long long)(&h, 2 << 20, &prop, 0));
    CHECK(F(int, "cuMemMap", CUdeviceptr, size_t, size_t, uint64_t, unsigned long long)(0x1000000, 2 << 20, 0, h, 0));
    CHECK(F(int, "cuMemRelease", uint64_t)(h));
    // Held by the mapping still: the limit of 8 MiB has room for three more.
    for (int i = 0; i < 3; i++) CHECK(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 2 << 20));
    EXPECT(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 1) == 2);
    CHECK(F(int, "cuMemUnmap", CUdeviceptr, size_t)(0x1000000, 2 << 20));
    CHECK(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 2 << 20));
    // Imported from ourselves it is held once more, and paid for until the last hold goes.
    CHECK(F(int, "cuMemFree_v2", CUdeviceptr)(p));
    CHECK(F(int, "cuMemCreate", uint64_t *, size_t, void *, unsigned long long)(&h, 2 << 20, &prop, 0));
    CHECK(F(int, "cuMemImportFromShareableHandle", uint64_t *, void *, unsigned)(&again, (void *)(uintptr_t)h, 1));
    CHECK(F(int, "cuMemRelease", uint64_t)(again));
    EXPECT(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 1) == 2);
    CHECK(F(int, "cuMemRelease", uint64_t)(h));
    CHECK(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 1));
    // Arrays of before CUDA 3.2: bytes of one channel, 2 MiB are left.
    CHECK(F(int, "cuMemFree_v2", CUdeviceptr)(p));
    unsigned flat[] = { 1 << 11, 1 << 11, 1, 1 }, deep[] = { 1 << 10, 1 << 10, 2, 1, 1, 0 };
    void *a;
    EXPECT(F(int, "cuArrayCreate", void **, void *)(&a, flat) == 2);
    flat[1] >>= 1;
    CHECK(F(int, "cuArrayCreate", void **, void *)(&a, flat));
    EXPECT(F(int, "cuArray3DCreate", void **, void *)(&a, deep) == 2);
    CHECK(F(int, "cuArrayDestroy", void *)(a));
    CHECK(F(int, "cuArray3DCreate", void **, void *)(&a, deep));
    EXPECT(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 1) == 2);
    CHECK(F(int, "cuArrayDestroy", void *)(a));
    // Managed memory may lie on the device, whatever a pool of it says.
    prop.type = 2, prop.where = 3;
    void *managed;
    CHECK(F(int, "cuMemPoolCreate", void **, void *)(&managed, &prop));
    EXPECT(F(int, "cuMemAllocFromPoolAsync", CUdeviceptr *, size_t, void *, void *)(&p, 32 << 20, managed, 0) == 2);
    // Host memory costs nothing.
    prop.type = 1, prop.where = 2;
    CHECK(F(int, "cuMemCreate", uint64_t *, size_t, void *, unsigned long long)(&again, 64 << 20, &prop, 0));
    puts("ok");
    return 0;
}

static int pool(void) {
    start();
    int (*alloc)(CUdeviceptr *, size_t, void *) = sym("cuMemAllocAsync");
    int (*release)(CUdeviceptr, void *) = sym("cuMemFreeAsync");
    CUdeviceptr p[8], q;
    // 64 MiB limit: the pool takes 32 MiB for the first, 32 MiB more for the fifth.
    for (int i = 0; i < 4; i++) CHECK(alloc(&p[i], 8 << 20, 0));
    CHECK(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&q, 32 << 20));
    EXPECT(alloc(&p[4], 8 << 20, 0) == 2);
    CHECK(F(int, "cuMemFree_v2", CUdeviceptr)(q));
    for (int i = 4; i < 8; i++) CHECK(alloc(&p[i], 8 << 20, 0));
    EXPECT(alloc(&q, 8 << 20, 0) == 2);
    for (int i = 0; i < 8; i++) CHECK(release(p[i], 0));
    EXPECT(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&q, 2 << 20) == 2);
    CHECK(F(int, "cuMemPoolTrimTo", void *, size_t)((void *)0x2000, 0));
    CHECK(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&q, 64 << 20));
    puts("ok");
    return 0;
}

// 64 MiB limit. What a graph allocates is charged at its first launch, ended graphs do not add up, and a
// trim gives everything back.
static int graph(void) {
    start();
    CUdeviceptr p;
    struct { char before[104]; size_t bytes; char after[64]; } params = { .bytes = 24 << 20 };
    for (int i = 0; i < 20; i++) {
        void *g, *n, *e;
        CHECK(F(int, "cuGraphCreate", void **, unsigned)(&g, 0));
        CHECK(F(int, "cuGraphAddMemAllocNode", void **, void *, void *, size_t, void *)(&n, g, 0, 0, &params));
        CHECK(F(int, "cuGraphInstantiateWithFlags", void **, void *, unsigned long long)(&e, g, 0));
        CHECK(F(int, "cuGraphDestroy", void *)(g));
        CHECK(F(int, "cuGraphLaunch", void *, void *)(e, 0));
        CHECK(F(int, "cuGraphLaunch", void *, void *)(e, 0));
        CHECK(F(int, "cuGraphExecDestroy", void *)(e));
    }
    EXPECT(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 42 << 20) == 2);
    CHECK(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 40 << 20));
    CHECK(F(int, "cuMemFree_v2", CUdeviceptr)(p));
    CHECK(F(int, "cuDeviceGraphMemTrim", int)(0));
    CHECK(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 64 << 20));
    CHECK(F(int, "cuMemFree_v2", CUdeviceptr)(p));
    // Too large to be launched: refused before the driver is asked.
    params.bytes = 80 << 20;
    void *g, *n, *e;
    CHECK(F(int, "cuGraphCreate", void **, unsigned)(&g, 0));
    CHECK(F(int, "cuGraphAddMemAllocNode", void **, void *, void *, size_t, void *)(&n, g, 0, 0, &params));
    CHECK(F(int, "cuGraphInstantiateWithFlags", void **, void *, unsigned long long)(&e, g, 0));
    EXPECT(F(int, "cuGraphLaunch", void *, void *)(e, 0) == 2);
    // Captured by a capture that broke: nobody launches it, so it counts for no later graph.
    for (intptr_t stream = 7; stream >= 5; stream -= 2) {
        CHECK(F(int, "cuStreamBeginCapture_v2", void *, int)((void *)stream, 0));
        CHECK(F(int, "cuMemAllocAsync", CUdeviceptr *, size_t, void *)(&p, 40 << 20, (void *)stream));
        int ended = F(int, "cuStreamEndCapture", void *, void **)((void *)stream, &g);
        EXPECT(ended == (stream == 7 ? 901 : 0));
    }
    CHECK(F(int, "cuGraphInstantiateWithFlags", void **, void *, unsigned long long)(&e, g, 0));
    CHECK(F(int, "cuGraphLaunch", void *, void *)(e, 0));
    puts("ok");
    return 0;
}

// 64 MiB limit. Global variables of modules and local memory of kernels are charged.
static int module(void) {
    start();
    const char *image = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .global .align 16 .b8 big[41943040];\n";
    void *first, *second, *f;
    CUdeviceptr p;
    CHECK(F(int, "cuModuleLoadData", void **, const void *)(&first, image));
    EXPECT(F(int, "cuModuleLoadData", void **, const void *)(&second, image) == 2);
    EXPECT(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 26 << 20) == 2);
    CHECK(F(int, "cuModuleUnload", void *)(first));
    CHECK(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 64 << 20));
    CHECK(F(int, "cuMemFree_v2", CUdeviceptr)(p));
    // 132 processors with 2048 threads each: 64 bytes more than the first 1024 for each take 16.5 MiB.
    CHECK(F(int, "cuModuleLoadData", void **, const void *)(&first, ".version 8.0\n.target sm_90\n"));
    CHECK(F(int, "cuModuleGetFunction", void **, void *, const char *)(&f, first, "1000"));
    CHECK(F(int, "cuModuleGetFunction", void **, void *, const char *)(&f, first, "1088"));
    CHECK(F(int, "cuModuleGetFunction", void **, void *, const char *)(&f, first, "1080"));
    EXPECT(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 48 << 20) == 2);
    CHECK(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 46 << 20));
    EXPECT(F(int, "cuModuleGetFunction", void **, void *, const char *)(&f, first, "1200") == 2);
    // A larger stack than that takes more, a smaller one gives none of it back.
    CHECK(F(int, "cuMemFree_v2", CUdeviceptr)(p));
    CHECK(F(int, "cuCtxSetLimit", unsigned, size_t)(0, 1152));
    EXPECT(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 32 << 20) == 2);
    CHECK(F(int, "cuCtxSetLimit", unsigned, size_t)(0, 1024));
    CHECK(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 46 << 20));
    puts("ok");
    return 0;
}

#include "ways.h"

// 64 MiB limit that makes whoever asks for more wait: a thread waits for what this one gives back.
static void *asks(void *what) {
    CUdeviceptr p;
    int got = !strcmp(what, "pool") ? F(int, "cuMemAllocAsync", CUdeviceptr *, size_t, void *)(&p, 40 << 20, 0)
            : !strcmp(what, "linear") ? F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 40 << 20)
            : F(int, "cuCtxSetLimit", unsigned, size_t)(2, 48u << 20);
    return (void *)(intptr_t)got;
}
static int waits(const char *what) {
    start();
    CUdeviceptr p, q;
    CHECK(F(int, "cuMemAllocAsync", CUdeviceptr *, size_t, void *)(&q, 8 << 20, 0));
    CHECK(F(int, "cuMemFreeAsync", CUdeviceptr, void *)(q, 0));
    CHECK(F(int, "cuMemPoolTrimTo", void *, size_t)((void *)0x2000, 0));
    CHECK(F(int, "cuMemAllocAsync", CUdeviceptr *, size_t, void *)(&p, 60 << 20, 0));
    pthread_t t;
    void *got;
    pthread_create(&t, 0, asks, (void *)what);
    usleep(200000); // most likely it waits by now
    void *f;
    EXPECT(F(int, "cuModuleGetFunction", void **, void *, const char *)(&f, 0, "1000") == 0);
    CHECK(F(int, "cuMemFreeAsync", CUdeviceptr, void *)(p, 0));
    CHECK(F(int, "cuMemPoolTrimTo", void *, size_t)((void *)0x2000, 0));
    pthread_join(t, &got);
    printf("%d\n", (int)(intptr_t)got);
    return 0;
}

static size_t piece_bytes;
static pthread_barrier_t race_end;
static void *race_thread(void *x) {
    int (*alloc)(CUdeviceptr *, size_t) = sym("cuMemAlloc_v2");
    int (*release)(CUdeviceptr) = sym("cuMemFree_v2");
    uint64_t seed = (uint64_t)(uintptr_t)x * 2654435761u + getpid();
    CUdeviceptr mine[64] = { 0 };
    for (int i = 0; i < 4000; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        int k = (seed >> 33) % 64;
        if (mine[k]) { if (release(mine[k])) exit(4); mine[k] = 0; }
        else if (alloc(&mine[k], piece_bytes + (seed >> 40) % 4096)) mine[k] = 0;
    }
    // All threads together hold more than the limit, also where they ran one after another.
    pthread_barrier_wait(&race_end);
    for (int k = 0; k < 64; k++) if (mine[k]) release(mine[k]);
    return 0;
}
static int race(size_t piece) {
    piece_bytes = piece;
    start();
    pthread_barrier_init(&race_end, 0, 8);
    pthread_t t[8];
    for (long i = 0; i < 8; i++) pthread_create(&t[i], 0, race_thread, (void *)i);
    for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
    printf("%llu allocations\n", (unsigned long long)counter("standin_allocs"));
    return 0;
}

static int forked(void) {
    start();
    pid_t child = fork();
    if (!child) {
        CUdeviceptr p;
        // The child's books are not the parent's; the driver itself decides what it may do.
        F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 1 << 20);
        launch((launch_t)sym("cuLaunchKernel"));
        for (int which = 0; which < 4; which++) if (launch_checked(which, 6)) _exit(1);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CUdeviceptr p;
    CHECK(F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 1 << 20));
    puts("ok");
    return 0;
}

// Says whether the way back to main can be found from where a signal finds this thread.
static void *in_main;
static void look_back(int signal) {
    (void)signal;
    void *frames[64];
    int found = 0;
    for (int i = backtrace(frames, 64); i--;) found |= frames[i] == in_main;
    puts(found ? "found" : "lost");
}

// Launches for as long as stdin is open, saying so line by line when asked by a byte.
__attribute__((noinline)) static int serve(void) {
    start();
    in_main = __builtin_return_address(0);
    signal(SIGUSR1, look_back);
    launch_t f = (launch_t)sym("cuLaunchKernel");
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    int c;
    while ((c = getchar()) != EOF) {
        if (c == 'l') { CHECK(launch(f)); printf("launched %llu\n", (unsigned long long)counter("standin_launches")); }
        if (c == 's') { CHECK(F(int, "cuCtxSynchronize", void)()); printf("synced %llu\n", (unsigned long long)counter("standin_syncs")); }
        if (c >= '1' && c <= '9') { CHECK(F(int, "cuEventRecord", void *, void *)((void *)(0x1000L * c), 0)); puts("recorded"); }
        if (c == 'w') { CHECK(F(int, "cuEventSynchronize", void *)((void *)(0x1000L * getchar()))); puts("waited"); }
        if (c == 'b') { CHECK(F(int, "cuStreamBeginCapture_v2", void *, int)((void *)0x5, 0)); puts("capturing"); }
        if (c == 'e') { void *g; CHECK(F(int, "cuStreamEndCapture", void *, void **)((void *)0x5, &g)); puts("captured"); }
        if (c == 'z') { CHECK(F(int, "cuMemsetD8Async", CUdeviceptr, unsigned char, size_t, void *)(0x1000, 0x5A, 4 << 20, (void *)0x5)); puts("filled"); }
        if (c == 'A') switch (getchar()) {
            case '1': CHECK(F(int, "cuMemcpyHtoA_v2", void *, size_t, void *, size_t)((void *)0xA, 3, 0, 2 << 20)); puts("copied"); break;
            case '2': CHECK(F(int, "cuMemcpyAtoHAsync_v2", void *, void *, size_t, size_t, void *)(0, (void *)0xA, 4, 2 << 20, (void *)5)); puts("copied"); break;
            case '3': CHECK(F(int, "cuMemcpyAtoA_v2", void *, size_t, void *, size_t, size_t)((void *)0xA, 1, (void *)0xB, 2, 2 << 20)); puts("copied"); break;
            default: CHECK(F(int, "cuMemMapArrayAsync", void *, unsigned, void *)(0, 9, (void *)5)); puts("copied");
        }
        if (c == 'v') { CHECK(F(int, "cuStreamWaitValue32_v2", void *, CUdeviceptr, uint32_t, unsigned)((void *)0x5, 0x1000, 7, 0)); puts("waits"); }
        if (c == 'd') { CHECK(F(int, "cuStreamDestroy_v2", void *)((void *)0x5)); puts("destroyed"); }
        if (c == 'y') { CHECK(F(int, "cuStreamSynchronize", void *)((void *)(intptr_t)(getchar() - '0'))); puts("stream synced"); }
        if (c == 'k') { int which = getchar() - '0'; CHECK(launch_checked(which, getchar() - '0')); puts("arrived"); }
        if (c == 'n') { CHECK(launch_without_config(getchar() - '0')); puts("refused"); }
        if (c == 'x') printf("broken %llu\n", (unsigned long long)counter("standin_broken"));
        if (c == 'c') { void *ctx; CHECK(F(int, "cuCtxCreate_v2", void **, unsigned, int)(&ctx, 0, 0)); puts("created"); }
        if (c == 'm') printf("waited for %llu\n", (unsigned long long)counter("standin_synced"));
        if (c == 'a') { CUdeviceptr p; printf("alloc %d\n", F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(&p, 1 << 20)); }
    }
    return 0;
}

// Launches and waits, launches and waits, for as long as stdin is open.
static int burst(void) {
    start();
    launch_t f = (launch_t)sym("cuLaunchKernel");
    int (*wait)(void *) = sym("cuStreamSynchronize");
    struct pollfd in = { 0, POLLIN, 0 };
    setvbuf(stdout, 0, _IOLBF, 0);
    for (unsigned long round = 0; poll(&in, 1, 0) == 0; round++) {
        CHECK(launch(f));
        CHECK(wait((void *)0x5));
        usleep(50);
        if (round % 100 == 99) printf("%lu\n", round + 1);
    }
    return 0;
}

// Rounds of work that ends only when this thread has launched some more, which takes it longer than a lease.
static int polls(int rounds) {
    start();
    launch_t f = (launch_t)sym("cuLaunchKernel");
    const char *hold = getenv("STANDIN_HOLD");
    struct pollfd input = { 0, POLLIN, 0 };
    // So often, and as long as whoever looks at it keeps its input open.
    for (int round = 0; round < rounds || !poll(&input, 1, 0); round++) {
        close(open(hold, O_CREAT | O_WRONLY, 0600));
        for (int i = 0; i < 20; i++) { CHECK(launch(f)); usleep(500); }
        unlink(hold);
        CHECK(F(int, "cuCtxSynchronize", void)());
    }
    puts("ok");
    return 0;
}

// Without room for an answer nothing is made: whatever the limit is, the program hears what the driver says.
static int nulls(void) {
    CHECK(F(int, "cuInit", unsigned)(0));
    size_t huge = (size_t)1 << 40;
    EXPECT(F(int, "cuDevicePrimaryCtxRetain", void **, int)(0, 0) == 1);
    EXPECT(F(int, "cuCtxCreate_v2", void **, unsigned, int)(0, 0, 0) == 1);
    EXPECT(F(int, "cuMemAlloc_v2", void *, size_t)(0, huge) == 1);
    EXPECT(F(int, "cuMemAllocManaged", void *, size_t, unsigned)(0, huge, 1) == 1);
    EXPECT(F(int, "cuMemAllocPitch_v2", void *, void *, size_t, size_t, unsigned)(0, 0, huge, 1, 4) == 1);
    EXPECT(F(int, "cuMemAllocAsync", void *, size_t, void *)(0, huge, 0) == 1);
    EXPECT(F(int, "cuMemAllocFromPoolAsync", void *, size_t, void *, void *)(0, huge, 0, 0) == 1);
    EXPECT(F(int, "cuMemPoolCreate", void *, void *)(0, 0) == 1);
    EXPECT(F(int, "cuMemPoolTrimTo", void *, size_t)(0, 0) == 1);
    char device[64] = { 1, 0, 0, 0, 0, 0, 0, 0, 1 }, array[64];
    memset(array, 0x7f, sizeof array);
    EXPECT(F(int, "cuMemCreate", void *, size_t, void *, unsigned long long)(0, huge, device, 0) == 1);
    EXPECT(F(int, "cuMemImportFromShareableHandle", void *, void *, int)(0, 0, 0) == 1);
    EXPECT(F(int, "cuMemRetainAllocationHandle", void *, void *)(0, 0) == 1);
    EXPECT(F(int, "cuArray3DCreate_v2", void *, void *)(0, array) == 1);
    EXPECT(F(int, "cuModuleLoadData", void *, void *)(0, 0) == 1);
    EXPECT(F(int, "cuModuleGetFunction", void *, void *, void *)(0, 0, 0) == 1);
    EXPECT(F(int, "cuGraphAddMemAllocNode", void *, void *, void *, size_t, void *)(0, 0, 0, 0, 0) == 1);
    EXPECT(F(int, "cuGraphInstantiateWithFlags", void *, void *, unsigned long long)(0, 0, 0) == 1);
    // Neither figure is wanted, then one of the two.
    int (*info)(size_t *, size_t *) = sym("cuMemGetInfo_v2");
    size_t free = 0, total = 0;
    CHECK(info(0, 0));
    CHECK(info(&free, 0));
    CHECK(info(0, &total));
    EXPECT(free == total && total == 1 << 20);
    puts("ok");
    return 0;
}

static int bench(void) {
    start();
    launch_t f = (launch_t)sym("cuLaunchKernel");
    int (*alloc)(CUdeviceptr *, size_t) = sym("cuMemAlloc_v2");
    int (*release)(CUdeviceptr) = sym("cuMemFree_v2");
    int (*alloc_async)(CUdeviceptr *, size_t, void *) = sym("cuMemAllocAsync");
    int (*release_async)(CUdeviceptr, void *) = sym("cuMemFreeAsync");
    struct timespec a, b;
    CUdeviceptr p, keep;
    CHECK(alloc_async(&keep, 4 << 20, 0));
    double ns[3];
    for (int round = 0; round < 6; round++) {
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (int i = 0; i < 200000; i++) {
            if (round % 3 == 0) launch(f);
            if (round % 3 == 1) { alloc(&p, 1 << 20); release(p); }
            if (round % 3 == 2) { alloc_async(&p, 1 << 20, 0); release_async(p, 0); }
        }
        clock_gettime(CLOCK_MONOTONIC, &b);
        ns[round % 3] = ((b.tv_sec - a.tv_sec) * 1e9 + b.tv_nsec - a.tv_nsec) / 2e5;
    }
    printf("launch %.1f ns, alloc and free %.1f ns, pool alloc and free %.1f ns\n", ns[0], ns[1], ns[2]);
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    size_t a = argc > 2 ? strtoull(argv[2], 0, 0) : 0, b = argc > 3 ? strtoull(argv[3], 0, 0) : 0;
    if (!strcmp(what, "none")) return 0;
    lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) { printf("no libcuda: %s\n", dlerror()); return 3; }
    standin = dlopen(getenv("MICA_LIBCUDA"), RTLD_NOW);
    if (!strcmp(what, "init")) { printf("%d\n", F(int, "cuInit", unsigned)(0)); return 0; }
    if (!strcmp(what, "forward")) return forward();
    if (!strcmp(what, "newer")) return newer();
    if (!strcmp(what, "lookup")) return lookup();
    if (!strcmp(what, "fill")) return fill(a, b);
    if (!strcmp(what, "kinds")) return kinds();
    if (!strcmp(what, "pool")) return pool();
    if (!strcmp(what, "graph")) return graph();
    if (!strcmp(what, "module")) return module();
    for (size_t way = 0; way < sizeof WAYS / sizeof *WAYS; way++) if (!strcmp(what, WAYS[way].name)) return WAYS[way].run();
    if (!strcmp(what, "waits")) return waits(argv[2]);
    if (!strcmp(what, "race")) return race(a);
    if (!strcmp(what, "fork")) return forked();
    if (!strcmp(what, "serve")) return serve();
    if (!strcmp(what, "burst")) return burst();
    if (!strcmp(what, "polls")) return polls((int)a);
    if (!strcmp(what, "nulls")) return nulls();
    if (!strcmp(what, "bench")) return bench();
    return 2;
}
