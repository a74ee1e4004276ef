//! Gradients of attention in one kernel, on Hopper.

use mica::{ByValue, Grid};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::flash::{Flash, Params, head_boxes, strides};
use super::{Attended, AttentionGradients, Sizes};
use crate::{DType, Error, Expr, Ops, Result, Tensor};

/// As `Gradients` in `kernels/attention_back_wgmma.cu`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Gradients {
    delta: u64,
    dq: u64,
    dk: u64,
    dv: u64,
    k_strides: [i64; 3],
}

/// Keys of a block, and queries of each of its steps.
const KEYS: u32 = 128;
const QUERIES: u32 = 64;

/// Keys and values; two stages of queries and gradients; two parts; log sums and deltas of the stages; five barriers.
fn shared_bytes(size: u32) -> u32 {
    let stage = 2 * QUERIES * size * 2 + 2 * QUERIES * 4;
    2 * KEYS * size * 2 + 2 * stage + 2 * KEYS * QUERIES * 2 + 5 * 8
}

impl Ops {
    /// The sum of output times gradient for each row.
    fn flash_delta(
        &self,
        sizes: &Sizes,
        file: &str,
        output: &Tensor,
        dy: &Tensor,
    ) -> Result<Tensor> {
        let shape = [sizes.batch, sizes.heads, sizes.queries];
        let rows = shape.iter().product::<usize>();
        let delta = self.unset(&shape, DType::F32)?;
        let params = (
            output.address(),
            dy.address(),
            delta.address(),
            rows as i64,
            sizes.size as i32,
        );
        // A warp for each row.
        let grid = Grid::covering(rows * 32, 256);
        let function = self.kernels.get(file, "flash_delta")?;
        self.stream.launch(&function, grid, params)?;
        Ok(delta)
    }

    /// The gradients by a kernel that keeps no matrix of scores, if there is one for these sizes and the forward pass gave
    /// the log sums that it needs.
    pub(super) fn flash_backward(
        &self,
        sizes: &Sizes,
        inputs: [&Tensor; 3],
        attended: &Attended,
        doutput: &Tensor,
    ) -> Result<Option<AttentionGradients>> {
        let Some(kernel @ Flash::Wgmma { size, .. }) = self.flash_kernel(sizes)? else {
            return Ok(None);
        };
        let shape = [sizes.batch, sizes.heads, sizes.queries];
        let Some(log_sums) = &attended.log_sums else {
            return Ok(None);
        };
        if log_sums.shape() != shape || log_sums.dtype() != DType::F32 {
            let message = format!(
                "log sums of shape {:?} and type {}; they are {shape:?} in f32",
                log_sums.shape(),
                log_sums.dtype()
            );
            return Err(Error::argument("attention_backward_of", message));
        }
        let [q, k, v] = inputs;
        let (q, k) = (self.flash_input(kernel, q)?, self.flash_input(kernel, k)?);
        let v = self.flash_input(kernel, v)?;
        let (output, log_sums) = (self.dense(&attended.output)?, self.dense(log_sums)?);
        let dy = self.flash_input(kernel, &self.dense(doutput)?)?;
        let file = format!("attention_back_wgmma.{}", sizes.dtype);

        let delta = self.flash_delta(sizes, &file, &output, &dy)?;
        let sums = self.zeros(q.shape(), DType::F32)?;
        let dk = self.unset(k.shape(), sizes.dtype)?;
        let dv = self.unset(v.shape(), sizes.dtype)?;
        let params = Params::new(sizes, [&q, &k, &v], &output).with_log_sums(&log_sums);
        let gradients = Gradients {
            delta: delta.address(),
            dq: sums.address(),
            dk: dk.address(),
            dv: dv.address(),
            k_strides: strides(&dk),
        };
        let blocks = sizes.keys.div_ceil(KEYS as usize) as u32;
        let blocks = [blocks, sizes.kv_heads as u32, sizes.batch as u32];
        let grid = Grid::of(blocks, [384, 1, 1]).shared(shared_bytes(size));
        let function = self.kernels.get(&file, &format!("flash_back_{size}"))?;
        let params = (
            ByValue(self.tensor_map(head_boxes(&q, QUERIES).request())?),
            ByValue(self.tensor_map(head_boxes(&k, KEYS).request())?),
            ByValue(self.tensor_map(head_boxes(&v, KEYS).request())?),
            ByValue(self.tensor_map(head_boxes(&dy, QUERIES).request())?),
            ByValue(params),
            ByValue(gradients),
        );
        self.stream.launch(&function, grid, params)?;
        let scaled = Expr::input(0) * Expr::scalar(0);
        let dq = self.map(&scaled, &[&sums], &[sizes.scale], sizes.dtype)?;
        Ok(Some(AttentionGradients { dq, dk, dv }))
    }
}
