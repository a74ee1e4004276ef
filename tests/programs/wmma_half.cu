#include "check.h"
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
__global__ void mm(const half *a, const half *b, float *c, int n) { wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x; wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y; wmma::fragment<wmma::accumulator, 16, 16, 16, float> s; wmma::fill_fragment(s, 1.0f); int r = blockIdx.y * 16, q = blockIdx.x * 16; for (int k = 0; k < n; k += 16) { wmma::load_matrix_sync(x, a + r * n + k, n); wmma::load_matrix_sync(y, b + q * n + k, n); wmma::mma_sync(s, x, y, s); } wmma::store_matrix_sync(c + r * n + q, s, n, wmma::mem_row_major); }
int main() { const int n = 64; std::vector<half> a(n * n), b(n * n); for (int i = 0; i < n * n; i++) { a[i] = __float2half((i * 7 % 13) - 6); b[i] = __float2half((i * 5 % 11) - 5); } Device<half> da(a), db(b); Device<float> c(n * n); mm<<<dim3(n / 16, n / 16), 32>>>(da, db, c, n); auto r = c.host(); for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) { float s = 1; for (int k = 0; k < n; k++) s += __half2float(a[i * n + k]) * __half2float(b[j * n + k]); EXPECT_EQ(r[i * n + j], s); } return finish(); }
