// native: skip (would fill the card)
#include "check.h"
int main() { size_t f, t; CHECK(cudaMemGetInfo(&f, &t)); std::vector<void *> p; size_t step = 64u << 20, got = 0; void *q; while (got < t + step && cudaMalloc(&q, step) == cudaSuccess) { p.push_back(q); got += step; } EXPECT_ERROR(cudaGetLastError(), cudaErrorMemoryAllocation); EXPECT(got <= t); EXPECT(got + 2 * step >= f); size_t f2; CHECK(cudaMemGetInfo(&f2, &t)); EXPECT(f2 < 2 * step); for (void *x : p) CHECK(cudaFree(x)); CHECK(cudaMalloc(&q, step)); CHECK(cudaMemset(q, 1, step)); CHECK(cudaFree(q)); return finish(); }
