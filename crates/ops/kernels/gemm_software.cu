// Products of 32-bit floats on the software GPU: one thread has a block of the result, and has the device multiply parts
// of it (crates/ptx-ops/src/multiply.rs). No card has that function, so no card is given this file.
#include "software.cuh"

// Distances count elements. Panel p of a has rows PANEL_ROWS p on, panel q of b columns PANEL_COLS q on. A block has
// `row_panels` of the former and `col_panels` of the latter.
constexpr int PANEL_ROWS = 12, PANEL_COLS = 32, PART = 1024;
struct Panels {
    const float *a, *b;
    float *d;
    int64_t a_row, a_col, a_panel, a_batch, b_row, b_panel, b_batch, d_row, d_batch;
    int32_t m, n, k, row_panels, col_panels, reserved;
};

extern "C" __global__ void __launch_bounds__(1) gemm_panels(Panels p)
{
    int batch = blockIdx.z, rows = (p.m + PANEL_ROWS - 1) / PANEL_ROWS, cols = (p.n + PANEL_COLS - 1) / PANEL_COLS;
    int row_first = blockIdx.x * p.row_panels, row_end = min(rows, row_first + p.row_panels);
    int col_first = blockIdx.y * p.col_panels, col_end = min(cols, col_first + p.col_panels);
    // At least once: the sum of nothing is 0.
    int k0 = 0;
    do {
        int depth = min(PART, p.k - k0);
#pragma unroll 1
        for (int col = col_first; col < col_end; ++col)
#pragma unroll 1
            for (int row = row_first; row < row_end; ++row) {
                int m = min(PANEL_ROWS, p.m - row * PANEL_ROWS), n = min(PANEL_COLS, p.n - col * PANEL_COLS);
                const float *a = p.a + batch * p.a_batch + row * p.a_panel + k0 * p.a_col;
                const float *b = p.b + batch * p.b_batch + col * p.b_panel + k0 * p.b_row;
                float *d = p.d + batch * p.d_batch + (int64_t)row * PANEL_ROWS * p.d_row + col * PANEL_COLS;
                uint64_t sizes = sizes_of(m, n, depth);
                if (k0) __mica_multiply_add_f32(a, b, d, sizes, p.a_row, p.a_col, p.b_row, p.d_row);
                else __mica_multiply_f32(a, b, d, sizes, p.a_row, p.a_col, p.b_row, p.d_row);
            }
        k0 += PART;
    } while (k0 < p.k);
}
