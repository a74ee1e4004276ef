// The mistake of `mica demo`: writes where nothing is. Compiled by: nvcc -ptx -arch=compute_75 demo.cu
extern "C" __global__ void wild(int *nowhere)
{
    nowhere[threadIdx.x] = 42;
}
