#include "check.h"
__global__ void hello() { if (threadIdx.x == 1) printf("block %d thread %d: %s %5.2f %llx %c%%\n", blockIdx.x, threadIdx.x, "text", 3.14159, 0x123456789abull, 'z'); }
int main() { hello<<<1, 2>>>(); CHECK(cudaDeviceSynchronize()); return finish(); }
