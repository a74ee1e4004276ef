// nvcc: -lineinfo
// mica: invalid write at 0x10 | fault_illegal_address.cu:<-, | block (2,0,0) | thread (33,0,0) | kernel wild(int*)
// A kernel that writes where nothing is; `mica run` says where, on a line of its own.
#include "check.h"

__global__ void wild(int *p) {
    if (blockIdx.x == 2 && threadIdx.x == 33)
        *p = 1; // <-
}

int main() {
    wild<<<4, 64>>>((int *)0x10);
    EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    return finish();
}
