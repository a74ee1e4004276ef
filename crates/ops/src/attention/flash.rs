//! Attention in one kernel.

use mica::{ByValue, Grid, Kernel};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Attended, Attention, Sizes};
use crate::pack::MOST_BLOCKS;
use crate::tensor_maps::Boxes;
use crate::{DType, Ops, Result, Tensor};

/// As `Attention` in `kernels/attention.cuh`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Params {
    q: u64,
    k: u64,
    v: u64,
    o: u64,
    lse: u64,
    starts_q: u64,
    starts_k: u64,
    table: u64,
    lengths: u64,
    q_strides: [i64; 3],
    k_strides: [i64; 3],
    v_strides: [i64; 3],
    o_strides: [i64; 3],
    queries: i32,
    keys: i32,
    heads: i32,
    group: i32,
    size: i32,
    causal: i32,
    window: i32,
    lse_row: i32,
    table_row: i32,
    page_rows: i32,
    scale: f32,
    reserved: f32,
}

impl Params {
    /// Of whole tensors.
    pub(super) fn new(sizes: &Sizes, [q, k, v]: [&Tensor; 3], output: &Tensor) -> Self {
        Self {
            q: q.address(),
            k: k.address(),
            v: v.address(),
            o: output.address(),
            lse: 0,
            starts_q: 0,
            starts_k: 0,
            table: 0,
            lengths: 0,
            q_strides: strides(q),
            k_strides: strides(k),
            v_strides: strides(v),
            o_strides: strides(output),
            queries: sizes.queries as i32,
            keys: sizes.keys as i32,
            heads: sizes.heads as i32,
            group: (sizes.heads / sizes.kv_heads) as i32,
            size: sizes.size as i32,
            causal: i32::from(sizes.is_causal),
            window: sizes.window,
            lse_row: sizes.queries as i32,
            table_row: (sizes.keys / sizes.page_rows.max(1)) as i32,
            page_rows: sizes.page_rows as i32,
            scale: sizes.scale,
            reserved: 0.0,
        }
    }

    /// With the log sums of the rows.
    pub(super) fn with_log_sums(self, log_sums: &Tensor) -> Self {
        Self {
            lse: log_sums.address(),
            ..self
        }
    }
}

/// Which kernel, and what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flash {
    /// Products by the device, a query for each thread: the software GPU.
    Panels,
    /// A query for each thread, in 32-bit floats.
    Rows,
    /// Tensor cores, for heads of at most so many elements.
    Mma(u32),
    /// Tensor cores of Hopper, for heads of at most so many elements; a tile has so many keys.
    Wgmma { size: u32, keys: u32 },
}

/// The file of the kernels for the software GPU.
const PANELS: &str = "attention_software.f32";

/// Queries of a block of the kernels for Hopper.
const WGMMA_QUERIES: u32 = 128;

impl Flash {
    /// The kernel for Hopper.
    fn hopper(sizes: &Sizes) -> Self {
        let (size, keys) = if sizes.size > 64 {
            (128, 128)
        } else {
            (64, 176)
        };
        Self::Wgmma { size, keys }
    }

    /// Whether the kernel can read a tensor where it is.
    fn takes(self, tensor: &Tensor) -> bool {
        // The copy unit knows no axis along which nothing moves.
        let repeats = (tensor.shape().iter())
            .zip(tensor.strides())
            .any(|(size, stride)| *size > 1 && *stride == 0);
        is_aligned(tensor) && !(repeats && matches!(self, Self::Wgmma { .. }))
    }

    /// Queries of a block.
    fn queries(self) -> usize {
        match self {
            Self::Panels | Self::Rows => 32,
            Self::Mma(256) => 64,
            Self::Mma(_) => 128,
            Self::Wgmma { .. } => WGMMA_QUERIES as usize,
        }
    }

    fn grid(self, sizes: &Sizes, longest: usize, batch: usize) -> Grid {
        let blocks = longest.div_ceil(self.queries()).max(1) as u32;
        let blocks = [blocks, sizes.heads as u32, batch as u32];
        match self {
            // Queries and results of 32 threads, and scores of each.
            Self::Panels | Self::Rows => {
                let scores = if self == Self::Panels { 128 } else { 32 };
                let shared = (2 * sizes.size + scores) * 32 * 4;
                Grid::of(blocks, [32, 1, 1]).shared(shared as u32)
            }
            // Queries, 64 keys and 64 values of 16 bits.
            Self::Mma(size) => {
                let rows = self.queries() as u32 + 128;
                Grid::of(blocks, [128, 1, 1]).shared(rows * size * 2)
            }
            // Queries, two tiles of keys and two of values, nine barriers.
            Self::Wgmma { size, keys } => {
                let rows = WGMMA_QUERIES + 4 * keys;
                Grid::of(blocks, [384, 1, 1]).shared(rows * size * 2 + 9 * 8)
            }
        }
    }
}

pub(super) fn strides(tensor: &Tensor) -> [i64; 3] {
    let s = tensor.strides();
    [s[0] as i64, s[1] as i64, s[2] as i64]
}

/// Whether 16 bytes of each row can be read at once.
fn is_aligned(tensor: &Tensor) -> bool {
    let elements = 16 / tensor.dtype().size_bytes();
    let (shape, strides) = (tensor.shape(), tensor.strides());
    let mut outer = shape.iter().zip(strides).take(3);
    (strides[3] == 1 || shape[3] == 1)
        && tensor.address().is_multiple_of(16)
        && outer.all(|(size, stride)| *size == 1 || stride.is_multiple_of(elements))
}

/// Boxes of 64 elements of so many rows of a head.
pub(super) fn head_boxes(tensor: &Tensor, rows: u32) -> Boxes {
    let [batch, heads, count, size] = [0, 1, 2, 3].map(|axis| tensor.shape()[axis] as u64);
    let mut strides = strides(tensor).map(|stride| stride as u64);
    // The distance along an axis of one element does not matter, but has to be a possible one.
    for (stride, length) in strides.iter_mut().zip([batch, heads, count]) {
        if length == 1 {
            *stride = size.next_multiple_of(8);
        }
    }
    let [stack, matrix, row] = strides;
    Boxes {
        dtype: tensor.dtype(),
        address: tensor.address(),
        sizes: [size, count, heads, batch],
        strides: [row, matrix, stack],
        rank: 4,
        tile: [64, rows, 1],
    }
}

impl Sizes {
    /// Whether the kernels for Hopper compute these sizes. The copy unit fetches whole boxes, also beyond the end of a sequence,
    /// so sequences of different lengths in one tensor, and pages, are not for it; nor is a tensor without elements.
    pub(super) fn fits_wgmma(&self) -> bool {
        let counts = [self.batch, self.heads, self.queries, self.keys];
        let is_whole = !self.is_ragged && self.page_rows == 0;
        (33..=128).contains(&self.size) && is_whole && !counts.contains(&0)
    }
}

impl Ops {
    /// Whether a kernel for Hopper computes these sizes.
    fn has_wgmma_attention(&self, sizes: &Sizes) -> Result<bool> {
        let file = format!("attention_wgmma.{}", sizes.dtype);
        Ok(sizes.fits_wgmma() && self.capability.0 == 9 && self.kernels.allows(&file)?)
    }

    /// Whether gradients are computed by one kernel.
    pub(super) fn has_flash_backward(&self, sizes: &Sizes) -> Result<bool> {
        let kernel = self.flash_kernel(sizes)?;
        let file = format!("attention_back_wgmma.{}", sizes.dtype);
        Ok(matches!(kernel, Some(Flash::Wgmma { .. })) && self.kernels.allows(&file)?)
    }

    /// The kernel for these sizes, if there is one.
    pub(crate) fn flash_kernel(&self, sizes: &Sizes) -> Result<Option<Flash>> {
        let fits = sizes.size.is_multiple_of(8) && (8..=256).contains(&sizes.size);
        if !fits || sizes.heads > MOST_BLOCKS || sizes.batch > MOST_BLOCKS {
            return Ok(None);
        }
        if self.is_software {
            let has_panels = self.kernels.is_loadable(PANELS);
            return Ok(Some(if has_panels {
                Flash::Panels
            } else {
                Flash::Rows
            }));
        }
        let file = format!("attention_mma.{}", sizes.dtype);
        let half = matches!(sizes.dtype, DType::F16 | DType::BF16);
        if half && self.tensor_cores && self.has_wgmma_attention(sizes)? {
            return Ok(Some(Flash::hopper(sizes)));
        }
        if half && self.tensor_cores && self.kernels.allows(&file)? {
            let size = (sizes.size as u32).next_power_of_two().max(32);
            return Ok(Some(Flash::Mma(size)));
        }
        // 32-bit floats, and cards without tensor cores.
        Ok(Some(Flash::Rows))
    }

    fn flash_file(&self, kernel: Flash, dtype: DType, is_paged: bool) -> Result<Kernel> {
        match kernel {
            Flash::Panels if is_paged => self.kernels.get(PANELS, "attention_panels_paged"),
            Flash::Panels => self.kernels.get(PANELS, "attention_panels"),
            Flash::Rows if is_paged => self.kernels.get("attention.f32", "attention_rows_paged"),
            Flash::Rows => self.kernels.get("attention.f32", "attention_rows"),
            Flash::Mma(size) if is_paged => {
                let file = format!("attention_paged.{dtype}");
                self.kernels.get(&file, &format!("flash_paged_{size}"))
            }
            Flash::Mma(size) => {
                let file = format!("attention_mma.{dtype}");
                self.kernels.get(&file, &format!("flash_{size}"))
            }
            Flash::Wgmma { size, .. } => {
                let file = format!("attention_wgmma.{dtype}");
                self.kernels.get(&file, &format!("flash_wgmma_{size}"))
            }
        }
    }

    /// A tensor as the kernel reads it.
    pub(super) fn flash_input(&self, kernel: Flash, tensor: &Tensor) -> Result<Tensor> {
        let tensor = match kernel {
            Flash::Panels | Flash::Rows if tensor.dtype() != DType::F32 => {
                self.cast(tensor, DType::F32)?
            }
            _ => tensor.clone(),
        };
        match kernel.takes(&tensor) {
            true => Ok(tensor),
            false => self.dense_copy(&tensor),
        }
    }

    pub(crate) fn flash(
        &self,
        kernel: Flash,
        sizes: &Sizes,
        inputs: [&Tensor; 3],
        spec: &Attention,
        result: &Attended,
    ) -> Result<()> {
        let q = self.flash_input(kernel, inputs[0])?;
        let k = self.flash_input(kernel, inputs[1])?;
        let v = self.flash_input(kernel, inputs[2])?;
        let output = match q.dtype() == sizes.dtype {
            true => result.output.clone(),
            false => self.unset(result.output.shape(), q.dtype())?,
        };
        let (starts_q, starts_k) = match &spec.starts {
            None => (None, None),
            Some(starts) => (
                Some(self.numbers(starts.queries)?),
                Some(self.numbers(starts.keys)?),
            ),
        };
        let pages = match &spec.pages {
            None => None,
            Some(pages) => Some((self.dense(pages.table)?, self.dense(pages.lengths)?)),
        };
        let lengths = |starts: &[usize]| starts.windows(2).map(|s| s[1] - s[0]).max().unwrap_or(0);
        let (longest, batch) = match &spec.starts {
            None => (sizes.queries, sizes.batch),
            Some(starts) => (lengths(starts.queries), starts.queries.len() - 1),
        };
        // Sequences in one tensor have their places by `starts`, not by a stride.
        let placed = |tensor: &Tensor| {
            let mut strides = strides(tensor);
            if spec.starts.is_some() {
                strides[0] = 0;
            }
            strides
        };
        let address = |tensor: &Option<Tensor>| tensor.as_ref().map_or(0, Tensor::address);
        let params = Params {
            lse: address(&result.log_sums),
            table: pages.as_ref().map_or(0, |(table, _)| table.address()),
            lengths: pages.as_ref().map_or(0, |(_, lengths)| lengths.address()),
            starts_q: address(&starts_q),
            starts_k: address(&starts_k),
            q_strides: placed(&q),
            k_strides: placed(&k),
            v_strides: placed(&v),
            o_strides: placed(&output),
            ..Params::new(sizes, [&q, &k, &v], &output)
        };
        let function = self.flash_file(kernel, sizes.dtype, spec.pages.is_some())?;
        let grid = kernel.grid(sizes, longest, batch);
        self.launch_flash(kernel, &function, grid, [&q, &k, &v], params)?;
        if output.dtype() != sizes.dtype {
            self.map_into(&[(&crate::Expr::input(0), &result.output)], &[&output], &[])?;
        }
        Ok(())
    }

    /// Starts the kernel, which reads by tensor maps on Hopper.
    fn launch_flash(
        &self,
        kernel: Flash,
        function: &Kernel,
        grid: Grid,
        [q, k, v]: [&Tensor; 3],
        params: Params,
    ) -> Result<()> {
        let Flash::Wgmma { keys, .. } = kernel else {
            return Ok(self.stream.launch(function, grid, (ByValue(params),))?);
        };
        let map = |tensor, rows| self.tensor_map(head_boxes(tensor, rows).request());
        let (q, k, v) = (map(q, WGMMA_QUERIES)?, map(k, keys)?, map(v, keys)?);
        let params = (ByValue(q), ByValue(k), ByValue(v), ByValue(params));
        Ok(self.stream.launch(function, grid, params)?)
    }

    fn numbers(&self, values: &[usize]) -> Result<Tensor> {
        let bytes: Vec<u8> = (values.iter())
            .flat_map(|value| (*value as i32).to_le_bytes())
            .collect();
        self.from_bytes(&[values.len()], DType::I32, &bytes)
    }
}
