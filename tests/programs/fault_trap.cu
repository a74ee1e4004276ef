// nvcc: -lineinfo
// mica: trap | fault_trap.cu:<-, | block (1,0,0) | thread (5,1,0) | kernel stops(int)
// A kernel that ends itself.
#include "check.h"

__global__ void stops(int x) {
    if (blockIdx.x == 1 && threadIdx.x == x && threadIdx.y == 1)
        __trap(); // <-
}

int main() {
    stops<<<2, dim3(16, 2)>>>(5);
    EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    return finish();
}
