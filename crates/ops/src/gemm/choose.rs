//! Which kernels can compute a product, the likely best first.

use super::check::Product;
use super::launch::Variant;
use super::library::does_epilogue;
use super::panels;
use super::spec::{Gemm, Precision};
use crate::pack::{Matrix, wide};
use crate::tune::Key;
use crate::{DType, Ops, Result};

impl Ops {
    /// Whether tensor cores may compute a product: the card has them, the virtual GPU allows them, and
    /// 32-bit factors may be rounded.
    fn may_use_tensor_cores(&self, product: &Product, spec: &Gemm) -> Result<bool> {
        Ok(self.tensor_cores && self.allows_tensor_cores_for(product, spec)?)
    }

    /// Whether the virtual GPU's policy lets tensor cores compute a product.
    pub(super) fn allows_tensor_cores_for(&self, product: &Product, spec: &Gemm) -> Result<bool> {
        let dtype = product.a.dtype;
        let rounds = dtype != DType::F32 || spec.precision == Precision::Tf32;
        // A number format may be forbidden where tensor cores are not.
        let file = Variant::Mma(64, 64).file(dtype);
        Ok(self.allows_tensor_cores && rounds && self.kernels.allows(&file)?)
    }

    /// Whether a kernel for Hopper can compute a product. Its instructions exist on compute capability 9.0 alone, and the
    /// copy unit counts rows and bytes between matrices in fewer bits than a tensor may have.
    fn may_use_wgmma(&self, product: &Product) -> Result<bool> {
        let (a, b) = (&product.a, &product.b);
        let fits = |factor: &Matrix| {
            let far = factor.batch.max(factor.row).max(factor.col) >= 1 << 38;
            // Rows that repeat have no distance; a sum of nothing is no work for a tensor core.
            !far && factor.row > 0 && factor.col > 0 && factor.rows > 0 && factor.cols > 0
        };
        if self.capability != (9, 0) || a.dtype == DType::F32 || !fits(a) || !fits(b) {
            return Ok(false);
        }
        self.kernels.allows(&Variant::Wgmma(256).file(a.dtype))
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
            factor.dtype.bytes_of(stride).is_multiple_of(16)
        });
        Key {
            sizes: [a.rows, b.cols, a.cols, product.batches],
            dtype: a.dtype,
            out: product.out,
            has_epilogue: !does_epilogue(product, spec),
            is_tf32: spec.precision == Precision::Tf32,
            layout: [a.col == 1, b.col == 1, aligned],
        }
    }

    /// What can compute a product: kernels of this crate, the likely best first, then the user's library; never none.
    pub(crate) fn candidates(&self, product: &Product, spec: &Gemm) -> Result<Vec<Variant>> {
        let mut found = self.own_candidates(product, spec)?;
        found.extend(match product.a.dtype {
            DType::I4 => self.library_candidates(&product.as_bytes(), spec)?,
            _ => self.library_candidates(product, spec)?,
        });
        Ok(found)
    }

    /// Kernels for 8-bit integers, and those with instructions for 4-bit ones. From Hopper on tensor cores have no such
    /// instructions: the driver makes them of others, and 8-bit integers are likely to be faster.
    fn candidates_for_int4(&self, product: &Product, spec: &Gemm) -> Result<Vec<Variant>> {
        let mut found = self.own_candidates(&product.as_bytes(), spec)?;
        let own = Variant::INT4.into_iter();
        let own = own.filter(|variant| product.a.rows <= 64 || variant.block().0 > 16);
        let allowed =
            self.tensor_cores && self.kernels.allows(&Variant::INT4[0].file(DType::I4))?;
        let at = if self.capability.0 >= 9 {
            found.len()
        } else {
            0
        };
        if allowed {
            found.splice(at..at, own);
        }
        Ok(found)
    }

    /// Kernels of this crate that can compute a product, the likely best first; never none.
    pub(super) fn own_candidates(&self, product: &Product, spec: &Gemm) -> Result<Vec<Variant>> {
        if product.a.dtype == DType::I4 {
            return self.candidates_for_int4(product, spec);
        }
        if self.is_software {
            let rows = if product.a.rows <= 8 {
                [8, 12]
            } else {
                [12, 8]
            };
            let panels = (wide(product.a.dtype) == DType::F32
                && self.kernels.is_loadable(panels::FILE))
            .then_some(Variant::Panels);
            let rows = rows.map(Variant::Rows);
            return Ok(panels.into_iter().chain(rows).collect());
        }
        if !self.may_use_tensor_cores(product, spec)? {
            return Ok(vec![Variant::Tile]);
        }
        let (m, n) = (product.a.rows, product.b.cols);
        let tiles = |variant: &Variant| {
            let (rows, cols) = variant.block();
            m.div_ceil(rows) * n.div_ceil(cols) * product.batches * variant.parts()
        };
        let has_wgmma = self.may_use_wgmma(product)?;
        let mut found: Vec<Variant> = (Variant::ALL.into_iter())
            .filter(|variant| match variant {
                Variant::Mma(..) => true,
                Variant::Wgmma(_) => has_wgmma,
                Variant::Thin(rows, parts) => {
                    let whole = 128 / product.a.dtype.size_bytes() * *parts as usize;
                    let divides = *parts == 1
                        || (product.batches == 1 && product.a.cols.is_multiple_of(whole));
                    has_wgmma && divides && m <= *rows as usize && (*rows == 64 || m > 64)
                }
                Variant::Panels
                | Variant::Rows(_)
                | Variant::Tile
                | Variant::Mma4(..)
                | Variant::Library(_) => false,
            })
            .filter(|variant| m <= 64 || variant.block().0 > 16)
            .filter(|variant| m > 32 || variant.block().0 < 128)
            .filter(|variant| m > 128 || !matches!(variant, Variant::Wgmma(_)))
            .collect();
        // The largest blocks that still give every multiprocessor one.
        let multiprocessors = self.vgpu.info().multiprocessors as usize;
        if let Some(best) = found.iter().position(|v| tiles(v) >= multiprocessors) {
            found[..=best].rotate_right(1);
        } else {
            found.reverse();
        }
        Ok(found)
    }
}
