//! Attention by products and a softmax over the whole matrix of scores.

use super::{Attended, Attention, Sizes};
use crate::rows::Mask;
use crate::{Error, Expr, Gemm, Ops, Result, Tensor};

impl Ops {
    pub(crate) fn plain(
        &self,
        sizes: &Sizes,
        [q, k, v]: [&Tensor; 3],
        spec: &Attention,
        result: &Attended,
    ) -> Result<()> {
        if spec.starts.is_some() {
            let message = format!(
                "sequences of different lengths need a head size that is a multiple of 8 and at most 256, not {}",
                sizes.size
            );
            return Err(Error::argument("attention", message));
        }
        if sizes.keys == 0 {
            let zero = Expr::from(0.0);
            return self.map_into(&[(&zero, &result.output)], &[], &[]);
        }
        let stack = sizes.batch * sizes.heads;
        let q = self.dense(q)?;
        let q = q.reshape(&[stack, sizes.queries, sizes.size])?;
        let (k, v) = (self.per_head(sizes, k)?, self.per_head(sizes, v)?);
        let weights = self.attention_weights(sizes, &q, &k, spec)?;
        let output = result.output.reshape(&[stack, sizes.queries, sizes.size])?;
        self.gemm_into(&weights, &v, &Gemm::default(), &output)
    }

    /// The softmax of the scores: `[stack, queries, keys]`, for queries and keys of each head.
    pub(super) fn attention_weights(
        &self,
        sizes: &Sizes,
        q: &Tensor,
        k: &Tensor,
        spec: &Attention,
    ) -> Result<Tensor> {
        let scores = self.gemm(q, &k.t()?, &Gemm::default())?;
        let mask = match spec.causal {
            false => Mask::default(),
            true => Mask {
                queries: sizes.queries as i32,
                offset: sizes.keys as i32 - sizes.queries as i32,
                window: sizes.window,
                reserved: 0,
            },
        };
        self.masked_softmax(&scores, sizes.scale, mask)
    }

    /// Keys or values with a matrix for each head of queries.
    pub(super) fn per_head(&self, sizes: &Sizes, tensor: &Tensor) -> Result<Tensor> {
        let Sizes {
            batch,
            heads,
            kv_heads,
            keys,
            size,
            ..
        } = *sizes;
        let dense = self.dense(tensor)?;
        if heads == kv_heads {
            return dense.reshape(&[batch * heads, keys, size]);
        }
        let group = heads / kv_heads;
        let grouped = dense.reshape(&[batch, kv_heads, 1, keys, size])?;
        let grouped = grouped.broadcast(&[batch, kv_heads, group, keys, size])?;
        let all = self.unset(grouped.shape(), tensor.dtype())?;
        self.map_into(&[(&Expr::input(0), &all)], &[&grouped], &[])?;
        all.reshape(&[batch * heads, keys, size])
    }
}
