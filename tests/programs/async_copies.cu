#include "check.h"
// Copies and fills of planes, volumes, arrays and symbols, in stream order.
__device__ int symbol[16];
int main() {
    cudaStream_t s;
    CHECK(cudaStreamCreate(&s));
    const int w = 37, h = 11, depth = 3;
    size_t pitch;
    char *d;
    CHECK(cudaMallocPitch(&d, &pitch, w, h));
    std::vector<char> in(w * h), out(w * h, 0), half(w * h, 0);
    for (int i = 0; i < w * h; i++) in[i] = i * 7;
    CHECK(cudaMemset2DAsync(d, pitch, 0x5a, w, h, s));
    CHECK(cudaMemcpy2DAsync(half.data(), w, d, pitch, w, h, cudaMemcpyDeviceToHost, s));
    CHECK(cudaMemcpy2DAsync(d, pitch, in.data(), w, w, h, cudaMemcpyHostToDevice, s));
    CHECK(cudaMemcpy2DAsync(out.data(), w, d, pitch, w, h, cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT(out == in && half == std::vector<char>(w * h, 0x5a));

    cudaArray_t a, b;
    cudaChannelFormatDesc bytes = cudaCreateChannelDesc<char>();
    CHECK(cudaMallocArray(&a, &bytes, w, h));
    CHECK(cudaMallocArray(&b, &bytes, w, h));
    CHECK(cudaMemcpy2DToArrayAsync(a, 0, 0, in.data(), w, w, h, cudaMemcpyHostToDevice, s));
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaMemcpy2DArrayToArray(b, 0, 0, a, 0, 0, w, h, cudaMemcpyDeviceToDevice));
    out.assign(w * h, 0);
    CHECK(cudaMemcpy2DFromArrayAsync(out.data(), w, b, 0, 0, w, h, cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT(out == in);
    // A window of it to a window of another.
    CHECK(cudaMemcpy2DArrayToArray(b, 10, 2, a, 0, 0, 5, 4, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy2DFromArray(out.data(), w, b, 0, 0, w, h, cudaMemcpyDeviceToHost));
    for (int y = 0; y < h; y++) for (int x = 0; x < w; x++) { bool inside = x >= 10 && x < 15 && y >= 2 && y < 6; EXPECT_EQ(out[y * w + x], inside ? in[(y - 2) * w + x - 10] : in[y * w + x]); }
    cudaChannelFormatDesc back;
    cudaExtent extent;
    unsigned flags;
    CHECK(cudaArrayGetInfo(&back, &extent, &flags, a));
    EXPECT(back.x == 8 && extent.width == w && extent.height == h && extent.depth == 0 && flags == 0);
    CHECK(cudaFreeArray(a)); CHECK(cudaFreeArray(b));

    cudaPitchedPtr v;
    cudaExtent box = make_cudaExtent(w, h, depth);
    CHECK(cudaMalloc3D(&v, box));
    CHECK(cudaMemset3DAsync(v, 0x21, box, s));
    std::vector<char> volume(w * h * depth), got(w * h * depth);
    for (size_t i = 0; i < volume.size(); i++) volume[i] = i * 3;
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(volume.data(), w, w, h); copy.dstPtr = v; copy.extent = make_cudaExtent(w, h, 1); copy.dstPos = make_cudaPos(0, 0, 1); copy.srcPos = make_cudaPos(0, 0, 1); copy.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3DAsync(&copy, s));
    copy = {};
    copy.srcPtr = v; copy.dstPtr = make_cudaPitchedPtr(got.data(), w, w, h); copy.extent = box; copy.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3DAsync(&copy, s));
    CHECK(cudaStreamSynchronize(s));
    for (int i = 0; i < w * h * depth; i++) EXPECT_EQ(got[i], i / (w * h) == 1 ? volume[i] : 0x21);

    int numbers[16], again[16] = {};
    for (int i = 0; i < 16; i++) numbers[i] = i * i;
    CHECK(cudaMemcpyToSymbolAsync(symbol, numbers, 32, 32, cudaMemcpyHostToDevice, s));
    CHECK(cudaMemcpyFromSymbolAsync(again, symbol, 64, 0, cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    for (int i = 0; i < 16; i++) EXPECT_EQ(again[i], i < 8 ? 0 : (i - 8) * (i - 8));
    Device<int> x(std::vector<int>(100, 6)), y(100);
    CHECK(cudaMemcpyPeerAsync(y, 0, x, 0, 400, s));
    CHECK(cudaStreamSynchronize(s));
    EXPECT_EQ(y.host()[99], 6);
    CHECK(cudaMemcpyPeer(x, 0, y, 0, 400));
    return finish();
}
