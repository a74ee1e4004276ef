#include "check.h"
// Symbols with initial values, in namespaces, templates and static scope; parts of them copied.
namespace outer { __device__ float weights[4] = {1, 2, 3, 4}; __constant__ double scale = 0.5; }
static __device__ int hidden = 11;
__device__ int *pointer_to = &hidden;
template <class T> __device__ T typed;
template <class T> __global__ void use(double *out) { typed<T> += (T)hidden; out[0] = outer::scale * (outer::weights[2] + *pointer_to); out[1] = (double)typed<T>; }
int main() {
    Device<double> out(2);
    use<int><<<1, 1>>>(out);
    EXPECT_EQ(out.host()[0], 7.0);
    EXPECT_EQ(out.host()[1], 11.0);
    float w = 10;
    CHECK(cudaMemcpyToSymbol(outer::weights, &w, 4, 8));
    double s = 2;
    CHECK(cudaMemcpyToSymbol(outer::scale, &s, 8));
    int h = -10;
    CHECK(cudaMemcpyToSymbolAsync(hidden, &h, 4, 0, cudaMemcpyHostToDevice, 0));
    use<double><<<1, 1>>>(out);
    EXPECT_EQ(out.host()[0], 0.0);
    EXPECT_EQ(out.host()[1], -10.0);
    float back[4];
    CHECK(cudaMemcpyFromSymbol(back, outer::weights, 16));
    EXPECT_EQ(back[2], 10.0f);
    EXPECT_EQ(back[3], 4.0f);
    void *p;
    CHECK(cudaGetSymbolAddress(&p, hidden));
    CHECK(cudaMemset(p, 0, 4));
    CHECK(cudaMemcpyFromSymbol(&h, hidden, 4));
    EXPECT_EQ(h, 0);
    EXPECT_ERROR(cudaMemcpyToSymbol(outer::weights, back, 16, 8), cudaErrorInvalidValue);
    cudaGetLastError();
    return finish();
}
