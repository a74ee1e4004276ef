//! Operations on the last axis, one block for each row: softmax, norms, cross entropy.

mod embedding;
mod random;
mod reduce;

pub use reduce::Reduction;

use mica::{ByValue, Grid};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{DType, Error, Ops, Result, Tensor};

/// Which columns a row of a softmax sees. As `Mask` in `kernels/rows.cu`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Mask {
    /// Rows of each matrix; 0: all columns are seen.
    pub(crate) queries: i32,
    /// Row r sees columns up to r + offset.
    pub(crate) offset: i32,
    /// The most columns that a row sees; 0: no limit.
    pub(crate) window: i32,
    pub(crate) reserved: i32,
}

/// A norm over the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// Mean 0 and variance 1.
    Layer,
    /// Mean of squares 1.
    Rms,
}

/// What a norm's backward pass needs of its forward pass.
#[derive(Clone, Debug)]
pub struct NormStatistics(Tensor);

/// Gradients of a norm.
#[derive(Clone, Debug)]
pub struct NormGradients {
    /// Of the input, in its type.
    pub dx: Tensor,
    /// Of the weights, in f32.
    pub dweight: Tensor,
    /// Of the bias, in f32.
    pub dbias: Tensor,
}

/// Most pieces of 16 bytes that a row of `rows_wide.cu` has: four for each thread of a block of 512.
const MOST_PIECES: usize = 2048;
/// Threads of a multiprocessor that keep its memory busy with such rows.
const THREADS_AT_ONCE: u32 = 512;
/// Most blocks of a grid that rows are spread over.
const MOST_ROWS: usize = 1 << 30;

pub(crate) fn float(operation: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype().is_float() {
        return Ok(());
    }
    let message = format!("elements of {}: it takes f32, f16 and bf16", tensor.dtype());
    Err(Error::argument(operation, message))
}

/// Refuses tensors of different shapes.
pub(crate) fn check_shapes(
    operation: &'static str,
    names: [&'static str; 2],
    a: &Tensor,
    b: &Tensor,
) -> Result<()> {
    if a.shape() == b.shape() {
        return Ok(());
    }
    Err(Error::Shape {
        operation,
        left_name: names[0],
        left: a.shape().to_vec(),
        right_name: names[1],
        right: b.shape().to_vec(),
        rule: "both are equal",
    })
}

/// Refuses tensors of different shapes or types.
pub(crate) fn same(
    operation: &'static str,
    names: [&'static str; 2],
    a: &Tensor,
    b: &Tensor,
) -> Result<()> {
    check_shapes(operation, names, a, b)?;
    if a.dtype() != b.dtype() {
        return Err(Error::Types {
            operation,
            left: a.dtype(),
            right: b.dtype(),
            rule: "both are equal",
        });
    }
    Ok(())
}

/// Rows and the length of a row.
pub(crate) fn rows_of(operation: &'static str, tensor: &Tensor) -> Result<(usize, usize)> {
    let Some(cols) = tensor.shape().last().copied().filter(|cols| *cols > 0) else {
        let message = format!("shape {:?} has no last axis with elements", tensor.shape());
        return Err(Error::argument(operation, message));
    };
    if cols > i32::MAX as usize / 2 {
        let message = format!(
            "rows of {cols} elements; at most {} are possible",
            i32::MAX / 2
        );
        return Err(Error::argument(operation, message));
    }
    Ok((tensor.len() / cols, cols))
}

impl Ops {
    /// A grid with a block for each row. The software GPU gives a row to one warp.
    pub(crate) fn row_grid(&self, rows: usize, cols: usize) -> Grid {
        let threads = match (self.is_software, cols) {
            (true, _) => 32,
            (false, 0..=256) => 64,
            (false, 257..=2048) => 256,
            (false, _) => 512,
        };
        Grid::new(rows.clamp(1, MOST_ROWS) as u32, threads)
    }

    pub(crate) fn row_kernel(&self, dtype: DType, name: &str) -> Result<mica::Kernel> {
        self.kernels.get(&format!("rows.{dtype}"), name)
    }

    /// The kernel for rows, and its grid: that of `rows_wide.cu` where size and addresses suit it.
    fn row_launch(
        &self,
        name: &str,
        dtype: DType,
        (rows, cols): (usize, usize),
        addresses: &[u64],
    ) -> Result<(mica::Kernel, Grid)> {
        let bytes = cols * dtype.size_bytes();
        let is_card = !self.is_software && self.capability.0 >= 8;
        let is_aligned = addresses.iter().all(|address| address.is_multiple_of(16));
        if !is_card || !is_aligned || !bytes.is_multiple_of(16) || bytes / 16 > MOST_PIECES {
            let kernel = self.row_kernel(dtype, &format!("{name}_forward"))?;
            return Ok((kernel, self.row_grid(rows, cols)));
        }
        let per_thread = match bytes / 16 {
            0..=32 => 1,
            33..=64 => 2,
            _ => 4,
        };
        let threads = (bytes / 16).div_ceil(per_thread).next_multiple_of(32) as u32;
        // Short rows go to a warp each.
        let at_once = if threads == 32 { 4 } else { 1 };
        let blocks =
            (self.vgpu.info().multiprocessors * THREADS_AT_ONCE).div_ceil(threads * at_once);
        let needed = rows.div_ceil(at_once as usize).clamp(1, blocks as usize);
        let name = format!("{name}_wide_{per_thread}");
        let kernel = self.kernels.get(&format!("rows_wide.{dtype}"), &name)?;
        let grid = Grid::of([needed as u32, 1, 1], [threads, at_once, 1]);
        Ok((kernel, grid))
    }

    /// `softmax(scale · x)` over the last axis.
    ///
    /// # Errors
    /// If the elements are not floats.
    pub fn softmax(&self, x: &Tensor, scale: f32) -> Result<Tensor> {
        let timed = self.begin("softmax", &[x]);
        let y = self.masked_softmax(x, scale, Mask::default())?;
        timed.moves(&[&y]);
        Ok(y)
    }

    pub(crate) fn masked_softmax(&self, x: &Tensor, scale: f32, mask: Mask) -> Result<Tensor> {
        float("softmax", x)?;
        let (rows, cols) = rows_of("softmax", x)?;
        let (x, y) = (self.dense(x)?, self.unset(x.shape(), x.dtype())?);
        if !x.is_empty() {
            let addresses = [x.address(), y.address()];
            let (kernel, grid) = self.row_launch("softmax", x.dtype(), (rows, cols), &addresses)?;
            let params = (
                x.address(),
                y.address(),
                rows as i64,
                cols as i32,
                scale,
                ByValue(mask),
            );
            self.stream.launch(&kernel, grid, params)?;
        }
        Ok(y)
    }

    /// The gradient of `x` of `y = softmax(scale · x)`.
    ///
    /// # Errors
    /// If `y` and `dy` do not have the same shape and type.
    pub fn softmax_backward(&self, y: &Tensor, dy: &Tensor, scale: f32) -> Result<Tensor> {
        float("softmax_backward", y)?;
        same("softmax_backward", ["y", "dy"], y, dy)?;
        let (rows, cols) = rows_of("softmax_backward", y)?;
        let dx = self.unset(y.shape(), y.dtype())?;
        let timed = self.begin("softmax_backward", &[y, dy]);
        timed.moves(&[&dx]);
        if !y.is_empty() {
            let (y, dy) = (self.dense(y)?, self.dense(dy)?);
            let kernel = self.row_kernel(y.dtype(), "softmax_backward")?;
            let addresses = (y.address(), dy.address(), dx.address());
            let params = (
                addresses.0,
                addresses.1,
                addresses.2,
                rows as i64,
                cols as i32,
                scale,
            );
            self.stream
                .launch(&kernel, self.row_grid(rows, cols), params)?;
        }
        Ok(dx)
    }

    /// A norm over the last axis, times `weight` and plus `bias` where they are given.
    ///
    /// # Errors
    /// If `weight` or `bias` is not one value of the input's type for each column.
    pub fn norm(
        &self,
        x: &Tensor,
        kind: Norm,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        epsilon: f32,
    ) -> Result<(Tensor, NormStatistics)> {
        float("norm", x)?;
        let (rows, cols) = rows_of("norm", x)?;
        let timed = self.begin("norm", &[x]);
        for column in [weight, bias].into_iter().flatten() {
            timed.moves(&[column]);
        }
        let weight = self.per_column(x, "the weight", weight)?;
        let bias = self.per_column(x, "the bias", bias)?;
        let (x, y) = (self.dense(x)?, self.unset(x.shape(), x.dtype())?);
        let statistics = self.unset(&[rows, 2], DType::F32)?;
        timed.moves(&[&y, &statistics]);
        if !x.is_empty() {
            let address = |tensor: &Option<Tensor>| tensor.as_ref().map_or(0, Tensor::address);
            let addresses = [x.address(), y.address(), address(&weight), address(&bias)];
            let (kernel, grid) = self.row_launch("norm", x.dtype(), (rows, cols), &addresses)?;
            let params = (
                x.address(),
                address(&weight),
                address(&bias),
                y.address(),
                statistics.address(),
                rows as i64,
                cols as i32,
                epsilon,
                i32::from(kind == Norm::Rms),
            );
            self.stream.launch(&kernel, grid, params)?;
        }
        Ok((y, NormStatistics(statistics)))
    }

    /// Checks a tensor with one value for each column, and makes it dense.
    fn per_column(
        &self,
        x: &Tensor,
        name: &'static str,
        tensor: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        let Some(tensor) = tensor else {
            return Ok(None);
        };
        let cols = &x.shape()[x.rank() - 1..];
        if tensor.shape() != cols || tensor.dtype() != x.dtype() {
            let (left, right) = (tensor.shape().to_vec(), x.shape().to_vec());
            return Err(Error::Shape {
                operation: "norm",
                left_name: name,
                left,
                right_name: "the input",
                right,
                rule: "one value of the input's type for each column",
            });
        }
        Ok(Some(self.dense(tensor)?))
    }

    /// The gradients of a norm.
    ///
    /// # Errors
    /// If `x` and `dy` do not have the same shape and type, or the statistics are of another shape's norm.
    pub fn norm_backward(
        &self,
        x: &Tensor,
        kind: Norm,
        weight: Option<&Tensor>,
        dy: &Tensor,
        statistics: &NormStatistics,
    ) -> Result<NormGradients> {
        float("norm_backward", x)?;
        same("norm_backward", ["x", "dy"], x, dy)?;
        let (rows, cols) = rows_of("norm_backward", x)?;
        if statistics.0.shape() != [rows, 2] {
            return Err(Error::Shape {
                operation: "norm_backward",
                left_name: "the statistics",
                left: statistics.0.shape().to_vec(),
                right_name: "x",
                right: x.shape().to_vec(),
                rule: "they are those of the forward pass of x, two for each row",
            });
        }
        let timed = self.begin("norm_backward", &[x, dy, &statistics.0]);
        let weight = self.per_column(x, "the weight", weight)?;
        let gradients = NormGradients {
            dx: self.unset(x.shape(), x.dtype())?,
            dweight: self.zeros(&[cols], DType::F32)?,
            dbias: self.zeros(&[cols], DType::F32)?,
        };
        timed.moves(&[&gradients.dx, &gradients.dweight, &gradients.dbias]);
        if x.is_empty() {
            return Ok(gradients);
        }
        let (x, dy, stats) = (self.dense(x)?, self.dense(dy)?, statistics.0.address());
        let kernel = self.row_kernel(x.dtype(), "norm_backward")?;
        let params = (
            x.address(),
            weight.as_ref().map_or(0, Tensor::address),
            dy.address(),
            stats,
            gradients.dx.address(),
            rows as i64,
            cols as i32,
            i32::from(kind == Norm::Rms),
        );
        self.stream
            .launch(&kernel, self.row_grid(rows, cols), params)?;
        self.norm_backward_weights(&x, &dy, stats, &gradients)?;
        Ok(gradients)
    }

    /// Adds the gradients of weights and bias, each the sum of a column.
    fn norm_backward_weights(
        &self,
        x: &Tensor,
        dy: &Tensor,
        stats: u64,
        gradients: &NormGradients,
    ) -> Result<()> {
        let (rows, cols) = rows_of("norm_backward", x)?;
        let kernel = self.row_kernel(x.dtype(), "norm_backward_weights")?;
        let params = (
            x.address(),
            dy.address(),
            stats,
            gradients.dweight.address(),
            gradients.dbias.address(),
            rows as i64,
            cols as i32,
        );
        // Parts of the rows go to different blocks where the columns alone are too few.
        let parts = (rows / 32).clamp(1, if self.is_software { 4 } else { 64 }) as u32;
        let grid = Grid::of([cols.div_ceil(128) as u32, parts, 1], [128, 1, 1]);
        Ok(self.stream.launch(&kernel, grid, params)?)
    }

    /// The cross entropy of each row's softmax with a target column, in f32, and `scale` times the
    /// gradient of the logits. A target below 0 counts nothing; one that is no column gives NaN.
    ///
    /// # Errors
    /// If there is not one target of `i32` for each row.
    pub fn cross_entropy(
        &self,
        logits: &Tensor,
        targets: &Tensor,
        scale: f32,
    ) -> Result<(Tensor, Tensor)> {
        float("cross_entropy", logits)?;
        let (rows, cols) = rows_of("cross_entropy", logits)?;
        let ids = embedding::ids("cross_entropy", targets)?;
        if ids != rows {
            return Err(Error::Shape {
                operation: "cross_entropy",
                left_name: "the targets",
                left: targets.shape().to_vec(),
                right_name: "the logits",
                right: logits.shape().to_vec(),
                rule: "one target for each row",
            });
        }
        let gradient = self.unset(logits.shape(), logits.dtype())?;
        let loss = self.unset(targets.shape(), DType::F32)?;
        let timed = self.begin("cross_entropy", &[logits, targets]);
        timed.moves(&[&gradient, &loss]);
        if rows > 0 {
            let (x, targets) = (self.dense(logits)?, self.dense(targets)?);
            let kernel = self.row_kernel(x.dtype(), "cross_entropy")?;
            let (x, t, l, g) = (
                x.address(),
                targets.address(),
                loss.address(),
                gradient.address(),
            );
            let params = (x, t, l, g, rows as i64, cols as i32, scale);
            self.stream
                .launch(&kernel, self.row_grid(rows, cols), params)?;
        }
        Ok((loss, gradient))
    }
}
