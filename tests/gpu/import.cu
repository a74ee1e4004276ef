// Memory of another process: one makes it and says by which handle it is to be had, another opens it and keeps it.
//
//   nvcc -O2 -std=c++17 -arch=sm_90 import.cu -lcuda -o import ; ./import make MIB ; ./import open HANDLE
//
// Prints "handle HEX" or "held"; ends on SIGTERM.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <unistd.h>

#include <cuda.h>

static void check(int code, const char *what) {
    if (code) {
        fprintf(stderr, "%s: error %d\n", what, code);
        exit(1);
    }
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    std::string what = arguments[1];
    CUdevice device;
    CUcontext context;
    CUdeviceptr p;
    CUipcMemHandle handle;
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "device");
    check(cuDevicePrimaryCtxRetain(&context, device), "context");
    check(cuCtxSetCurrent(context), "current");
    if (what == "make") {
        check(cuMemAlloc(&p, strtoull(arguments[2], nullptr, 0) << 20), "cuMemAlloc");
        check(cuIpcGetMemHandle(&handle, p), "cuIpcGetMemHandle");
        printf("handle ");
        for (unsigned char byte : handle.reserved) printf("%02x", byte);
        printf("\n");
    } else {
        if (strlen(arguments[2]) != 2 * sizeof handle.reserved) return 2;
        for (size_t i = 0; i < sizeof handle.reserved; i++) {
            char digits[] = {arguments[2][2 * i], arguments[2][2 * i + 1], 0};
            handle.reserved[i] = (char)strtoul(digits, nullptr, 16);
        }
        check(cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle");
        check(cuMemsetD8(p, 1, 4096), "touch");
        check(cuCtxSynchronize(), "wait");
        printf("held\n");
    }
    fflush(stdout);
    for (;;) pause();
}
