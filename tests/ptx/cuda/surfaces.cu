// Surface reads, writes and reductions.
#include <surface_indirect_functions.h>
extern "C" __global__ void surf_copy(cudaSurfaceObject_t a, cudaSurfaceObject_t b, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    float4 v = surf2Dread<float4>(a, x * 16, y);
    surf2Dwrite(make_float4(v.w, v.z, v.y, v.x), b, x * 16, y, cudaBoundaryModeClamp);
}
extern "C" __global__ void surf_all(cudaSurfaceObject_t s1, cudaSurfaceObject_t s3, cudaSurfaceObject_t l1, cudaSurfaceObject_t l2) {
    int x = threadIdx.x;
    uchar1 a = surf1Dread<uchar1>(s1, x, cudaBoundaryModeZero);
    short2 b = surf3Dread<short2>(s3, x * 4, 1, 2);
    int4 c = surf2DLayeredread<int4>(l2, x * 16, 1, 2);
    surf1Dwrite(a, s1, x);
    surf3Dwrite(b, s3, x * 4, 2, 1);
    surf1DLayeredwrite(c.x, l1, x * 4, 3);
    surf2DLayeredwrite((unsigned long long)c.y, l2, x * 8, 1, 0, cudaBoundaryModeZero);
    asm volatile("sured.b.add.2d.u32.trap [%0, {%1, %2}], %3;" ::"l"(s1), "r"(x * 4), "r"(0), "r"(1));
    asm volatile("sust.p.1d.v4.b32.clamp [%0, {%1}], {%2, %2, %2, %2};" ::"l"(s1), "r"(x), "r"(c.z));
    int w;
    asm volatile("suq.width.b32 %0, [%1];" : "=r"(w) : "l"(s1));
    surf1Dwrite(w, s1, 0);
}
