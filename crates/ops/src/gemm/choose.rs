//! Which kernels can compute a product, the likely best first.

use super::check::Product;
use super::launch::Variant;
use super::spec::{Gemm, Precision};
use crate::tune::{Key, bucket};
use crate::{DType, Ops};

impl Ops {
    /// Whether tensor cores may compute a product: the card has them, the virtual GPU allows them, and
    /// 32-bit factors may be rounded.
    fn may_use_tensor_cores(&self, product: &Product, spec: &Gemm) -> bool {
        let dtype = product.a.dtype;
        (dtype != DType::F32 || spec.precision == Precision::Tf32)
            && !self.is_software
            && self.vgpu.info().compute_capability >= (8, 0)
            && self.kernels.allows(&Variant::Mma(64, 64).file(dtype))
    }

    /// What the choice of a kernel for a product depends on.
    pub(super) fn key(&self, product: &Product, spec: &Gemm) -> Key {
        let (a, b) = (&product.a, &product.b);
        let aligned = [a, b].iter().all(|factor| {
            let stride = if factor.col == 1 {
                factor.row
            } else {
                factor.col
            };
            (stride * factor.dtype.size_bytes()).is_multiple_of(16)
        });
        Key {
            sizes: [a.rows, b.cols, a.cols, product.batches].map(bucket),
            dtype: a.dtype,
            is_tf32: spec.precision == Precision::Tf32,
            layout: [a.col == 1, b.col == 1, aligned],
        }
    }

    /// Kernels that can compute a product, the likely best first; never none.
    pub(crate) fn candidates(&self, product: &Product, spec: &Gemm) -> Vec<Variant> {
        if self.is_software {
            return vec![Variant::Rows(8)];
        }
        if !self.may_use_tensor_cores(product, spec) {
            return vec![Variant::Tile];
        }
        let (m, n) = (product.a.rows, product.b.cols);
        let tiles = |variant: &Variant| {
            let (rows, cols) = variant.block();
            m.div_ceil(rows) * n.div_ceil(cols) * product.batches
        };
        let mut found: Vec<Variant> = (Variant::ALL.into_iter())
            .filter(|variant| matches!(variant, Variant::Mma(..)))
            .filter(|variant| m <= 64 || variant.block().0 > 16)
            .filter(|variant| m > 32 || variant.block().0 < 128)
            .collect();
        // The largest blocks that still give every multiprocessor one.
        let multiprocessors = self.vgpu.info().multiprocessors as usize;
        if let Some(best) = found.iter().position(|v| tiles(v) >= multiprocessors) {
            found[..=best].rotate_right(1);
        } else {
            found.reverse();
        }
        found
    }
}
