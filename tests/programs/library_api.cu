// nvcc: -lcuda
#include "check.h"
#include <cuda.h>
// Code loaded at run time through cudaLibrary*: kernels, variables, names, parameters.
static const char *ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 8 .u64 total;\n.visible .const .align 4 .u32 factor = 3;\n.visible .entry grow(.param .u32 v, .param .u64 w) { .reg .b64 %rd<3>; .reg .b32 %r<3>; ld.param.u32 %r0, [v]; ld.param.u64 %rd0, [w]; ld.const.u32 %r1, [factor]; mul.lo.u32 %r2, %r0, %r1; cvt.u64.u32 %rd1, %r2; add.u64 %rd1, %rd1, %rd0; atom.global.add.u64 %rd2, [total], %rd1; ret; }\n.visible .entry second() { ret; }\n";
int main() {
    cudaLibrary_t lib;
    CHECK(cudaLibraryLoadData(&lib, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0));
    cudaKernel_t k;
    CHECK(cudaLibraryGetKernel(&k, lib, "grow"));
    EXPECT_ERROR(cudaLibraryGetKernel(&k, lib, "shrink"), cudaErrorSymbolNotFound);
    cudaGetLastError();
    CHECK(cudaLibraryGetKernel(&k, lib, "grow"));
    unsigned count = 0;
    CHECK(cudaLibraryGetKernelCount(&count, lib));
    EXPECT_EQ(count, 2u);
    size_t at, bytes;
    // The driver reads parameters from code that is loaded into a context, and there is none yet.
    EXPECT_EQ((int)cuKernelGetParamInfo((CUkernel)k, 1, &at, &bytes), (int)CUDA_ERROR_INVALID_CONTEXT);
    CHECK(cudaFree(nullptr));
    EXPECT_EQ((int)cuKernelGetParamInfo((CUkernel)k, 1, &at, &bytes), 0);
    EXPECT_EQ(at, 8u);
    EXPECT_EQ(bytes, 8u);
    EXPECT_EQ((int)cuKernelGetParamInfo((CUkernel)k, 2, &at, &bytes), (int)CUDA_ERROR_INVALID_VALUE);
    const char *name = nullptr;
    EXPECT_EQ((int)cuKernelGetName(&name, (CUkernel)k), 0);
    EXPECT(!strcmp(name, "grow"));
    void *total;
    CHECK(cudaLibraryGetGlobal(&total, &bytes, lib, "total"));
    EXPECT_EQ(bytes, 8u);
    CHECK(cudaMemset(total, 0, 8));
    unsigned v = 10;
    unsigned long long w = 5000000000ull, sum = 0;
    void *args[] = {&v, &w};
    for (int i = 0; i < 4; i++) CHECK(cudaLaunchKernel((const void *)k, dim3(2), dim3(1), args, 0, 0));
    CHECK(cudaMemcpy(&sum, total, 8, cudaMemcpyDeviceToHost));
    EXPECT(sum == 8 * (30 + w));
    CHECK(cudaLibraryUnload(lib));
    return finish();
}
