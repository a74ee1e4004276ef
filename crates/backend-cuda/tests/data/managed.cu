__managed__ int total; __device__ int plain; __managed__ int table[2] = {5}; __global__ void k() { total += plain + table[threadIdx.x]; }
