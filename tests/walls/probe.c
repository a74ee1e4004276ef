// Checks the GPU that it finds: `probe MOST_MIB` must be refused more than MOST_MIB and can use 1 MiB. `probe MOST_MIB wait` stays until
// its input ends, `probe MOST_MIB poll` until the GPU is gone, `probe MOST_MIB ask-nothing` too, with calls that need no answer. Loads
// the driver by name, as libraries do, and needs no CUDA header, so that any C compiler builds it.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long pointer;

static void *library;

static void *find(const char *name) {
    void *found = dlsym(library, name);
    if (!found) {
        printf("%s is missing: %s\n", name, dlerror());
        exit(1);
    }
    return found;
}

static void must(const char *what, int got, int expected) {
    if (got != expected) {
        printf("%s answered %d, not %d\n", what, got, expected);
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int count, char **words) {
    size_t most = (size_t)(count > 1 ? atol(words[1]) : 64) << 20;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        printf("no libcuda.so.1: %s\n", dlerror());
        return 1;
    }
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml) {
        printf("no libnvidia-ml.so.1: %s\n", dlerror());
        return 1;
    }
    int (*init)(unsigned) = find("cuInit");
    int (*retain)(void **, int) = find("cuDevicePrimaryCtxRetain");
    int (*set)(void *) = find("cuCtxSetCurrent");
    int (*allocate)(pointer *, size_t) = find("cuMemAlloc_v2");
    int (*release)(pointer) = find("cuMemFree_v2");
    int (*total)(size_t *, int) = find("cuDeviceTotalMem_v2");
    int (*to_device)(pointer, const void *, size_t) = find("cuMemcpyHtoD_v2");
    int (*to_host)(void *, pointer, size_t) = find("cuMemcpyDtoH_v2");
    void *context = 0;
    pointer memory = 0, more = 0;
    size_t bytes = 0;
    int in = 42, out = 0;
    must("cuInit", init(0), 0);
    must("cuDevicePrimaryCtxRetain", retain(&context, 0), 0);
    must("cuCtxSetCurrent", set(context), 0);
    must("cuDeviceTotalMem", total(&bytes, 0), 0);
    if (bytes > most) {
        printf("the device has %zu bytes, more than %zu\n", bytes, most);
        return 1;
    }
    must("cuMemAlloc", allocate(&memory, 1 << 20), 0);
    must("cuMemcpyHtoD", to_device(memory, &in, sizeof in), 0);
    must("cuMemcpyDtoH", to_host(&out, memory, sizeof out), 0);
    must("the copy", out, in);
    must("cuMemAlloc beyond the limit", allocate(&more, most + (1 << 20)), 2);
    if (count > 2 && words[2][0] == 'p') {
        // Copies until that fails, and says how.
        puts("here");
        fflush(stdout);
        int code;
        while (!(code = to_device(memory, &in, sizeof in))) {
            usleep(20000);
        }
        printf("error %d\n", code);
        return 0;
    }
    if (count > 2 && words[2][0] == 'a') {
        // Fills memory, and waits for nothing, until that fails; says how many calls succeeded since it last stood still.
        int (*fill)(pointer, unsigned char, size_t, void *) = find("cuMemsetD8Async");
        int code, calls = 0;
        double last = now();
        puts("here");
        fflush(stdout);
        while (!(code = fill(memory, 1, 64, 0))) {
            usleep(20000);
            calls = now() - last > 2 ? 0 : calls + 1;
            last = now();
        }
        printf("error %d after %d calls\n", code, calls);
        printf("error %d\n", fill(memory, 1, 64, 0));
        return 0;
    }
    must("cuMemFree", release(memory), 0);
    if (count > 2) {
        // Stays until its input ends, so that others can look at it.
        puts("here");
        fflush(stdout);
        while (getchar() != EOF) {
        }
    }
    puts("ok");
    return 0;
}
