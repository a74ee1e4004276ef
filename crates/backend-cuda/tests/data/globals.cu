__device__ int counter = 3; __constant__ float scale; __global__ void k(int*p){ *p = counter + (int)scale; }
