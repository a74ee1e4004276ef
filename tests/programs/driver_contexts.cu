// nvcc: -lcuda -std=c++17
#include "check.h"
#include <cuda.h>
#include <thread>
// Contexts of one's own: stacked, apart from each other, another current in each thread.
#define DRV(c) EXPECT_EQ((int)(c), 0)
int main() {
    DRV(cuInit(0));
    CUcontext a, b, now, primary;
    CUdevice device;
    EXPECT_EQ((int)cuCtxGetDevice(&device), (int)CUDA_ERROR_INVALID_CONTEXT);
    CUctxCreateParams params = {};
    DRV(cuCtxCreate(&a, &params, 0, 0));
    DRV(cuCtxCreate(&b, &params, CU_CTX_SCHED_YIELD, 0));
    DRV(cuCtxGetCurrent(&now));
    EXPECT(now == b && a != b);
    unsigned flags = 0;
    DRV(cuCtxGetFlags(&flags));
    EXPECT_EQ(flags & CU_CTX_SCHED_MASK, (unsigned)CU_CTX_SCHED_YIELD);
    CUdeviceptr p, q;
    DRV(cuMemAlloc(&p, 4096));
    DRV(cuMemsetD32(p, 7, 1024));
    DRV(cuCtxPushCurrent(a));
    DRV(cuMemAlloc(&q, 4096));
    EXPECT(p != q);
    CUcontext of = nullptr;
    DRV(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    EXPECT(of == b);
    DRV(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_CONTEXT, q));
    EXPECT(of == a);
    DRV(cuCtxPopCurrent(&now));
    EXPECT(now == a);
    std::thread([&] {
        CUcontext none = (CUcontext)1;
        DRV(cuCtxGetCurrent(&none));
        EXPECT(none == nullptr);
        DRV(cuCtxSetCurrent(b));
        unsigned v = 0;
        DRV(cuMemcpyDtoH(&v, p + 4092, 4));
        EXPECT_EQ(v, 7u);
    }).join();
    DRV(cuCtxDestroy(b));
    DRV(cuCtxGetCurrent(&now));
    EXPECT(now == a);
    DRV(cuMemFree(q));
    int active = 1;
    DRV(cuDevicePrimaryCtxGetState(0, &flags, &active));
    EXPECT_EQ(active, 0);
    DRV(cuDevicePrimaryCtxRetain(&primary, 0));
    EXPECT(primary != a);
    EXPECT_EQ((int)cuCtxDestroy(primary), (int)CUDA_ERROR_INVALID_CONTEXT);
    DRV(cuDevicePrimaryCtxRelease(0));
    DRV(cuCtxDestroy(a));
    return finish();
}
