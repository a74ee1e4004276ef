#include "check.h"
const int T = 16;
__global__ void mm(const float *a, const float *b, float *c, int n) {
    __shared__ float x[T][T], y[T][T]; int r = blockIdx.y * T + threadIdx.y, q = blockIdx.x * T + threadIdx.x; float s = 0;
    for (int k = 0; k < n; k += T) { x[threadIdx.y][threadIdx.x] = a[r * n + k + threadIdx.x]; y[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + q]; __syncthreads();
        for (int i = 0; i < T; i++) s += x[threadIdx.y][i] * y[i][threadIdx.x]; __syncthreads(); }
    c[r * n + q] = s;
}
int main() {
    const int n = 128; std::vector<float> a(n * n), b(n * n); for (int i = 0; i < n * n; i++) { a[i] = i % 7 - 3; b[i] = i % 5 - 2; }
    Device<float> da(a), db(b), dc(n * n); mm<<<dim3(n / T, n / T), dim3(T, T)>>>(da, db, dc, n); auto c = dc.host();
    for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) { float s = 0; for (int k = 0; k < n; k++) s += a[i * n + k] * b[k * n + j]; EXPECT_EQ(c[i * n + j], s); }
    return finish();
}
