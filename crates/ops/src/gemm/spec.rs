//! What a product is to compute beside the product itself.

use crate::{DType, Tensor};

/// A function applied to each element of a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Activation {
    /// None.
    #[default]
    None = 0,
    /// `max(x, 0)`.
    Relu = 1,
    /// `x Φ(x)`, exact.
    Gelu = 2,
    /// `x / (1 + exp(-x))`.
    Silu = 3,
}

/// How exactly 32-bit factors are multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// In 32-bit floats.
    #[default]
    Full,
    /// In TF32 (ten bits of fraction) by tensor cores, where the virtual GPU has and allows them.
    Tf32,
}

/// A product and its epilogue: `scale · act(alpha · a b + beta · c + bias) + residual`.
#[derive(Clone, Debug)]
pub struct Gemm<'a> {
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of `c`.
    pub beta: f32,
    /// What is added before the activation; the shape and type of the result.
    pub c: Option<&'a Tensor>,
    /// One value for each column, of the result's type.
    pub bias: Option<&'a Tensor>,
    /// The activation.
    pub activation: Activation,
    /// Factor after the activation.
    pub scale: f32,
    /// What is added at the end; the shape and type of the result.
    pub residual: Option<&'a Tensor>,
    /// Type of the result: `f32` or the factors' type; `i32` or `f32` for `i8` and `i4`. By default the factors'
    /// type, `i32` for `i8` and `i4`.
    pub out: Option<DType>,
    /// How exactly 32-bit factors are multiplied.
    pub precision: Precision,
}

impl<'a> Gemm<'a> {
    /// The tensors that the epilogue reads.
    pub(crate) fn added(&self) -> Vec<&'a Tensor> {
        let c = self.c.filter(|_| self.beta != 0.0);
        [c, self.bias, self.residual]
            .into_iter()
            .flatten()
            .collect()
    }
}

impl Default for Gemm<'_> {
    fn default() -> Self {
        Self {
            alpha: 1.0,
            beta: 0.0,
            c: None,
            bias: None,
            activation: Activation::None,
            scale: 1.0,
            residual: None,
            out: None,
            precision: Precision::Full,
        }
    }
}
