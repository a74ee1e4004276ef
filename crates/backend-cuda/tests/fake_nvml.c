/* A host with two GPUs, for tests of the readings. */
#include <string.h>
#include <stdio.h>

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char bus_id[32]; } pci;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; } sample;

#ifdef SHIM
const int mica_shim_marker = 1;
#endif

#ifndef UNIT
#define UNIT 1ull
#endif
static int initialized;
#ifdef STEERED
/* A file with four numbers says how the host is: a fault of GPU 1 (told once), its compute mode, and a process of GPU 0 with its bytes. */
static struct { unsigned long long xid, mode, pid, bytes; } host;
static void steer(void)
{
    FILE *file = fopen(STEERED, "r");
    if (!file) return;
    if (fscanf(file, "%llu %llu %llu %llu", &host.xid, &host.mode, &host.pid, &host.bytes) != 4) host.pid = 0;
    fclose(file);
}
#endif
/* As in the real library, some functions call others by name. */
int nvmlInitWithFlags(unsigned flags) { initialized = 1; return flags; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return initialized ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(0x1000ul + index); return !initialized ? 1 : index < 2 ? 0 : 2; }
static int wrong(void *device) { return !initialized ? 1 : (unsigned long)device >> 1 == 0x800 ? 0 : 2; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned room) { return snprintf(text, room, "GPU-%08lx", (unsigned long)device) < 0; }
int nvmlDeviceGetHandleByUUID(const char *wanted, void **device)
{
    unsigned count = 0;
    char text[96];
    if (nvmlDeviceGetCount_v2(&count)) return 1;
    for (unsigned index = 0; index < count; index++)
        if (!nvmlDeviceGetHandleByIndex_v2(index, device) && !nvmlDeviceGetUUID(*device, text, 96) && !strcmp(text, wanted))
            return 0;
    return 6;
}
int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = (unsigned long)device & 0xff; return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *device, void *m) { (void)device; (void)m; return 0; }
int nvmlDeviceGetDynamicPstatesInfo(void *device, unsigned *load) { (void)device; load[1] = load[5] = 1; load[2] = 99; load[6] = 98; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) { (void)device; rates[0] = 99; rates[1] = 5; return 0; }
int nvmlShutdown(void) { initialized = 0; return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned room) { return wrong(device) ? wrong(device) : snprintf(text, room, "Test GPU") < 0; }
int nvmlDeviceSetComputeMode(void *device, int mode) { (void)mode; return wrong(device); }
int nvmlDeviceGetPciInfo_v3(void *device, pci *info) { memset(info, 0, sizeof *info); snprintf(info->bus_id, 32, "00000000:%02lX:00.0", (unsigned long)device & 0xff); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory *m) { if (wrong(device)) return wrong(device); m->total = 100 * UNIT; m->free = 60 * UNIT; m->used = 40 * UNIT; return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned room) { return snprintf(text, room, "580.1") < 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *list)
{
    if (wrong(device) || !count) return wrong(device) ? wrong(device) : 2;
    unsigned room = *count;
    if (device == (void *)0x1001ul) { *count = 0; return 0; }
#ifdef STEERED
    steer();
    *count = host.pid ? 1 : 0;
    if (*count && (!list || room < 1)) return 7;
    if (*count) list[0] = (process){ (unsigned)host.pid, host.bytes, 0, 0 };
    return 0;
#endif
    *count = 2;
    if (!list || room < 2) return 7;
    list[0] = (process){ 77, 4096, 0, 0 };
    list[1] = (process){ 78, ~0ull, 0, 0 };
    return 0;
}
int nvmlDeviceGetProcessUtilization(void *device, sample *list, unsigned *count, unsigned long long since)
{
    if (wrong(device) || !count) return wrong(device) ? wrong(device) : 2;
    unsigned room = *count;
    if (device == (void *)0x1001ul) return 6;
    *count = 2;
    if (!list || room < 2) return 7;
    list[0] = (sample){ 77, since + 5, 30, 0, 0, 0 };
    list[1] = (sample){ 0 };
    return 0;
}
#ifdef STEERED
int nvmlDeviceGetComputeMode(void *device, int *mode) { steer(); *mode = device == (void *)0x1001ul ? (int)host.mode : 0; return 0; }
#else
int nvmlDeviceGetComputeMode(void *device, int *mode) { *mode = device == (void *)0x1001ul ? 3 : 0; return 0; }
#endif
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) { (void)device; (void)now; (void)pending; return 3; }
typedef struct { void *device; unsigned long long kind, data; unsigned gi, ci; } event;
/* Tests put the number of a fault of GPU 1 here; it is told once. */
volatile unsigned long long fake_xid;
static int registered;
int nvmlEventSetCreate(void **set) { *set = &registered; return initialized ? 0 : 1; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *set)
{
    if (wrong(device) || set != &registered || kinds != 8) return 2;
    if (device == (void *)0x1000ul) return 3;
    registered = 1;
    return 0;
}
int nvmlEventSetWait_v2(void *set, event *told, unsigned ms)
{
    if (set != &registered || !registered || ms) return 2;
#ifdef STEERED
    static unsigned long long told_before;
    steer();
    if (host.xid != told_before) fake_xid = told_before = host.xid;
#endif
    if (!fake_xid) return 10;
    *told = (event){ (void *)0x1001ul, 8, fake_xid, ~0u, ~0u };
    fake_xid = 0;
    return 0;
}
#ifdef CUDA
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA; return initialized ? 0 : 1; }
#endif
