//! Weights of 4 bits with scales, for products with floats: a model's weights take a quarter of the memory of f16.
//!
//! For few rows a kernel for cards reads the weights as they are, so that they are read once and nothing is made. For more
//! rows, and on the software GPU, the weights are made floats, and the product is one like any other.

use std::sync::Arc;

use mica::{ByValue, Grid};

use super::FILE_OF_WEIGHTS;
use crate::gemm::{Epilogue, check};
use crate::rows::float;
use crate::{DType, Error, Gemm, Ops, Result, Tensor};

/// A matrix `[outputs, inputs]` of 4-bit integers. Each group of neighbouring inputs of an output has a scale: a weight is its
/// integer times the scale of its group.
#[derive(Clone, Debug)]
pub struct Int4Weights {
    values: Tensor,
    scales: Tensor,
    group: usize,
}

/// Weights that a thread reads at once: groups are multiples of it.
const WORD: usize = 8;
/// Rows up to which the weights are read as they are.
const FEW_ROWS: usize = 16;
/// Outputs of a warp, and warps of a block. As in `kernels/int4_weights.cu`.
const OUTPUTS: usize = 4;
const WARPS: u32 = 4;

impl Int4Weights {
    /// The integers, `i4` `[outputs, inputs]`.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// The scales, `f32` `[outputs, groups]`.
    pub fn scales(&self) -> &Tensor {
        &self.scales
    }

    /// Inputs of a group.
    pub fn group(&self) -> usize {
        self.group
    }

    fn outputs(&self) -> usize {
        self.values.shape()[0]
    }

    fn inputs(&self) -> usize {
        self.values.shape()[1]
    }
}

fn most(operation: &'static str, shape: &[usize]) -> Result<()> {
    if shape.iter().all(|axis| *axis <= 1 << 30) {
        return Ok(());
    }
    let message = format!("weights of shape {shape:?}; no axis is longer than 2^30");
    Err(Error::argument(operation, message))
}

impl Ops {
    /// Weights whose integers and scales were computed elsewhere: `values` are `i4` `[outputs, inputs]`, `scales` floats
    /// `[outputs, groups]`, and a group has a multiple of 8 inputs.
    ///
    /// # Errors
    /// If shapes or types do not fit; both are in the message.
    pub fn int4_weights(&self, values: &Tensor, scales: &Tensor) -> Result<Int4Weights> {
        let name = "int4_weights";
        if values.dtype() != DType::I4 || !scales.dtype().is_float() {
            return Err(Error::Types {
                operation: name,
                left: values.dtype(),
                right: scales.dtype(),
                rule: "values are i4, scales f32, f16 or bf16",
            });
        }
        let group = match (values.shape(), scales.shape()) {
            (&[outputs, inputs], &[rows, groups]) if rows == outputs && groups > 0 => {
                let group = inputs / groups;
                (inputs == group * groups && group % WORD == 0 && group > 0).then_some(group)
            }
            _ => None,
        };
        let Some(group) = group else {
            return Err(Error::Shape {
                operation: name,
                left_name: "the values",
                left: values.shape().to_vec(),
                right_name: "the scales",
                right: scales.shape().to_vec(),
                rule: "[outputs, inputs] and [outputs, groups], with a multiple of 8 inputs in each group",
            });
        };
        most(name, values.shape())?;
        Ok(Int4Weights {
            values: self.dense_aligned(values)?,
            scales: match scales.dtype() {
                DType::F32 => self.dense(scales)?,
                _ => self.cast(scales, DType::F32)?,
            },
            group,
        })
    }

    /// Rounds a matrix of floats `[outputs, inputs]` to 4 bits: the largest magnitude of a group of `group` inputs becomes 7.
    ///
    /// # Errors
    /// If the weights are no matrix, or not of whole groups of a multiple of 8.
    pub fn quantize_int4(&self, weights: &Tensor, group: usize) -> Result<Int4Weights> {
        let name = "quantize_int4";
        float(name, weights)?;
        let fits = group > 0 && group.is_multiple_of(WORD) && group <= 1 << 20;
        let shape = weights.shape();
        let (outputs, inputs) = match *shape {
            [outputs, inputs] if fits && inputs > 0 && inputs % group == 0 => (outputs, inputs),
            _ => {
                let message = format!(
                    "weights of shape {shape:?} in groups of {group}: they are [outputs, inputs] with whole groups of a multiple of 8"
                );
                return Err(Error::argument(name, message));
            }
        };
        most(name, shape)?;
        let timed = self.begin(name, &[weights]);
        let from = self.dense(weights)?;
        let made = Int4Weights {
            values: self.unset(shape, DType::I4)?,
            scales: self.unset(&[outputs, inputs / group], DType::F32)?,
            group,
        };
        timed.moves(&[&made.values, &made.scales]);
        let groups = made.scales.len();
        if groups > 0 {
            let kernel = self.weight_kernel(weights.dtype(), "int4_quantize")?;
            let (values, scales) = (made.values.address(), made.scales.address());
            let params = (from.address(), values, scales, groups as i64, group as i32);
            let grid = Grid::new(groups.min(1 << 20) as u32, 32);
            self.stream.launch(&kernel, grid, params)?;
        }
        Ok(made)
    }

    /// The weights as floats, `[outputs, inputs]`.
    ///
    /// # Errors
    /// If the type is not one of floats.
    pub fn dequantize_int4(&self, weights: &Int4Weights, dtype: DType) -> Result<Tensor> {
        let (values, scales) = (&weights.values, &weights.scales);
        let timed = self.begin("dequantize_int4", &[values, scales]);
        let made = self.unset(values.shape(), dtype)?;
        float("dequantize_int4", &made)?;
        timed.moves(&[&made]);
        if !made.is_empty() {
            let kernel = self.weight_kernel(dtype, "int4_dequantize")?;
            let words = values.len() / WORD;
            let (from, to) = (values.address(), made.address());
            let params = (
                from,
                scales.address(),
                to,
                words as i64,
                weights.group as i32,
            );
            let grid = Grid::new(words.div_ceil(256).min(1 << 20) as u32, 256);
            self.stream.launch(&kernel, grid, params)?;
        }
        Ok(made)
    }

    /// The product `x wᵀ` of floats `[rows, inputs]`, or of a stack of them, with weights of 4 bits, and its epilogue. The sums are
    /// in `f32`; for more than a few rows the weights are rounded to the type of `x` first.
    ///
    /// # Errors
    /// If shapes or types do not fit; both are in the message.
    pub fn gemm_int4(&self, x: &Tensor, weights: &Int4Weights, spec: &Gemm) -> Result<Tensor> {
        float("gemm_int4", x)?;
        let (outputs, inputs) = (weights.outputs(), weights.inputs());
        // Stands for the weights as floats, of which there need not be any.
        let like = self.adopt(
            0,
            x.dtype(),
            &[inputs, outputs],
            Some(&[0, 0]),
            Arc::new(()),
        )?;
        let product = check(x, &like, spec)?;
        let timed = self.begin("gemm_int4", &[x, &weights.values, &weights.scales]);
        timed.moves(&spec.added());
        timed.computes(|| product.flops());
        // The software GPU takes six times as long for a row as to make all weights floats.
        if self.is_software || x.rank() != 2 || product.a.rows > FEW_ROWS {
            let floats = self.dequantize_int4(weights, x.dtype())?;
            let made = self.gemm(x, &floats.t()?, spec)?;
            timed.moves(&[&made]);
            return Ok(made);
        }
        let made = self.unset(&product.shape, product.out)?;
        timed.moves(&[&made]);
        if made.is_empty() {
            return Ok(made);
        }
        let x = if x.strides()[1] == 1 {
            x.clone()
        } else {
            self.dense(x)?
        };
        let rows = product.a.rows;
        let at_once = if rows == 1 { 1 } else { 4 };
        let kernel = self.weight_kernel(x.dtype(), &format!("int4_product{at_once}"))?;
        let params = (
            x.address(),
            x.strides()[0] as i64,
            weights.values.address(),
            weights.scales.address(),
            ByValue(Epilogue::new(spec, &made)),
            rows as i32,
            outputs as i32,
            inputs as i32,
            weights.group as i32,
        );
        let blocks = outputs.div_ceil(OUTPUTS * WARPS as usize) as u32;
        let grid = Grid::of([blocks, rows.div_ceil(at_once) as u32, 1], [32, WARPS, 1]);
        self.stream.launch(&kernel, grid, params)?;
        Ok(made)
    }

    fn weight_kernel(&self, dtype: DType, name: &str) -> Result<mica::Kernel> {
        self.kernels
            .get(&format!("{FILE_OF_WEIGHTS}.{dtype}"), name)
    }
}
