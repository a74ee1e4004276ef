//! 4-bit integers, of which two share a byte: copies of any strides, and casts.
//!
//! Kernels without instructions for them compute with 8-bit integers: [`Ops::unpack_factor`] makes these.

mod weights;

pub use weights::Int4Weights;

use mica::{ByValue, Grid};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::pack::{MOST_BLOCKS, Matrix};
use crate::{DType, Error, Expr, Ops, Result, Tensor};

/// The file of the kernels.
const FILE: &str = "int4.i8";
/// Files of the kernels for weights, before the type of the floats.
const FILE_OF_WEIGHTS: &str = "int4_weights";
/// Elements that a thread copies.
const AT_ONCE: usize = 8;
/// Rows of factors begin at multiples of so many bytes.
const ROW_BYTES: usize = 16;

/// As `Copy` in `kernels/int4.cu`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Params {
    from: u64,
    to: u64,
    first: i64,
    from_row: i64,
    from_col: i64,
    from_batch: i64,
    to_row: i64,
    to_batch: i64,
    rows: i32,
    cols: i32,
    padded_cols: i32,
    reserved: i32,
}

/// Whether a factor is copied by rows: the order in which its elements follow each other.
fn is_by_rows(factor: &Matrix) -> bool {
    factor.col == 1 || factor.row != 1
}

/// Rows of another type at multiples of 16 bytes, in the order of a factor's elements; their memory is not there yet.
pub(crate) fn in_rows(factor: &Matrix, dtype: DType) -> Matrix {
    let by_rows = is_by_rows(factor);
    let lines = if by_rows { *factor } else { factor.turned() };
    let row = lines.cols.next_multiple_of(ROW_BYTES * dtype.per_unit());
    let rows = Matrix {
        address: 256,
        first: 0,
        dtype,
        row,
        col: 1,
        batch: if lines.batch == 0 {
            0
        } else {
            lines.rows * row
        },
        ..lines
    };
    if by_rows { rows } else { rows.turned() }
}

impl Matrix {
    /// A matrix of bytes that hold two neighbours of a row each.
    fn pairs(&self) -> Self {
        Self {
            dtype: DType::I8,
            cols: self.cols.div_ceil(2),
            row: self.row / 2,
            batch: self.batch / 2,
            ..*self
        }
    }

    /// Whether its rows are pairs that a kernel can read 16 bytes of at once, with nothing beyond the last column.
    fn has_rows_of_pairs(&self) -> bool {
        let elements = ROW_BYTES * 2;
        let is_aligned = self.address.is_multiple_of(ROW_BYTES as u64) && self.first == 0;
        let steps = [self.row, self.batch];
        (self.col == 1 || self.cols == 1)
            && is_aligned
            && self.cols.is_multiple_of(2)
            && steps.iter().all(|step| step.is_multiple_of(elements))
    }
}

impl Ops {
    /// Copies matrices of 4-bit integers into contiguous rows, of `padded` elements each.
    fn copy_int4(
        &self,
        name: &str,
        from: &Matrix,
        to: &Matrix,
        batches: usize,
        padded: usize,
    ) -> Result<()> {
        if batches * from.rows * padded == 0 {
            return Ok(());
        }
        if from.rows.max(padded) > i32::MAX as usize {
            let (rows, most) = (from.rows, i32::MAX);
            let message = format!(
                "{rows} rows of {padded} elements of i4; at most {most} of each are possible"
            );
            return Err(Error::argument("copy", message));
        }
        let kernel = self.kernels.get(FILE, name)?;
        for start in (0..batches).step_by(MOST_BLOCKS) {
            let count = (batches - start).min(MOST_BLOCKS) as u32;
            let part = from.at(start * from.batch);
            // Kernels read words.
            let beyond = part.address % 4;
            let params = Params {
                from: part.address - beyond,
                to: to.at(start * to.batch).address,
                first: (part.first + 2 * beyond as usize) as i64,
                from_row: from.row as i64,
                from_col: from.col as i64,
                from_batch: from.batch as i64,
                to_row: to.row as i64,
                to_batch: to.batch as i64,
                rows: from.rows as i32,
                cols: from.cols as i32,
                padded_cols: padded as i32,
                reserved: 0,
            };
            let threads = 64;
            let x = padded.div_ceil(AT_ONCE * threads) as u32;
            let y = from.rows.min(MOST_BLOCKS) as u32;
            let grid = Grid::of([x, y, count], [threads as u32, 1, 1]);
            self.stream.launch(&kernel, grid, (ByValue(params),))?;
        }
        Ok(())
    }

    /// A factor as 8-bit integers.
    pub(crate) fn unpack_factor(
        &self,
        factor: &Matrix,
        batches: usize,
    ) -> Result<(Tensor, Matrix)> {
        self.factor_in_rows("int4_to_bytes", factor, DType::I8, batches)
    }

    /// The matrices of a factor, or the one that all products share, in rows of another type.
    fn factor_in_rows(
        &self,
        name: &str,
        factor: &Matrix,
        dtype: DType,
        batches: usize,
    ) -> Result<(Tensor, Matrix)> {
        let count = if factor.batch == 0 { 1 } else { batches };
        let mut rows = in_rows(factor, dtype);
        let turn = |matrix: &Matrix| match is_by_rows(factor) {
            true => *matrix,
            false => matrix.turned(),
        };
        let lines = turn(&rows);
        let memory = self.unset(&[count, lines.rows, lines.row], dtype)?;
        rows.address = memory.address();
        self.copy_int4(name, &turn(factor), &turn(&rows), count, lines.row)?;
        Ok((memory, rows))
    }

    /// A factor as a kernel with instructions for 4-bit integers reads it: bytes of two neighbours along each row.
    pub(crate) fn pairs_of_factor(
        &self,
        factor: &Matrix,
        batches: usize,
    ) -> Result<(Option<Tensor>, Matrix)> {
        if factor.has_rows_of_pairs() {
            return Ok((None, factor.pairs()));
        }
        // Rows are made by rows, whatever the order of the elements is.
        let row = factor.cols.next_multiple_of(ROW_BYTES * 2);
        let count = if factor.batch == 0 { 1 } else { batches };
        let memory = self.unset(&[count, factor.rows, row], DType::I4)?;
        let rows = Matrix {
            address: memory.address(),
            first: 0,
            row,
            col: 1,
            batch: if factor.batch == 0 {
                0
            } else {
                factor.rows * row
            },
            ..*factor
        };
        self.copy_int4("int4_to_rows", factor, &rows, count, row)?;
        Ok((Some(memory), rows.pairs()))
    }

    /// The elements of a tensor as a dense tensor of 8-bit integers.
    pub(crate) fn bytes_of_int4(&self, tensor: &Tensor) -> Result<Tensor> {
        let bytes = self.unset(tensor.shape(), DType::I8)?;
        self.copy_elements(tensor, &bytes, |from, to, batches| {
            self.copy_int4("int4_to_bytes", from, to, batches, to.cols)
        })?;
        Ok(bytes)
    }

    /// The elements of a dense tensor of 8-bit integers; what 4 bits cannot hold becomes the nearest number that they can.
    pub(crate) fn int4_of_bytes(&self, bytes: &Tensor) -> Result<Tensor> {
        let made = self.unset(bytes.shape(), DType::I4)?;
        let count = bytes.len();
        if count > 0 {
            let kernel = self.kernels.get(FILE, "int4_from_bytes")?;
            let grid = Grid::new(count.div_ceil(512).min(1 << 20) as u32, 256);
            let params = (bytes.address(), made.address(), count as i64);
            self.stream.launch(&kernel, grid, params)?;
        }
        Ok(made)
    }

    /// [`Ops::cast`] from 4-bit integers, or to them.
    pub(crate) fn cast_int4(&self, tensor: &Tensor, dtype: DType) -> Result<Tensor> {
        let timed = self.begin("cast", &[tensor]);
        let map = |tensor: &Tensor, to| self.map(&Expr::input(0), &[tensor], &[], to);
        let bytes = match tensor.dtype() {
            DType::I4 => self.bytes_of_int4(tensor)?,
            DType::I8 => self.dense(tensor)?,
            _ => map(tensor, DType::I8)?,
        };
        let made = match dtype {
            DType::I4 => self.int4_of_bytes(&bytes)?,
            DType::I8 => bytes,
            _ => map(&bytes, dtype)?,
        };
        timed.moves(&[&made]);
        Ok(made)
    }
}
