// nvcc: -std=c++17 -lcuda
// mica: refused: | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
// What Mica refuses is told by `mica run`, although this program goes on without a word.
#include "check.h"
#include <cuda.h>
static const char *ptx = ".version 9.0\n.target sm_100\n.address_size 64\n.visible .entry k() { tcgen05.wait::ld.sync.aligned; ret; }\n";
int main() {
    cudaGraph_t g;
    CHECK(cudaGraphCreate(&g, 0));
    cudaGraphExec_t exec;
    (void)cudaGraphInstantiateWithFlags(&exec, g, cudaGraphInstantiateFlagDeviceLaunch);
    cudaGetLastError();
    CUmodule module;
    EXPECT(cuModuleLoadData(&module, ptx) != CUDA_SUCCESS);
    return finish();
}
