// nvcc: -lcuda
#include "check.h"
#include <cuda.h>
#include <fcntl.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
// Two programs share an allocation, an event, physical memory by a file descriptor and a pointer of a pool.
#define DRV(c) EXPECT_EQ((int)(c), 0)
__global__ void put(int *p, int v) { p[threadIdx.x] = v; }
__global__ void slow(int *p, int rounds) { int v = 0; for (int i = 0; i < rounds; i++) v = v * 3 + p[(v & 31) + 32]; p[threadIdx.x] = 10 + (v == 0x7fffffff); }
struct Handles {
    CUipcMemHandle memory;
    CUipcEventHandle event;
    CUmemPoolPtrExportData pointer;
    int frame, pool;
};
static int first(const void *p) { int v = 0; CHECK(cudaMemcpy(&v, p, 4, cudaMemcpyDefault)); return v; }
static void access(CUdeviceptr at, size_t bytes) {
    CUmemAccessDesc all = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DRV(cuMemSetAccess(at, bytes, &all, 1));
}
static const size_t frame_bytes = 2 << 20;

static int other(const Handles &given) {
    CHECK(cudaFree(0));
    CUdeviceptr p, again;
    CUevent event;
    DRV(cuIpcOpenEventHandle(&event, given.event));
    DRV(cuIpcOpenMemHandle(&p, given.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    DRV(cuStreamWaitEvent(0, event, 0));
    EXPECT_EQ(first((void *)p), 10);
    DRV(cuEventQuery(event));
    put<<<1, 32>>>((int *)p, 11);
    CHECK(cudaDeviceSynchronize());
    // Opened twice is closed twice.
    DRV(cuIpcOpenMemHandle(&again, given.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT_EQ(again, p);
    DRV(cuIpcCloseMemHandle(p));
    EXPECT_EQ(first((void *)p), 11);
    DRV(cuIpcCloseMemHandle(p));
    EXPECT(cuIpcCloseMemHandle(p) != CUDA_SUCCESS);
    EXPECT(cuMemFree(p) != CUDA_SUCCESS);
    DRV(cuEventDestroy(event));

    CUmemGenericAllocationHandle frame;
    DRV(cuMemImportFromShareableHandle(&frame, (void *)(uintptr_t)given.frame, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUdeviceptr at;
    DRV(cuMemAddressReserve(&at, frame_bytes, 0, 0, 0));
    DRV(cuMemMap(at, frame_bytes, 0, frame, 0));
    access(at, frame_bytes);
    EXPECT_EQ(first((void *)at), 20);
    put<<<1, 32>>>((int *)at, 21);
    CHECK(cudaDeviceSynchronize());
    DRV(cuMemUnmap(at, frame_bytes));
    DRV(cuMemRelease(frame));
    DRV(cuMemAddressFree(at, frame_bytes));

    CUmemoryPool pool;
    CUmemPoolPtrExportData pointer = given.pointer;
    DRV(cuMemPoolImportFromShareableHandle(&pool, (void *)(uintptr_t)given.pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    DRV(cuMemPoolImportPointer(&p, pool, &pointer));
    EXPECT_EQ(first((void *)p), 30);
    put<<<1, 32>>>((int *)p, 31);
    CHECK(cudaDeviceSynchronize());
    DRV(cuMemFreeAsync(p, 0));
    CHECK(cudaDeviceSynchronize());
    EXPECT(cuMemAllocFromPoolAsync(&p, 4096, pool, 0) != CUDA_SUCCESS);

    // What nobody shares opens nothing.
    CUipcMemHandle forged = given.memory;
    forged.reserved[20] ^= 1;
    EXPECT(cuIpcOpenMemHandle(&p, forged, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
    EXPECT(cuMemImportFromShareableHandle(&frame, (void *)(uintptr_t)open("/dev/null", O_RDONLY), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS);
    return finish();
}

int main(int argc, char **argv) {
    Handles all;
    if (argc > 1) return read(atoi(argv[1]), &all, sizeof all) == sizeof all ? other(all) : 1;
    int can = 0;
    CHECK(cudaFree(0));
    DRV(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 0));
    EXPECT_EQ(can, 1);
    DRV(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
    EXPECT_EQ(can, 1);
    CUdeviceptr p;
    CUevent event, plain;
    DRV(cuMemAlloc(&p, 4 << 20));
    CHECK(cudaMemset((void *)p, 0, 4 << 20));
    DRV(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    DRV(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    slow<<<1, 32>>>((int *)p, 200000);
    DRV(cuEventRecord(event, 0));
    DRV(cuIpcGetEventHandle(&all.event, event));
    EXPECT(cuIpcGetEventHandle(&all.event, plain) != CUDA_SUCCESS);
    DRV(cuIpcGetEventHandle(&all.event, event));
    DRV(cuIpcGetMemHandle(&all.memory, p));

    CUmemAllocationProp kind = {};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle frame, own;
    DRV(cuMemCreate(&own, frame_bytes, &kind, 0));
    EXPECT(cuMemExportToShareableHandle(&all.frame, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
    DRV(cuMemRelease(own));
    kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    DRV(cuMemCreate(&frame, frame_bytes, &kind, 0));
    CUdeviceptr at;
    DRV(cuMemAddressReserve(&at, frame_bytes, 0, 0, 0));
    DRV(cuMemMap(at, frame_bytes, 0, frame, 0));
    access(at, frame_bytes);
    put<<<1, 32>>>((int *)at, 20);
    DRV(cuMemExportToShareableHandle(&all.frame, frame, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));

    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool;
    CUdeviceptr before, block;
    DRV(cuMemPoolCreate(&pool, &props));
    DRV(cuMemAllocFromPoolAsync(&before, 3 << 20, pool, 0));
    DRV(cuMemAllocFromPoolAsync(&block, 3 << 20, pool, 0));
    put<<<1, 32>>>((int *)block, 30);
    DRV(cuMemPoolExportToShareableHandle(&all.pool, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    DRV(cuMemPoolExportPointer(&all.pointer, block));
    DRV(cuStreamSynchronize(0));

    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    for (int fd : {all.frame, all.pool, ends[0]}) fcntl(fd, F_SETFD, 0);
    EXPECT(write(ends[1], &all, sizeof all) == sizeof all);
    pid_t child = fork();
    if (child == 0) {
        std::string number = std::to_string(ends[0]);
        execl("/proc/self/exe", argv[0], number.c_str(), (char *)nullptr);
        _exit(9);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(first((void *)p), 11);
    EXPECT_EQ(first((void *)at), 21);
    EXPECT_EQ(first((void *)block), 31);
    DRV(cuEventSynchronize(event));
    DRV(cuEventDestroy(event));
    DRV(cuMemFree(p));
    DRV(cuMemUnmap(at, frame_bytes));
    DRV(cuMemRelease(frame));
    DRV(cuMemAddressFree(at, frame_bytes));
    DRV(cuMemFreeAsync(before, 0));
    DRV(cuMemFreeAsync(block, 0));
    CHECK(cudaDeviceSynchronize());
    DRV(cuMemPoolDestroy(pool));
    return finish();
}
