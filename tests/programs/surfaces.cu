#include "check.h"
// Surfaces of one, two and three dimensions and layers, several formats, and what lies outside.
__global__ void one(cudaSurfaceObject_t s, int n) { int i = threadIdx.x; if (i < n) surf1Dwrite(i * 5, s, i * 4); }
__global__ void two(cudaSurfaceObject_t from, cudaSurfaceObject_t to, int w, int h) {
    int x = threadIdx.x, y = threadIdx.y;
    if (x >= w || y >= h) return;
    uchar4 c = surf2Dread<uchar4>(from, x * 4, y);
    surf2Dwrite(make_uchar4(c.w, c.z, c.y, c.x), to, x * 4, h - 1 - y);
}
__global__ void three(cudaSurfaceObject_t s, int n) { surf3Dwrite((float)(threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z), s, threadIdx.x * 4, threadIdx.y, threadIdx.z); }
__global__ void layers(cudaSurfaceObject_t s) { surf2DLayeredwrite((short)(blockIdx.x * 1000 + threadIdx.y * 10 + threadIdx.x), s, threadIdx.x * 2, threadIdx.y, blockIdx.x); }
__global__ void outside(cudaSurfaceObject_t s, int *out) {
    out[0] = surf2Dread<int>(s, 4 * 100, 0, cudaBoundaryModeZero);
    out[1] = surf2Dread<int>(s, 4 * 100, 0, cudaBoundaryModeClamp);
    surf2Dwrite(77, s, -4, 0, cudaBoundaryModeZero);
    out[2] = surf2Dread<int>(s, 0, 0);
}
static cudaSurfaceObject_t surface(cudaArray_t a) {
    cudaResourceDesc r = {};
    r.resType = cudaResourceTypeArray; r.res.array.array = a;
    cudaSurfaceObject_t s;
    CHECK(cudaCreateSurfaceObject(&s, &r));
    cudaResourceDesc back = {};
    CHECK(cudaGetSurfaceObjectResourceDesc(&back, s));
    EXPECT(back.resType == cudaResourceTypeArray && back.res.array.array == a);
    return s;
}
int main() {
    cudaArray_t a, b, c, l;
    cudaChannelFormatDesc i32 = cudaCreateChannelDesc<int>(), rgba = cudaCreateChannelDesc<uchar4>(), f32 = cudaCreateChannelDesc<float>(), i16 = cudaCreateChannelDesc<short>();
    CHECK(cudaMallocArray(&a, &i32, 64, 0, cudaArraySurfaceLoadStore));
    cudaSurfaceObject_t s = surface(a);
    one<<<1, 64>>>(s, 64);
    int line[64];
    CHECK(cudaMemcpy2DFromArray(line, 256, a, 0, 0, 256, 1, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++) EXPECT_EQ(line[i], i * 5);
    CHECK(cudaDestroySurfaceObject(s)); CHECK(cudaFreeArray(a));

    CHECK(cudaMallocArray(&a, &rgba, 17, 9, cudaArraySurfaceLoadStore)); CHECK(cudaMallocArray(&b, &rgba, 17, 9, cudaArraySurfaceLoadStore));
    uchar4 image[9][17], result[9][17];
    for (int y = 0; y < 9; y++) for (int x = 0; x < 17; x++) image[y][x] = make_uchar4(x, y, x * y, 255 - x);
    CHECK(cudaMemcpy2DToArray(a, 0, 0, image, sizeof image[0], sizeof image[0], 9, cudaMemcpyHostToDevice));
    cudaSurfaceObject_t from = surface(a), to = surface(b);
    two<<<1, dim3(32, 16)>>>(from, to, 17, 9);
    CHECK(cudaMemcpy2DFromArray(result, sizeof result[0], b, 0, 0, sizeof result[0], 9, cudaMemcpyDeviceToHost));
    for (int y = 0; y < 9; y++) for (int x = 0; x < 17; x++) { uchar4 g = result[8 - y][x], w = image[y][x]; EXPECT(g.x == w.w && g.y == w.z && g.z == w.y && g.w == w.x); }
    CHECK(cudaDestroySurfaceObject(from)); CHECK(cudaDestroySurfaceObject(to)); CHECK(cudaFreeArray(a)); CHECK(cudaFreeArray(b));

    CHECK(cudaMalloc3DArray(&c, &f32, make_cudaExtent(4, 5, 6), cudaArraySurfaceLoadStore));
    s = surface(c);
    three<<<1, dim3(4, 5, 6)>>>(s, 0);
    float cube[6][5][4];
    cudaMemcpy3DParms copy = {};
    copy.srcArray = c; copy.dstPtr = make_cudaPitchedPtr(cube, 16, 4, 5); copy.extent = make_cudaExtent(4, 5, 6); copy.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3D(&copy));
    for (int z = 0; z < 6; z++) for (int y = 0; y < 5; y++) for (int x = 0; x < 4; x++) EXPECT_EQ(cube[z][y][x], (float)(x + 10 * y + 100 * z));
    CHECK(cudaDestroySurfaceObject(s)); CHECK(cudaFreeArray(c));

    CHECK(cudaMalloc3DArray(&l, &i16, make_cudaExtent(8, 4, 3), cudaArraySurfaceLoadStore | cudaArrayLayered));
    s = surface(l);
    layers<<<3, dim3(8, 4)>>>(s);
    short layer[3][4][8];
    copy = {};
    copy.srcArray = l; copy.dstPtr = make_cudaPitchedPtr(layer, 16, 8, 4); copy.extent = make_cudaExtent(8, 4, 3); copy.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3D(&copy));
    for (int z = 0; z < 3; z++) for (int y = 0; y < 4; y++) for (int x = 0; x < 8; x++) EXPECT_EQ(layer[z][y][x], z * 1000 + y * 10 + x);
    CHECK(cudaDestroySurfaceObject(s)); CHECK(cudaFreeArray(l));

    CHECK(cudaMallocArray(&a, &i32, 8, 2, cudaArraySurfaceLoadStore));
    int small[2][8];
    for (int i = 0; i < 16; i++) small[i / 8][i % 8] = i + 1;
    CHECK(cudaMemcpy2DToArray(a, 0, 0, small, 32, 32, 2, cudaMemcpyHostToDevice));
    s = surface(a);
    Device<int> out(3);
    outside<<<1, 1>>>(s, out);
    auto h = out.host();
    EXPECT(h[0] == 0 && h[1] == 8 && h[2] == 1);
    CHECK(cudaDestroySurfaceObject(s)); CHECK(cudaFreeArray(a));
    // The flag is advice: an array without it is taken too.
    CHECK(cudaMallocArray(&a, &i32, 8, 2));
    cudaResourceDesc r = {};
    r.resType = cudaResourceTypeArray; r.res.array.array = a;
    CHECK(cudaCreateSurfaceObject(&s, &r));
    CHECK(cudaDestroySurfaceObject(s));
    CHECK(cudaFreeArray(a));
    return finish();
}
