//! Random numbers: Philox 4x32 with ten rounds, the same on every device for the same seed.

use mica::Grid;

use super::float;
use crate::{DType, Ops, Result, Tensor};

impl Ops {
    /// Numbers that are uniform in `[low, high)`, then rounded to the type, which may give `high`. Equal seeds and streams give equal numbers; different
    /// streams of one seed are independent of each other.
    ///
    /// # Errors
    /// If the type is not a float.
    pub fn uniform(
        &self,
        shape: &[usize],
        dtype: DType,
        (seed, stream): (u64, u64),
        (low, high): (f32, f32),
    ) -> Result<Tensor> {
        self.random(shape, dtype, (seed, stream), (low, high - low), 0)
    }

    /// Normally distributed numbers; as [`Ops::uniform`].
    ///
    /// # Errors
    /// If the type is not a float.
    pub fn normal(
        &self,
        shape: &[usize],
        dtype: DType,
        (seed, stream): (u64, u64),
        (mean, deviation): (f32, f32),
    ) -> Result<Tensor> {
        self.random(shape, dtype, (seed, stream), (mean, deviation), 1)
    }

    fn random(
        &self,
        shape: &[usize],
        dtype: DType,
        (seed, stream): (u64, u64),
        (low, width): (f32, f32),
        is_normal: i32,
    ) -> Result<Tensor> {
        let y = self.unset(shape, dtype)?;
        float("random numbers", &y)?;
        let timed = self.begin("random", &[]);
        timed.moves(&[&y]);
        if !y.is_empty() {
            let kernel = self.row_kernel(dtype, "random_fill")?;
            let count = y.len();
            let params = (
                y.address(),
                count as i64,
                seed,
                stream,
                low,
                width,
                is_normal,
            );
            let grid = Grid::covering(count.div_ceil(4), 128);
            self.stream.launch(&kernel, grid, params)?;
        }
        Ok(y)
    }
}
