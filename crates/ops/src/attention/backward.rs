//! Gradients of attention: by one kernel where there is one, else by products over the whole matrix of scores.

use super::{Attended, Attention, Sizes, Starts, check, mismatch};
use crate::timing::Timed;
use crate::{DType, Error, Gemm, Ops, Reduction, Result, Tensor};

/// Gradients of attention's inputs, in their type and shape.
#[derive(Clone, Debug)]
pub struct AttentionGradients {
    /// Of the queries.
    pub dq: Tensor,
    /// Of the keys.
    pub dk: Tensor,
    /// Of the values.
    pub dv: Tensor,
}

fn check_gradient(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    spec: &Attention,
    doutput: &Tensor,
) -> Result<Sizes> {
    let sizes = check(q, k, v, spec)?;
    if doutput.shape() != q.shape() || doutput.dtype() != q.dtype() {
        let rule = "the output's gradient has the queries' shape and type";
        let gradient = ("the gradient", doutput);
        return Err(mismatch(gradient, ("the queries", q), rule));
    }
    if spec.pages.is_some() {
        let message = "gradients of keys in pages are not implemented";
        return Err(Error::argument("attention_backward", message));
    }
    Ok(sizes)
}

impl Ops {
    /// The gradients of `attention(q, k, v)` for the gradient of its output, computed from the inputs alone.
    /// [`Ops::attention_backward_of`] is faster where the result of the forward pass is still there.
    ///
    /// # Errors
    /// If shapes or types do not fit, or keys are in pages.
    pub fn attention_backward(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        spec: &Attention,
        doutput: &Tensor,
    ) -> Result<AttentionGradients> {
        let sizes = check_gradient(q, k, v, spec, doutput)?;
        let _timed = self.begin_backward(&sizes, [q, k, v, doutput], spec);
        if q.is_empty() || k.is_empty() {
            return self.no_gradients(&sizes, [q, k, v]);
        }
        if let Some(starts) = &spec.starts {
            return self.backward_of_sequences(&sizes, [q, k, v, doutput], spec, starts);
        }
        if self.has_flash_backward(&sizes)? {
            let attended = self.attention(q, k, v, spec)?;
            return self.attention_backward_of(q, k, v, spec, &attended, doutput);
        }
        self.plain_backward(&sizes, [q, k, v], spec, doutput)
    }

    /// The gradients of `attention(q, k, v)`, whose result is `attended`, for the gradient of its output. On Hopper one
    /// kernel computes them; its sums for the queries are added in no fixed order, so that their last bits differ from
    /// run to run. Elsewhere the whole matrix of scores is made: twice
    /// [`AttentionMemory::plain`](super::AttentionMemory).
    ///
    /// # Errors
    /// If shapes or types do not fit, or keys are in pages.
    pub fn attention_backward_of(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        spec: &Attention,
        attended: &Attended,
        doutput: &Tensor,
    ) -> Result<AttentionGradients> {
        let sizes = check_gradient(q, k, v, spec, doutput)?;
        let output = &attended.output;
        if output.shape() != q.shape() || output.dtype() != q.dtype() {
            let rule = "the output has the queries' shape and type";
            return Err(mismatch(("the output", output), ("the queries", q), rule));
        }
        let _timed = self.begin_backward(&sizes, [q, k, v, doutput], spec);
        if q.is_empty() || k.is_empty() {
            return self.no_gradients(&sizes, [q, k, v]);
        }
        if let Some(starts) = &spec.starts {
            return self.backward_of_sequences(&sizes, [q, k, v, doutput], spec, starts);
        }
        match self.flash_backward(&sizes, [q, k, v], attended, doutput)? {
            Some(gradients) => Ok(gradients),
            None => self.plain_backward(&sizes, [q, k, v], spec, doutput),
        }
    }

    /// Five products; a gradient is as large as its input.
    fn begin_backward(
        &self,
        sizes: &Sizes,
        [q, k, v, doutput]: [&Tensor; 4],
        spec: &Attention,
    ) -> Timed<'_> {
        let timed = self.begin("attention_backward", &[q, k, v, doutput]);
        timed.moves(&[q, k, v]);
        timed.computes(|| sizes.flops(spec, 5));
        timed
    }

    /// The gradients of sequences of different lengths, one sequence after the other.
    fn backward_of_sequences(
        &self,
        sizes: &Sizes,
        inputs: [&Tensor; 4],
        spec: &Attention,
        starts: &Starts,
    ) -> Result<AttentionGradients> {
        let gradient = |like: &Tensor| self.unset(like.shape(), sizes.dtype);
        let all = AttentionGradients {
            dq: gradient(inputs[0])?,
            dk: gradient(inputs[1])?,
            dv: gradient(inputs[2])?,
        };
        let alone = Attention {
            starts: None,
            ..spec.clone()
        };
        let sequences = starts.queries.windows(2).zip(starts.keys.windows(2));
        for (queries, keys) in sequences {
            let rows =
                |tensor: &Tensor, rows: &[usize]| tensor.narrow(2, rows[0], rows[1] - rows[0]);
            let [q, dy] = [rows(inputs[0], queries)?, rows(inputs[3], queries)?];
            let [k, v] = [rows(inputs[1], keys)?, rows(inputs[2], keys)?];
            let own = self.attention_backward(&q, &k, &v, &alone, &dy)?;
            self.copy_into(&own.dq, &rows(&all.dq, queries)?)?;
            self.copy_into(&own.dk, &rows(&all.dk, keys)?)?;
            self.copy_into(&own.dv, &rows(&all.dv, keys)?)?;
        }
        Ok(all)
    }

    /// Without queries or without keys all gradients are zero.
    fn no_gradients(&self, sizes: &Sizes, inputs: [&Tensor; 3]) -> Result<AttentionGradients> {
        let [dq, dk, dv] = inputs.map(|like| self.zeros(like.shape(), sizes.dtype));
        let (dq, dk, dv) = (dq?, dk?, dv?);
        Ok(AttentionGradients { dq, dk, dv })
    }

    fn plain_backward(
        &self,
        sizes: &Sizes,
        [q, k, v]: [&Tensor; 3],
        spec: &Attention,
        doutput: &Tensor,
    ) -> Result<AttentionGradients> {
        let rows = [sizes.batch * sizes.heads, sizes.queries, sizes.size];
        let (q3, dy) = (
            self.dense(q)?.reshape(&rows)?,
            self.dense(doutput)?.reshape(&rows)?,
        );
        let (k3, v3) = (self.per_head(sizes, k)?, self.per_head(sizes, v)?);
        let product = |a: &Tensor, b: &Tensor| self.gemm(a, b, &Gemm::default());
        let weights = self.attention_weights(sizes, &q3, &k3, spec)?;
        let dv = product(&weights.t()?, &dy)?;
        let dweights = product(&dy, &v3.t()?)?;
        let dscores = self.softmax_backward(&weights, &dweights, sizes.scale)?;
        drop((weights, dweights));
        let dq = product(&dscores, &k3)?;
        let dk = product(&dscores.t()?, &q3)?;
        Ok(AttentionGradients {
            dq: dq.reshape(q.shape())?,
            dk: self.per_kv_head(sizes, &dk)?,
            dv: self.per_kv_head(sizes, &dv)?,
        })
    }

    /// Sums gradients over the heads of queries that share a head of keys and values.
    fn per_kv_head(&self, sizes: &Sizes, gradient: &Tensor) -> Result<Tensor> {
        let Sizes {
            batch,
            heads,
            kv_heads,
            keys,
            size,
            ..
        } = *sizes;
        let shape = [batch, kv_heads, keys, size];
        if heads == kv_heads {
            return gradient.reshape(&shape);
        }
        let grouped = gradient.reshape(&[batch * kv_heads, heads / kv_heads, keys * size])?;
        let summed = self.reduce(&grouped, 1, Reduction::Sum)?.reshape(&shape)?;
        match sizes.dtype {
            DType::F32 => Ok(summed),
            dtype => self.cast(&summed, dtype),
        }
    }
}
