//! A small decoder of two layers, forward and backward, written with the operations alone.

use mica_ops::{
    Activation, Attention, DType, Gemm, Norm, NormStatistics, Ops, Parameter, Reduction, Result,
    Tensor,
};

pub(crate) const WIDTH: usize = 64;
const HEADS: usize = 4;
const INNER: usize = 4 * WIDTH;
const LAYERS: usize = 2;
const EPSILON: f32 = 1e-5;

/// Parameters of a layer: norm, q, k, v, out, norm, up, down.
const PER_LAYER: usize = 8;

pub(crate) struct Model {
    pub(crate) parameters: Vec<Parameter>,
    dtype: DType,
    batch: usize,
    rows: usize,
}

/// What a layer's backward pass needs.
struct Kept {
    x: Tensor,
    first: (Tensor, NormStatistics),
    heads: [Tensor; 3],
    mixed: Tensor,
    middle: Tensor,
    second: (Tensor, NormStatistics),
    up: Tensor,
    active: Tensor,
}

impl Model {
    pub(crate) fn new(
        ops: &Ops,
        vocabulary: usize,
        dtype: DType,
        batch: usize,
        rows: usize,
    ) -> Result<Self> {
        let mut seed = 0;
        let mut parameter = |shape: &[usize], mean: f32, deviation: f32| {
            seed += 1;
            ops.parameter(shape, dtype, (7, seed), (mean, deviation))
        };
        let mut parameters = vec![
            parameter(&[vocabulary, WIDTH], 0.0, 0.1)?,
            parameter(&[rows, WIDTH], 0.0, 0.1)?,
        ];
        for _ in 0..LAYERS {
            let wide = 1.0 / (WIDTH as f32).sqrt();
            parameters.push(parameter(&[WIDTH], 1.0, 0.0)?);
            for _ in 0..4 {
                parameters.push(parameter(&[WIDTH, WIDTH], 0.0, wide)?);
            }
            parameters.push(parameter(&[WIDTH], 1.0, 0.0)?);
            parameters.push(parameter(&[WIDTH, INNER], 0.0, wide)?);
            parameters.push(parameter(&[INNER, WIDTH], 0.0, wide / 2.0)?);
        }
        parameters.push(parameter(&[WIDTH], 1.0, 0.0)?);
        parameters.push(parameter(&[WIDTH, vocabulary], 0.0, 0.1)?);
        Ok(Self {
            parameters,
            dtype,
            batch,
            rows,
        })
    }

    fn value(&self, number: usize) -> &Tensor {
        &self.parameters[number].value
    }

    /// The mean loss, and `scale` times the gradient of each parameter in f32.
    pub(crate) fn gradients(
        &self,
        ops: &Ops,
        ids: &Tensor,
        targets: &Tensor,
        scale: f32,
    ) -> Result<(Tensor, Vec<Tensor>)> {
        let count = self.batch * self.rows;
        let placed = ops.add(&ops.embedding(self.value(0), ids)?, self.value(1))?;
        let mut x = placed.reshape(&[count, WIDTH])?;
        let mut kept = Vec::new();
        for layer in 0..LAYERS {
            let (next, layer) = self.layer(ops, layer, x)?;
            kept.push(layer);
            x = next;
        }
        let last = 2 + LAYERS * PER_LAYER;
        let (normed, statistics) =
            ops.norm(&x, Norm::Rms, Some(self.value(last)), None, EPSILON)?;
        let logits = ops.gemm(&normed, self.value(last + 1), &Gemm::default())?;
        let flat = targets.reshape(&[count])?;
        let (losses, dlogits) = ops.cross_entropy(&logits, &flat, scale / count as f32)?;
        let loss = ops.reduce_all(&losses, Reduction::Mean)?;

        let mut gradients: Vec<Option<Tensor>> = vec![None; self.parameters.len()];
        let (dnormed, dweight) = self.product_back(ops, &normed, last + 1, &dlogits)?;
        gradients[last + 1] = Some(dweight);
        let back =
            ops.norm_backward(&x, Norm::Rms, Some(self.value(last)), &dnormed, &statistics)?;
        gradients[last] = Some(back.dweight);
        let mut dx = back.dx;
        for (layer, kept) in kept.iter().enumerate().rev() {
            dx = self.layer_back(ops, layer, kept, &dx, &mut gradients)?;
        }
        let dplaced = dx.reshape(&[self.batch, self.rows, WIDTH])?;
        let vocabulary = self.value(0).shape()[0];
        gradients[0] = Some(ops.embedding_backward(&dplaced, ids, vocabulary)?);
        gradients[1] = Some(ops.reduce(&dplaced, 0, Reduction::Sum)?);
        Ok((loss, gradients.into_iter().flatten().collect()))
    }

    /// `[count, width]` as `[batch, heads, rows, size]`.
    fn by_heads(&self, x: &Tensor) -> Result<Tensor> {
        x.reshape(&[self.batch, self.rows, HEADS, WIDTH / HEADS])?
            .swap(1, 2)
    }

    fn together(&self, ops: &Ops, x: &Tensor) -> Result<Tensor> {
        ops.dense(&x.swap(1, 2)?)?
            .reshape(&[self.batch * self.rows, WIDTH])
    }

    fn layer(&self, ops: &Ops, layer: usize, x: Tensor) -> Result<(Tensor, Kept)> {
        let at = 2 + layer * PER_LAYER;
        let norm =
            |x: &Tensor, weight| ops.norm(x, Norm::Rms, Some(self.value(weight)), None, EPSILON);
        let first = norm(&x, at)?;
        let head =
            |number| self.by_heads(&ops.gemm(&first.0, self.value(number), &Gemm::default())?);
        let heads = [head(at + 1)?, head(at + 2)?, head(at + 3)?];
        let causal = Attention {
            causal: true,
            ..Attention::default()
        };
        let attended = ops.attention(&heads[0], &heads[1], &heads[2], &causal)?;
        let mixed = self.together(ops, &attended.output)?;
        let plus = |residual| Gemm {
            residual: Some(residual),
            ..Gemm::default()
        };
        let middle = ops.gemm(&mixed, self.value(at + 4), &plus(&x))?;
        let second = norm(&middle, at + 5)?;
        let up = ops.gemm(&second.0, self.value(at + 6), &Gemm::default())?;
        let active = ops.activate(&up, Activation::Gelu)?;
        let out = ops.gemm(&active, self.value(at + 7), &plus(&middle))?;
        Ok((
            out,
            Kept {
                x,
                first,
                heads,
                mixed,
                middle,
                second,
                up,
                active,
            },
        ))
    }

    /// Gradients of `x W`: of x in the model's type, of W in f32.
    fn product_back(
        &self,
        ops: &Ops,
        x: &Tensor,
        weight: usize,
        dy: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let dx = ops.gemm(dy, &self.value(weight).t()?, &Gemm::default())?;
        let wide = Gemm {
            out: Some(DType::F32),
            ..Gemm::default()
        };
        Ok((dx, ops.gemm(&x.t()?, dy, &wide)?))
    }

    fn layer_back(
        &self,
        ops: &Ops,
        layer: usize,
        kept: &Kept,
        dx: &Tensor,
        gradients: &mut [Option<Tensor>],
    ) -> Result<Tensor> {
        let at = 2 + layer * PER_LAYER;
        let (dactive, dw) = self.product_back(ops, &kept.active, at + 7, dx)?;
        gradients[at + 7] = Some(dw);
        let dup = ops.activate_backward(&kept.up, &dactive, Activation::Gelu)?;
        let (dsecond, dw) = self.product_back(ops, &kept.second.0, at + 6, &dup)?;
        gradients[at + 6] = Some(dw);
        let norm = |x: &Tensor, weight: usize, dy: &Tensor, statistics: &NormStatistics| {
            ops.norm_backward(x, Norm::Rms, Some(self.value(weight)), dy, statistics)
        };
        let back = norm(&kept.middle, at + 5, &dsecond, &kept.second.1)?;
        gradients[at + 5] = Some(back.dweight);
        let dmiddle = ops.add(dx, &back.dx)?;
        let (dmixed, dw) = self.product_back(ops, &kept.mixed, at + 4, &dmiddle)?;
        gradients[at + 4] = Some(dw);
        let causal = Attention {
            causal: true,
            ..Attention::default()
        };
        let [q, k, v] = &kept.heads;
        let back = ops.attention_backward(q, k, v, &causal, &self.by_heads(&dmixed)?)?;
        let mut dfirst: Option<Tensor> = None;
        for (number, dhead) in [back.dq, back.dk, back.dv].iter().enumerate() {
            let dhead = self.together(ops, dhead)?;
            let (d, dw) = self.product_back(ops, &kept.first.0, at + 1 + number, &dhead)?;
            gradients[at + 1 + number] = Some(dw);
            dfirst = Some(match dfirst {
                None => d,
                Some(sum) => ops.add(&sum, &d)?,
            });
        }
        let dfirst = dfirst.unwrap_or(dmixed);
        let back = norm(&kept.x, at, &dfirst, &kept.first.1)?;
        gradients[at] = Some(back.dweight);
        debug_assert_eq!(back.dx.dtype(), self.dtype);
        ops.add(&dmiddle, &back.dx)
    }
}
