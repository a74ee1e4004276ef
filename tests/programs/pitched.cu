#include "check.h"
// Pitched memory: fills and copies of boxes, in both directions and inside the device.
__global__ void twice(int *p, size_t pitch, int w, int h) { int x = threadIdx.x, y = blockIdx.x; if (x < w && y < h) ((int *)((char *)p + y * pitch))[x] *= 2; }
int main() {
    const int w = 37, h = 19;
    int *p, *q;
    size_t pitch, other;
    CHECK(cudaMallocPitch(&p, &pitch, w * 4, h));
    CHECK(cudaMallocPitch(&q, &other, w * 4, h));
    EXPECT(pitch >= w * 4 && pitch % 32 == 0);
    CHECK(cudaMemset2D(p, pitch, 0xff, w * 4, h));
    std::vector<int> a(w * h), b(w * h, 0);
    for (int i = 0; i < w * h; i++) a[i] = i;
    // All but a margin of one element.
    CHECK(cudaMemcpy2D((char *)p + pitch + 4, pitch, a.data(), w * 4, (w - 2) * 4, h - 2, cudaMemcpyHostToDevice));
    twice<<<h, 64>>>(p, pitch, w, h);
    CHECK(cudaMemcpy2D(q, other, p, pitch, w * 4, h, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy2D(b.data(), w * 4, q, other, w * 4, h, cudaMemcpyDeviceToHost));
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++) {
            bool margin = x == 0 || y == 0 || x == w - 1 || y == h - 1;
            EXPECT_EQ(b[y * w + x], margin ? -2 : 2 * a[(y - 1) * w + x - 1]);
        }
    EXPECT_ERROR(cudaMemcpy2D(b.data(), 4, q, other, w * 4, h, cudaMemcpyDeviceToHost), cudaErrorInvalidPitchValue);
    cudaGetLastError();
    CHECK(cudaFree(p));
    CHECK(cudaFree(q));
    return finish();
}
