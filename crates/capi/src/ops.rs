//! Operations of the compute library. They run in the default stream and return before they are done.

use std::sync::Arc;

use mica_ops::{Activation, Attention, DType, Gemm, Norm, Ops, Precision};

use crate::handles::{get, insert, mica_tensor, optional};
use crate::pointers::{self, Out};
use crate::status::{Failure, Result, call, mica_status};
use crate::tensor::Tensor;
use crate::vgpu::same;

/// A function of each element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum mica_activation {
    /// None.
    MICA_NONE = 0,
    /// `max(x, 0)`.
    MICA_RELU = 1,
    /// `x Φ(x)`, exact.
    MICA_GELU = 2,
    /// `x / (1 + exp(-x))`.
    MICA_SILU = 3,
}

/// A norm over the last axis.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum mica_norm_kind {
    /// Mean 0 and variance 1.
    MICA_LAYER_NORM = 0,
    /// Mean of squares 1.
    MICA_RMS_NORM = 1,
}

/// What is done with a product: `scale * activation(alpha * a * b + beta * c + bias) + residual`. Set all to zero, then
/// `struct_size`, then what is wanted. `bias` has one value for each column of the result; `c` and `residual` have its shape,
/// and all three have its type.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct mica_gemm_options {
    /// `sizeof(mica_gemm_options)`.
    pub struct_size: usize,
    /// What is added with the factor `beta`, or null.
    pub c: *mut mica_tensor,
    /// What is added to each row, or null.
    pub bias: *mut mica_tensor,
    /// What is added at the end, or null.
    pub residual: *mut mica_tensor,
    /// Factor of the product; 0 for 1.
    pub alpha: f32,
    /// Factor of `c`.
    pub beta: f32,
    /// Factor after the activation; 0 for 1.
    pub scale: f32,
    /// MICA_NONE or another.
    pub activation: i32,
    /// Not 0: the result is MICA_F32. Else it has the factors' type, and MICA_I32 for MICA_I8 and MICA_I4.
    pub f32_result: u32,
    /// Not 0: 32-bit factors may be rounded to TF32, which tensor cores multiply.
    pub tf32: u32,
}

fn activation_of(number: i32) -> Result<Activation> {
    match number {
        0 => Ok(Activation::None),
        1 => Ok(Activation::Relu),
        2 => Ok(Activation::Gelu),
        3 => Ok(Activation::Silu),
        _ => Err(Failure::Argument(format!(
            "activation is {number}: write MICA_RELU or another"
        ))),
    }
}

/// Runs an operation on tensors of one virtual GPU and gives its result a handle. Null stands for a tensor that is left out.
///
/// # Safety
/// `result` is null or leads to room for a handle.
unsafe fn compute<const N: usize>(
    first: (&str, *const mica_tensor),
    others: [(&str, *const mica_tensor); N],
    result: *mut *mut mica_tensor,
    operation: impl FnOnce(
        &Ops,
        &mica_ops::Tensor,
        [Option<&mica_ops::Tensor>; N],
    ) -> Result<mica_ops::Tensor>,
) -> Result<()> {
    let first = get(first.0, first.1)?;
    // SAFETY: the caller's promise.
    let out = unsafe { Out::new("result", result) }?;
    let mut held = [const { None::<Arc<Tensor>> }; N];
    for (place, (name, handle)) in held.iter_mut().zip(others) {
        *place = optional(name, handle)?;
        if let Some(tensor) = place {
            same(name, &first.vgpu, &tensor.vgpu)?;
        }
    }
    let others = held
        .each_ref()
        .map(|tensor| tensor.as_ref().map(|t| &t.tensor));
    let tensor = operation(first.vgpu.ops()?, &first.tensor, others)?;
    let vgpu = Arc::clone(&first.vgpu);
    out.set(insert(Tensor { vgpu, tensor }));
    Ok(())
}

fn wanted<'a>(name: &str, tensor: Option<&'a mica_ops::Tensor>) -> Result<&'a mica_ops::Tensor> {
    tensor.ok_or_else(|| Failure::Argument(format!("{name} is null")))
}

/// The product of two matrices, or of two stacks of matrices: `activation(alpha * a * b + bias)`. `bias` is null or has
/// one value for each column. A transposed factor is a view (`mica_tensor_transpose`).
///
/// # Safety
/// `result` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_gemm(
    a: *mut mica_tensor,
    b: *mut mica_tensor,
    alpha: f32,
    bias: *mut mica_tensor,
    activation: i32,
    result: *mut *mut mica_tensor,
) -> mica_status {
    call(|| {
        let activation = activation_of(activation)?;
        let others: [(&str, *const mica_tensor); 2] = [("b", b), ("bias", bias)];
        // SAFETY: the caller's promise.
        unsafe {
            compute(("a", a), others, result, |ops, a, [b, bias]| {
                let spec = Gemm {
                    alpha,
                    bias,
                    activation,
                    ..Gemm::default()
                };
                Ok(ops.gemm(a, wanted("b", b)?, &spec)?)
            })
        }
    })
}

/// The product of two matrices, or of two stacks of matrices, with all that can follow it. Null for `options` stands for the
/// product alone.
///
/// # Safety
/// `options` is null or leads to the size of a struct and to as much memory, `result` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_gemm_with(
    a: *mut mica_tensor,
    b: *mut mica_tensor,
    options: *const mica_gemm_options,
    result: *mut *mut mica_tensor,
) -> mica_status {
    call(|| {
        let none = mica_gemm_options {
            struct_size: size_of::<mica_gemm_options>(),
            c: std::ptr::null_mut(),
            bias: std::ptr::null_mut(),
            residual: std::ptr::null_mut(),
            alpha: 0.0,
            beta: 0.0,
            scale: 0.0,
            activation: 0,
            f32_result: 0,
            tf32: 0,
        };
        // SAFETY: the caller's promise.
        let wanted_options = unsafe { pointers::options("options", options, none) }?;
        let activation = activation_of(wanted_options.activation)?;
        let factor = |number: f32| if number == 0.0 { 1.0 } else { number };
        let mica_gemm_options {
            c, bias, residual, ..
        } = wanted_options;
        let others: [(&str, *const mica_tensor); 4] =
            [("b", b), ("c", c), ("bias", bias), ("residual", residual)];
        // SAFETY: the caller's promise.
        unsafe {
            compute(
                ("a", a),
                others,
                result,
                |ops, a, [b, c, bias, residual]| {
                    let spec = Gemm {
                        alpha: factor(wanted_options.alpha),
                        beta: wanted_options.beta,
                        c,
                        bias,
                        activation,
                        scale: factor(wanted_options.scale),
                        residual,
                        out: (wanted_options.f32_result != 0).then_some(DType::F32),
                        precision: match wanted_options.tf32 {
                            0 => Precision::Full,
                            _ => Precision::Tf32,
                        },
                    };
                    Ok(ops.gemm(a, wanted("b", b)?, &spec)?)
                },
            )
        }
    })
}

/// `softmax(scale * x)` over the last axis.
///
/// # Safety
/// `result` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_softmax(
    x: *mut mica_tensor,
    scale: f32,
    result: *mut *mut mica_tensor,
) -> mica_status {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe {
            compute(
                ("x", x),
                [],
                result,
                |ops, x, []| Ok(ops.softmax(x, scale)?),
            )
        }
    })
}

/// A norm over the last axis, times `weight` and plus `bias` where they are not null. `kind` is MICA_LAYER_NORM or
/// MICA_RMS_NORM.
///
/// # Safety
/// `result` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_norm(
    x: *mut mica_tensor,
    kind: i32,
    weight: *mut mica_tensor,
    bias: *mut mica_tensor,
    epsilon: f32,
    result: *mut *mut mica_tensor,
) -> mica_status {
    call(|| {
        let kind = match kind {
            0 => Norm::Layer,
            1 => Norm::Rms,
            _ => return Err(Failure::Argument(format!("kind is {kind}, not 0 or 1"))),
        };
        let others: [(&str, *const mica_tensor); 2] = [("weight", weight), ("bias", bias)];
        // SAFETY: the caller's promise.
        unsafe {
            compute(("x", x), others, result, |ops, x, [weight, bias]| {
                Ok(ops.norm(x, kind, weight, bias, epsilon)?.0)
            })
        }
    })
}

/// An activation of each element: MICA_RELU, MICA_GELU or MICA_SILU.
///
/// # Safety
/// `result` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_activate(
    x: *mut mica_tensor,
    activation: i32,
    result: *mut *mut mica_tensor,
) -> mica_status {
    call(|| {
        let activation = activation_of(activation)?;
        // SAFETY: the caller's promise.
        unsafe {
            compute(("x", x), [], result, |ops, x, []| {
                Ok(ops.activate(x, activation)?)
            })
        }
    })
}

/// Attention of queries `[batch, heads, queries, size]` to keys and values `[batch, kv heads, keys, size]`. If `causal` is
/// not 0, a query sees keys up to its own place only.
///
/// # Safety
/// `result` is null or leads to room for a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mica_attention(
    q: *mut mica_tensor,
    k: *mut mica_tensor,
    v: *mut mica_tensor,
    causal: i32,
    result: *mut *mut mica_tensor,
) -> mica_status {
    call(|| {
        let others: [(&str, *const mica_tensor); 2] = [("k", k), ("v", v)];
        // SAFETY: the caller's promise.
        unsafe {
            compute(("q", q), others, result, |ops, q, [k, v]| {
                let spec = Attention {
                    causal: causal != 0,
                    ..Attention::default()
                };
                let (k, v) = (wanted("k", k)?, wanted("v", v)?);
                Ok(ops.attention(q, k, v, &spec)?.output)
            })
        }
    })
}
