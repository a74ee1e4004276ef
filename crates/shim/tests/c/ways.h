// Less common ways to device memory, and odd ends of it: what one of them takes is charged until it is really given back.
// Part of program.c.

static int alloc(CUdeviceptr *p, size_t bytes) { return F(int, "cuMemAlloc_v2", CUdeviceptr *, size_t)(p, bytes); }
static int release(CUdeviceptr p) { return F(int, "cuMemFree_v2", CUdeviceptr)(p); }
// Whether so much is free, and not a byte more. The rest of a granule is the next one's.
static int free_is(size_t bytes) {
    CUdeviceptr p = 0;
    if (!alloc(&p, bytes + 512) || (bytes && alloc(&p, bytes))) return 0;
    return !bytes || !release(p);
}
#define MIB ((size_t)1 << 20)
struct prop { int type, handles, where, id; void *win; uint64_t flags; };
static struct prop on_device = { 1, 1, 1, 0, 0, 0 };

// 64 MiB limit. A pool that is destroyed keeps its memory until the last of it is freed.
static int ended_pool(void) {
    start();
    void *pool;
    CUdeviceptr p, q;
    int (*from)(CUdeviceptr *, size_t, void *, void *) = sym("cuMemAllocFromPoolAsync");
    CHECK(F(int, "cuMemPoolCreate", void **, void *)(&pool, &on_device));
    CHECK(from(&p, 20 * MIB, pool, 0));
    CHECK(from(&q, 12 * MIB, pool, 0));
    CHECK(F(int, "cuMemPoolDestroy", void *)(pool));
    EXPECT(free_is(32 * MIB));
    CHECK(F(int, "cuMemFreeAsync", CUdeviceptr, void *)(p, 0));
    EXPECT(free_is(32 * MIB));
    CHECK(F(int, "cuMemFreeAsync", CUdeviceptr, void *)(q, 0));
    EXPECT(free_is(64 * MIB));
    puts("ok");
    return 0;
}

// 60 MiB limit. A pool that may hold little needs no room for more.
static int small_pool(void) {
    start();
    void *pool;
    CUdeviceptr p, q;
    struct prop little = on_device;
    little.flags = 8 * MIB;
    CHECK(alloc(&q, 50 * MIB));
    EXPECT(F(int, "cuMemAllocAsync", CUdeviceptr *, size_t, void *)(&p, 4 * MIB, 0) == 2);
    CHECK(F(int, "cuMemPoolCreate", void **, void *)(&pool, &little));
    CHECK(F(int, "cuMemAllocFromPoolAsync", CUdeviceptr *, size_t, void *, void *)(&p, 4 * MIB, pool, 0));
    EXPECT(free_is(2 * MIB));
    puts("ok");
    return 0;
}

// 60 MiB limit. A pool grows by more than was foreseen, and than fits: refused, also where the stream's work waits for this
// very thread.
static int stuck_pool(void) {
    start();
    CUdeviceptr p;
    int (*async)(CUdeviceptr *, size_t, void *) = sym("cuMemAllocAsync");
    EXPECT(async(&p, 33 * MIB, (void *)0x57) == 2);
    EXPECT(free_is(60 * MIB));
    puts("ok");
    return 0;
}

// 64 MiB limit. A graph has what was there before a capture into it, and what its children have.
static int child_graph(void) {
    start();
    CUdeviceptr p;
    struct { int type, reserved[3]; union { struct { char before[104]; size_t bytes; } alloc; struct { void *graph; int ownership; } child; char all[240]; } u; }
        node = { .type = 10, .u.alloc.bytes = 40 * MIB }, child = { .type = 4, .u.child.ownership = 1 };
    int (*make)(void **, unsigned) = sym("cuGraphCreate");
    int (*add)(void **, void *, const void *, const void *, size_t, void *) = sym("cuGraphAddNode_v2");
    int (*instantiate)(void **, void *, unsigned long long) = sym("cuGraphInstantiateWithFlags");
    int (*run)(void *, void *) = sym("cuGraphLaunch");
    void *g, *parent, *n, *e;
    // One that was moved into its parent. Two would be too much.
    CHECK(make(&g, 0));
    CHECK(add(&n, g, 0, 0, 0, &node));
    CHECK(make(&parent, 0));
    child.u.child.graph = g;
    CHECK(add(&n, parent, 0, 0, 0, &child));
    CHECK(instantiate(&e, parent, 0));
    CHECK(alloc(&p, 30 * MIB));
    EXPECT(run(e, 0) == 2);
    CHECK(release(p));
    CHECK(run(e, 0));
    EXPECT(free_is(24 * MIB));
    CHECK(F(int, "cuDeviceGraphMemTrim", int)(0));
    // Captured into a graph that had a node of its own, while another is added to it.
    node.u.alloc.bytes = 20 * MIB;
    CHECK(make(&g, 0));
    CHECK(add(&n, g, 0, 0, 0, &node));
    CHECK(F(int, "cuStreamBeginCaptureToGraph", void *, void *, void *, void *, size_t, int)((void *)5, g, 0, 0, 0, 0));
    CHECK(F(int, "cuMemAllocAsync", CUdeviceptr *, size_t, void *)(&p, 20 * MIB, (void *)5));
    CHECK(add(&n, g, 0, 0, 0, &node));
    CHECK(F(int, "cuStreamEndCapture", void *, void **)((void *)5, &g));
    CHECK(instantiate(&e, g, 0));
    CHECK(alloc(&p, 6 * MIB));
    EXPECT(run(e, 0) == 2);
    CHECK(release(p));
    CHECK(run(e, 0));
    puts("ok");
    return 0;
}

// 8 MiB limit. Physical memory is paid for while any handle, mapping or array holds it.
static int handles(void) {
    start();
    int (*create)(uint64_t *, size_t, void *, unsigned long long) = sym("cuMemCreate");
    int (*drop)(uint64_t) = sym("cuMemRelease");
    int (*map)(CUdeviceptr, size_t, size_t, uint64_t, unsigned long long) = sym("cuMemMap");
    int (*unmap)(CUdeviceptr, size_t) = sym("cuMemUnmap");
    uint64_t h, again;
    // Exported, imported under another number, and the first handle released.
    int fd;
    CHECK(create(&h, 6 * MIB, &on_device, 0));
    CHECK(F(int, "cuMemExportToShareableHandle", int *, uint64_t, int, unsigned long long)(&fd, h, 1, 0));
    CHECK(F(int, "cuMemImportFromShareableHandle", uint64_t *, void *, int)(&again, (void *)(intptr_t)fd, 1));
    EXPECT(again != h);
    CHECK(drop(h));
    EXPECT(free_is(2 * MIB));
    CHECK(map(0x1000000, 6 * MIB, 0, again, 0));
    CHECK(drop(again));
    EXPECT(free_is(2 * MIB));
    CHECK(unmap(0x1000000, 6 * MIB));
    EXPECT(free_is(8 * MIB));
    // One of somebody else is free.
    CHECK(F(int, "cuMemImportFromShareableHandle", uint64_t *, void *, int)(&again, (void *)(intptr_t)fd, 1));
    EXPECT(free_is(8 * MIB));
    CHECK(drop(again));
    // A number that comes again while what it stood for is mapped.
    CHECK(create(&h, 2 * MIB, &on_device, 0));
    CHECK(map(0x1000000, 2 * MIB, 0, h, 0));
    CHECK(drop(h));
    CHECK(create(&again, 4 * MIB, &on_device, 1));
    EXPECT(again == h && free_is(2 * MIB));
    CHECK(drop(again));
    EXPECT(free_is(6 * MIB));
    CHECK(unmap(0x1000000, 2 * MIB));
    EXPECT(free_is(8 * MIB));
    // What a sparse array is made of.
    struct { uint64_t width, height, depth; unsigned format, channels, flags; } sparse = { 1024, 1024, 0, 1, 4, 0x40 };
    struct { unsigned type; void *array; unsigned part; uint64_t where[4]; unsigned operation, handles; uint64_t handle, offset; unsigned mask, flags, zero[2]; }
        info = { 0, 0, 0, { 0 }, 1, 0, 0, 0, 1, 0, { 0 } };
    CHECK(F(int, "cuArray3DCreate_v2", void **, void *)(&info.array, &sparse));
    CHECK(create(&h, 4 * MIB, &on_device, 0));
    info.handle = h;
    for (int i = 0; i < 2; i++) CHECK(F(int, "cuMemMapArrayAsync", void *, unsigned, void *)(&info, 1, (void *)5));
    CHECK(drop(h));
    EXPECT(free_is(4 * MIB));
    CHECK(F(int, "cuArrayDestroy", void *)(info.array));
    EXPECT(free_is(8 * MIB));
    // A part of a device is the device's, and so is what this release has no word for.
    struct prop part = on_device;
    part.where = 6;
    EXPECT(create(&h, 10 * MIB, &part, 0) == 2);
    part.where = 3;
    CHECK(create(&h, 10 * MIB, &part, 0));
    puts("ok");
    return 0;
}

// 16 MiB limit, contexts of 6 MiB. However a context ends, it is given back with what was in it.
static int context_ends(void) {
    CHECK(F(int, "cuInit", unsigned)(0));
    void *ctx, *same, *green;
    CUdeviceptr p;
    for (int i = 0; i < 5; i++) {
        CHECK(F(int, "cuCtxCreate_v2", void **, unsigned, int)(&ctx, 0, 0));
        CHECK(alloc(&p, 4 * MIB));
        if (i == 3) {
            CHECK(F(int, "cuCtxAttach", void **, unsigned)(&same, 0));
            CHECK(F(int, "cuCtxDetach", void *)(ctx));
            EXPECT(free_is(6 * MIB));
        }
        CHECK(i == 4 ? F(int, "cuCtxDestroy_v2", void *)(ctx) : F(int, "cuCtxDetach", void *)(ctx));
        EXPECT(free_is(16 * MIB));
    }
    // A green context makes the primary one, in which its memory is.
    CHECK(F(int, "cuGreenCtxCreate", void **, void *, int, unsigned)(&green, 0, 0, 0));
    CHECK(F(int, "cuCtxFromGreenCtx", void **, void *)(&ctx, green));
    CHECK(F(int, "cuCtxSetCurrent", void *)(ctx));
    CHECK(alloc(&p, 4 * MIB));
    EXPECT(free_is(6 * MIB));
    // With a second context, and the device retained once more.
    CHECK(F(int, "cuDevicePrimaryCtxRetain", void **, int)(&same, 0));
    void *second;
    CHECK(F(int, "cuCtxCreate_v2", void **, unsigned, int)(&second, 0, 0));
    EXPECT(free_is(0));
    CHECK(F(int, "cuCtxDestroy_v2", void *)(second));
    CHECK(F(int, "cuCtxSetCurrent", void *)(ctx));
    CHECK(F(int, "cuGreenCtxDestroy", void *)(green));
    EXPECT(free_is(6 * MIB));
    CHECK(F(int, "cuDevicePrimaryCtxRelease_v2", int)(0));
    EXPECT(free_is(16 * MIB));
    puts("ok");
    return 0;
}

// 64 MiB limit. Kernels that are listed, and images in files, as those that are named and those in memory.
static int listed(void) {
    start();
    void *f[3], *m;
    CHECK(F(int, "cuModuleEnumerateFunctions", void **, unsigned, void *)(f, 1, 0));
    EXPECT(free_is(64 * MIB));
    // 64 bytes more than the first 1024 for each of 132 times 2048 threads: 16.5 MiB.
    CHECK(F(int, "cuModuleEnumerateFunctions", void **, unsigned, void *)(f, 3, 0));
    CUdeviceptr p;
    EXPECT(alloc(&p, 48 * MIB) == 2);
    CHECK(F(int, "cuLibraryEnumerateKernels", void **, unsigned, void *)(f, 2, 0));
    CHECK(F(int, "cuFuncLoad", void *)((void *)1088));
    CHECK(alloc(&p, 46 * MIB));
    EXPECT(F(int, "cuFuncLoad", void *)((void *)1200) == 2);
    CHECK(release(p));
    char path[] = "/tmp/mica-image-XXXXXX";
    int file = mkstemp(path);
    const char *image = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .global .align 16 .b8 big[20971520], more[20971520];\n";
    EXPECT(write(file, image, strlen(image)) == (ssize_t)strlen(image));
    close(file);
    int loaded = F(int, "cuModuleLoad", void **, const char *)(&m, path);
    unlink(path);
    CHECK(loaded);
    EXPECT(alloc(&p, 8 * MIB) == 2);
    CHECK(F(int, "cuModuleUnload", void *)(m));
    CHECK(alloc(&p, 46 * MIB));
    puts("ok");
    return 0;
}

// Four threads take and give back memory in all ways at once, with a driver that fails now and then. Whenever all hold still,
// what is charged covers what the device has given away, which is never more than the limit; in the end nothing is charged.
#define HANDS 24
struct hand { int way; uint64_t a, b; void *pool; };
static pthread_barrier_t stillness;
static void give_hand(struct hand *hand) {
    int (*give[])(uint64_t) = { sym("cuMemFree_v2"), sym("cuMemFree_v2"), sym("cuMemFree_v2"), sym("cuArrayDestroy"), 0, sym("cuMemFree_v2"), 0, sym("cuModuleUnload") };
    int (*later)(CUdeviceptr, void *) = sym("cuMemFreeAsync");
    int (*drop)(uint64_t) = sym("cuMemRelease"), (*unmap)(CUdeviceptr, size_t) = sym("cuMemUnmap");
    switch (hand->way) {
    case 4: while (drop(hand->a)) {} if (hand->b) while (drop(hand->b)) {} break;
    case 6: while (later(hand->a, 0)) {} break;
    case 8: while (unmap(hand->a, 2 * MIB)) {} break;
    case 9: while (F(int, "cuMemPoolDestroy", void *)(hand->pool)) {} while (later(hand->a, 0)) {} break;
    default: while (give[hand->way](hand->a)) {}
    }
    hand->way = -1;
}
static int take_hand(struct hand *hand, uint64_t seed, uint64_t place) {
    size_t bytes = seed % (3 * MIB) + 1, pitch;
    struct { uint64_t width, height, depth; unsigned format, channels, flags; } array = { bytes, 1, 0, 1, 1, 0 };
    int fd, way = seed / 7 % 10;
    hand->b = 0;
    hand->way = way;
    switch (way) {
    case 0: return alloc(&hand->a, bytes);
    case 1: return F(int, "cuMemAllocManaged", uint64_t *, size_t, unsigned)(&hand->a, bytes, 1);
    case 2: return F(int, "cuMemAllocPitch_v2", uint64_t *, size_t *, size_t, size_t, unsigned)(&hand->a, &pitch, bytes / 16 + 1, 16, 4);
    case 3: return F(int, "cuArray3DCreate_v2", uint64_t *, void *)(&hand->a, &array);
    case 5: case 6: return F(int, "cuMemAllocAsync", uint64_t *, size_t, void *)(&hand->a, bytes, 0);
    case 7: return F(int, "cuModuleLoadData", uint64_t *, const void *)(&hand->a, ".version 8.0\n.target sm_90\n.global .b8 a[70000], b[12];\n");
    case 9:
        if (F(int, "cuMemPoolCreate", void **, void *)(&hand->pool, &on_device)) return 1;
        if (!F(int, "cuMemAllocFromPoolAsync", uint64_t *, size_t, void *, void *)(&hand->a, bytes, hand->pool, 0)) return 0;
        while (F(int, "cuMemPoolDestroy", void *)(hand->pool)) {}
        return 1;
    default:
        if (F(int, "cuMemCreate", uint64_t *, size_t, void *, unsigned long long)(&hand->a, 2 * MIB, &on_device, 0)) return 1;
        if (!F(int, "cuMemExportToShareableHandle", int *, uint64_t, int, unsigned long long)(&fd, hand->a, 1, 0)
            && F(int, "cuMemImportFromShareableHandle", uint64_t *, void *, int)(&hand->b, (void *)(intptr_t)fd, 1)) hand->b = 0;
        if (way == 4) return 0;
        // Mapped, and held by nothing else.
        if (F(int, "cuMemMap", CUdeviceptr, size_t, size_t, uint64_t, unsigned long long)(place, 2 * MIB, 0, hand->b ? hand->b : hand->a, 0)) { hand->way = 4; return 0; }
        for (int i = 0; i < 2; i++) for (uint64_t h = i ? hand->b : hand->a; h && F(int, "cuMemRelease", uint64_t)(h);) {}
        hand->a = place;
        return 0;
    }
}
static void *all_hands(void *x) {
    struct hand mine[HANDS];
    uint64_t number = (uintptr_t)x, seed = number * 2654435761u + 17;
    for (int i = 0; i < HANDS; i++) mine[i].way = -1;
    CHECK(F(int, "cuCtxSetCurrent", void *)((void *)0x1000));
    for (int round = 0; round < 1500; round++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        int i = (seed >> 33) % HANDS;
        if (mine[i].way >= 0) give_hand(&mine[i]);
        else if (take_hand(&mine[i], seed >> 20, (number * HANDS + i + 1) << 32)) mine[i].way = -1;
        if (round % 50) continue;
        pthread_barrier_wait(&stillness);
        if (!number) {
            size_t f, t;
            CHECK(F(int, "cuMemGetInfo_v2", size_t *, size_t *)(&f, &t));
            if (counter("standin_physical") > t - f) { printf("%llu given away, %zu charged\n", (unsigned long long)counter("standin_physical"), t - f); exit(1); }
        }
        pthread_barrier_wait(&stillness);
    }
    for (int i = 0; i < HANDS; i++) if (mine[i].way >= 0) give_hand(&mine[i]);
    return 0;
}
static int anything(void) {
    start();
    pthread_barrier_init(&stillness, 0, 4);
    pthread_t t[4];
    for (long i = 0; i < 4; i++) pthread_create(&t[i], 0, all_hands, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    CHECK(F(int, "cuMemPoolTrimTo", void *, size_t)((void *)0x2000, 0));
    size_t f, total;
    CHECK(F(int, "cuMemGetInfo_v2", size_t *, size_t *)(&f, &total));
    EXPECT(counter("standin_physical_peak") <= total && counter("standin_physical_peak") > total / 10 * 9);
    printf("%zu left charged, %llu given away\n", total - f, (unsigned long long)counter("standin_physical"));
    return 0;
}

static const struct { const char *name; int (*run)(void); } WAYS[] = {
    { "ended pool", ended_pool }, { "small pool", small_pool }, { "stuck pool", stuck_pool }, { "child graph", child_graph },
    { "handles", handles }, { "context ends", context_ends }, { "listed", listed }, { "anything", anything },
};
