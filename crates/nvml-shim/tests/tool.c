/* A monitoring tool: prints what NVML tells it, one answer a line. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } rates;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
typedef struct { unsigned pid; unsigned long long at; unsigned sm, mem, enc, dec; } sample;

static void *library;
static int (*find(const char *name))()
{
    void *address = dlsym(library, name);
    if (!address) {
        printf("%s missing\n", name);
        exit(1);
    }
    return (int (*)())address;
}

int main(int argc, char **argv)
{
    void *device = 0, *other = 0;
    unsigned count = 0;
    char text[96] = "";
    if (argc < 2 || !(library = dlopen(argv[1], RTLD_NOW)))
        return 2;
    printf("before init %d\n", find("nvmlDeviceGetCount_v2")(&count));
    int code = find("nvmlInit_v2")();
    printf("init %d\n", code);
    if (code)
        return 0;
    printf("count %d", find("nvmlDeviceGetCount_v2")(&count));
    printf(" %u\n", count);
    printf("handle %d\n", find("nvmlDeviceGetHandleByIndex_v2")(0, &device));
    printf("next handle %d\n", find("nvmlDeviceGetHandleByIndex_v2")(1, &other));
    printf("name %d", find("nvmlDeviceGetName")(device, text, 96));
    printf(" %s\n", text);
    printf("short name %d\n", find("nvmlDeviceGetName")(device, text, 3));
    printf("uuid %d", find("nvmlDeviceGetUUID")(device, text, 96));
    printf(" %s\n", text);
    printf("by uuid %d", find("nvmlDeviceGetHandleByUUID")(text, &other));
    printf(" %d\n", other == device);
    unsigned index = 9;
    printf("index %d", find("nvmlDeviceGetIndex")(device, &index));
    printf(" %u\n", index);
    memory m = { 0 };
    printf("memory %d", find("nvmlDeviceGetMemoryInfo")(device, &m));
    printf(" %llu %llu %llu\n", m.total, m.used, m.free);
    memory_v2 m2 = { .version = sizeof m2 | 2 << 24 };
    printf("memory v2 %d", find("nvmlDeviceGetMemoryInfo_v2")(device, &m2));
    printf(" %llu %llu %llu\n", m2.total, m2.used, m2.free);
    rates r = { 0 };
    printf("utilization %d", find("nvmlDeviceGetUtilizationRates")(device, &r));
    printf(" %u\n", r.gpu);
    unsigned room = 0;
    printf("processes asked %d", find("nvmlDeviceGetComputeRunningProcesses_v3")(device, &room, (void *)0));
    printf(" %u\n", room);
    process list[8];
    room = 8;
    printf("processes %d", find("nvmlDeviceGetComputeRunningProcesses_v3")(device, &room, list));
    for (unsigned i = 0; i < room; i++)
        printf(" %u:%llu", list[i].pid, list[i].used);
    room = 8;
    printf("\ngraphics %d", find("nvmlDeviceGetGraphicsRunningProcesses_v3")(device, &room, list));
    printf(" %u\n", room);
    sample samples[8];
    room = 8;
    printf("samples %d", find("nvmlDeviceGetProcessUtilization")(device, samples, &room, 0ull));
    for (unsigned i = 0; i < room; i++)
        printf(" %u:%u", samples[i].pid, samples[i].sm);
    unsigned kind = 0, load[33] = { 0 };
    room = 0;
    printf("\nload asked %d", find("nvmlDeviceGetSamples")(device, 1, 0ull, &kind, &room, (void *)0));
    printf(" %u\n", room);
    struct { unsigned long long at; union { unsigned whole; double broken; } value; } loads[8];
    for (unsigned which = 1; which <= 2; which++) {
        room = 8;
        printf("load %d", find("nvmlDeviceGetSamples")(device, which, 5ull, &kind, &room, loads));
        printf(" %u %u of type %u\n", room, loads[0].value.whole, kind);
    }
    int answer = find("nvmlDeviceGetDynamicPstatesInfo")(device, load);
    if (!answer)
        printf("domains %u %u\n", load[2], load[6]);
    printf("accounting %d", find("nvmlDeviceGetAccountingStats_v2")(device, (void *)0));
    unsigned value = 0;
    printf("\ntemperature %d\n", find("nvmlDeviceGetTemperature")(device, 0, &value));
    printf("by a wrong handle %d", find("nvmlDeviceGetComputeRunningProcesses_v3")((void *)0x77, &room, list));
    printf(" %d", find("nvmlDeviceGetProcessUtilization")((void *)0x77, samples, &room, 0ull));
    printf(" %d", find("nvmlDeviceGetSamples")((void *)0x77, 1, 0ull, &kind, &room, loads));
    printf(" without room %d", find("nvmlDeviceGetComputeRunningProcesses_v3")(device, (void *)0, list));
    printf(" %d\n", find("nvmlDeviceGetProcessUtilization")(device, samples, (void *)0, 0ull));
    printf("set mode %d\n", find("nvmlDeviceSetComputeMode")(device, 3));
    printf("words %s\n", ((const char *(*)(int))find("nvmlErrorString"))(6));
    printf("shutdown %d\n", find("nvmlShutdown")());
    printf("after it %d", find("nvmlDeviceGetCount_v2")(&count));
    room = 8;
    printf(" %d", find("nvmlDeviceGetComputeRunningProcesses_v3")(device, &room, list));
    printf(" %d", find("nvmlDeviceGetMemoryInfo")(device, &m));
    printf(" %d\n", find("nvmlDeviceGetHandleByIndex_v2")(0, &device));
    return 0;
}
