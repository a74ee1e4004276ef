// In isolated mode device addresses belong to another process: nothing of this one may lie there.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

static int overlaps(const void *pointer, size_t bytes) {
    unsigned long long first = (unsigned long long)pointer, end = first + bytes, from, to;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%llx-%llx", &from, &to) == 2 && from < end && to > first) {
            printf("%p (%zu bytes) overlaps %s", pointer, bytes, line);
            found = 1;
        }
    fclose(maps);
    return found;
}

int main() {
    const size_t sizes[] = {4096, 1 << 20, 64 << 20, 1 << 30, 2000u << 20};
    int wrong = 0;
    for (size_t bytes : sizes) {
        void *device = nullptr, *host = malloc(bytes);
        if (cudaMalloc(&device, bytes) != cudaSuccess || !host) { printf("no memory\n"); return 1; }
        if (bytes == sizes[0]) printf("device %p host %p\n", device, host);
        wrong += overlaps(device, bytes);
    }
    puts(wrong ? "FAILED" : "ok");
    return wrong != 0;
}
