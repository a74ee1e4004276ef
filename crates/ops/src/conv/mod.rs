//! Convolutions of images, as products: the windows of the images become rows of a matrix. On Hopper a kernel reads the
//! windows from the images, and the matrix is never made.
//!
//! Images are `[images, channels, height, width]` with any strides, so that tensors in memory order
//! NHWC are views (`swap`) like any other. The matrix of windows is made for a part of the images at a
//! time, of at most [`WINDOW_BYTES`] where one image allows it.

mod hopper;

use mica::{ByValue, Grid};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::rows::float;
use crate::{DType, Error, Gemm, Ops, Result, Tensor};

/// Most bytes of the matrix of windows.
const WINDOW_BYTES: usize = 256 << 20;

/// How a kernel moves over images; pairs are vertical and horizontal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// Steps from one window to the next.
    pub stride: [usize; 2],
    /// Zeros around the image, on each side.
    pub padding: [usize; 2],
    /// Distance between elements of a window.
    pub dilation: [usize; 2],
    /// Groups of channels that are computed apart.
    pub groups: usize,
}

impl Default for Conv {
    fn default() -> Self {
        Self {
            stride: [1; 2],
            padding: [0; 2],
            dilation: [1; 2],
            groups: 1,
        }
    }
}

/// As `Conv` in `kernels/conv.cu`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Params {
    from: u64,
    to: u64,
    strides: [i64; 4],
    images: i32,
    channels: i32,
    height: i32,
    width: i32,
    groups: i32,
    out: [i32; 2],
    kernel: [i32; 2],
    stride: [i32; 2],
    padding: [i32; 2],
    dilation: [i32; 2],
    reserved: i32,
}

/// Sizes that fit each other.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    images: usize,
    channels: usize,
    image: [usize; 2],
    outputs: usize,
    kernel: [usize; 2],
    out: [usize; 2],
    dtype: DType,
    spec: Conv,
}

/// Windows of the weights along one axis of an image; else the rule that was broken.
fn windows(
    spec: &Conv,
    axis: usize,
    size: usize,
    kernel: usize,
) -> std::result::Result<usize, &'static str> {
    let (stride, dilation) = (spec.stride[axis], spec.dilation[axis]);
    if stride == 0 || dilation == 0 || kernel == 0 {
        return Err("strides, dilations and the sizes of the weights are at least 1");
    }
    let padded = size.saturating_add(spec.padding[axis].saturating_mul(2));
    let reach = dilation.saturating_mul(kernel - 1).saturating_add(1);
    match padded.checked_sub(reach) {
        Some(rest) if padded <= 1 << 24 => Ok(rest / stride + 1),
        _ => Err("the weights fit into the padded image, of at most 2^24 rows and columns"),
    }
}

fn check(input: &[usize], weight: &Tensor, spec: &Conv) -> Result<Sizes> {
    float("conv", weight)?;
    let wrong = |rule| Error::Shape {
        operation: "conv",
        left_name: "the images",
        left: input.to_vec(),
        right_name: "the weights",
        right: weight.shape().to_vec(),
        rule,
    };
    let (&[images, channels, height, width], &[outputs, per_group, kh, kw]) =
        (input, weight.shape())
    else {
        return Err(wrong(
            "[images, channels, height, width] and [outputs, channels of a group, height, width]",
        ));
    };
    let groups = spec.groups;
    let fits = per_group.checked_mul(groups) == Some(channels);
    if groups == 0 || !fits || !outputs.is_multiple_of(groups) {
        return Err(wrong(
            "channels are groups times the weights', outputs a multiple of groups",
        ));
    }
    let mut out = [0; 2];
    for (axis, (size, kernel)) in [(height, kh), (width, kw)].into_iter().enumerate() {
        out[axis] = windows(spec, axis, size, kernel).map_err(wrong)?;
    }
    if channels.max(per_group * kh * kw) > i32::MAX as usize {
        return Err(wrong(
            "at most 2147483647 channels, and elements of a window",
        ));
    }
    // A step or a distance beyond the padded image is never taken: any such number is the same to kernels.
    let beyond = |steps: [usize; 2]| steps.map(|step| step.min(1 << 25));
    Ok(Sizes {
        images,
        channels,
        image: [height, width],
        outputs,
        kernel: [kh, kw],
        out,
        dtype: weight.dtype(),
        spec: Conv {
            stride: beyond(spec.stride),
            dilation: beyond(spec.dilation),
            ..*spec
        },
    })
}

impl Sizes {
    /// Columns of the matrix of windows.
    fn cols(&self) -> usize {
        self.channels / self.spec.groups * self.kernel[0] * self.kernel[1]
    }

    /// Rows for so many images.
    fn rows(&self, images: usize) -> usize {
        images * self.out[0] * self.out[1]
    }

    /// Multiplications and additions.
    fn flops(&self) -> u64 {
        let products = self.rows(self.images) as u64 * self.outputs as u64;
        products.saturating_mul(2 * self.cols() as u64)
    }

    /// Images whose windows of elements of a type are made at a time.
    fn at_a_time(&self, windows: DType) -> usize {
        let row = self.cols() * self.spec.groups * windows.size_bytes();
        let one = self.rows(1).saturating_mul(row);
        (WINDOW_BYTES / one.max(1)).clamp(1, self.images.max(1))
    }

    /// A tensor `[images, out h, out w, outputs]` as stacks for products: `[groups, rows, outputs of a
    /// group]`, images from `first` on.
    fn by_groups(&self, tensor: &Tensor, first: usize, images: usize) -> Result<Tensor> {
        let part = tensor.narrow(0, first, images)?;
        let groups = self.spec.groups;
        part.reshape(&[self.rows(images), groups, self.outputs / groups])?
            .swap(0, 1)
    }

    /// The weights as `[groups, outputs of a group, cols]`.
    fn weights(&self, ops: &Ops, weight: &Tensor) -> Result<Tensor> {
        let groups = self.spec.groups;
        ops.dense(weight)?
            .reshape(&[groups, self.outputs / groups, self.cols()])
    }
}

impl Ops {
    /// The convolution of images `[images, channels, height, width]` with weights
    /// `[outputs, channels of a group, height, width]`. The result `[images, outputs, height, width]` lies
    /// in memory in the order NHWC.
    ///
    /// # Errors
    /// If shapes or types do not fit; both are in the message.
    pub fn conv(&self, x: &Tensor, weight: &Tensor, spec: &Conv) -> Result<Tensor> {
        same_type(x, weight)?;
        let sizes = check(x.shape(), weight, spec)?;
        let timed = self.begin("conv", &[x, weight]);
        timed.computes(|| sizes.flops());
        if let Some(y) = self.conv_by_wgmma(&sizes, x, weight)? {
            timed.moves(&[&y]);
            return y.swap(2, 3)?.swap(1, 2);
        }
        let [oh, ow] = sizes.out;
        let y = self.unset(&[sizes.images, oh, ow, sizes.outputs], sizes.dtype)?;
        timed.moves(&[&y]);
        let weights = sizes.weights(self, weight)?;
        let at_a_time = sizes.at_a_time(sizes.dtype);
        for first in (0..sizes.images).step_by(at_a_time) {
            let images = at_a_time.min(sizes.images - first);
            let windows = self.windows(&sizes, &x.narrow(0, first, images)?)?;
            let part = sizes.by_groups(&y, first, images)?;
            self.gemm_into(&windows, &weights.t()?, &Gemm::default(), &part)?;
        }
        y.swap(2, 3)?.swap(1, 2)
    }

    /// The gradient of a convolution's images, which have the shape `shape`.
    ///
    /// # Errors
    /// If shapes or types do not fit; both are in the message.
    pub fn conv_backward_data(
        &self,
        shape: &[usize],
        weight: &Tensor,
        dy: &Tensor,
        spec: &Conv,
    ) -> Result<Tensor> {
        same_type(dy, weight)?;
        let sizes = check(shape, weight, spec)?;
        let timed = self.begin("conv_backward_data", &[dy, weight]);
        timed.computes(|| sizes.flops());
        if dy.shape() == [sizes.images, sizes.outputs, sizes.out[0], sizes.out[1]]
            && let Some(dx) = self.conv_back_by_wgmma(&sizes, weight, dy)?
        {
            timed.moves(&[&dx]);
            return dx.swap(2, 3)?.swap(1, 2);
        }
        let dy = self.output_gradient(&sizes, dy)?;
        let dx = self.unset(shape, sizes.dtype)?;
        timed.moves(&[&dx]);
        let weights = sizes.weights(self, weight)?;
        // Windows are added up, so they are not rounded to the images' type before.
        let wide = Gemm {
            out: Some(DType::F32),
            ..Gemm::default()
        };
        let at_a_time = sizes.at_a_time(DType::F32);
        for first in (0..sizes.images).step_by(at_a_time) {
            let images = at_a_time.min(sizes.images - first);
            let part = sizes.by_groups(&dy, first, images)?;
            let windows = self.gemm(&part, &weights, &wide)?;
            let to = dx.narrow(0, first, images)?;
            self.launch_conv(
                "images_of_windows",
                &sizes,
                &to,
                windows.address(),
                to.address(),
                to.len(),
            )?;
        }
        Ok(dx)
    }

    /// The gradient of a convolution's weights, which have the shape `shape`, in f32.
    ///
    /// # Errors
    /// If shapes or types do not fit; both are in the message.
    pub fn conv_backward_weights(
        &self,
        x: &Tensor,
        shape: &[usize],
        dy: &Tensor,
        spec: &Conv,
    ) -> Result<Tensor> {
        same_type(x, dy)?;
        // Only the shape and the type of the weights matter here.
        let like = self.unset(shape, x.dtype())?;
        let sizes = check(x.shape(), &like, spec)?;
        drop(like);
        let timed = self.begin("conv_backward_weights", &[x, dy]);
        timed.computes(|| sizes.flops());
        let dy = self.output_gradient(&sizes, dy)?;
        let groups = spec.groups;
        let dw = self.zeros(&[groups, sizes.outputs / groups, sizes.cols()], DType::F32)?;
        timed.moves(&[&dw]);
        let at_a_time = sizes.at_a_time(sizes.dtype);
        for first in (0..sizes.images).step_by(at_a_time) {
            let images = at_a_time.min(sizes.images - first);
            let windows = self.windows(&sizes, &x.narrow(0, first, images)?)?;
            let part = sizes.by_groups(&dy, first, images)?;
            let add = Gemm {
                beta: 1.0,
                c: Some(&dw),
                out: Some(DType::F32),
                ..Gemm::default()
            };
            self.gemm_into(&part.t()?, &windows, &add, &dw)?;
        }
        dw.reshape(shape)
    }

    /// `dy` in memory as `[images, out h, out w, outputs]`.
    fn output_gradient(&self, sizes: &Sizes, dy: &Tensor) -> Result<Tensor> {
        let [oh, ow] = sizes.out;
        let shape = [sizes.images, sizes.outputs, oh, ow];
        if dy.shape() != shape {
            return Err(Error::Shape {
                operation: "conv",
                left_name: "the result's gradient",
                left: dy.shape().to_vec(),
                right_name: "the result",
                right: shape.to_vec(),
                rule: "both are equal",
            });
        }
        self.dense(&dy.swap(1, 2)?.swap(2, 3)?)
    }

    /// The matrix of windows `[groups, rows, cols]`.
    fn windows(&self, sizes: &Sizes, x: &Tensor) -> Result<Tensor> {
        let shape = [sizes.spec.groups, sizes.rows(x.shape()[0]), sizes.cols()];
        let windows = self.unset(&shape, sizes.dtype)?;
        self.launch_conv(
            "windows_of_images",
            sizes,
            x,
            x.address(),
            windows.address(),
            windows.len(),
        )?;
        Ok(windows)
    }

    fn launch_conv(
        &self,
        name: &str,
        sizes: &Sizes,
        images: &Tensor,
        from: u64,
        to: u64,
        count: usize,
    ) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let kernel = self.kernels.get(&format!("conv.{}", sizes.dtype), name)?;
        let pair = |values: [usize; 2]| values.map(|value| value as i32);
        let strides = images.strides();
        let params = Params {
            from,
            to,
            strides: [0, 1, 2, 3].map(|axis| strides[axis] as i64),
            images: images.shape()[0] as i32,
            channels: sizes.channels as i32,
            height: sizes.image[0] as i32,
            width: sizes.image[1] as i32,
            groups: sizes.spec.groups as i32,
            out: pair(sizes.out),
            kernel: pair(sizes.kernel),
            stride: pair(sizes.spec.stride),
            padding: pair(sizes.spec.padding),
            dilation: pair(sizes.spec.dilation),
            reserved: 0,
        };
        let blocks = count.div_ceil(256).min(1 << 20);
        let grid = Grid::new(blocks as u32, 256);
        Ok(self.stream.launch(&kernel, grid, (ByValue(params),))?)
    }
}

fn same_type(a: &Tensor, b: &Tensor) -> Result<()> {
    if a.dtype() == b.dtype() {
        return Ok(());
    }
    Err(Error::Types {
        operation: "conv",
        left: a.dtype(),
        right: b.dtype(),
        rule: "images, weights and gradients have the same type",
    })
}
