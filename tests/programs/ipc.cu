#include "check.h"
#include <string>
#include <unistd.h>
// Memory and events of other processes: either they work, or they are refused by name and nothing breaks.
__global__ void put(int *p, int v) { p[threadIdx.x] = v; }
int main(int argc, char **argv) {
    if (argc > 1) {
        // The other process: opens what it is given and changes it.
        cudaIpcMemHandle_t handle;
        if (fread(&handle, sizeof handle, 1, stdin) != 1) return 1;
        int *p;
        CHECK(cudaIpcOpenMemHandle((void **)&p, handle, cudaIpcMemLazyEnablePeerAccess));
        put<<<1, 32>>>(p, 2);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaIpcCloseMemHandle(p));
        return 0;
    }
    int *p;
    CHECK(cudaMalloc(&p, 1 << 21));
    put<<<1, 32>>>(p, 1);
    CHECK(cudaDeviceSynchronize());
    cudaIpcMemHandle_t handle;
    cudaError_t memory = cudaIpcGetMemHandle(&handle, p);
    cudaGetLastError();
    cudaEvent_t e;
    cudaIpcEventHandle_t event_handle;
    cudaError_t event = cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventInterprocess);
    if (event == cudaSuccess) event = cudaIpcGetEventHandle(&event_handle, e);
    else CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    cudaGetLastError();
    // Without the other flag it is wrong anywhere.
    cudaEvent_t wrong;
    EXPECT_ERROR(cudaEventCreateWithFlags(&wrong, cudaEventInterprocess), cudaErrorInvalidValue);
    cudaGetLastError();
    EXPECT(memory == cudaSuccess || memory == cudaErrorNotSupported);
    EXPECT(event == cudaSuccess || event == cudaErrorNotSupported);
    int wanted = 1;
    if (memory == cudaSuccess) {
        FILE *other = popen((std::string("'") + argv[0] + "' child").c_str(), "w");
        EXPECT(other && fwrite(&handle, sizeof handle, 1, other) == 1);
        EXPECT_EQ(pclose(other), 0);
        wanted = 2;
    } else {
        void *q = nullptr;
        memset(&handle, 0, sizeof handle);
        EXPECT(cudaIpcOpenMemHandle(&q, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess);
        cudaGetLastError();
    }
    int h[32];
    CHECK(cudaMemcpy(h, p, sizeof h, cudaMemcpyDeviceToHost));
    EXPECT_EQ(h[31], wanted);
    CHECK(cudaEventRecord(e));
    CHECK(cudaEventSynchronize(e));
    CHECK(cudaEventDestroy(e));
    CHECK(cudaFree(p));
    return finish();
}
