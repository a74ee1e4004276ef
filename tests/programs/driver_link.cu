// nvcc: -lcuda
#include "check.h"
#include <cuda.h>
#define DRV(c) EXPECT_EQ((int)(c), 0)
static const char *a = ".version 7.0\n.target sm_70\n.address_size 64\n.extern .func (.param .b32 r) twice(.param .b32 x);\n.visible .entry k(.param .u64 p) { .reg .b64 %rd0; .reg .b32 %r<3>; ld.param.u64 %rd0, [p]; ld.global.u32 %r0, [%rd0]; { .param .b32 x; .param .b32 r; st.param.b32 [x], %r0; call.uni (r), twice, (x); ld.param.b32 %r1, [r]; } st.global.u32 [%rd0], %r1; ret; }\n";
static const char *b = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .func (.param .b32 r) twice(.param .b32 x) { .reg .b32 %r<2>; ld.param.b32 %r0, [x]; add.u32 %r1, %r0, %r0; st.param.b32 [r], %r1; ret; }\n";
int main() { CHECK(cudaFree(0)); CUlinkState s; DRV(cuLinkCreate(0, 0, 0, &s)); DRV(cuLinkAddData(s, CU_JIT_INPUT_PTX, (void *)a, strlen(a) + 1, "a", 0, 0, 0)); DRV(cuLinkAddData(s, CU_JIT_INPUT_PTX, (void *)b, strlen(b) + 1, "b", 0, 0, 0)); void *image; size_t n; DRV(cuLinkComplete(s, &image, &n)); EXPECT(n > 0); CUmodule m; DRV(cuModuleLoadData(&m, image)); DRV(cuLinkDestroy(s)); CUfunction f; DRV(cuModuleGetFunction(&f, m, "k")); std::vector<int> v = {21}; Device<int> d(v); int *p = d; void *x[] = {&p}; DRV(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, x, 0)); EXPECT_EQ(d.host()[0], 42); DRV(cuModuleUnload(m)); return finish(); }
