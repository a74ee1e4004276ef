#include "check.h"
#include <sys/wait.h>
#include <unistd.h>
// A forked child cannot use the parent's GPU and the parent does not notice; exit with work under way.
__global__ void busy(int *p) { for (int i = 0; i < 1000; i++) atomicAdd(p, 1); }
int main() {
    Device<int> d(1);
    CHECK(cudaMemset(d, 0, 4));
    pid_t child = fork();
    if (child == 0) {
        int *q;
        _exit(cudaMalloc(&q, 4) == cudaSuccess ? 1 : 0);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    busy<<<1, 32>>>(d);
    EXPECT_EQ(d.host()[0], 32000);
    busy<<<8, 32>>>(d);
    return finish();
}
