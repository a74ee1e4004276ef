//! Products of matrices and of stacks of matrices.
//!
//! Owns the checks, the choice of a kernel, and what the kernel needs around it: factors are packed
//! where their layout, alignment or type does not suit it.

mod check;
mod choose;
mod hopper;
mod launch;
mod library;
mod panels;
mod spec;
#[cfg(test)]
mod tests;

pub(crate) use launch::{Epilogue, Factors, Variant};
pub(crate) use library::Library;
pub use library::Provider;
pub use spec::{Activation, Gemm, Precision};

pub(crate) use check::check;
use check::{Product, mismatch};

use crate::{Ops, Result, Tensor};

impl Ops {
    /// The product of two matrices, or of two stacks of matrices, with an epilogue.
    ///
    /// Factors may be views with any strides: `a.t()?` is a transposed factor, and a factor in column
    /// order is the transposed view of one in row order. Products of `i8` and of `i4` are exact.
    ///
    /// # Errors
    /// If shapes or types do not fit; both are in the message.
    pub fn gemm(&self, a: &Tensor, b: &Tensor, spec: &Gemm) -> Result<Tensor> {
        let product = check(a, b, spec)?;
        let d = self.unset(&product.shape, product.out)?;
        self.compute([a, b, &d], &product, spec)?;
        Ok(d)
    }

    /// The same, into a tensor that is there already; `c` or the residual may be that tensor.
    ///
    /// # Errors
    /// If shapes or types do not fit; both are in the message.
    pub fn gemm_into(&self, a: &Tensor, b: &Tensor, spec: &Gemm, d: &Tensor) -> Result<()> {
        let out = spec.out.or(Some(d.dtype()));
        let product = check(
            a,
            b,
            &Gemm {
                out,
                ..spec.clone()
            },
        )?;
        if d.shape() != product.shape {
            let names = ["the destination", "the result"];
            return Err(mismatch(names, d.shape(), &product.shape, "both are equal"));
        }
        if d.dtype() != product.out {
            return Err(crate::Error::Types {
                operation: "gemm",
                left: d.dtype(),
                right: product.out,
                rule: "the destination has the result's type",
            });
        }
        if d.strides()
            .iter()
            .zip(d.shape())
            .any(|(s, n)| *s == 0 && *n > 1)
        {
            let message = "the destination repeats elements along an axis";
            return Err(crate::Error::argument("gemm", message));
        }
        self.compute([a, b, d], &product, spec)
    }

    /// Queues a product that was checked.
    fn compute(&self, [a, b, d]: [&Tensor; 3], product: &Product, spec: &Gemm) -> Result<()> {
        let timed = self.begin("gemm", &[a, b, d]);
        timed.moves(&spec.added());
        timed.computes(|| product.flops());
        self.run_product(product, spec, d)
    }

    /// Names of the kernels that could compute a product, the one that is used by default first. For
    /// measurements and tests of the kernels.
    ///
    /// # Errors
    /// If shapes or types do not fit.
    pub fn gemm_kernels(&self, a: &Tensor, b: &Tensor, spec: &Gemm) -> Result<Vec<String>> {
        let product = check(a, b, spec)?;
        let candidates = self.candidates(&product, spec)?;
        Ok(candidates.iter().map(|variant| variant.label()).collect())
    }

    /// A product by the kernel of this name.
    ///
    /// # Errors
    /// If shapes or types do not fit, or the kernel cannot compute this product.
    pub fn gemm_by(&self, kernel: &str, a: &Tensor, b: &Tensor, spec: &Gemm) -> Result<Tensor> {
        let product = check(a, b, spec)?;
        let candidates = self.candidates(&product, spec)?;
        let Some(variant) = candidates.iter().find(|variant| variant.label() == kernel) else {
            let message = format!("no kernel {kernel:?} for this product");
            return Err(crate::Error::argument("gemm", message));
        };
        let d = self.unset(&product.shape, product.out)?;
        let timed = self.begin("gemm", &[a, b, &d]);
        timed.moves(&spec.added());
        timed.computes(|| product.flops());
        if !d.is_empty() {
            self.launch_product(&product, spec, &d, *variant)?;
        }
        Ok(d)
    }

    fn run_product(&self, product: &Product, spec: &Gemm, d: &Tensor) -> Result<()> {
        if d.is_empty() {
            return Ok(());
        }
        if self.is_software {
            // The first is the best for nearly all sizes: a question would cost more than it could gain.
            let first = self.own_candidates(product, spec)?[0];
            return self.launch_product(product, spec, d, first);
        }
        let variant = self.choose(product, spec)?;
        match self.launch_product(product, spec, d, variant) {
            // The library refuses before it queues anything.
            Err(crate::Error::Library { .. }) => {
                let own = self.own_candidates(product, spec)?[0];
                self.launch_product(product, spec, d, own)
            }
            other => other,
        }
    }

    fn choose(&self, product: &Product, spec: &Gemm) -> Result<Variant> {
        if self.stream.is_counting() {
            let candidates = self.candidates(product, spec)?;
            let likely = self.tuner.likely(self.key(product, spec), &candidates);
            return Ok(likely.unwrap_or(Variant::Tile));
        }
        self.tuner.choose(
            self.key(product, spec),
            || self.candidates(product, spec),
            |variant| self.seconds_of_product(product, spec, variant),
        )
    }

    fn seconds_of_product(&self, product: &Product, spec: &Gemm, variant: Variant) -> Result<f64> {
        // Into memory of its own: the destination may be c, which must be added once only.
        let scratch = self.unset(&product.shape, product.out)?;
        self.seconds_of(|| self.launch_product(product, spec, &scratch, variant))
    }

    /// The kernel that is chosen for a product, by measurement if none is yet.
    ///
    /// # Errors
    /// If shapes or types do not fit, or no kernel can run.
    pub fn gemm_choice(&self, a: &Tensor, b: &Tensor, spec: &Gemm) -> Result<String> {
        let product = check(a, b, spec)?;
        Ok(self.choose(&product, spec)?.label())
    }

    /// Seconds that each kernel takes for a product, measured now; one that cannot run is left out.
    ///
    /// # Errors
    /// If shapes or types do not fit.
    pub fn gemm_seconds(&self, a: &Tensor, b: &Tensor, spec: &Gemm) -> Result<Vec<(String, f64)>> {
        let product = check(a, b, spec)?;
        let candidates = self.candidates(&product, spec)?.into_iter();
        let timed = candidates.filter_map(|variant| {
            let seconds = self.seconds_of_product(&product, spec, variant).ok()?;
            Some((variant.label(), seconds))
        });
        Ok(timed.collect())
    }
}
