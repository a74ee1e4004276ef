//! Convolutions on Hopper, whose copy unit fetches windows of images.

use mica::{ByValue, Grid};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Conv, Sizes};
use crate::gemm::{Epilogue, Factors};
use crate::tensor_maps::{Boxes, WindowColumns};
use crate::{DType, Ops, Result, Tensor};

/// As `Windows` in `kernels/conv_wgmma.cu`; pairs are vertical and horizontal.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Windows {
    channel_steps: i32,
    kernel_width: i32,
    out: [i32; 2],
    stride: [i32; 2],
    padding: [i32; 2],
    dilation: [i32; 2],
    last: i32,
    reserved: i32,
}

/// Windows of a block, and channels of a step.
const ROWS: u32 = 128;
const CHANNELS: usize = 64;

/// Columns of a block, its stages, and its shared memory: stages of 128 bytes of each row and column, sums of two warpgroups,
/// barriers.
fn block(outputs: usize) -> (u32, u32) {
    let (columns, stages) = if outputs > 128 { (256, 4) } else { (128, 5) };
    let sums = 2 * 64 * (64 + 4) * 4;
    (
        columns,
        stages * (ROWS + columns) * 128 + sums + stages * 16,
    )
}

impl Sizes {
    /// Pixels from the first element of a window to its last one.
    fn reach(&self, axis: usize) -> usize {
        (self.kernel[axis] - 1).saturating_mul(self.spec.dilation[axis])
    }

    /// Whether a map of windows can say where they are: corners are numbers of 8 bits with a sign, elements of a window are at
    /// most 255 away, steps at most 8.
    fn fits_window_map(&self) -> bool {
        let axis = |axis: usize| {
            let (reach, padding) = (self.reach(axis), self.spec.padding[axis]);
            reach <= 128 && padding <= 127 && self.spec.stride[axis] <= 8
        };
        axis(0) && axis(1)
    }

    fn columns(&self, images: &Tensor, padding: [i32; 2]) -> WindowColumns {
        let reach = [0, 1].map(|axis| self.reach(axis) as i32);
        let [height, width] = self.image;
        let sizes = [self.images, height, width, self.channels];
        WindowColumns {
            dtype: self.dtype,
            address: images.address(),
            sizes: sizes.map(|size| size as u64),
            first: padding.map(|padding| -padding),
            last: [padding[0] - reach[0], padding[1] - reach[1]],
            stride: self.spec.stride.map(|step| step as u32),
            windows: ROWS,
        }
    }
}

fn conv_file(sizes: &Sizes) -> String {
    format!("conv_wgmma.{}", sizes.dtype)
}

/// Weights `[outputs, channels, elements of a window]`.
fn by_elements(ops: &Ops, weight: &Tensor) -> Result<Tensor> {
    let [outputs, channels, height, width] = [0, 1, 2, 3].map(|axis| weight.shape()[axis]);
    ops.dense(weight)?
        .reshape(&[outputs, channels, height * width])
}

/// How a block that computes so many columns fetches weights `[outputs, elements, channels]`.
fn weight_boxes(sizes: &Sizes, weights: &Tensor, columns: u32) -> Boxes {
    let channels = sizes.channels as u64;
    let elements = (sizes.kernel[0] * sizes.kernel[1]) as u64;
    Boxes {
        dtype: sizes.dtype,
        address: weights.address(),
        sizes: [channels, elements, sizes.outputs as u64, 1],
        strides: [channels, channels * elements, 0],
        rank: 3,
        // The two blocks of a cluster fetch one half of the columns each.
        tile: [CHANNELS as u32, 1, columns / 2],
    }
}

impl Ops {
    /// The convolution `[images, out h, out w, outputs]` by a kernel for Hopper, if one computes these sizes.
    pub(super) fn conv_by_wgmma(
        &self,
        sizes: &Sizes,
        x: &Tensor,
        weight: &Tensor,
    ) -> Result<Option<Tensor>> {
        if !self.has_wgmma_conv(sizes)? {
            return Ok(None);
        }
        let weights = by_elements(self, weight)?.swap(1, 2)?;
        self.launch_conv_wgmma(sizes, x, &weights, 0).map(Some)
    }

    /// The gradient `[images, height, width, channels]` of the images by the same kernel, if it computes these sizes: a
    /// convolution of the output's gradient, for which the weights of a window count from the last one.
    pub(super) fn conv_back_by_wgmma(
        &self,
        sizes: &Sizes,
        weight: &Tensor,
        dy: &Tensor,
    ) -> Result<Option<Tensor>> {
        let padding = [0, 1].map(|axis| sizes.reach(axis).checked_sub(sizes.spec.padding[axis]));
        let ([Some(above), Some(left)], [1, 1]) = (padding, sizes.spec.stride) else {
            return Ok(None);
        };
        let back = Sizes {
            channels: sizes.outputs,
            image: sizes.out,
            outputs: sizes.channels,
            out: sizes.image,
            spec: Conv {
                padding: [above, left],
                ..sizes.spec
            },
            ..*sizes
        };
        if !self.has_wgmma_conv(&back)? {
            return Ok(None);
        }
        let weights = by_elements(self, weight)?.swap(0, 1)?.swap(1, 2)?;
        let last = sizes.kernel[0] * sizes.kernel[1] - 1;
        self.launch_conv_wgmma(&back, dy, &weights, last).map(Some)
    }

    fn has_wgmma_conv(&self, sizes: &Sizes) -> Result<bool> {
        let is_half = matches!(sizes.dtype, DType::F16 | DType::BF16);
        let is_hopper = self.capability.0 == 9 && self.tensor_cores;
        // Pixels are multiples of 16 bytes.
        let fits = sizes.spec.groups == 1 && sizes.channels.is_multiple_of(8);
        let rows = sizes.rows(sizes.images);
        let has_work = rows > 0 && sizes.outputs > 0 && sizes.channels > 0;
        let counts = [rows, sizes.outputs, self.sum_length(sizes)];
        let is_small = counts.iter().all(|count| *count <= 1 << 30);
        let can = is_half && is_hopper && fits && has_work && is_small && sizes.fits_window_map();
        Ok(can && self.kernels.allows(&conv_file(sizes))?)
    }

    /// `weights` are `[outputs, elements, channels]`.
    fn launch_conv_wgmma(
        &self,
        sizes: &Sizes,
        x: &Tensor,
        weights: &Tensor,
        last: usize,
    ) -> Result<Tensor> {
        let rows = sizes.rows(sizes.images);
        let [oh, ow] = sizes.out;
        let y = self.unset(&[sizes.images, oh, ow, sizes.outputs], sizes.dtype)?;
        let images = self.channels_last(x)?;
        let weights = self.dense_aligned(weights)?;

        let pair = |values: [usize; 2]| values.map(|value| value as i32);
        let padding = pair(sizes.spec.padding);
        let windows = Windows {
            channel_steps: sizes.channels.div_ceil(CHANNELS) as i32,
            kernel_width: sizes.kernel[1] as i32,
            out: pair(sizes.out),
            stride: pair(sizes.spec.stride),
            padding,
            dilation: pair(sizes.spec.dilation),
            last: last as i32,
            reserved: 0,
        };
        let (columns, shared) = block(sizes.outputs);
        let factors = Factors {
            m: rows as i32,
            n: sizes.outputs as i32,
            k: self.sum_length(sizes) as i32,
            ..Factors::default()
        };
        let params = (
            ByValue(self.tensor_map(sizes.columns(&images, padding).request())?),
            ByValue(self.tensor_map(weight_boxes(sizes, &weights, columns).request())?),
            ByValue(windows),
            ByValue(factors),
            ByValue(Epilogue::sums(&y.reshape(&[1, rows, sizes.outputs])?)),
        );
        let tiles = rows.div_ceil(2 * ROWS as usize) * sizes.outputs.div_ceil(columns as usize);
        let clusters = tiles.min(self.vgpu.info().multiprocessors as usize / 2);
        let grid = Grid::new(2 * clusters.max(1) as u32, 384).shared(shared);
        let name = format!("conv_wgmma_{columns}");
        let kernel = self.kernels.get(&conv_file(sizes), &name)?;
        self.stream.launch(&kernel, grid, params)?;
        Ok(y)
    }

    /// Terms of each sum: whole steps of channels for each element of a window.
    fn sum_length(&self, sizes: &Sizes) -> usize {
        let channels = sizes.channels.next_multiple_of(CHANNELS);
        (sizes.kernel[0].saturating_mul(sizes.kernel[1])).saturating_mul(channels)
    }

    /// Images `[images, channels, height, width]` in memory order NHWC.
    fn channels_last(&self, x: &Tensor) -> Result<Tensor> {
        let view = x.swap(1, 2)?.swap(2, 3)?;
        if view.is_dense() && view.address().is_multiple_of(16) {
            return Ok(view);
        }
        let [images, channels, height, width] = [0, 1, 2, 3].map(|axis| x.shape()[axis]);
        let planes = (self.dense(x)?).reshape(&[images, channels, height * width])?;
        self.dense_aligned(&planes.swap(1, 2)?)
    }
}
