#include "check.h"
#include <unistd.h>
// What kernels print reaches the program's standard output, in order, with all conversions.
__global__ void hello() { if (threadIdx.x == 1) printf("block %d thread %d: %s %5.2f %llx %c%%\n", blockIdx.x, threadIdx.x, "text", 3.14159, 0x123456789abull, 'z'); }
__global__ void count(int n) { for (int i = 0; i < n; i++) printf("%d %s\n", i, i & 1 ? "odd" : "even"); }
int main() {
    // Standard output goes to a file meanwhile.
    fflush(stdout);
    int before = dup(1);
    FILE *file = tmpfile();
    EXPECT(file && dup2(fileno(file), 1) == 1);
    hello<<<1, 2>>>();
    CHECK(cudaDeviceSynchronize());
    count<<<1, 1>>>(100);
    CHECK(cudaDeviceSynchronize());
    fflush(stdout);
    dup2(before, 1);
    rewind(file);
    char line[200], want[200];
    EXPECT(fgets(line, sizeof line, file) && !strcmp(line, "block 0 thread 1: text  3.14 123456789ab z%\n"));
    for (int i = 0; i < 100; i++) {
        snprintf(want, sizeof want, "%d %s\n", i, i & 1 ? "odd" : "even");
        EXPECT(fgets(line, sizeof line, file) && !strcmp(line, want));
    }
    EXPECT(!fgets(line, sizeof line, file));
    return finish();
}
