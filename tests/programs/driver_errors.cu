// nvcc: -lcuda
// since: 13.0
#include "check.h"
#include <cuda.h>
#include <string>
// The driver's own codes for wrong arguments and wrong times.
#define IS(call, code) EXPECT_EQ((int)(call), (int)(code))
#define DRV(call) IS(call, CUDA_SUCCESS)
static const char *ptx = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .u32 v;\n.visible .entry k() { ret; }\n";
int main() {
    int count = -1;
    CUdevice d;
    CUcontext c = nullptr, other;
    IS(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuCtxGetCurrent(&c), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    DRV(cuInit(0));
    DRV(cuDeviceGetCount(&count));
    IS(cuDeviceGet(&d, count), CUDA_ERROR_INVALID_DEVICE);
    IS(cuDeviceGet(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    DRV(cuDeviceGet(&d, 0));
    CUdeviceptr p;
    IS(cuMemAlloc(&p, 16), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    IS(cuCtxPopCurrent(&c), CUDA_ERROR_INVALID_CONTEXT);
    DRV(cuDevicePrimaryCtxRetain(&c, d));
    DRV(cuCtxSetCurrent(c));
    IS(cuMemAlloc(&p, 0), CUDA_ERROR_INVALID_VALUE);
    IS(cuMemFree(0x1234), CUDA_ERROR_INVALID_VALUE);
    DRV(cuMemFree(0));
    IS(cuMemcpyDtoH(nullptr, 0x1234, 4), CUDA_ERROR_INVALID_VALUE);
    CUmodule m;
    CUfunction f;
    size_t bytes;
    IS(cuModuleLoadData(&m, "this is no image"), CUDA_ERROR_INVALID_IMAGE);
    IS(cuModuleLoadData(&m, ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { nonsense; }\n"), CUDA_ERROR_INVALID_PTX);
    IS(cuModuleLoad(&m, "/no/such/file"), CUDA_ERROR_FILE_NOT_FOUND);
    DRV(cuModuleLoadData(&m, ptx));
    IS(cuModuleGetFunction(&f, m, "gone"), CUDA_ERROR_NOT_FOUND);
    IS(cuModuleGetGlobal(&p, &bytes, m, "gone"), CUDA_ERROR_NOT_FOUND);
    DRV(cuModuleGetGlobal(&p, &bytes, m, "v"));
    DRV(cuModuleGetFunction(&f, m, "k"));
    IS(cuLaunchKernel(f, 1, 0, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    IS(cuLaunchKernel(f, 1, 1, 1, 4096, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    IS(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
    int value;
    IS(cuFuncGetAttribute(&value, (CUfunction_attribute)999, f), CUDA_ERROR_INVALID_VALUE);
    IS(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_NUM_REGS, 1), CUDA_ERROR_INVALID_VALUE);
    IS(cuDeviceGetAttribute(&value, (CUdevice_attribute)9999, d), CUDA_ERROR_INVALID_VALUE);
    CUmemorytype type;
    int local = 0;
    IS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)&local), CUDA_ERROR_INVALID_VALUE);
    CUevent e;
    IS(cuEventCreate(&e, 0x80), CUDA_ERROR_INVALID_VALUE);
    DRV(cuEventCreate(&e, 0));
    DRV(cuEventQuery(e));
    CUstream s;
    IS(cuStreamCreate(&s, 0x80), CUDA_ERROR_INVALID_VALUE);
    DRV(cuStreamCreate(&s, 0));
    DRV(cuStreamQuery(s));
    DRV(cuStreamDestroy(s));
    const char *text = nullptr;
    DRV(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    EXPECT(std::string(text) == "CUDA_ERROR_ILLEGAL_ADDRESS");
    DRV(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    EXPECT(std::string(text) == "out of memory");
    IS(cuGetErrorName((CUresult)12345, &text), CUDA_ERROR_INVALID_VALUE);
    EXPECT(text == nullptr);
    void *address = &address;
    CUdriverProcAddressQueryResult found;
    DRV(cuGetProcAddress("cuNoSuchFunction", &address, 12000, 0, &found));
    EXPECT(address == nullptr && found == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    DRV(cuGetProcAddress("cuMemAlloc", &address, 12000, 0, &found));
    EXPECT(address != nullptr && found == CU_GET_PROC_ADDRESS_SUCCESS);
    // A context of one's own, and the stack.
    CUctxCreateParams none = {};
    DRV(cuCtxCreate_v4(&other, &none, 0, d));
    CUcontext now;
    DRV(cuCtxGetCurrent(&now)); EXPECT(now == other);
    DRV(cuCtxPopCurrent(&now)); EXPECT(now == other);
    DRV(cuCtxGetCurrent(&now)); EXPECT(now == c);
    DRV(cuCtxDestroy(other));
    unsigned flags;
    int active;
    DRV(cuModuleUnload(m));
    DRV(cuDevicePrimaryCtxGetState(d, &flags, &active)); EXPECT_EQ(active, 1);
    DRV(cuDevicePrimaryCtxRelease(d));
    DRV(cuDevicePrimaryCtxGetState(d, &flags, &active)); EXPECT_EQ(active, 0);
    IS(cuDevicePrimaryCtxRelease(d), CUDA_ERROR_INVALID_CONTEXT);
    return finish();
}
