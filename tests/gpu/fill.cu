// Takes memory in every way until refused, one way after the other, and says how much each gave.
// Prints one JSON object; each way's memory is given back before the next begins. After the last a full
// allocation must succeed again: nothing was lost in the books.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 fill.cu -lcuda -o fill ; ./fill [PIECE_MIB]
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda.h>

static void check(int code, const char *what) {
    if (code) {
        fprintf(stderr, "%s: error %d\n", what, code);
        exit(1);
    }
}

struct Result {
    size_t bytes = 0;
    size_t pieces = 0;
    int refusal = 0;
};

static void print(const char *name, const Result &result) {
    printf("\"%s\": {\"bytes\": %zu, \"pieces\": %zu, \"refusal\": %d}, ", name, result.bytes, result.pieces, result.refusal);
}

// Takes pieces, then ever smaller ones, so that the total comes close to the limit.
template <typename Take> static Result take_all(size_t piece, size_t least, Take take) {
    Result result;
    while (piece >= least) {
        int code = take(piece);
        if (code) {
            result.refusal = code;
            piece /= 2;
        } else {
            result.bytes += piece;
            result.pieces++;
        }
    }
    return result;
}

int main(int count, char **arguments) {
    size_t piece = (count > 1 ? strtoull(arguments[1], nullptr, 0) : 256) << 20;
    check(cuInit(0), "cuInit");
    CUdevice device;
    check(cuDeviceGet(&device, 0), "device");
    CUcontext context;
    check(cuDevicePrimaryCtxRetain(&context, device), "context");
    check(cuCtxSetCurrent(context), "current");
    size_t free_bytes, total_bytes, device_bytes;
    check(cuMemGetInfo(&free_bytes, &total_bytes), "memory");
    check(cuDeviceTotalMem(&device_bytes, device), "total");
    printf("{\"free_bytes\": %zu, \"total_bytes\": %zu, \"device_bytes\": %zu, ", free_bytes, total_bytes, device_bytes);

    std::vector<CUdeviceptr> pointers;
    auto free_all = [&] {
        for (CUdeviceptr p : pointers) check(cuMemFree(p), "free");
        pointers.clear();
    };
    auto keep = [&](int code, CUdeviceptr p) {
        if (!code) pointers.push_back(p);
        return code;
    };
    CUdeviceptr p = 0;
    Result linear = take_all(piece, 4096, [&](size_t bytes) { int code = cuMemAlloc(&p, bytes); return keep(code, p); });
    print("cuMemAlloc", linear);
    free_all();
    print("cuMemAllocPitch", take_all(piece, 1 << 20, [&](size_t bytes) {
        size_t pitch;
        int code = cuMemAllocPitch(&p, &pitch, 1 << 16, bytes >> 16, 4);
        return keep(code, p);
    }));
    free_all();
    print("cuMemAllocManaged", take_all(piece, 1 << 20, [&](size_t bytes) {
        int code = cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL);
        return keep(code, p);
    }));
    free_all();

    CUstream stream;
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
    print("cuMemAllocAsync", take_all(piece, 1 << 20, [&](size_t bytes) { int code = cuMemAllocAsync(&p, bytes, stream); return keep(code, p); }));
    for (CUdeviceptr q : pointers) check(cuMemFreeAsync(q, stream), "free async");
    pointers.clear();
    check(cuStreamSynchronize(stream), "stream");
    CUmemoryPool pool;
    check(cuDeviceGetMemPool(&pool, device), "pool");
    check(cuMemPoolTrimTo(pool, 0), "trim");

    CUmemAllocationProp props = {};
    props.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location = { CU_MEM_LOCATION_TYPE_DEVICE, device };
    std::vector<CUmemGenericAllocationHandle> handles;
    print("cuMemCreate", take_all(piece, 2 << 20, [&](size_t bytes) {
        CUmemGenericAllocationHandle handle;
        int code = cuMemCreate(&handle, bytes, &props, 0);
        if (!code) handles.push_back(handle);
        return code;
    }));
    for (auto handle : handles) check(cuMemRelease(handle), "release");

    std::vector<CUarray> arrays;
    print("cuArrayCreate", take_all(piece, 1 << 20, [&](size_t bytes) {
        CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
        descriptor.Width = 4096;
        descriptor.Height = bytes / 4096 / 16;
        descriptor.Format = CU_AD_FORMAT_FLOAT;
        descriptor.NumChannels = 4;
        CUarray array;
        int code = cuArray3DCreate(&array, &descriptor);
        if (!code) arrays.push_back(array);
        return code;
    }));
    for (CUarray array : arrays) check(cuArrayDestroy(array), "array");

    Result again = take_all(piece, 4096, [&](size_t bytes) { int code = cuMemAlloc(&p, bytes); return keep(code, p); });
    print("cuMemAlloc again", again);
    free_all();
    size_t free_after;
    check(cuMemGetInfo(&free_after, &total_bytes), "memory");
    printf("\"free_after\": %zu, \"nothing_lost\": %s}\n", free_after, again.bytes == linear.bytes ? "true" : "false");
    return 0;
}
