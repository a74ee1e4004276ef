/* A driver whose device memory is ordinary memory; kernels only note what they were given. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef void *handle;
typedef struct {
    size_t x, y, z, lod; unsigned kind; void *host; uint64_t device; handle array; void *reserved; size_t pitch, height;
} side;
typedef struct { side src, dst; size_t width, height, depth; } box;
typedef struct { size_t width, height, depth; unsigned format, channels, flags; } shape;
typedef struct { unsigned kind; union { handle array; struct { uint64_t at; unsigned format, channels; size_t bytes; } linear; int reserved[32]; } of; unsigned flags; } resource;
typedef struct { unsigned mode[3], filter, flags; } texture;

int fake_version = 13000, fake_mode, fake_contexts, fake_current;
char fake_launch[256];
/* While `fake_hold` is set what runs does not end; `fake_inside` waits for it. */
volatile int fake_hold, fake_inside, fake_launches, fake_copies, fake_callbacks;
int fake_shared_limit;

/* With `fake_vmm` frames are files that can be mapped at reserved addresses, and the variable of modules is at so many times 4 GiB. */
int fake_vmm;
static int has_vmm(void) { return fake_vmm != 0; }
static struct { uint64_t at; size_t bytes; } blocks[256];
static uint64_t keep(size_t bytes)
{
    for (int i = 0; i < 256; i++)
        if (!blocks[i].at) {
            blocks[i].at = (uint64_t)(uintptr_t)aligned_alloc(512, (bytes + 511) / 512 * 512);
            blocks[i].bytes = bytes;
            return blocks[i].at;
        }
    return 0;
}
static int find(uint64_t at)
{
    for (int i = 0; i < 256; i++)
        if (blocks[i].at && at >= blocks[i].at && at < blocks[i].at + blocks[i].bytes)
            return i;
    return -1;
}

int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int *version) { *version = fake_version; return 0; }
int cuGetExportTable(const void **table, const void *id) { *table = 0; return id ? 500 : 1; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGetName(char *text, int room, int device) { (void)device; return snprintf(text, room, "Test GPU") < 0; }
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, 0x5a, 16); return device; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 1ul << 34; return device; }
int fake_shareable;
int cuDeviceGetAttribute(int *value, unsigned number, int device) { *value = number == 20 ? fake_mode : number == 103 ? fake_shareable : number == 88 || number == 100 ? 0 : (int)number; return number > 200 ? 1 : device; }
int cuDeviceGetPCIBusId(char *text, int room, int device) { (void)device; return snprintf(text, room, "0000:01:00.0") < 0; }
int cuCtxCreate_v2(handle *context, unsigned flags, int device) { *context = malloc(16); fake_contexts++; return flags + device; }
int cuCtxDestroy_v2(handle context) { free(context); fake_contexts--; return 0; }
int cuCtxSetCurrent(handle context) { fake_current = context != 0; return 0; }
static uint64_t now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
/* Kernels take FAKE_KERNEL_US microseconds, one after the other; without it none. */
static uint64_t busy_until_ns;
static void work_begins(void)
{
    const char *us = getenv("FAKE_KERNEL_US");
    uint64_t before = __atomic_load_n(&busy_until_ns, __ATOMIC_SEQ_CST), now = now_ns(), after;
    do
        after = (before > now ? before : now) + (us ? strtoull(us, 0, 10) * 1000 : 0);
    while (!__atomic_compare_exchange_n(&busy_until_ns, &before, after, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}
static int work_ends(void)
{
    __atomic_add_fetch(&fake_inside, 1, __ATOMIC_SEQ_CST);
    while (fake_hold)
        usleep(200);
    while (now_ns() < __atomic_load_n(&busy_until_ns, __ATOMIC_SEQ_CST))
        usleep(10);
    __atomic_sub_fetch(&fake_inside, 1, __ATOMIC_SEQ_CST);
    return 0;
}
int cuCtxSynchronize(void) { return work_ends(); }
static size_t limits[8];
int cuCtxGetLimit(size_t *value, unsigned limit) { if (limit > 7) return 215; *value = limits[limit]; return 0; }
int cuCtxSetLimit(unsigned limit, size_t value) { if (limit > 7) return 215; limits[limit] = value; return 0; }
int cuMemGetInfo_v2(size_t *a, size_t *b) { *a = 1 << 20; *b = 1ul << 34; return 0; }
/* A stream of priority 7 is busy until `fake_done`. */
volatile int fake_done;
int cuStreamCreateWithPriority(handle *stream, unsigned flags, int priority) { unsigned *s = malloc(8); s[0] = flags; s[1] = priority; *stream = s; return 0; }
volatile int fake_destroyed_streams;
int cuStreamDestroy_v2(handle stream) { free(stream); fake_destroyed_streams++; return 0; }
extern volatile int fake_stream_waits;
int cuStreamSynchronize(handle stream) { (void)stream; fake_stream_waits++; return work_ends(); }
static int is_busy(handle stream) { return stream && ((unsigned *)stream)[1] == 7 && !fake_done; }
int cuStreamQuery(handle stream) { return is_busy(stream) ? 600 : 0; }
int cuStreamWaitEvent(handle stream, handle event, unsigned flags) { (void)stream; return event ? flags : 400; }
/* Waits for words only note what they were given. */
char fake_wait[128];
static int note_wait(int bits, uint64_t at, uint64_t value, unsigned flags) { snprintf(fake_wait, sizeof fake_wait, "%d bits: %llx flags %x", bits, (unsigned long long)value, flags); return find(at) < 0; }
int cuStreamWaitValue32_v2(handle stream, uint64_t at, unsigned value, unsigned flags) { (void)stream; return note_wait(32, at, value, flags); }
int cuStreamWaitValue64_v2(handle stream, uint64_t at, uint64_t value, unsigned flags) { (void)stream; return note_wait(64, at, value, flags); }
/* Words are written at once, and not at all while what runs does not end. */
volatile int fake_words, fake_stream_waits;
int cuStreamWriteValue32_v2(handle stream, uint64_t at, unsigned value, unsigned flags) { (void)stream; if (flags) return 1; if (!fake_hold) *(volatile unsigned *)(at - !has_vmm()) = value; fake_words++; return 0; }
/* With `fake_one_thread` callbacks run one after the other on one thread, as the driver's do; else at once. */
int fake_one_thread;
typedef struct call { void (*run)(handle, int, void *); handle stream; void *data; struct call *next; } call;
static call *calls;
static pthread_mutex_t calls_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t calls_came = PTHREAD_COND_INITIALIZER;
static void *run_calls(void *unused)
{
    for (;;) {
        pthread_mutex_lock(&calls_lock);
        while (!calls)
            pthread_cond_wait(&calls_came, &calls_lock);
        call *first = calls;
        calls = first->next;
        pthread_mutex_unlock(&calls_lock);
        first->run(first->stream, 0, first->data);
        free(first);
    }
    return unused;
}
int cuStreamAddCallback(handle stream, void (*run)(handle, int, void *), void *data, unsigned flags)
{
    static int started;
    if (flags)
        return 1;
    if (!fake_one_thread) {
        run(stream, 0, data);
        return 0;
    }
    call *made = malloc(sizeof *made), **end = &calls;
    *made = (call){ run, stream, data, 0 };
    pthread_mutex_lock(&calls_lock);
    while (*end)
        end = &(*end)->next;
    *end = made;
    pthread_t thread;
    if (!started++)
        pthread_create(&thread, 0, run_calls, 0);
    pthread_cond_signal(&calls_came);
    pthread_mutex_unlock(&calls_lock);
    return 0;
}
int fake_events;
volatile int fake_event_code;
typedef struct { unsigned flags; handle stream; uint64_t at_ns; } event_;
int cuEventCreate(handle *event, unsigned flags) { event_ *e = calloc(1, sizeof *e); e->flags = flags; *event = e; fake_events++; return 0; }
int cuEventDestroy_v2(handle event) { free(event); fake_events--; return 0; }
int cuEventRecord(handle event, handle stream) { ((event_ *)event)->stream = stream; ((event_ *)event)->at_ns = now_ns(); return 0; }
int cuEventQuery(handle event) { return fake_event_code ? fake_event_code : is_busy(((event_ *)event)->stream) ? 600 : 0; }
int cuEventSynchronize(handle event) { (void)event; return work_ends(); }
int cuEventElapsedTime(float *ms, handle a, handle b)
{
    event_ *start = a, *end = b;
    if (has_vmm() && ((start->flags | end->flags) & 2 || !start->at_ns || !end->at_ns))
        return 400;
    *ms = has_vmm() ? ((double)end->at_ns - (double)start->at_ns) / 1e6 : 1.5f;
    return 0;
}
int fake_modules;
int cuModuleLoadDataEx(handle *module, const char *image, unsigned n, unsigned *options, void **values)
{
    if (strstr(image, "broken")) {
        if (n == 2 && options[0] == 5 && options[1] == 6)
            snprintf(values[0], (size_t)values[1], "line 1: broken");
        return 218;
    }
    *module = malloc(1);
    fake_modules++;
    return 0;
}
int cuModuleUnload(handle module) { free(module); fake_modules--; return 0; }
static uint64_t counter(void)
{
    static uint64_t at;
    uint64_t wanted = (uint64_t)fake_vmm << 32;
    if (!at && wanted) {
        void *got = mmap((void *)wanted, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        at = got == MAP_FAILED ? 0 : (uint64_t)got;
        blocks[255].at = at;
        blocks[255].bytes = 4096;
    }
    return at ? at : 0x1234;
}
int cuModuleGetGlobal_v2(uint64_t *at, size_t *bytes, handle module, const char *name) { (void)module; if (strcmp(name, "counter")) return 500; *at = counter(); *bytes = 4; return 0; }
/* All kernels of a module are the same one. */
int fake_functions = 1;
int cuModuleGetFunctionCount(unsigned *count, handle module) { (void)module; *count = fake_functions; return 0; }
int cuModuleEnumerateFunctions(handle *list, unsigned room, handle module) { (void)module; if (room != (unsigned)fake_functions) return 1; while (room) list[--room] = (handle)0x77; return 0; }
int cuFuncGetName(const char **name, handle function) { *name = "kernel"; return function != (handle)0x77; }
int cuFuncGetParamInfo(handle function, size_t index, size_t *offset, size_t *size) { (void)function; if (index > 1) return 1; *offset = index * 8; *size = index ? 4 : 8; return 0; }
static int loaded;
int fake_loads;
int cuFuncLoad(handle function) { fake_loads++; loaded = function == (handle)0x77; return !loaded; }
int cuFuncGetAttribute(int *value, unsigned number, handle function) { (void)function; if (!loaded) return 913; *value = number == 1 ? 1024 : 100 + (int)number; return 0; }
int cuFuncSetAttribute(handle function, unsigned number, int value) { (void)function; if (number != 8 || value > 200000) return 1; fake_shared_limit = value; return 0; }
static int note(const char *how, unsigned gx, unsigned bz, unsigned shared, void **params)
{
    __atomic_add_fetch(&fake_launches, 1, __ATOMIC_SEQ_CST);
    work_begins();
    snprintf(fake_launch, sizeof fake_launch, "%s grid.x %u block.z %u shared %u: %llx %u", how, gx, bz, shared, *(unsigned long long *)params[0], *(unsigned *)params[1]);
    return 0;
}
int cuLaunchKernel(handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, handle stream, void **params, void **extra)
{
    (void)gy; (void)gz; (void)bx; (void)by; (void)stream;
    return f == (handle)0x77 && !extra ? note("plain", gx, bz, shared, params) : 1;
}
int cuLaunchCooperativeKernel(handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, handle stream, void **params)
{
    (void)f; (void)gy; (void)gz; (void)bx; (void)by; (void)stream;
    return note("cooperative", gx, bz, shared, params);
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks_, handle f, int threads, size_t shared) { (void)f; *blocks_ = 2048 / threads - (shared > 0); return 0; }
int cuMemAlloc_v2(uint64_t *at, size_t bytes) { if (!bytes) return 1; if (bytes > 1 << 28) return 2; *at = keep(bytes); return 0; }
int cuMemFree_v2(uint64_t at) { int i = find(at); if (i < 0 || blocks[i].at != at) return 1; free((void *)at); blocks[i].at = 0; return 0; }
int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t at) { int i = find(at); if (i < 0) return 500; *base = blocks[i].at; *bytes = blocks[i].bytes; return 0; }
int cuPointerGetAttribute(unsigned *value, unsigned number, uint64_t at) { if (number != 2 || find(at) < 0) return 1; *value = 2; return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, handle stream) { (void)stream; fake_copies++; memcpy((void *)to, from, bytes); return 0; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, handle stream) { (void)stream; memcpy(to, (void *)from, bytes); return 0; }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, handle stream) { (void)stream; memmove((void *)to, (void *)from, bytes); return 0; }
typedef struct { shape form; char bytes[]; } array;
static char *place(const side *s, size_t width, size_t y, size_t z)
{
    if (s->kind == 3) {
        array *a = s->array;
        return a->bytes + ((s->z + z) * (a->form.height ? a->form.height : 1) + s->y + y) * a->form.width * 4 + s->x;
    }
    if (s->pitch < width + s->x)
        return 0;
    return (s->kind == 1 ? (char *)s->host : (char *)s->device) + ((s->z + z) * s->height + s->y + y) * s->pitch + s->x;
}
int cuMemcpy3DAsync_v2(const box *b, handle stream)
{
    (void)stream;
    for (size_t z = 0; z < b->depth; z++)
        for (size_t y = 0; y < b->height; y++) {
            char *to = place(&b->dst, b->width, y, z), *from = place(&b->src, b->width, y, z);
            if (!to || !from)
                return 1;
            memcpy(to, from, b->width);
        }
    return 0;
}
#define FILL(bits, type) \
    int cuMemsetD##bits##Async(uint64_t at, type value, size_t n, handle stream) { (void)stream; for (size_t i = 0; i < n; i++) ((type *)at)[i] = value; return 0; } \
    int cuMemsetD2D##bits##Async(uint64_t at, size_t pitch, type value, size_t n, size_t rows, handle stream) { for (size_t y = 0; y < rows; y++) cuMemsetD##bits##Async(at + y * pitch, value, n, stream); return 0; }
FILL(8, uint8_t)
FILL(16, uint16_t)
FILL(32, uint32_t)
int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) { (void)at; return bytes && flags == 3 ? 0 : 1; }
int cuMemHostUnregister(void *at) { return !at; }
int cuMemHostGetDevicePointer_v2(uint64_t *device, void *at, unsigned flags) { *device = (uint64_t)at + !has_vmm(); return flags; }
#define HOLE (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
int cuMemAddressReserve(uint64_t *at, size_t bytes, size_t align, uint64_t hint, unsigned long long flags)
{
    (void)align;
    if (has_vmm()) {
        void *got = mmap((void *)hint, bytes, PROT_NONE, HOLE | (hint ? MAP_FIXED_NOREPLACE : 0), -1, 0);
        if (got == MAP_FAILED)
            got = mmap(0, bytes, PROT_NONE, HOLE, -1, 0);
        *at = (uint64_t)got;
        return got == MAP_FAILED || flags ? 2 : 0;
    }
    if (!bytes || hint || flags)
        return 1;
    *at = 0x700000000000ull;
    return 0;
}
int cuMemAddressFree(uint64_t at, size_t bytes) { return has_vmm() ? munmap((void *)at, bytes) != 0 : at != 0x700000000000ull || !bytes; }
static char frames[512];
#define FRAME 0x1000
int cuMemCreate(uint64_t *frame, size_t bytes, const int *kind, unsigned long long flags)
{
    (void)flags;
    if (bytes % (2 << 20) || kind[0] != 1 || kind[2] != 1)
        return 1;
    if (has_vmm()) {
        int fd = memfd_create("frame", MFD_CLOEXEC);
        *frame = FRAME + (uint64_t)fd;
        return fd < 0 || ftruncate(fd, (off_t)bytes) ? 2 : 0;
    }
    *frame = 0xf0;
    frames[0xf0] = 1;
    return 0;
}
int cuMemRelease(uint64_t frame) { return has_vmm() ? close((int)(frame - FRAME)) != 0 : frame != 0xf0 || !frames[0xf0]; }
int cuMemMap(uint64_t at, size_t bytes, size_t offset, uint64_t frame, unsigned long long flags)
{
    if (has_vmm()) {
        for (int i = 0; i < 256; i++)
            if (!blocks[i].at) {
                blocks[i].at = at;
                blocks[i].bytes = bytes;
                return mmap((void *)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)(frame - FRAME), 0) == MAP_FAILED;
            }
        return 2;
    }
    return bytes != 4 << 20 || offset || frame != 0xf0 || flags;
}
/* Frames that can be shared are files that say so. */
int fake_imported;
int cuMemExportToShareableHandle(int *fd, uint64_t frame, unsigned type, unsigned long long flags) { if (frame != 0xf0 || type != 1 || flags) return 1; *fd = dup(2); return *fd < 0; }
int cuMemImportFromShareableHandle(uint64_t *frame, void *fd, unsigned type) { if (type != 1) return 1; fake_imported = (int)(uintptr_t)fd; *frame = 0xf0; frames[0xf0] = 1; return 0; }
int cuMemUnmap(uint64_t at, size_t bytes)
{
    for (int i = 0; has_vmm() && i < 256; i++)
        if (blocks[i].at >= at && blocks[i].at < at + bytes)
            blocks[i].at = 0;
    return !at || !bytes || (has_vmm() && mmap((void *)at, bytes, PROT_NONE, HOLE | MAP_FIXED, -1, 0) == MAP_FAILED);
}
int fake_access;
int cuMemSetAccess(uint64_t at, size_t bytes, const int *how, size_t count)
{
    fake_access = how[2];
    if (has_vmm() && mprotect((void *)at, bytes, how[2] == 3 ? PROT_READ | PROT_WRITE : how[2] ? PROT_READ : PROT_NONE))
        return 1;
    return !at || !bytes || how[0] != 1 || count != 1;
}
int cuMemGetAllocationGranularity(size_t *bytes, const int *kind, unsigned option) { (void)kind; *bytes = 2 << 20; return option; }
int cuArray3DCreate_v2(handle *out, const shape *form) { if (!form->width) return 1; array *a = calloc(1, sizeof *a + form->width * (form->height ? form->height : 1) * (form->depth ? form->depth : 1) * 4); a->form = *form; *out = a; return 0; }
int cuArrayDestroy(handle a) { free(a); return 0; }
int cuTexObjectCreate(uint64_t *texture_, const resource *r, const texture *t, const void *view) { if (view || t->flags != 2) return 1; *texture_ = r->kind == 2 ? r->of.linear.at + r->of.linear.format * 16 + r->of.linear.channels : 0x55; return 0; }
int cuTexObjectDestroy(uint64_t t) { return !t; }
int cuSurfObjectCreate(uint64_t *surface, const resource *r) { *surface = 0x66; return r->kind || !r->of.array; }
int cuSurfObjectDestroy(uint64_t s) { return s != 0x66; }
typedef struct { unsigned id, pad; unsigned value[16]; } launch_attribute;
typedef struct { unsigned grid[3], block[3], shared; handle stream; const launch_attribute *attributes; unsigned count; } launch_config;
int fake_attributes[4];
int cuLaunchKernelEx(const launch_config *c, handle f, void **params, void **extra)
{
    fake_attributes[0] = c->count;
    fake_attributes[1] = c->count ? c->attributes[0].id : 0;
    fake_attributes[2] = c->count ? c->attributes[0].value[0] : 0;
    return cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream, params, extra);
}
int cuOccupancyMaxActiveClusters(int *out, handle f, const launch_config *c) { (void)f; *out = c->count ? 8 / c->attributes[0].value[0] : 132; return 0; }
int cuOccupancyMaxPotentialClusterSize(int *out, handle f, const launch_config *c) { (void)f; (void)c; *out = 8; return 0; }
int cuOccupancyAvailableDynamicSMemPerBlock(size_t *out, handle f, int blocks, int threads) { (void)f; (void)threads; *out = 232448 / blocks; return 0; }
int cuTensorMapEncodeTiled(unsigned char *out, unsigned type, unsigned rank, uint64_t at, const uint64_t *dims, const uint64_t *strides, const unsigned *tile, const unsigned *steps, unsigned a, unsigned b, unsigned c, unsigned d)
{
    if ((uintptr_t)out % 64 || at % 16) return 1;
    memset(out, 0, 128);
    unsigned char all[] = { type, rank, dims[rank - 1], rank > 1 ? strides[rank - 2] : 0, tile[rank - 1], steps[rank - 1], a, b, c, d };
    memcpy(out, all, sizeof all);
    return 0;
}
int cuTensorMapEncodeIm2col(void *out, unsigned type, unsigned rank, uint64_t at, const uint64_t *dims, const uint64_t *strides, const int *lower, const int *upper, unsigned channels, unsigned pixels, const unsigned *steps, unsigned a, unsigned b, unsigned c, unsigned d)
{
    (void)out; (void)type; (void)rank; (void)at; (void)dims; (void)strides; (void)lower; (void)upper; (void)channels; (void)pixels; (void)steps; (void)a; (void)b; (void)c; (void)d;
    return 1;
}
#include "fake_graphs.c"
