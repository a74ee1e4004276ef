//! Copies of strided tensors into dense ones, with padding and a change of type.

use mica::{ByValue, Grid};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{DType, Error, Ops, Result, Tensor};

/// A stack of matrices with any strides, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub(crate) address: u64,
    /// Elements from the address to the first one.
    pub(crate) first: usize,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) row: usize,
    pub(crate) col: usize,
    pub(crate) batch: usize,
}

impl Matrix {
    /// Address of the matrix of this number in a stack.
    pub(crate) fn address_of(&self, number: usize) -> u64 {
        self.at(number * self.batch).address
    }

    /// The same, so many elements further on.
    pub(crate) fn at(mut self, elements: usize) -> Self {
        let (units, from) = (self.dtype.per_unit(), self.first + elements);
        self.address += (from / units * self.dtype.size_bytes()) as u64;
        self.first = from % units;
        self
    }

    /// The same with rows and columns exchanged.
    pub(crate) fn turned(&self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row: self.col,
            col: self.row,
            ..*self
        }
    }
}

/// The type that products of this type are computed in without tensor cores.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::I4 | DType::I8 | DType::I32 => DType::I32,
        DType::F32 | DType::F16 | DType::BF16 => DType::F32,
    }
}

/// As `Pack` in `kernels/pack.cu`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Params {
    from: u64,
    to: u64,
    from_row: i64,
    from_col: i64,
    from_batch: i64,
    to_row: i64,
    to_batch: i64,
    rows: i32,
    cols: i32,
    padded_cols: i32,
    width: i32,
}

/// The numbers of the last three axes, 1 for one that is not there.
fn last_axes(axes: &[usize]) -> [usize; 3] {
    let axis = |back: usize| axes.len().checked_sub(back).map_or(1, |axis| axes[axis]);
    [axis(3), axis(2), axis(1)]
}

/// Most blocks of a grid's second and third axis.
pub(crate) const MOST_BLOCKS: usize = 65535;

impl Ops {
    /// Copies matrices into rows of contiguous elements, each row padded with zeros to a multiple of
    /// `multiple` elements. Returns the copy's memory and what it is.
    pub(crate) fn pack(
        &self,
        from: &Matrix,
        batches: usize,
        to: DType,
        multiple: usize,
    ) -> Result<(Tensor, Matrix)> {
        let padded = from.cols.div_ceil(multiple) * multiple;
        let memory = self.unset(&[batches, from.rows, padded], to)?;
        let result = Matrix {
            address: memory.address(),
            first: 0,
            dtype: to,
            row: padded,
            col: 1,
            batch: from.rows * padded,
            ..*from
        };
        self.copy_matrices(from, &result, batches, padded)?;
        Ok((memory, result))
    }

    /// Copies matrices into panels of `width` columns, `[cols / width][rows][width]`, of wide elements;
    /// columns beyond the matrix are 0. Returns the memory and the distance of one matrix from the next.
    pub(crate) fn pack_panels(
        &self,
        from: &Matrix,
        batches: usize,
        width: usize,
    ) -> Result<(Tensor, usize)> {
        let panels = from.cols.div_ceil(width);
        let memory = self.unset(&[batches, panels, from.rows, width], wide(from.dtype))?;
        let kernel = self
            .kernels
            .get(&format!("pack.{}", from.dtype), "pack_panels_wide")?;
        let distance = panels * from.rows * width;
        let size = (from.dtype.size_bytes(), memory.dtype().size_bytes());
        for first in (0..batches).step_by(MOST_BLOCKS) {
            let count = (batches - first).min(MOST_BLOCKS) as u32;
            let parts = from.rows.div_ceil(256).clamp(1, MOST_BLOCKS) as u32;
            let params = Params {
                from: from.address + (first * from.batch * size.0) as u64,
                to: memory.address() + (first * distance * size.1) as u64,
                from_row: from.row as i64,
                from_col: from.col as i64,
                from_batch: from.batch as i64,
                to_row: 0,
                to_batch: distance as i64,
                rows: from.rows as i32,
                cols: from.cols as i32,
                padded_cols: 0,
                width: width as i32,
            };
            let grid = Grid::of([panels as u32, parts, count], [32, 1, 1]);
            self.stream.launch(&kernel, grid, (ByValue(params),))?;
        }
        Ok((memory, distance))
    }

    /// Copies matrices; the destination's columns are contiguous.
    fn copy_matrices(
        &self,
        from: &Matrix,
        to: &Matrix,
        batches: usize,
        padded: usize,
    ) -> Result<()> {
        if batches * from.rows * padded == 0 {
            return Ok(());
        }
        if from.rows.max(padded) > i32::MAX as usize {
            let message = format!(
                "{} rows of {padded} elements that are not dense; at most {} of each are possible",
                from.rows,
                i32::MAX
            );
            return Err(Error::argument("copy", message));
        }
        // 32-bit integers are copied as the bits they are.
        let file = match from.dtype {
            DType::I32 => "pack.f32".to_owned(),
            dtype => format!("pack.{dtype}"),
        };
        let tiles_fit = (8..=32 * MOST_BLOCKS).contains(&from.rows);
        let through_tiles = from.row == 1 && from.col != 1 && tiles_fit && !self.is_software;
        let name = match (through_tiles, from.dtype == to.dtype) {
            (false, false) => "pack_rows_wide",
            (false, true) => "pack_rows_same",
            (true, false) => "pack_tiles_wide",
            (true, true) => "pack_tiles_same",
        };
        let kernel = self.kernels.get(&file, name)?;
        for first in (0..batches).step_by(MOST_BLOCKS) {
            let count = (batches - first).min(MOST_BLOCKS) as u32;
            let (blocks, threads) = match through_tiles {
                true => ([padded.div_ceil(32), from.rows.div_ceil(32)], [32, 8, 1]),
                false => (
                    [padded.div_ceil(128), from.rows.min(MOST_BLOCKS)],
                    [128, 1, 1],
                ),
            };
            let [x, y] = blocks.map(|blocks| blocks as u32);
            let grid = Grid::of([x, y, count], threads);
            let params = Params {
                from: from.address_of(first),
                to: to.address_of(first),
                from_row: from.row as i64,
                from_col: from.col as i64,
                from_batch: from.batch as i64,
                to_row: to.row as i64,
                to_batch: to.batch as i64,
                rows: from.rows as i32,
                cols: from.cols as i32,
                padded_cols: padded as i32,
                width: 0,
            };
            self.stream.launch(&kernel, grid, (ByValue(params),))?;
        }
        Ok(())
    }

    /// The tensor itself where it is dense, else a dense copy.
    ///
    /// # Errors
    /// If the virtual GPU has no memory left for the copy.
    pub fn dense(&self, tensor: &Tensor) -> Result<Tensor> {
        if tensor.is_dense() {
            return Ok(tensor.clone());
        }
        let timed = self.begin("dense", &[tensor]);
        let copy = self.dense_copy(tensor)?;
        timed.moves(&[&copy]);
        Ok(copy)
    }

    /// The tensor itself where it is dense and begins at a multiple of 16 bytes, as the copy unit of Hopper asks, else a copy.
    pub(crate) fn dense_aligned(&self, tensor: &Tensor) -> Result<Tensor> {
        if tensor.is_dense() && tensor.address().is_multiple_of(16) {
            return Ok(tensor.clone());
        }
        self.dense_copy(tensor)
    }

    /// A dense copy, which begins at an address that kernels can read 16 bytes from at once.
    pub(crate) fn dense_copy(&self, tensor: &Tensor) -> Result<Tensor> {
        if tensor.dtype() == DType::I4 {
            return self.int4_of_bytes(&self.bytes_of_int4(tensor)?);
        }
        let copy = self.unset(tensor.shape(), tensor.dtype())?;
        self.copy_elements(tensor, &copy, |from, to, batches| {
            self.copy_matrices(from, to, batches, to.cols)
        })?;
        Ok(copy)
    }

    /// Copies a tensor into one of the same shape and type, of four axes, of which the first has one element and the last is
    /// contiguous.
    pub(crate) fn copy_into(&self, from: &Tensor, to: &Tensor) -> Result<()> {
        let ([heads, rows, cols], [batch, row, _]) =
            (last_axes(from.shape()), last_axes(to.strides()));
        let own = last_axes(from.strides());
        let from = Matrix {
            address: from.address(),
            first: 0,
            dtype: from.dtype(),
            rows,
            cols,
            row: own[1],
            col: own[2],
            batch: own[0],
        };
        let to = Matrix {
            address: to.address(),
            row,
            col: 1,
            batch,
            ..from
        };
        self.copy_matrices(&from, &to, heads, cols)
    }

    /// Calls `copy(from, to, matrices)` for parts of a tensor of any strides that are stacks of matrices, and the same parts of a
    /// dense tensor of its shape.
    pub(crate) fn copy_elements(
        &self,
        tensor: &Tensor,
        copy: &Tensor,
        mut copy_part: impl FnMut(&Matrix, &Matrix, usize) -> Result<()>,
    ) -> Result<()> {
        let (shape, strides) = (tensor.shape(), tensor.strides());
        let inner = shape.len().saturating_sub(3);
        let [batches, rows, cols] = last_axes(shape);
        let [batch, row, col] = last_axes(strides);
        let outer: usize = shape[..inner].iter().product();
        for index in 0..outer {
            let mut rest = index;
            let mut offset = 0;
            for axis in (0..inner).rev() {
                offset += rest % shape[axis] * strides[axis];
                rest /= shape[axis];
            }
            let from = Matrix {
                address: tensor.address(),
                first: tensor.first(),
                dtype: tensor.dtype(),
                rows,
                cols,
                row,
                col,
                batch,
            };
            let to = Matrix {
                address: copy.address(),
                first: 0,
                dtype: copy.dtype(),
                row: cols,
                col: 1,
                batch: rows * cols,
                ..from
            };
            copy_part(
                &from.at(offset),
                &to.at(index * batches * rows * cols),
                batches,
            )?;
        }
        Ok(())
    }
}
