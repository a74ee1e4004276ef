//! Products of floats on the software GPU: one thread of a block has the device multiply its part, which the device does
//! in the widest registers of the processor (`kernels/gemm_software.cu`).

use mica::{ByValue, Grid};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::check::Product;
use super::launch::{Epilogue, Variant};
use super::spec::Gemm;
use crate::pack::{MOST_BLOCKS, Matrix};
use crate::{DType, Ops, Result, Tensor};

/// The file of the kernel.
pub(super) const FILE: &str = "gemm_software.f32";
/// Rows and columns that the device computes at once.
pub(super) const ROWS: usize = 12;
pub(super) const COLS: usize = 32;

/// Panels of rows and of columns of a block: what a block reads again and again fits into the second-level cache of a
/// core.
const MOST_PANELS: [usize; 2] = [8, 4];

/// Rows of the first factor up to which the second factor is read where it is: each element is needed so few times that
/// the copy would cost more.
const FEW_ROWS: usize = 48;

/// As `Panels` in `kernels/gemm_software.cu`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Params {
    a: u64,
    b: u64,
    d: u64,
    a_row: i64,
    a_col: i64,
    a_panel: i64,
    a_batch: i64,
    b_row: i64,
    b_panel: i64,
    b_batch: i64,
    d_row: i64,
    d_batch: i64,
    m: i32,
    n: i32,
    k: i32,
    row_panels: i32,
    col_panels: i32,
    reserved: i32,
}

/// A factor as the kernel reads it. Distances count elements.
struct Factor {
    address: u64,
    row: usize,
    col: usize,
    panel: usize,
    batch: usize,
    _packed: Option<Tensor>,
}

/// From one line to the next, if there is a next one.
fn distance(lines: usize, distance: usize) -> usize {
    if lines > 1 { distance } else { 0 }
}

/// Panels of rows and of columns of a block, so that there are blocks for all processors.
fn panels_of_block(sizes: [usize; 2], batches: usize, processors: usize) -> [usize; 2] {
    let mut panels = MOST_PANELS;
    let blocks = |panels: [usize; 2]| {
        let [rows, cols] = [0, 1].map(|axis| sizes[axis].div_ceil(panels[axis]));
        rows * cols * batches
    };
    while blocks(panels) < 4 * processors && panels != [1, 1] {
        let axis = usize::from(panels[1] * COLS > panels[0] * ROWS);
        let axis = if panels[axis] > 1 { axis } else { 1 - axis };
        panels[axis] /= 2;
    }
    // Blocks along the second axis of a grid are few.
    panels[1] = panels[1].max(sizes[1].div_ceil(MOST_BLOCKS));
    panels
}

impl Ops {
    fn rows_of_panels(&self, factor: &Matrix, batches: usize) -> Result<Factor> {
        if factor.col != 1 && factor.cols > 1 {
            let (memory, panel, batch) = self.panels(&factor.turned(), batches, ROWS)?;
            return Ok(Factor {
                address: memory.address(),
                row: 1,
                col: ROWS,
                panel,
                batch,
                _packed: Some(memory),
            });
        }
        let (memory, wide) = self.wide_factor(factor, batches)?;
        let row = distance(wide.rows, wide.row);
        Ok(Factor {
            address: wide.address,
            row,
            col: 1,
            panel: ROWS * row,
            batch: wide.batch,
            _packed: memory,
        })
    }

    fn cols_of_panels(&self, factor: &Matrix, rows: usize, batches: usize) -> Result<Factor> {
        let contiguous = factor.col == 1 || factor.cols == 1;
        if rows <= FEW_ROWS && contiguous && factor.dtype == DType::F32 {
            return Ok(Factor {
                address: factor.address,
                row: distance(factor.rows, factor.row),
                col: 1,
                panel: COLS,
                batch: factor.batch,
                _packed: None,
            });
        }
        let (memory, panel, batch) = self.panels(factor, batches, COLS)?;
        Ok(Factor {
            address: memory.address(),
            row: COLS,
            col: 1,
            panel,
            batch,
            _packed: Some(memory),
        })
    }

    /// A factor in panels of so many columns; elements of a panel, and of a matrix.
    pub(super) fn panels(
        &self,
        factor: &Matrix,
        batches: usize,
        width: usize,
    ) -> Result<(Tensor, usize, usize)> {
        let is_shared = factor.batch == 0;
        let count = if is_shared { 1 } else { batches };
        let (memory, distance) = self.pack_panels(factor, count, width)?;
        let batch = if is_shared { 0 } else { distance };
        Ok((memory, factor.rows * width, batch))
    }

    /// Queues a product of floats.
    pub(super) fn launch_panels(&self, product: &Product, spec: &Gemm, d: &Tensor) -> Result<()> {
        let batches = product.batches;
        let (m, n, k) = (product.a.rows, product.b.cols, product.a.cols);
        let a = self.rows_of_panels(&product.a, batches)?;
        let b = self.cols_of_panels(&product.b, m, batches)?;
        let (epilogue, sums) = self.plain_sums(product, DType::F32, spec, d)?;
        let sizes = [m.div_ceil(ROWS), n.div_ceil(COLS)];
        let processors = self.vgpu.info().multiprocessors as usize;
        let panels = panels_of_block(sizes, batches, processors);
        let [rows, cols] = [0, 1].map(|axis| sizes[axis].div_ceil(panels[axis]) as u32);
        let kernel = self.kernels.get(FILE, "gemm_panels")?;
        for first in (0..batches).step_by(MOST_BLOCKS) {
            let count = (batches - first).min(MOST_BLOCKS) as u32;
            let step = |batch: i64| first as i64 * batch * 4;
            let params = Params {
                a: a.address.wrapping_add_signed(step(a.batch as i64)),
                b: b.address.wrapping_add_signed(step(b.batch as i64)),
                d: epilogue.d.wrapping_add_signed(step(epilogue.d_strides[2])),
                a_row: a.row as i64,
                a_col: a.col as i64,
                a_panel: a.panel as i64,
                a_batch: a.batch as i64,
                b_row: b.row as i64,
                b_panel: b.panel as i64,
                b_batch: b.batch as i64,
                d_row: distance(m, epilogue.d_strides[0] as usize) as i64,
                d_batch: epilogue.d_strides[2],
                m: m as i32,
                n: n as i32,
                k: k as i32,
                row_panels: panels[0] as i32,
                col_panels: panels[1] as i32,
                reserved: 0,
            };
            let grid = Grid::of([rows, cols, count], [1, 1, 1]);
            self.stream.launch(&kernel, grid, (ByValue(params),))?;
        }
        match sums {
            Some(sums) => {
                let file = Variant::Tile.file(product.a.dtype);
                self.finish_sums(&file, &sums, Epilogue::new(spec, d), d)
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_large_where_there_are_enough_of_them() {
        assert_eq!(panels_of_block([86, 32], 1, 2), MOST_PANELS);
        assert_eq!(panels_of_block([1, 1], 1, 64), [1, 1]);
        let [rows, cols] = panels_of_block([86, 32], 1, 64);
        assert!(86_usize.div_ceil(rows) * 32_usize.div_ceil(cols) >= 256);
        assert_eq!(panels_of_block([1, 65536 * 8], 1, 2)[1], 9);
    }
}
