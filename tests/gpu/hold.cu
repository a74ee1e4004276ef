// Holds device memory got in one way, so that the books can be compared with the driver's own figure.
// Prints "held", gives everything back on SIGUSR1 and prints "freed", ends on SIGTERM.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 hold.cu -lcuda -o hold ; ./hold WAY MIB [busy]
//
//   WAY  context   nothing but a context         linear    cuMemAlloc, 256 MiB pieces
//        small     cuMemAlloc, 4 KiB to 1.5 MiB  vmm       cuMemCreate, mapped, 64 MiB pieces
//        async     cuMemAllocAsync               graph     allocation nodes, launched once
//        modules   images with 16 MiB globals    locals    a kernel with MIB of local memory, launched
//        stack     a stack limit of MIB in all   heap      malloc heap of MIB        fifo  printf buffer of MIB
//        managed   cuMemAllocManaged, touched    arrays    cuArray3DCreate
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <unistd.h>

#include <cuda.h>

static volatile sig_atomic_t give_back;

static void check(int code, const char *what) {
    if (code) {
        fprintf(stderr, "%s: error %d\n", what, code);
        printf("refused %s %d\n", what, code);
        exit(1);
    }
}

// Some 100 us of work on every processor.
static const char *SPIN = ".version 8.0\n.target sm_90\n.address_size 64\n"
                          ".visible .entry spin(.param .u64 out, .param .u32 n) { .reg .b32 %i, %n; .reg .f32 %a; .reg .pred %p; .reg .b64 %o;\n"
                          "mov.u32 %i, 0; mov.f32 %a, 0f3F800000; ld.param.u32 %n, [n];\nloop: fma.rn.f32 %a, %a, 0f3F800347, 0f3F000000; add.u32 %i, %i, 1;\n"
                          "setp.lt.u32 %p, %i, %n; @%p bra loop; setp.eq.f32 %p, %a, 0f4640E400; ld.param.u64 %o, [out];\n"
                          "@%p st.global.f32 [%o], %a; ret; }\n";

static CUfunction function_of(CUmodule *module, const char *image, const char *name) {
    CUfunction function;
    check(cuModuleLoadData(module, image), "cuModuleLoadData");
    check(cuModuleGetFunction(&function, *module, name), "function");
    return function;
}

static const char *GLOBALS = ".version 8.0\n.target sm_90\n.address_size 64\n"
                             ".visible .global .align 16 .b8 big[16777216];\n"
                             ".visible .entry touch() { .reg .b64 %a; .reg .b32 %v; mov.u64 %a, big; ld.global.u32 %v, [%a]; "
                             "st.global.u32 [%a+4], %v; ret; }\n";

// The driver makes the heap and the printf buffer for code that uses them.
static const char *SERVICES = ".version 8.0\n.target sm_90\n.address_size 64\n"
                              ".extern .func (.param .b64 out) malloc (.param .b64 bytes);\n.extern .func free (.param .b64 address);\n"
                              ".extern .func (.param .b32 out) vprintf (.param .b64 format, .param .b64 values);\n"
                              ".global .align 1 .b8 text[1] = {0};\n"
                              ".visible .entry use() { .reg .b64 %a, %t; .reg .b32 %r;\n"
                              "{ .param .b64 n; .param .b64 p; st.param.b64 [n], 64; call (p), malloc, (n); ld.param.b64 %a, [p]; }\n"
                              "{ .param .b64 q; st.param.b64 [q], %a; call free, (q); }\n"
                              "{ .param .b64 f; .param .b64 v; .param .b32 w; cvta.global.u64 %t, text; st.param.b64 [f], %t; st.param.b64 [v], 0;\n"
                              "call (w), vprintf, (f, v); ld.param.b32 %r, [w]; } ret; }\n";

// A kernel whose threads have so many bytes of local memory each; the index keeps it from being optimized away.
static std::string locals(size_t bytes) {
    char text[1024];
    snprintf(text, sizeof text,
             ".version 8.0\n.target sm_90\n.address_size 64\n"
             ".visible .entry touch(.param .u64 out) { .local .align 16 .b8 frame[%zu]; .reg .b64 %%a, %%i, %%o; .reg .b32 %%t, %%v;\n"
             "mov.u32 %%t, %%tid.x; mul.wide.u32 %%i, %%t, 4; mov.u64 %%a, frame; add.u64 %%a, %%a, %%i; st.local.u32 [%%a], %%t;\n"
             "ld.local.u32 %%v, [%%a+64]; ld.param.u64 %%o, [out]; st.global.u32 [%%o], %%v; ret; }\n",
             bytes);
    return text;
}

struct Held {
    std::vector<CUdeviceptr> linear, pooled, reserved;
    std::vector<CUmemGenericAllocationHandle> handles;
    std::vector<CUmodule> modules;
    std::vector<CUarray> arrays;
    CUgraphExec exec = nullptr;
    CUgraph graph = nullptr;
    CUdeviceptr in_graph = 0;
};

static const size_t PIECE = 64u << 20;

static void take(Held &held, const std::string &way, size_t bytes, CUdevice device, CUstream stream) {
    CUdeviceptr p;
    if (way == "linear") {
        for (size_t got = 0; got < bytes; got += 4 * PIECE) {
            check(cuMemAlloc(&p, std::min(4 * PIECE, bytes - got)), "cuMemAlloc");
            held.linear.push_back(p);
        }
    } else if (way == "small") {
        size_t sizes[] = {4096, 65536, 300000, 1 << 20, 1572864}, k = 0;
        for (size_t got = 0; got < bytes; got += sizes[k++ % 5]) {
            check(cuMemAlloc(&p, sizes[k % 5]), "cuMemAlloc");
            held.linear.push_back(p);
        }
    } else if (way == "managed") {
        for (size_t got = 0; got < bytes; got += PIECE) {
            check(cuMemAllocManaged(&p, PIECE, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
            check(cuMemsetD8(p, 1, PIECE), "touch");
            held.linear.push_back(p);
        }
    } else if (way == "vmm") {
        CUmemAllocationProp props = {};
        props.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
        CUmemAccessDesc access = {props.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        for (size_t got = 0; got < bytes; got += PIECE) {
            CUmemGenericAllocationHandle handle;
            check(cuMemCreate(&handle, PIECE, &props, 0), "cuMemCreate");
            check(cuMemAddressReserve(&p, PIECE, 0, 0, 0), "reserve");
            check(cuMemMap(p, PIECE, 0, handle, 0), "map");
            check(cuMemSetAccess(p, PIECE, &access, 1), "access");
            held.handles.push_back(handle);
            held.reserved.push_back(p);
        }
    } else if (way == "async") {
        for (size_t got = 0; got < bytes; got += PIECE) {
            check(cuMemAllocAsync(&p, PIECE, stream), "cuMemAllocAsync");
            held.pooled.push_back(p);
        }
    } else if (way == "graph") {
        CUDA_MEM_ALLOC_NODE_PARAMS node = {};
        node.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        node.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
        node.bytesize = bytes;
        CUgraphNode made;
        check(cuGraphCreate(&held.graph, 0), "graph");
        check(cuGraphAddMemAllocNode(&made, held.graph, nullptr, 0, &node), "node");
        held.in_graph = node.dptr;
        check(cuGraphInstantiate(&held.exec, held.graph, 0), "instantiate");
        check(cuGraphLaunch(held.exec, stream), "launch");
        check(cuMemsetD8Async(held.in_graph, 1, bytes, stream), "touch");
    } else if (way == "modules") {
        for (size_t got = 0; got < bytes; got += 16 << 20) {
            CUmodule module;
            CUfunction function = function_of(&module, GLOBALS, "touch");
            held.modules.push_back(module);
            check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr), "launch");
        }
    } else if (way == "locals" || way == "stack") {
        int processors, threads;
        check(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device), "attribute");
        check(cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device), "attribute");
        size_t each = bytes / (size_t(processors) * threads) / 1024 * 1024;
        if (way == "stack") {
            check(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, each), "stack");
            CUmodule module;
            CUfunction function = function_of(&module, SPIN, "spin");
            held.modules.push_back(module);
            CUdeviceptr none = 0;
            unsigned once = 1;
            void *arguments[] = {&none, &once};
            check(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr), "launch");
        } else {
            CUmodule module;
            CUfunction function = function_of(&module, locals(each).c_str(), "touch");
            held.modules.push_back(module);
            check(cuMemAlloc(&p, 4096), "out");
            held.linear.push_back(p);
            void *arguments[] = {&p};
            check(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr), "launch");
        }
    } else if (way == "heap" || way == "fifo") {
        check(cuCtxSetLimit(way == "heap" ? CU_LIMIT_MALLOC_HEAP_SIZE : CU_LIMIT_PRINTF_FIFO_SIZE, bytes), "limit");
        CUmodule module;
        CUfunction function = function_of(&module, SERVICES, "use");
        held.modules.push_back(module);
        check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr), "launch");
    } else if (way == "arrays") {
        for (size_t got = 0; got < bytes; got += PIECE) {
            CUDA_ARRAY3D_DESCRIPTOR shape = {};
            shape.Width = 4096;
            shape.Height = PIECE / 4096 / 16;
            shape.Format = CU_AD_FORMAT_FLOAT;
            shape.NumChannels = 4;
            CUarray array;
            check(cuArray3DCreate(&array, &shape), "cuArray3DCreate");
            held.arrays.push_back(array);
        }
    } else if (way != "context") {
        fprintf(stderr, "unknown way %s\n", way.c_str());
        exit(2);
    }
    check(cuCtxSynchronize(), "wait");
}

static void release(Held &held, CUdevice device, CUstream stream) {
    for (auto p : held.linear) check(cuMemFree(p), "cuMemFree");
    for (auto p : held.pooled) check(cuMemFreeAsync(p, stream), "cuMemFreeAsync");
    check(cuCtxSynchronize(), "wait");
    CUmemoryPool pool;
    check(cuDeviceGetMemPool(&pool, device), "pool");
    check(cuMemPoolTrimTo(pool, 0), "trim");
    for (size_t i = 0; i < held.handles.size(); i++) {
        check(cuMemUnmap(held.reserved[i], PIECE), "unmap");
        check(cuMemAddressFree(held.reserved[i], PIECE), "unreserve");
        check(cuMemRelease(held.handles[i]), "cuMemRelease");
    }
    for (auto module : held.modules) check(cuModuleUnload(module), "cuModuleUnload");
    for (auto array : held.arrays) check(cuArrayDestroy(array), "cuArrayDestroy");
    if (held.exec) {
        check(cuMemFreeAsync(held.in_graph, stream), "graph memory");
        check(cuCtxSynchronize(), "wait");
        check(cuGraphExecDestroy(held.exec), "exec");
        check(cuGraphDestroy(held.graph), "graph");
        check(cuDeviceGraphMemTrim(device), "graph trim");
    }
    held = Held();
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    std::string way = arguments[1];
    bool busy = count > 3;
    signal(SIGUSR1, [](int) { give_back = 1; });
    check(cuInit(0), "cuInit");
    CUdevice device;
    CUcontext context;
    CUstream stream;
    check(cuDeviceGet(&device, 0), "device");
    check(cuDevicePrimaryCtxRetain(&context, device), "context");
    check(cuCtxSetCurrent(context), "current");
    check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
    CUmodule module;
    CUfunction spin = busy ? function_of(&module, SPIN, "spin") : nullptr;
    CUdeviceptr none = 0;
    unsigned iterations = 20000;
    void *no_output[] = {&none, &iterations};
    Held held;
    take(held, way, strtoull(arguments[2], nullptr, 0) << 20, device, stream);
    printf("held\n");
    fflush(stdout);
    for (;;) {
        if (busy) {
            for (int i = 0; i < 4; i++) check(cuLaunchKernel(spin, 2112, 1, 1, 128, 1, 1, 0, stream, no_output, nullptr), "launch");
            check(cuStreamSynchronize(stream), "busy");
        } else {
            usleep(10000);
        }
        if (give_back) {
            give_back = 0;
            release(held, device, stream);
            printf("freed\n");
            fflush(stdout);
        }
    }
}
