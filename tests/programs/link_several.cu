// nvcc: -lcuda
#include "check.h"
#include <cuda.h>
#include <string>
// Four texts of PTX become one image: functions and variables across them, a weak one twice, logs, errors.
#define DRV(c) EXPECT_EQ((int)(c), 0)
#define HEAD ".version 7.0\n.target sm_70\n.address_size 64\n"
static const char *square = HEAD ".visible .func (.param .b32 r) square(.param .b32 x) { .reg .b32 %r<2>; ld.param.b32 %r0, [x]; mul.lo.u32 %r1, %r0, %r0; st.param.b32 [r], %r1; ret; }\n";
static const char *table = HEAD ".visible .global .align 4 .u32 offset = 1000;\n.visible .const .align 4 .u32 factor = 3;\n";
static const char *scale = HEAD ".extern .func (.param .b32 r) square(.param .b32 x);\n.extern .const .align 4 .u32 factor;\n"
    ".visible .func (.param .b32 r) scaled(.param .b32 x) { .reg .b32 %r<4>; ld.param.b32 %r0, [x]; { .param .b32 a; .param .b32 b; st.param.b32 [a], %r0; call.uni (b), square, (a); ld.param.b32 %r1, [b]; } ld.const.u32 %r2, [factor]; mul.lo.u32 %r3, %r1, %r2; st.param.b32 [r], %r3; ret; }\n";
static const char *entry = HEAD ".extern .func (.param .b32 r) scaled(.param .b32 x);\n.extern .global .align 4 .u32 offset;\n"
    ".visible .entry run(.param .u64 p) { .reg .b64 %rd<4>; .reg .b32 %r<6>; ld.param.u64 %rd0, [p]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd2, %rd0, %rd1; { .param .b32 a; .param .b32 b; st.param.b32 [a], %r0; call.uni (b), scaled, (a); ld.param.b32 %r1, [b]; } ld.global.u32 %r2, [offset]; add.u32 %r3, %r1, %r2; st.global.u32 [%rd2], %r3; ret; }\n";
int main() {
    CHECK(cudaFree(0));
    char info[1024] = "?", error[1024] = "?";
    CUjit_option options[] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_OPTIMIZATION_LEVEL};
    void *values[] = {info, (void *)sizeof info, error, (void *)sizeof error, (void *)4};
    CUlinkState link;
    DRV(cuLinkCreate(5, options, values, &link));
    for (const char *text : {entry, scale, table, square}) DRV(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)text, strlen(text) + 1, "part", 0, nullptr, nullptr));
    void *image;
    size_t bytes = 0;
    DRV(cuLinkComplete(link, &image, &bytes));
    EXPECT(bytes > 0 && image);
    CUmodule module;
    DRV(cuModuleLoadData(&module, image));
    DRV(cuLinkDestroy(link));
    CUfunction run;
    DRV(cuModuleGetFunction(&run, module, "run"));
    CUdeviceptr offset;
    DRV(cuModuleGetGlobal(&offset, &bytes, module, "offset"));
    EXPECT_EQ(bytes, (size_t)4);
    Device<int> d(32);
    int *p = d;
    void *args[] = {&p};
    for (unsigned base : {1000u, 5000u}) {
        DRV(cuMemcpyHtoD(offset, &base, 4));
        DRV(cuLaunchKernel(run, 1, 1, 1, 32, 1, 1, 0, nullptr, args, nullptr));
        auto h = d.host();
        for (int i = 0; i < 32; i++) EXPECT_EQ(h[i], (int)(3 * i * i + base));
    }
    DRV(cuModuleUnload(module));
    // A function that nobody brings, and a text that is none.
    DRV(cuLinkCreate(0, nullptr, nullptr, &link));
    CUresult added = cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)entry, strlen(entry) + 1, "lonely", 0, nullptr, nullptr);
    EXPECT(added != CUDA_SUCCESS || cuLinkComplete(link, &image, &bytes) != CUDA_SUCCESS);
    DRV(cuLinkDestroy(link));
    DRV(cuLinkCreate(0, nullptr, nullptr, &link));
    EXPECT_EQ((int)cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)"nonsense", 9, "none", 0, nullptr, nullptr), (int)CUDA_ERROR_INVALID_IMAGE);
    DRV(cuLinkDestroy(link));
    CHECK(cudaDeviceSynchronize());
    return finish();
}
