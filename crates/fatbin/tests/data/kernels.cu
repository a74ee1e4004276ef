// Kernels whose parameters and limits the tests know.
struct Mixed { short a; double b; char c; };
struct Large { char bytes[5000]; };
extern "C" __global__ void mixed(int a, Mixed m, char c, float *p) { *p = a + m.b + c; }
extern "C" __global__ void large(int a, Large l, double d, float *p) { *p = a + l.bytes[a] + d; }
extern "C" __global__ __launch_bounds__(192) void bounded(int *p) {
    __shared__ int tile[192];
    tile[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = tile[191 - threadIdx.x];
}
