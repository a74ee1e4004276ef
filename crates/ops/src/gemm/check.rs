//! Whether the tensors of a product fit each other.

use super::spec::{Activation, Gemm};
use crate::int4::in_rows;
use crate::pack::Matrix;
use crate::{DType, Error, Result, Tensor};

/// A product whose tensors fit.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) batches: usize,
    /// Shape of the result.
    pub(crate) shape: Vec<usize>,
    pub(crate) out: DType,
}

pub(crate) fn mismatch(
    names: [&'static str; 2],
    left: &[usize],
    right: &[usize],
    rule: &'static str,
) -> Error {
    Error::Shape {
        operation: "gemm",
        left_name: names[0],
        left: left.to_vec(),
        right_name: names[1],
        right: right.to_vec(),
        rule,
    }
}

/// The last two axes of a tensor of two or three; `batch` is 0 where there is no third.
pub(crate) fn matrix(tensor: &Tensor) -> Matrix {
    let (shape, strides) = (tensor.shape(), tensor.strides());
    let rank = tensor.rank();
    Matrix {
        address: tensor.address(),
        first: tensor.first(),
        dtype: tensor.dtype(),
        rows: shape[rank - 2],
        cols: shape[rank - 1],
        row: strides[rank - 2],
        col: strides[rank - 1],
        batch: if rank == 3 && shape[0] > 1 {
            strides[0]
        } else {
            0
        },
    }
}

pub(crate) fn check(a: &Tensor, b: &Tensor, spec: &Gemm) -> Result<Product> {
    let wrong = |rule| mismatch(["a", "b"], a.shape(), b.shape(), rule);
    let ranks = 2..=3;
    if !ranks.contains(&a.rank()) || !ranks.contains(&b.rank()) {
        return Err(wrong(
            "each is a matrix, or a stack of them with a third axis in front",
        ));
    }
    let (left, right) = (matrix(a), matrix(b));
    if left.cols != right.rows {
        return Err(wrong("the columns of a are the rows of b"));
    }
    let stack = |tensor: &Tensor| {
        if tensor.rank() == 3 {
            tensor.shape()[0]
        } else {
            1
        }
    };
    let (of_a, of_b) = (stack(a), stack(b));
    if of_a != of_b && of_a != 1 && of_b != 1 {
        return Err(wrong(
            "stacks have as many matrices, or one of them has one",
        ));
    }
    // One of none, or of a single matrix, is repeated.
    let batches = if of_a == 1 { of_b } else { of_a };
    // Kernels count rows and columns in 32 bits, also beyond the end of the last block.
    let most = 1 << 30;
    if [left.rows, left.cols, right.cols].iter().any(|n| *n > most) {
        return Err(wrong("no axis is longer than 2^30"));
    }
    let out = types(a.dtype(), b.dtype(), spec)?;
    let shape = match a.rank().max(b.rank()) {
        2 => vec![left.rows, right.cols],
        _ => vec![batches, left.rows, right.cols],
    };
    let product = Product {
        a: left,
        b: right,
        batches,
        shape,
        out,
    };
    product.check_extras(spec)?;
    Ok(product)
}

fn types(a: DType, b: DType, spec: &Gemm) -> Result<DType> {
    let wrong = |left, right, rule| Error::Types {
        operation: "gemm",
        left,
        right,
        rule,
    };
    if a != b {
        return Err(wrong(a, b, "both factors have the same type"));
    }
    if a == DType::I32 {
        return Err(wrong(a, b, "factors are f32, f16, bf16, i8 or i4"));
    }
    let natural = match a {
        DType::I8 | DType::I4 => DType::I32,
        _ => a,
    };
    let out = spec.out.unwrap_or(natural);
    if out != natural && out != DType::F32 {
        return Err(wrong(
            a,
            out,
            "the result is f32 or the factors' type; i32 or f32 for i8 and i4",
        ));
    }
    let exact = spec.alpha == 1.0
        && spec.scale == 1.0
        && (spec.beta == 0.0 || spec.beta == 1.0)
        && matches!(spec.activation, Activation::None | Activation::Relu);
    if out == DType::I32 && !exact {
        return Err(Error::argument(
            "gemm",
            "a result of i32 takes alpha 1, scale 1, beta 0 or 1, and no activation but ReLU: ask for f32",
        ));
    }
    Ok(out)
}

impl Product {
    /// The product of the same numbers as 8-bit integers, as they will be unpacked.
    pub(super) fn as_bytes(&self) -> Self {
        Self {
            a: in_rows(&self.a, DType::I8),
            b: in_rows(&self.b, DType::I8),
            ..self.clone()
        }
    }

    /// Multiplications and additions.
    pub(crate) fn flops(&self) -> u64 {
        let sizes = [self.a.rows, self.b.cols, self.a.cols, self.batches];
        sizes
            .iter()
            .fold(2, |product: u64, size| product.saturating_mul(*size as u64))
    }

    /// Checks the tensors of the epilogue against the result.
    fn check_extras(&self, spec: &Gemm) -> Result<()> {
        for (name, tensor) in [("c", spec.c), ("the residual", spec.residual)] {
            let Some(tensor) = tensor else { continue };
            if tensor.shape() != self.shape {
                let names = [name, "the result"];
                return Err(mismatch(
                    names,
                    tensor.shape(),
                    &self.shape,
                    "both are equal",
                ));
            }
            self.check_type(tensor)?;
        }
        if spec.c.is_none() && spec.beta != 0.0 {
            let message = format!("beta is {} and there is no c", spec.beta);
            return Err(Error::argument("gemm", message));
        }
        let Some(bias) = spec.bias else { return Ok(()) };
        if bias.shape() != [self.b.cols] {
            let rule = "the bias has one value for each column";
            let names = ["the bias", "the result"];
            return Err(mismatch(names, bias.shape(), &self.shape, rule));
        }
        if bias.strides() != [1] && bias.len() > 1 {
            let message = format!("a bias with stride {:?} is not dense", bias.strides());
            return Err(Error::argument("gemm", message));
        }
        self.check_type(bias)
    }

    fn check_type(&self, tensor: &Tensor) -> Result<()> {
        if tensor.dtype() == self.out {
            return Ok(());
        }
        Err(Error::Types {
            operation: "gemm",
            left: tensor.dtype(),
            right: self.out,
            rule: "c, bias and residual have the result's type",
        })
    }
}
