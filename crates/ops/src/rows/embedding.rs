//! Rows of a table by number.

use mica::Grid;

use super::float;
use crate::{DType, Error, Ops, Result, Tensor};

/// How many numbers a tensor has, which must be `i32`.
pub(super) fn ids(operation: &'static str, ids: &Tensor) -> Result<usize> {
    if ids.dtype() != DType::I32 {
        let message = format!("numbers of {}: they are i32", ids.dtype());
        return Err(Error::argument(operation, message));
    }
    if ids.len() > i32::MAX as usize {
        return Err(Error::argument(
            operation,
            format!("{} numbers are too many", ids.len()),
        ));
    }
    Ok(ids.len())
}

/// Refuses tables whose rows or columns kernels cannot count.
fn check_table(operation: &'static str, rows: usize, width: usize) -> Result<()> {
    let most = i32::MAX as usize;
    if rows.max(width) <= most {
        return Ok(());
    }
    let message = format!("a table of {rows} rows of {width} elements; at most {most} of each");
    Err(Error::argument(operation, message))
}

impl Ops {
    /// The rows of a table that `numbers` names; a number that is no row gives NaN.
    ///
    /// # Errors
    /// If the table is not a matrix of floats, or the numbers are not `i32`.
    pub fn embedding(&self, table: &Tensor, numbers: &Tensor) -> Result<Tensor> {
        float("embedding", table)?;
        let count = ids("embedding", numbers)?;
        let [rows, width] = *table.shape() else {
            let message = format!("the table has shape {:?}: it is a matrix", table.shape());
            return Err(Error::argument("embedding", message));
        };
        check_table("embedding", rows, width)?;
        let mut shape = numbers.shape().to_vec();
        shape.push(width);
        let y = self.unset(&shape, table.dtype())?;
        // Of the table as many rows are read as are written.
        let timed = self.begin("embedding", &[numbers, &y]);
        timed.moves(&[&y]);
        if !y.is_empty() {
            let (table, numbers) = (self.dense(table)?, self.dense(numbers)?);
            let kernel = self.row_kernel(table.dtype(), "embedding_forward")?;
            let (from, by, to) = (table.address(), numbers.address(), y.address());
            let params = (from, by, to, rows as i32, width as i32);
            self.stream
                .launch(&kernel, Grid::new(count as u32, 64), params)?;
        }
        Ok(y)
    }

    /// The gradient of a table of `rows` rows, in f32.
    ///
    /// # Errors
    /// If `dy` does not have a row for each number.
    pub fn embedding_backward(&self, dy: &Tensor, numbers: &Tensor, rows: usize) -> Result<Tensor> {
        float("embedding_backward", dy)?;
        let count = ids("embedding_backward", numbers)?;
        let width = dy.shape().last().copied().unwrap_or(0);
        if dy.rank() != numbers.rank() + 1 || dy.shape()[..numbers.rank()] != *numbers.shape() {
            return Err(Error::Shape {
                operation: "embedding_backward",
                left_name: "dy",
                left: dy.shape().to_vec(),
                right_name: "the numbers",
                right: numbers.shape().to_vec(),
                rule: "dy has a row for each number",
            });
        }
        check_table("embedding_backward", rows, width)?;
        let timed = self.begin("embedding_backward", &[dy, numbers]);
        let table = self.zeros(&[rows, width], DType::F32)?;
        timed.moves(&[&table]);
        if !dy.is_empty() {
            let (dy, numbers) = (self.dense(dy)?, self.dense(numbers)?);
            let kernel = self.row_kernel(dy.dtype(), "embedding_backward")?;
            let (from, by, to) = (dy.address(), numbers.address(), table.address());
            let params = (from, by, to, rows as i32, width as i32);
            self.stream
                .launch(&kernel, Grid::new(count as u32, 64), params)?;
        }
        Ok(table)
    }
}
