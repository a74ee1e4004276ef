/* A training by name of the driver's functions only: prints the bits of the loss of each step, to be compared with those of another
 * run. Needs no CUDA toolkit: the few prototypes it uses are written down here. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef unsigned long long Ptr;
typedef void *Handle;

CUresult cuInit(unsigned), cuDevicePrimaryCtxRetain(Handle *, int), cuCtxSetCurrent(Handle);
CUresult cuModuleLoadData(Handle *, const void *), cuModuleGetFunction(Handle *, Handle, const char *);
CUresult cuModuleGetGlobal_v2(Ptr *, size_t *, Handle, const char *);
CUresult cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
CUresult cuMemAlloc_v2(Ptr *, size_t), cuMemFree_v2(Ptr), cuMemAllocAsync(Ptr *, size_t, Handle), cuMemFreeAsync(Ptr, Handle);
CUresult cuMemcpyHtoD_v2(Ptr, const void *, size_t), cuMemcpyDtoHAsync_v2(void *, Ptr, size_t, Handle), cuMemsetD32Async(Ptr, unsigned, size_t, Handle);
CUresult cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
CUresult cuStreamCreate(Handle *, unsigned), cuStreamSynchronize(Handle), cuStreamWaitEvent(Handle, Handle, unsigned);
CUresult cuEventCreate(Handle *, unsigned), cuEventRecord(Handle, Handle), cuEventSynchronize(Handle);

#define OK(call) do { int got_ = (int)(call); if (got_ != 0) { printf("line %d: %s is %d\n", __LINE__, #call, got_); exit(1); } } while (0)

static const char PTX[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .global .align 4 .f32 rate;\n"
    ".visible .entry step(.param .u64 w, .param .u64 m, .param .u64 x) {\n"
    " .reg .b32 %r<4>; .reg .b64 %d<8>; .reg .f32 %f<6>;\n"
    " ld.param.u64 %d0, [w]; ld.param.u64 %d1, [m]; ld.param.u64 %d2, [x];\n"
    " mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r0, %r0, %r1, %r2;\n"
    " mul.wide.u32 %d3, %r0, 4; add.u64 %d0, %d0, %d3; add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3;\n"
    " ld.global.f32 %f0, [%d0]; ld.global.f32 %f1, [%d1]; ld.global.f32 %f2, [%d2]; ld.global.f32 %f4, [rate];\n"
    " fma.rn.f32 %f3, %f0, %f2, 0fBF800000; mul.f32 %f3, %f3, %f2;\n"
    " mul.f32 %f1, %f1, 0f3F666666; fma.rn.f32 %f1, %f3, %f4, %f1; sub.f32 %f0, %f0, %f1;\n"
    " st.global.f32 [%d0], %f0; st.global.f32 [%d1], %f1; ret; }\n"
    ".visible .entry loss(.param .u64 w, .param .u64 x, .param .u64 out, .param .u32 n) {\n"
    " .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<6>; .reg .f32 %f<6>;\n"
    " ld.param.u64 %d0, [w]; ld.param.u64 %d1, [x]; ld.param.u64 %d2, [out]; ld.param.u32 %r1, [n];\n"
    " mov.u32 %r0, 0; mov.f32 %f0, 0f00000000;\n"
    "next: ld.global.f32 %f1, [%d0]; ld.global.f32 %f2, [%d1];\n"
    " fma.rn.f32 %f3, %f1, %f2, 0fBF800000; fma.rn.f32 %f0, %f3, %f3, %f0;\n"
    " add.u64 %d0, %d0, 4; add.u64 %d1, %d1, 4; add.u32 %r0, %r0, 1; setp.lt.u32 %p, %r0, %r1;\n"
    " @%p bra next; st.global.f32 [%d2], %f0; ret; }\n";

enum { N = 1 << 18 };

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 10;
    Handle context, module, step, loss, streams[2], done;
    Ptr w, m, x, rate;
    size_t bytes;
    uint32_t *pinned;
    static float host[N];
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, PTX));
    OK(cuModuleGetFunction(&step, module, "step"));
    OK(cuModuleGetFunction(&loss, module, "loss"));
    OK(cuModuleGetGlobal_v2(&rate, &bytes, module, "rate"));
    for (int i = 0; i < 2; i++) OK(cuStreamCreate(&streams[i], 1));
    OK(cuEventCreate(&done, 0));
    OK(cuMemAlloc_v2(&w, sizeof host));
    OK(cuMemAlloc_v2(&m, sizeof host));
    OK(cuMemAlloc_v2(&x, sizeof host));
    OK(cuMemHostAlloc((void **)&pinned, 4096, 0));
    for (int i = 0; i < N; i++) host[i] = (float)((i * 2654435761u) >> 8) / (1 << 24);
    OK(cuMemcpyHtoD_v2(x, host, sizeof host));
    for (int i = 0; i < N; i++) host[i] = (float)((i * 40503u) & 0xffff) / (1 << 16);
    OK(cuMemcpyHtoD_v2(w, host, sizeof host));
    OK(cuMemsetD32Async(m, 0, N, streams[0]));
    OK(cuStreamSynchronize(streams[0]));
    for (int i = 0; i < steps; i++) {
        float now = 0.05f / (1 + i);
        unsigned n = N;
        Ptr out;
        void *a[] = {&w, &m, &x}, *b[] = {&w, &x, &out, &n};
        OK(cuMemcpyHtoD_v2(rate, &now, sizeof now));
        OK(cuMemAllocAsync(&out, 4, streams[1]));
        for (int k = 0; k < 4; k++) OK(cuLaunchKernel(step, N / 256, 1, 1, 256, 1, 1, 0, streams[0], a, 0));
        OK(cuEventRecord(done, streams[0]));
        OK(cuStreamWaitEvent(streams[1], done, 0));
        OK(cuLaunchKernel(loss, 1, 1, 1, 1, 1, 1, 0, streams[1], b, 0));
        OK(cuMemcpyDtoHAsync_v2(pinned, out, 4, streams[1]));
        OK(cuStreamSynchronize(streams[1]));
        OK(cuMemFreeAsync(out, streams[1]));
        printf("%08x\n", *pinned);
        fflush(stdout);
    }
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree_v2(x));
    puts("ok");
    return 0;
}
