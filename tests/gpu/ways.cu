// Odd ways to device memory, and odd ends of it: what is held stays charged, what is given back does not.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 ways.cu -lcuda -o ways ; mica run -m 10GiB -- ./ways
//
// Prints "pass WAY" or "FAIL WAY: why" a line. What is charged is read from cuMemGetInfo, which shows the virtual GPU.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <unistd.h>

#include <cuda.h>

static const size_t MIB = 1 << 20, HELD = 256 * MIB, LITTLE = 40 * MIB;
static int failed;
static CUdevice device;

static void check(int code, const char *what) {
    if (code) {
        printf("FAIL %s: error %d\n", what, code);
        exit(1);
    }
}
static size_t charged() {
    size_t free, total;
    check(cuMemGetInfo(&free, &total), "cuMemGetInfo");
    return total - free;
}
static size_t before;
static void expect(const char *way, size_t most, size_t least) {
    size_t now = charged(), more = now > before ? now - before : 0;
    bool ok = more <= most && more >= least;
    failed += !ok;
    printf("%s %s: %zu MiB charged, %zu to %zu expected\n", ok ? "pass" : "FAIL", way, more / MIB, least / MIB, most / MIB);
}
static void held(const char *way) { expect(way, HELD + LITTLE, HELD - MIB); }
static void gone(const char *way) { expect(way, LITTLE, 0); }
static CUmemAllocationProp props() {
    CUmemAllocationProp props = {};
    props.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    props.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    return props;
}

static void ended_pool(CUstream stream) {
    CUmemPoolProps wanted = {};
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    CUmemoryPool pool;
    CUdeviceptr p;
    check(cuMemPoolCreate(&pool, &wanted), "cuMemPoolCreate");
    check(cuMemAllocFromPoolAsync(&p, HELD, pool, stream), "cuMemAllocFromPoolAsync");
    check(cuMemPoolDestroy(pool), "cuMemPoolDestroy");
    check(cuMemsetD8Async(p, 1, HELD, stream), "the memory of a pool that was destroyed");
    held("a destroyed pool's allocation");
    check(cuMemFreeAsync(p, stream), "cuMemFreeAsync");
    check(cuStreamSynchronize(stream), "wait");
    gone("and freed");
}
static void imported() {
    CUmemAllocationProp wanted = props();
    CUmemGenericAllocationHandle first, second;
    int fd;
    check(cuMemCreate(&first, HELD, &wanted, 0), "cuMemCreate");
    check(cuMemExportToShareableHandle(&fd, first, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "export");
    check(cuMemImportFromShareableHandle(&second, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), "import");
    close(fd);
    printf("note: the imported handle has %s number\n", first == second ? "the same" : "another");
    check(cuMemRelease(first), "release");
    held("memory held by its imported handle");
    check(cuMemRelease(second), "release");
    gone("and released");
}
static void child_graph(CUstream stream) {
    CUgraph child, parent;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc = {};
    alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    alloc.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    alloc.bytesize = HELD;
    check(cuGraphCreate(&child, 0), "graph");
    check(cuGraphAddMemAllocNode(&node, child, nullptr, 0, &alloc), "node");
    check(cuGraphCreate(&parent, 0), "graph");
    CUgraphNodeParams moved = {};
    moved.type = CU_GRAPH_NODE_TYPE_GRAPH;
    moved.graph.graph = child;
    moved.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    check(cuGraphAddNode(&node, parent, nullptr, nullptr, 0, &moved), "a child that is moved");
    check(cuGraphInstantiate(&exec, parent, 0), "instantiate");
    check(cuGraphLaunch(exec, stream), "launch");
    check(cuStreamSynchronize(stream), "wait");
    held("a moved child graph's allocation");
    check(cuMemFree(alloc.dptr), "free");
    check(cuGraphExecDestroy(exec), "destroy");
    check(cuGraphDestroy(parent), "destroy");
    check(cuDeviceGraphMemTrim(device), "trim");
    gone("and trimmed");
}
static void sparse_array(CUstream stream) {
    int can = 0;
    cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, device);
    if (!can) {
        printf("skip sparse arrays: the device has none\n");
        return;
    }
    CUDA_ARRAY3D_DESCRIPTOR wanted = {8192, 8192, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE};
    CUarray array;
    check(cuArray3DCreate(&array, &wanted), "sparse array");
    gone("a sparse array");
    CUDA_ARRAY_SPARSE_PROPERTIES tile;
    check(cuArrayGetSparseProperties(&tile, array), "properties");
    CUmemAllocationProp of = props();
    // Tiles cannot be exported.
    of.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    of.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    CUmemGenericAllocationHandle handle;
    check(cuMemCreate(&handle, HELD, &of, 0), "tile pool");
    CUarrayMapInfo map = {};
    map.resourceType = CU_RESOURCE_TYPE_ARRAY;
    map.resource.array = array;
    map.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    map.subresource.sparseLevel.extentWidth = 8192;
    map.subresource.sparseLevel.extentHeight = 8192;
    map.subresource.sparseLevel.extentDepth = 1;
    map.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    map.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    map.memHandle.memHandle = handle;
    map.deviceBitMask = 1;
    check(cuMemMapArrayAsync(&map, 1, stream), "cuMemMapArrayAsync");
    check(cuStreamSynchronize(stream), "wait");
    check(cuMemRelease(handle), "release");
    held("memory mapped into a sparse array");
    check(cuArrayDestroy(array), "destroy");
    gone("and destroyed");
}
static void small_pieces() {
    std::vector<CUdeviceptr> all(HELD / 512);
    for (CUdeviceptr &p : all) check(cuMemAlloc(&p, 1), "a byte");
    size_t apart = all[1] > all[0] ? all[1] - all[0] : all[0] - all[1];
    printf("note: bytes lie %zu apart\n", apart);
    held("bytes, each in its 512");
    for (CUdeviceptr p : all) check(cuMemFree(p), "free");
    gone("and freed");
}
static void green_context() {
    CUdevResource all;
    CUdevResourceDesc what;
    CUgreenCtx green;
    CUcontext context, whole;
    CUdeviceptr p;
    check(cuCtxGetCurrent(&whole), "current");
    check(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM), "resource");
    check(cuDevResourceGenerateDesc(&what, &all, 1), "description");
    check(cuGreenCtxCreate(&green, what, device, CU_GREEN_CTX_DEFAULT_STREAM), "green context");
    check(cuCtxFromGreenCtx(&context, green), "as a context");
    check(cuCtxSetCurrent(context), "current");
    check(cuMemAlloc(&p, HELD), "memory in a green context");
    held("memory in a green context");
    check(cuMemFree(p), "free");
    check(cuCtxSetCurrent(whole), "current");
    check(cuGreenCtxDestroy(green), "destroy");
    gone("and freed");
}

int main() {
    CUcontext context;
    CUstream stream;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "device");
    check(cuDevicePrimaryCtxRetain(&context, device), "context");
    check(cuCtxSetCurrent(context), "current");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
    sleep(2); // what the context took beyond its estimate is seen by then
    before = charged();
    ended_pool(stream);
    imported();
    child_graph(stream);
    sparse_array(stream);
    small_pieces();
    green_context();
    return failed != 0;
}
