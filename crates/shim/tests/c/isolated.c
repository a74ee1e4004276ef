/* The driver interface end to end, by name only: prints "ok" or the first thing that was wrong.
 * Needs no CUDA toolkit: the few prototypes it uses are written down here. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int CUresult;
typedef unsigned long long Ptr;
typedef void *Handle;

CUresult cuInit(unsigned), cuDeviceGet(int *, int), cuDeviceGetCount(int *), cuDriverGetVersion(int *);
CUresult cuDeviceGetAttribute(int *, int, int), cuDeviceGetName(char *, int, int), cuDeviceTotalMem_v2(size_t *, int);
CUresult cuDevicePrimaryCtxRetain(Handle *, int), cuDevicePrimaryCtxRelease_v2(int), cuDevicePrimaryCtxReset_v2(int);
CUresult cuDevicePrimaryCtxGetState(int, unsigned *, int *);
CUresult cuCtxSetCurrent(Handle), cuCtxGetCurrent(Handle *), cuCtxPushCurrent_v2(Handle), cuCtxPopCurrent_v2(Handle *);
CUresult cuCtxCreate_v2(Handle *, unsigned, int), cuCtxDestroy_v2(Handle), cuCtxSynchronize(void);
CUresult cuModuleLoadData(Handle *, const void *), cuModuleGetFunction(Handle *, Handle, const char *), cuModuleUnload(Handle);
CUresult cuModuleGetGlobal_v2(Ptr *, size_t *, Handle, const char *);
CUresult cuFuncGetAttribute(int *, int, Handle), cuFuncGetParamInfo(Handle, size_t, size_t *, size_t *);
CUresult cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
CUresult cuMemAlloc_v2(Ptr *, size_t), cuMemFree_v2(Ptr), cuMemGetInfo_v2(size_t *, size_t *);
CUresult cuMemcpyHtoD_v2(Ptr, const void *, size_t), cuMemcpyDtoH_v2(void *, Ptr, size_t), cuMemcpyDtoHAsync_v2(void *, Ptr, size_t, Handle);
CUresult cuMemcpyWithAttributesAsync(Ptr, Ptr, size_t, void *, Handle);
CUresult cuMemcpyBatchAsync_v2(Ptr *, Ptr *, size_t *, size_t, void *, size_t *, size_t, Handle);
CUresult cuMemcpy(Ptr, Ptr, size_t), cuMemsetD32_v2(Ptr, unsigned, size_t), cuMemsetD32Async(Ptr, unsigned, size_t, Handle);
CUresult cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *), cuMemHostGetDevicePointer_v2(Ptr *, void *, unsigned);
CUresult cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *), cuMemAllocManaged(Ptr *, size_t, unsigned);
CUresult cuPointerGetAttribute(void *, int, Ptr);
CUresult cuStreamCreate(Handle *, unsigned), cuStreamDestroy_v2(Handle), cuStreamSynchronize(Handle), cuStreamQuery(Handle);
CUresult cuStreamWaitValue32_v2(Handle, Ptr, unsigned, unsigned), cuStreamWaitValue64_v2(Handle, Ptr, unsigned long long, unsigned);
CUresult cuStreamBatchMemOp_v2(Handle, unsigned, void *, unsigned);
CUresult cuStreamWriteValue32_v2(Handle, Ptr, unsigned, unsigned), cuStreamWriteValue64_v2(Handle, Ptr, unsigned long long, unsigned);
CUresult cuStreamWaitEvent(Handle, Handle, unsigned), cuLaunchHostFunc(Handle, void (*)(void *), void *);
CUresult cuLaunchHostFunc_v2(Handle, void (*)(void *), void *, unsigned);
CUresult cuEventCreate(Handle *, unsigned), cuEventRecord(Handle, Handle), cuEventSynchronize(Handle), cuEventElapsedTime(float *, Handle, Handle), cuEventDestroy_v2(Handle);
CUresult cuStreamBeginCapture_v2(Handle, int), cuStreamEndCapture(Handle, Handle *), cuGraphGetNodes(Handle, Handle *, size_t *);
CUresult cuGraphInstantiateWithFlags(Handle *, Handle, unsigned long long), cuGraphLaunch(Handle, Handle), cuGraphExecDestroy(Handle), cuGraphDestroy(Handle);
CUresult cuGetProcAddress_v2(const char *, void **, int, unsigned long long, int *), cuGetErrorName(CUresult, const char **);
CUresult cuLinkCreate_v2(unsigned, int *, void **, Handle *), cuLinkAddData_v2(Handle, int, void *, size_t, const char *, unsigned, int *, void **), cuLinkComplete(Handle, void **, size_t *), cuLinkDestroy(Handle);
CUresult cuMemAllocAsync(Ptr *, size_t, Handle), cuMemFreeAsync(Ptr, Handle), cuGraphicsMapResources(unsigned, Handle *, Handle);

#define IS(call, wanted) do { int got_ = (int)(call); if (got_ != (wanted)) { printf("line %d: %s is %d, not %d\n", __LINE__, #call, got_, (int)(wanted)); exit(1); } } while (0)
#define OK(call) IS(call, 0)
#define TRUE(what) do { if (!(what)) { printf("line %d: not so: %s\n", __LINE__, #what); exit(1); } } while (0)

/* Allocations of this thread, in whatever library. */
static __thread long allocations;
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
void *malloc(size_t n) { allocations++; return __libc_malloc(n); }
void *calloc(size_t n, size_t each) { allocations++; return __libc_calloc(n, each); }
void *realloc(void *p, size_t n) { allocations++; return __libc_realloc(p, n); }
int posix_memalign(void **p, size_t align, size_t n) { allocations++; *p = __libc_memalign(align, n); return *p ? 0 : 12; }

static const char PTX[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .u32 seed = 5;\n"
    /* p[i] += v + seed */
    ".visible .entry add(.param .u64 p, .param .u32 n, .param .u32 v) {\n"
    " .reg .pred %q; .reg .b32 %r<9>; .reg .b64 %rd<4>;\n"
    " ld.param.u64 %rd0, [p]; ld.param.u32 %r0, [n]; ld.param.u32 %r1, [v];\n"
    " mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, %r4;\n"
    " setp.ge.u32 %q, %r5, %r0; @%q bra done;\n"
    " mul.wide.u32 %rd1, %r5, 4; add.u64 %rd2, %rd0, %rd1; ld.global.u32 %r6, [%rd2]; ld.global.u32 %r7, [seed];\n"
    " add.u32 %r6, %r6, %r1; add.u32 %r6, %r6, %r7; st.global.u32 [%rd2], %r6;\n"
    "done: ret; }\n"
    ".visible .entry wild(.param .u64 p) { .reg .b64 %rd0; ld.param.u64 %rd0, [p]; st.global.u32 [%rd0], 1; ret; }\n"
    ".visible .entry spin(.param .u64 p) { .reg .b64 %rd0; .reg .b32 %r0; .reg .pred %q; ld.param.u64 %rd0, [p];\n"
    "again: ld.volatile.global.u32 %r0, [%rd0]; setp.eq.u32 %q, %r0, 0; @%q bra again; ret; }\n";

static Handle context, module, add, stream;

static void start(void) {
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, PTX));
    OK(cuModuleGetFunction(&add, module, "add"));
    OK(cuStreamCreate(&stream, 1));
}

static int launch_add(Ptr p, unsigned n, unsigned v, Handle on) {
    void *args[] = {&p, &n, &v};
    return cuLaunchKernel(add, (n + 63) / 64, 1, 1, 64, 1, 1, 0, on, args, 0);
}

static void basics(void) {
    int n = 0, version = 0;
    IS(cuDeviceGetCount(&n), 3);
    start();
    OK(cuDeviceGetCount(&n));
    IS(n, 1);
    OK(cuDriverGetVersion(&version));
    TRUE(version >= 12000);
    char name[64];
    OK(cuDeviceGetName(name, 64, 0));
    TRUE(name[0]);
    size_t total, free_bytes, shown;
    OK(cuDeviceTotalMem_v2(&total, 0));
    OK(cuMemGetInfo_v2(&free_bytes, &shown));
    TRUE(total == shown && total == 64u << 20 && free_bytes <= total);
    Handle f;
    IS(cuModuleGetFunction(&f, module, "nothing"), 500);
    size_t at, size;
    OK(cuFuncGetParamInfo(add, 1, &at, &size));
    TRUE(at == 8 && size == 4);
    IS(cuFuncGetParamInfo(add, 3, &at, &size), 1);
    Ptr p, seed;
    OK(cuModuleGetGlobal_v2(&seed, &size, module, "seed"));
    IS(size, 4);
    OK(cuMemAlloc_v2(&p, 4000));
    OK(cuMemsetD32_v2(p, 100, 1000));
    OK(launch_add(p, 1000, 7, 0));
    unsigned h[1000];
    OK(cuMemcpyDtoH_v2(h, p, sizeof h));
    for (int i = 0; i < 1000; i++) IS(h[i], 112);
    unsigned ten = 10;
    OK(cuMemcpyHtoD_v2(seed, &ten, 4));
    OK(launch_add(p, 999, 0, 0));
    OK(cuMemcpy((Ptr)(uintptr_t)h, p, sizeof h));
    IS(h[0], 122);
    IS(h[999], 112);
    int type = 0;
    OK(cuPointerGetAttribute(&type, 2, p + 8));
    IS(type, 2);
    IS(cuPointerGetAttribute(&type, 2, (Ptr)(uintptr_t)h), 1);
    OK(cuMemFree_v2(p));
    IS(cuMemFree_v2(p), 1);
    OK(cuModuleUnload(module));
}

static void contexts(void) {
    OK(cuInit(0));
    Handle current = &current, a, b;
    unsigned flags;
    int active = 1;
    OK(cuCtxGetCurrent(&current));
    TRUE(!current);
    IS(cuCtxSynchronize(), 201);
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(active, 0);
    start();
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    IS(active, 1);
    OK(cuCtxCreate_v2(&a, 0, 0));
    OK(cuCtxGetCurrent(&current));
    TRUE(current == a && a != context);
    OK(cuCtxPushCurrent_v2(context));
    OK(cuCtxPopCurrent_v2(&b));
    TRUE(b == context);
    OK(cuCtxDestroy_v2(a));
    OK(cuCtxGetCurrent(&current));
    TRUE(current == context);
    IS(cuCtxSetCurrent(a), 201);
    Ptr p;
    OK(cuMemAlloc_v2(&p, 100));
    OK(cuDevicePrimaryCtxReset_v2(0));
    IS(cuMemFree_v2(p), 1);
    OK(cuMemAlloc_v2(&p, 100));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    IS(cuMemAlloc_v2(&p, 100), 709);
}

static void errors(void) {
    start();
    Ptr p = 0;
    unsigned n = 1, v = 1;
    void *args[] = {&p, &n, &v};
    IS(cuLaunchKernel(add, 1, 1, 1, 2048, 1, 1, 0, 0, args, 0), 1);
    IS(cuLaunchKernel(add, 0, 1, 1, 1, 1, 1, 0, 0, args, 0), 1);
    IS(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 1 << 20, 0, args, 0), 1);
    IS(cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, args, 0), 400);
    IS(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, (Handle)module, args, 0), 400);
    IS(cuMemAlloc_v2(&p, 0), 1);
    IS(cuMemAlloc_v2(&p, 65u << 20), 2);
    OK(cuMemAlloc_v2(&p, 1 << 20));
    char byte;
    IS(cuMemcpyDtoH_v2(&byte, 16, 1), 1);
    IS(cuMemcpyDtoH_v2(&byte, p + (1 << 20), 1), 1);
    IS(cuModuleLoadData(&module, "no code at all"), 200);
    IS(cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.address_size 64\n.entry k() { nonsense; }"), 218);
    IS(cuGraphicsMapResources(0, 0, 0), 801);
    const char *name;
    OK(cuGetErrorName(700, &name));
    TRUE(!strcmp(name, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    IS(cuGetErrorName(12345, &name), 1);
    Handle wild;
    OK(cuModuleLoadData(&module, PTX));
    OK(cuModuleGetFunction(&wild, module, "wild"));
    Ptr bad = 16;
    void *one[] = {&bad};
    OK(cuLaunchKernel(wild, 1, 1, 1, 1, 1, 1, 0, stream, one, 0));
    IS(cuStreamSynchronize(stream), 700);
    IS(cuCtxSynchronize(), 700);
    IS(cuMemAlloc_v2(&p, 4), 700);
    IS(launch_add(p, 1, 1, 0), 700);
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuMemsetD32_v2(p, 3, 1));
    OK(cuMemcpyDtoH_v2(&n, p, 4));
    IS(n, 3);
}

CUresult cuGetErrorString(CUresult, const char **), cuGetProcAddress(const char *, void **, int, unsigned long long), cuModuleGetLoadingMode(int *);
CUresult cuMemcpy3DPeer(const void *), cuMemcpy3DPeerAsync(const void *, Handle), cuThreadExchangeStreamCaptureMode(int *);
CUresult cuMemGetAddressRange_v2(Ptr *, size_t *, Ptr), cuDevicePrimaryCtxSetFlags(int, unsigned), cuDevicePrimaryCtxSetFlags_v2(int, unsigned);
CUresult cuCtxEnablePeerAccess(Handle, unsigned), cuMemcpyHtoA_v2(Handle, size_t, const void *, size_t), cuTexObjectDestroy(Ptr);

static void nulls(void) {
    start();
    /* A real driver follows these null pointers and dies: no program can depend on what happens, this library goes on. */
    IS(cuGetErrorName(0, 0), 1);
    IS(cuGetErrorString(0, 0), 1);
    IS(cuGetProcAddress(0, 0, 0, 0), 1);
    IS(cuGetProcAddress_v2(0, 0, 0, 0, 0), 1);
    IS(cuModuleGetLoadingMode(0), 1);
    IS(cuMemcpy3DPeer(0), 1);
    IS(cuMemcpy3DPeerAsync(0, 0), 1);
    IS(cuThreadExchangeStreamCaptureMode(0), 1);
    /* What is looked at first where more than one argument is wrong, and what is right all the same. */
    Handle function;
    Ptr p, base;
    size_t bytes;
    int value;
    IS(cuModuleGetFunction(0, 0, "add"), 400);
    IS(cuModuleGetFunction(&function, 0, 0), 400);
    IS(cuModuleGetFunction(0, module, "add"), 1);
    IS(cuModuleGetFunction(&function, module, 0), 1);
    IS(cuModuleGetGlobal_v2(0, 0, 0, 0), 400);
    OK(cuModuleGetGlobal_v2(0, 0, module, "seed"));
    IS(cuFuncGetAttribute(0, 0, 0), 1);
    IS(cuFuncGetAttribute(&value, 0, 0), 400);
    IS(cuFuncGetParamInfo(0, 0, &bytes, 0), 400);
    OK(cuMemAlloc_v2(&p, 100));
    OK(cuMemGetAddressRange_v2(0, 0, 16));
    IS(cuMemGetAddressRange_v2(&base, 0, 16), 500);
    OK(cuMemGetAddressRange_v2(0, &bytes, p + 50));
    IS(bytes, 100);
    IS(cuDevicePrimaryCtxSetFlags(0, 0), 708);
    OK(cuDevicePrimaryCtxSetFlags_v2(0, 0));
    IS(cuCtxDestroy_v2(0), 1);
    IS(cuCtxPushCurrent_v2(0), 1);
    IS(cuCtxPushCurrent_v2(module), 201);
    IS(cuCtxEnablePeerAccess(0, 0), 201);
    OK(cuMemcpyHtoA_v2(0, 0, 0, 0));
    IS(cuMemcpyHtoA_v2(0, 0, &value, 4), 400);
    OK(cuTexObjectDestroy(0));
    IS(cuTexObjectDestroy(5), 1);
    IS(cuMemHostUnregister(0), 1);
    IS(cuMemHostUnregister(&value), 713);
    void *pinned;
    OK(cuMemHostAlloc(&pinned, 4096, 0));
    IS(cuMemHostRegister_v2(pinned, 4096, 0), 1);
    IS(cuMemHostUnregister(pinned), 1);
    OK(cuMemFreeHost(pinned));
}

static int called;
static void host_function(void *data) { called += *(int *)data; }

static void streams(void) {
    start();
    Ptr p;
    Handle other, a, b;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemsetD32_v2(p, 0, 1024));
    OK(cuStreamCreate(&other, 1));
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    OK(cuEventRecord(a, stream));
    int five = 5;
    for (int i = 0; i < 20; i++) OK(launch_add(p, 1024, 1, stream));
    OK(cuLaunchHostFunc(stream, host_function, &five));
    IS(cuLaunchHostFunc_v2(stream, host_function, &five, 2), 1);
    OK(cuLaunchHostFunc_v2(stream, host_function, &five, 1));
    OK(cuEventRecord(b, stream));
    OK(cuStreamWaitEvent(other, b, 0));
    OK(launch_add(p, 1024, 1, other));
    OK(cuStreamSynchronize(other));
    IS(called, 10);
    unsigned h[1024];
    OK(cuMemcpyDtoHAsync_v2(h, p, 4096, other));
    IS(h[1023], 21 * 6);
    float ms = -1;
    OK(cuEventElapsedTime(&ms, a, b));
    TRUE(ms >= 0);
    OK(cuStreamQuery(stream));
    OK(cuEventDestroy_v2(a));
    IS(cuEventSynchronize(a), 400);
    OK(cuStreamDestroy_v2(other));
    IS(cuStreamSynchronize(other), 400);
    Ptr q;
    OK(cuMemAllocAsync(&q, 4096, stream));
    OK(cuMemsetD32Async(q, 9, 1024, stream));
    OK(cuMemcpyDtoHAsync_v2(h, q, 4096, stream));
    OK(cuMemFreeAsync(q, stream));
    OK(cuStreamSynchronize(stream));
    IS(h[77], 9);
    OK(cuStreamSynchronize((Handle)1));
    OK(cuStreamSynchronize((Handle)2));
}

static void host_memory(void) {
    start();
    unsigned *h;
    Ptr d;
    OK(cuMemHostAlloc((void **)&h, 100000, 2));
    OK(cuMemHostGetDevicePointer_v2(&d, h, 0));
    for (int i = 0; i < 25000; i++) h[i] = i;
    OK(launch_add(d, 25000, 1, 0));
    OK(cuCtxSynchronize());
    for (int i = 0; i < 25000; i++) IS(h[i], i + 6);
    int type = 0;
    OK(cuPointerGetAttribute(&type, 2, (Ptr)(uintptr_t)h));
    IS(type, 1);
    OK(cuMemFreeHost(h));
    /* Registered memory begins and ends within pages, whose other bytes stay what they are. */
    char *block = malloc(50000);
    for (int i = 0; i < 50000; i++) block[i] = (char)(i * 7);
    h = (unsigned *)(((uintptr_t)block + 5000) & ~(uintptr_t)15);
    memset(h, 0, 8000);
    OK(cuMemHostRegister_v2(h, 8000, 0));
    IS(cuMemHostRegister_v2(h, 8000, 0), 712);
    OK(cuMemHostGetDevicePointer_v2(&d, h, 0));
    OK(launch_add(d, 2000, 1, 0));
    OK(cuCtxSynchronize());
    IS(h[1999], 6);
    OK(cuMemHostUnregister(h));
    IS(cuMemHostUnregister(h), 713);
    IS(h[0], 6);
    for (int i = 0; i < 4900; i++) IS(block[i], (char)(i * 7));
    for (int i = 20000; i < 50000; i++) IS(block[i], (char)(i * 7));
    free(block);
    OK(cuMemAllocManaged(&d, 4000, 1));
    h = (unsigned *)(uintptr_t)d;
    memset(h, 0, 4000);
    OK(launch_add(d, 1000, 1, 0));
    OK(cuCtxSynchronize());
    IS(h[999], 6);
    h[999] = 50;
    OK(launch_add(d, 1000, 1, 0));
    OK(cuCtxSynchronize());
    IS(h[999], 56);
    OK(cuMemFree_v2(d));
}

/* What the device says of host memory, and the same program where it is shared and where it is copied. */
static void memory_is(int shared) {
    int value = -1;
    start();
    OK(cuDeviceGetAttribute(&value, 19, 0)); /* CAN_MAP_HOST_MEMORY */
    IS(value, shared);
    OK(cuDeviceGetAttribute(&value, 89, 0)); /* CONCURRENT_MANAGED_ACCESS */
    IS(value, shared);
    OK(cuDeviceGetAttribute(&value, 83, 0)); /* MANAGED_MEMORY */
    IS(value, 1);
    /* Pinned memory that is only copied, and managed memory, are as everywhere. */
    unsigned *h;
    Ptr d, m;
    OK(cuMemHostAlloc((void **)&h, 4096, 0));
    OK(cuMemAlloc_v2(&d, 4096));
    h[0] = 7;
    OK(cuMemcpyHtoD_v2(d, h, 4096));
    OK(launch_add(d, 1, 1, 0));
    OK(cuMemcpyDtoH_v2(h, d, 4096));
    IS(h[0], 13);
    OK(cuMemAllocManaged(&m, 4096, 1));
    *(volatile unsigned *)(uintptr_t)m = 1;
    OK(launch_add(m, 1, 1, 0));
    OK(cuCtxSynchronize());
    IS(*(volatile unsigned *)(uintptr_t)m, 7);
}
static void shared_memory(void) { memory_is(1); }
static void copied_memory(void) { memory_is(0); }

/* A kernel is given pinned memory that nobody has asked to be mapped. */
static void pinned_kernel(void) {
    start();
    unsigned *h;
    OK(cuMemHostAlloc((void **)&h, 4096, 0));
    for (int i = 1; i < 4; i++) {
        OK(launch_add((Ptr)(uintptr_t)h, 1, 1, 0));
        OK(cuCtxSynchronize());
        IS(h[0], 6 * i);
    }
}

static void graphs(void) {
    start();
    Ptr p;
    Handle graph, exec;
    size_t nodes = 0;
    unsigned h[256] = {0};
    OK(cuMemAlloc_v2(&p, 1024));
    OK(cuMemsetD32_v2(p, 0, 256));
    OK(cuCtxSynchronize());
    OK(cuStreamBeginCapture_v2(stream, 0));
    OK(launch_add(p, 256, 1, stream));
    OK(launch_add(p, 256, 2, stream));
    OK(cuMemcpyDtoHAsync_v2(h, p, 1024, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, 0, &nodes));
    IS(nodes, 3);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    OK(cuStreamSynchronize(stream));
    IS(h[0], 0);
    for (int i = 0; i < 3; i++) OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    IS(h[255], 3 * (5 + 5 + 1 + 2));
    OK(cuGraphExecDestroy(exec));
    /* What cannot be captured breaks the capture. */
    OK(cuStreamBeginCapture_v2(stream, 0));
    IS(cuStreamSynchronize(stream), 900);
    IS(cuStreamEndCapture(stream, &graph), 901);
    OK(launch_add(p, 256, 1, stream));
}

static void look_up(void) {
    void *old = 0, *new = 0, *own = 0;
    int status = -1;
    OK(cuGetProcAddress_v2("cuCtxGetDevice", &old, 12000, 0, &status));
    OK(cuGetProcAddress_v2("cuCtxGetDevice", &new, 13000, 0, &status));
    TRUE(old != new);
    CUresult (*device_of)(int *, Handle) = new;
    OK(cuGetProcAddress_v2("cuMemcpyHtoD", &old, 13000, 0, &status));
    OK(cuGetProcAddress_v2("cuMemcpyHtoD", &own, 13000, 2, &status));
    TRUE(old != own);
    IS(status, 0);
    /* Who asks for the status is told there; who does not, by the call. */
    OK(cuGetProcAddress_v2("cuNoSuchThing", &new, 13000, 0, &status));
    TRUE(new == 0);
    IS(status, 1);
    OK(cuGetProcAddress_v2("cuLaunchKernelEx", &new, 11000, 0, &status));
    IS(status, 2);
    IS(cuGetProcAddress_v2("cuNoSuchThing", &new, 13000, 0, 0), 500);
    start();
    /* Numba calls the second version as if it were the first: what stands for a context never was one. */
    int device = 7;
    OK(device_of(&device, (Handle)0x123456789));
    IS(device, 0);
    Handle gone;
    OK(cuCtxCreate_v2(&gone, 0, 0));
    OK(device_of(&device, gone));
    OK(cuCtxDestroy_v2(gone));
    IS(device_of(&device, gone), 201);
    const char *twice = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .func (.param .b32 r) twice(.param .b32 x) { .reg .b32 %r<2>; ld.param.b32 %r0, [x]; add.u32 %r1, %r0, %r0; st.param.b32 [r], %r1; ret; }\n";
    const char *user = ".version 7.0\n.target sm_70\n.address_size 64\n.extern .func (.param .b32 r) twice(.param .b32 x);\n.visible .entry k(.param .u64 p) { .reg .b64 %rd0; .reg .b32 %r<3>; ld.param.u64 %rd0, [p]; ld.global.u32 %r0, [%rd0]; { .param .b32 x; .param .b32 r; st.param.b32 [x], %r0; call.uni (r), twice, (x); ld.param.b32 %r1, [r]; } st.global.u32 [%rd0], %r1; ret; }\n";
    Handle link, linked, k;
    void *image;
    size_t size;
    OK(cuLinkCreate_v2(0, 0, 0, &link));
    OK(cuLinkAddData_v2(link, 1, (void *)user, strlen(user) + 1, "user", 0, 0, 0));
    OK(cuLinkAddData_v2(link, 1, (void *)twice, strlen(twice) + 1, "twice", 0, 0, 0));
    OK(cuLinkComplete(link, &image, &size));
    OK(cuModuleLoadData(&linked, image));
    OK(cuLinkDestroy(link));
    OK(cuModuleGetFunction(&k, linked, "k"));
    Ptr p;
    unsigned v = 21;
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuMemcpyHtoD_v2(p, &v, 4));
    void *args[] = {&p};
    OK(cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, 0, args, 0));
    OK(cuMemcpyDtoH_v2(&v, p, 4));
    IS(v, 42);
}

static void *own_thread(void *data) {
    Handle current = &current;
    OK(cuCtxGetCurrent(&current));
    TRUE(!current);
    OK(cuCtxSetCurrent(context));
    Ptr p = *(Ptr *)data;
    for (int i = 0; i < 50; i++) OK(launch_add(p, 64, 1, (Handle)2));
    OK(cuStreamSynchronize((Handle)2));
    return 0;
}

static void threads(void) {
    start();
    pthread_t all[6];
    Ptr p[6];
    for (int i = 0; i < 6; i++) {
        OK(cuMemAlloc_v2(&p[i], 256));
        OK(cuMemsetD32_v2(p[i], 0, 64));
    }
    OK(cuCtxSynchronize());
    for (int i = 0; i < 6; i++) pthread_create(&all[i], 0, own_thread, &p[i]);
    for (int i = 0; i < 6; i++) pthread_join(all[i], 0);
    for (int i = 0; i < 6; i++) {
        unsigned h[64];
        OK(cuMemcpyDtoH_v2(h, p[i], 256));
        IS(h[63], 300);
    }
}

static void forked(void) {
    start();
    Ptr p;
    pid_t child = fork();
    if (!child) _exit(cuMemAlloc_v2(&p, 4) == 3 && cuInit(0) == 3 ? 0 : 1);
    int status = -1;
    waitpid(child, &status, 0);
    IS(status, 0);
    OK(cuMemAlloc_v2(&p, 4));
}

/* The worker goes away when a line is printed: errors, and no waiting for ever. */
static void orphan(void) {
    start();
    Ptr p;
    OK(cuMemAlloc_v2(&p, 4096));
    printf("ready\n");
    fflush(stdout);
    getchar();
    IS(cuMemAlloc_v2(&p, 4096), 46);
    IS(cuCtxSynchronize(), 46);
    IS(launch_add(p, 64, 1, 0), 46);
    IS(cuMemFree_v2(p), 46);
}

/* Ends while a kernel runs and a callback thread waits. */
static void leave(void) {
    start();
    Ptr p;
    Handle spin;
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuMemsetD32_v2(p, 0, 1));
    OK(cuModuleGetFunction(&spin, module, "spin"));
    void *args[] = {&p};
    int one = 1;
    OK(cuLaunchHostFunc(0, host_function, &one));
    OK(cuCtxSynchronize());
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, 0));
    IS(cuStreamQuery(stream), 600);
}

/* Leaves one of each kind of object, and destroys another one. */
static void left(void) {
    start();
    Handle kept[8], gone[8], graph;
    for (int round = 0; round < 2; round++) {
        Handle *made = round ? kept : gone;
        OK(cuStreamCreate(&made[0], 0));
        OK(cuEventCreate(&made[1], 0));
        OK(cuModuleLoadData(&made[2], PTX));
        OK(cuStreamBeginCapture_v2(made[0], 0));
        OK(cuStreamEndCapture(made[0], &graph));
        made[3] = graph;
        OK(cuGraphInstantiateWithFlags(&made[4], graph, 0));
    }
    OK(cuGraphExecDestroy(gone[4]));
    OK(cuGraphDestroy(gone[3]));
    OK(cuModuleUnload(gone[2]));
    OK(cuEventDestroy_v2(gone[1]));
    OK(cuStreamDestroy_v2(gone[0]));
    /* What belongs to a context goes with it. */
    Handle other, its;
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuStreamCreate(&its, 0));
    OK(cuCtxDestroy_v2(other));
}

/* Every way to copy, around the sizes where the way changes, in order with kernels. */
static void copies(void) {
    start();
    size_t sizes[] = {4, 4096, 60000, 65536, 70000, 1 << 20, (5 << 20) + 12};
    size_t most = sizes[6] + 64;
    unsigned char *out = malloc(most), *in = malloc(most), *pinned;
    OK(cuMemHostAlloc((void **)&pinned, most, 0));
    for (size_t s = 0; s < 7; s++) {
        size_t n = sizes[s];
        Ptr p, q;
        OK(cuMemAlloc_v2(&p, n));
        OK(cuMemAlloc_v2(&q, n));
        for (size_t i = 0; i < n; i++) out[i] = pinned[i] = (unsigned char)(i * 31 + s);
        for (int from = 0; from < 2; from++) {
            OK(cuMemsetD32_v2(p, 0, n / 4));
            OK(cuMemcpyHtoD_v2(p, from ? pinned : out, n));
            OK(launch_add(p, 1, 1, stream));
            OK(cuStreamSynchronize(stream));
            OK(launch_add(p, 1, 1, 0));
            OK(cuMemcpy(q, p, n));
            memset(in, 0, n);
            OK(cuMemcpyDtoH_v2(in, q, n));
            unsigned was, is;
            memcpy(&was, out, 4), memcpy(&is, in, 4);
            IS(is, was + 12);
            TRUE(!memcmp(in + 4, out + 4, n - 4));
            memset(pinned, 0, n);
            OK(cuMemcpyDtoH_v2(pinned, p, n));
            TRUE(!memcmp(in, pinned, n));
            /* In the middle, and small ones where large ones were. */
            size_t at = n / 3 & ~3ul, some = n - at < 5000 ? n - at : 5000;
            OK(cuMemcpyHtoD_v2(p + at, out, some));
            OK(cuMemcpyDtoHAsync_v2(in, p + at, some, 0));
            OK(cuCtxSynchronize());
            TRUE(!memcmp(in, out, some));
            memcpy(pinned, out, n);
        }
        IS(cuMemcpyHtoD_v2(p, out, n + 4096), 1);
        OK(cuMemFree_v2(p));
        IS(cuMemcpyHtoD_v2(p, out, n), 1);
        OK(cuMemFree_v2(q));
    }
}

/* Copies for ever, both ways, until somebody ends it. */
static void copying(void) {
    start();
    size_t n = 16 << 20;
    char *mine = malloc(n);
    memset(mine, 1, n);
    Ptr p;
    OK(cuMemAlloc_v2(&p, n));
    for (int said = 0;; said = 1) {
        OK(cuMemcpyHtoD_v2(p, mine, n));
        OK(launch_add(p, 64, 1, 0));
        OK(cuMemcpyDtoH_v2(mine, p, n));
        if (!said) printf("ready\n"), fflush(stdout);
    }
}

/* Waits for a kernel that somebody cancels: the context is broken as by a watchdog; another is not. */
static void cancelled(void) {
    start();
    Ptr p;
    Handle spin;
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuMemsetD32_v2(p, 0, 1));
    OK(cuModuleGetFunction(&spin, module, "spin"));
    void *args[] = {&p};
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, args, 0));
    OK(launch_add(p, 1, 1, stream));
    printf("ready\n");
    fflush(stdout);
    IS(cuStreamSynchronize(stream), 702);
    unsigned word;
    IS(cuMemcpyDtoH_v2(&word, p, 4), 702);
    IS(cuCtxSynchronize(), 702);
    IS(cuMemAlloc_v2(&p, 4), 702);
    OK(cuDevicePrimaryCtxReset_v2(0));
    start();
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuMemsetD32_v2(p, 1, 1));
    OK(launch_add(p, 1, 1, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(&word, p, 4));
    IS(word, 7);
}

static void *until_cancelled(void *ready) {
    OK(cuCtxSetCurrent(context));
    for (;;) {
        OK(cuCtxSynchronize());
        *(volatile int *)ready = 1;
        pthread_testcancel();
    }
}

static void cancelled_thread(void) {
    start();
    for (int i = 0; i < 50; i++) {
        volatile int ready = 0;
        pthread_t thread;
        void *result = 0;
        OK(pthread_create(&thread, 0, until_cancelled, (void *)&ready));
        while (!ready) usleep(100);
        /* Most likely within a call, and not always at the same place. */
        usleep(i * 7);
        OK(pthread_cancel(thread));
        OK(pthread_join(thread, &result));
        TRUE(result == PTHREAD_CANCELED);
    }
    OK(cuCtxSynchronize());
}

/* With exact bounds: the byte after an allocation is no part of it, though the page goes on. */
static void exact_bounds(void) {
    start();
    Ptr p;
    Handle wild;
    OK(cuMemAlloc_v2(&p, 40));
    OK(cuModuleGetFunction(&wild, module, "wild"));
    Ptr last = p + 36, past = p + 40;
    void *good[] = {&last}, *bad[] = {&past};
    OK(cuLaunchKernel(wild, 1, 1, 1, 1, 1, 1, 0, stream, good, 0));
    OK(cuCtxSynchronize());
    OK(cuLaunchKernel(wild, 1, 1, 1, 1, 1, 1, 0, stream, bad, 0));
    IS(cuCtxSynchronize(), getenv("MICA_MEMCHECK") ? 700 : 0);
}

/* What a program does in its loops allocates nothing. */
static void no_allocations(void) {
    start();
    Ptr p;
    Handle event;
    unsigned words[16] = {0};
    OK(cuMemAlloc_v2(&p, 4000));
    OK(cuEventCreate(&event, 2));
    long before = 0;
    for (int i = 0; i < 2200; i++) {
        /* Not counted at first: whatever is made once. */
        if (i == 200) before = allocations;
        OK(launch_add(p, 1000, 1, stream));
        if (i % 10 == 0) OK(cuEventRecord(event, stream));
        if (i % 50 == 0) OK(cuMemcpyHtoD_v2(p, words, sizeof words));
        if (i % 100 == 0) OK(cuStreamSynchronize(stream));
    }
    IS(allocations - before, 0);
    TRUE(allocations > 0);
}

/* A stream waits for words: in device memory, written by another stream, and in the program's own memory. */
static void stream_values(void) {
    start();
    Ptr p, words;
    Handle writer;
    unsigned back = 0;
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuMemAlloc_v2(&words, 64));
    OK(cuStreamCreate(&writer, 1));
    OK(cuMemsetD32_v2(p, 0, 1));
    OK(cuMemsetD32_v2(words, 0, 16));
    /* At least 3 (0), equal to 1 << 40 (1), a bit of 6 (2). */
    OK(cuStreamWaitValue32_v2(stream, words, 3, 0));
    OK(launch_add(p, 1, 1, stream));
    OK(cuStreamWaitValue64_v2(stream, words + 8, 1ull << 40, 1));
    OK(launch_add(p, 1, 1, stream));
    usleep(20000);
    IS(cuStreamQuery(stream), 600);
    OK(cuMemcpyDtoHAsync_v2(&back, p, 4, writer));
    OK(cuStreamSynchronize(writer));
    IS(back, 0);
    OK(cuStreamWriteValue32_v2(writer, words, 7, 0));
    for (int i = 0; back != 6 && i < 5000; i++) {
        OK(cuMemcpyDtoHAsync_v2(&back, p, 4, writer));
        OK(cuStreamSynchronize(writer));
        usleep(1000);
    }
    IS(back, 6);
    IS(cuStreamQuery(stream), 600);
    OK(cuStreamWriteValue64_v2(writer, words + 8, 1ull << 40, 0));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(&back, p, 4));
    IS(back, 12);
    /* The program writes the word itself, without a call. */
    volatile unsigned *flag;
    OK(cuMemHostAlloc((void **)&flag, 4096, 0));
    flag[5] = 8;
    OK(cuStreamWaitValue32_v2(stream, (Ptr)(uintptr_t)&flag[5], 6, 2));
    OK(launch_add(p, 1, 1, stream));
    usleep(5000);
    IS(cuStreamQuery(stream), 600);
    flag[5] = 4;
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(&back, p, 4));
    IS(back, 18);
    /* Several in a row: all of them, in their order, or none. */
    struct { unsigned kind, short_flags; Ptr at; unsigned long long value; unsigned flags, pad; Ptr rest[2]; } batch[] = {
        {1, 0, words + 16, 5, 1, 0, {0}}, {5, 0, words + 24, 1ull << 33 | 9, 0, 0, {0}}, {6, 0, 0, 0, 0, 0, {0}},
        {4, 0, words + 24, 1ull << 33 | 9, 1, 0, {0}}, {2, 0, words + 16, 1ull << 32 | 6, 0, 0, {0}},
    };
    unsigned long long both[2] = {0};
    OK(cuStreamBatchMemOp_v2(stream, 5, batch, 0));
    usleep(5000);
    IS(cuStreamQuery(stream), 600);
    OK(cuStreamWriteValue32_v2(writer, words + 16, 5, 0));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(both, words + 16, 16));
    TRUE(both[0] == 6 && both[1] == (1ull << 33 | 9));
    batch[0].kind = 2;
    batch[3].at += 4;
    IS(cuStreamBatchMemOp_v2(stream, 5, batch, 0), 1);
    batch[3].kind = 3;
    IS(cuStreamBatchMemOp_v2(stream, 5, batch, 0), 801);
    batch[3].kind = 7;
    IS(cuStreamBatchMemOp_v2(stream, 5, batch, 0), 1);
    IS(cuStreamBatchMemOp_v2(stream, 2, batch, 1), 1);
    IS(cuStreamBatchMemOp_v2(stream, 257, batch, 0), 1);
    IS(cuStreamBatchMemOp_v2(stream, 1, 0, 0), 1);
    OK(cuStreamBatchMemOp_v2(stream, 0, 0, 0));
    OK(cuMemcpyDtoH_v2(both, words + 16, 16));
    IS(both[0], 6);
    /* Words that there are not, crooked ones, unknown flags; a captured wait. */
    IS(cuStreamWaitValue32_v2(stream, 0, 1, 0), 1);
    IS(cuStreamWaitValue32_v2(stream, words + 2, 1, 0), 1);
    IS(cuStreamWaitValue64_v2(stream, words + 4, 1, 0), 1);
    IS(cuStreamWaitValue32_v2(stream, words, 1, 8), 1);
    OK(cuStreamBeginCapture_v2(stream, 0));
    IS(cuStreamWaitValue32_v2(stream, words, 1, 0), 801);
    Handle graph;
    OK(cuStreamEndCapture(stream, &graph));
    /* A wait for what never comes ends with the program. */
    OK(cuStreamWaitValue32_v2(stream, words, 77, 1));
}

/* Copies that say when their source is read: in the stream's order (1), during the call (2), at any time (3). */
static void copy_attributes(void) {
    start();
    Ptr p, from, to;
    size_t bytes = 16, first = 0;
    unsigned *pinned, back[4];
    struct { unsigned order; int hints[4]; unsigned flags; } how = {2, {0}, 0};
    OK(cuMemAlloc_v2(&p, bytes));
    OK(cuMemHostAlloc((void **)&pinned, bytes, 0));
    from = (Ptr)(uintptr_t)pinned, to = p;
    for (unsigned i = 0; i < 500; i++) {
        /* What is written after the call is not copied. */
        pinned[0] = i;
        OK(i & 1 ? cuMemcpyWithAttributesAsync(p, from, bytes, &how, stream)
                 : cuMemcpyBatchAsync_v2(&to, &from, &bytes, 1, &how, &first, 1, stream));
        pinned[0] = ~0u;
        OK(cuMemcpyDtoH_v2(back, p, bytes));
        IS(back[0], i);
    }
    for (how.order = 1; how.order <= 3; how.order += 2) {
        pinned[0] = 90 + how.order;
        OK(cuMemcpyWithAttributesAsync(p, from, bytes, &how, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuMemcpyDtoH_v2(back, p, bytes));
        IS(back[0], 90 + how.order);
    }
    how.order = 0;
    IS(cuMemcpyWithAttributesAsync(p, from, bytes, &how, stream), 1);
    IS(cuMemcpyBatchAsync_v2(&to, &from, &bytes, 1, &how, &first, 1, stream), 1);
    IS(cuMemcpyWithAttributesAsync(p, from, bytes, 0, stream), 1);
}

int main(int argc, char **argv) {
    const struct { const char *name; void (*run)(void); } all[] = {
        {"basics", basics}, {"contexts", contexts}, {"errors", errors}, {"streams", streams},
        {"host_memory", host_memory}, {"graphs", graphs}, {"look_up", look_up}, {"threads", threads},
        {"fork", forked}, {"orphan", orphan}, {"leave", leave}, {"left", left},
        {"nulls", nulls}, {"copies", copies}, {"copying", copying}, {"cancelled", cancelled},
        {"cancelled_thread", cancelled_thread}, {"exact_bounds", exact_bounds},
        {"no_allocations", no_allocations}, {"stream_values", stream_values}, {"copy_attributes", copy_attributes},
        {"shared_memory", shared_memory}, {"copied_memory", copied_memory}, {"pinned_kernel", pinned_kernel},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (argc > 1 && !strcmp(all[i].name, argv[1])) {
            all[i].run();
            printf("ok\n");
            return 0;
        }
    printf("no such thing\n");
    return 1;
}
