//! Sums, means, largest and smallest elements.

use mica::Grid;

use super::float;
use crate::pack::MOST_BLOCKS;
use crate::{DType, Error, Ops, Result, Tensor};

/// What elements are reduced to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest; NaN if one is.
    Max,
    /// The smallest; NaN if one is.
    Min,
}

impl Reduction {
    fn code(self) -> i32 {
        match self {
            Self::Sum | Self::Mean => 0,
            Self::Max => 1,
            Self::Min => 2,
        }
    }
}

impl Ops {
    /// Reduces an axis; the result is f32 and does not have the axis any more.
    ///
    /// # Errors
    /// If there is no such axis, or the elements are not floats.
    pub fn reduce(&self, x: &Tensor, axis: usize, what: Reduction) -> Result<Tensor> {
        float("reduce", x)?;
        if axis >= x.rank() {
            let message = format!("axis {axis} of a tensor of shape {:?}", x.shape());
            return Err(Error::argument("reduce", message));
        }
        let mut shape = x.shape().to_vec();
        let size = shape.remove(axis);
        let inner: usize = shape[axis..].iter().product();
        let outer: usize = shape[..axis].iter().product();
        let y = self.unset(&shape, DType::F32)?;
        let timed = self.begin("reduce", &[x]);
        timed.moves(&[&y]);
        if y.is_empty() {
            return Ok(y);
        }
        let factor = if what == Reduction::Mean {
            1.0 / size as f32
        } else {
            1.0
        };
        let x = self.dense(x)?;
        let (from, to, op) = (x.address(), y.address(), what.code());
        if inner == 1 {
            let kernel = self.row_kernel(x.dtype(), "reduce_rows")?;
            let params = (from, to, outer as i64, size as i64, op, factor);
            self.stream
                .launch(&kernel, self.row_grid(outer, size), params)?;
            return Ok(y);
        }
        let kernel = self.row_kernel(x.dtype(), "reduce_cols")?;
        for first in (0..outer).step_by(MOST_BLOCKS) {
            let count = (outer - first).min(MOST_BLOCKS) as u32;
            let from = from + (first * size * inner * x.dtype().size_bytes()) as u64;
            let to = to + (first * inner * 4) as u64;
            let params = (from, to, size as i64, inner as i64, op, factor);
            let grid = Grid::of([inner.div_ceil(128) as u32, count, 1], [128, 1, 1]);
            self.stream.launch(&kernel, grid, params)?;
        }
        Ok(y)
    }

    /// Reduces all elements to one, in f32.
    ///
    /// # Errors
    /// If the elements are not floats.
    pub fn reduce_all(&self, x: &Tensor, what: Reduction) -> Result<Tensor> {
        float("reduce", x)?;
        let _timed = self.begin("reduce_all", &[x]);
        let count = x.len();
        let flat = self.dense(x)?.reshape(&[count])?;
        if count <= 4096 {
            return self.reduce(&flat, 0, what);
        }
        // Rows of equal length first, what is left over beside them.
        let rows = (count / 1024).min(1024);
        let cols = count / rows;
        let part = if what == Reduction::Mean {
            Reduction::Sum
        } else {
            what
        };
        let most = flat.narrow(0, 0, rows * cols)?.reshape(&[rows, cols])?;
        let total = self.reduce(&self.reduce(&most, 1, part)?, 0, part)?;
        let left = count - rows * cols;
        let factor = if what == Reduction::Mean {
            1.0 / count as f32
        } else {
            1.0
        };
        let (a, b) = (crate::Expr::input(0), crate::Expr::input(1));
        if left == 0 {
            return self.map(
                &(a * crate::Expr::scalar(0)),
                &[&total],
                &[factor],
                DType::F32,
            );
        }
        let rest = self.reduce(&flat.narrow(0, rows * cols, left)?, 0, part)?;
        let both = match part {
            Reduction::Max => a.max(b),
            Reduction::Min => a.min(b),
            _ => (a + b) * crate::Expr::scalar(0),
        };
        self.map(&both, &[&total, &rest], &[factor], DType::F32)
    }
}
