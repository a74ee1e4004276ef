// nvcc: -lineinfo
// mica: a failed assertion | fault_assert.cu:<-, | block (3,0,0) | thread (7,0,0) | kernel checks(int)
// A failed `assert` in a kernel.
#include "check.h"
#include <cassert>

__global__ void checks(int limit) {
    assert((int)(blockIdx.x * blockDim.x + threadIdx.x) < limit); // <-
}

int main() {
    checks<<<4, 8>>>(31);
    EXPECT_ERROR(cudaDeviceSynchronize(), cudaErrorAssert);
    return finish();
}
