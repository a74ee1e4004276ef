//! Whether every kernel that could be chosen computes the product, and attention what it should.

use anyhow::{Result, ensure};
use mica_ops::{Attention, Conv, DType, Gemm, Ops, Precision};

use crate::report::Line;

/// Odd shapes that leave parts of blocks of every size, and few rows whose sums can be divided.
const SHAPES: [[usize; 3]; 3] = [[147, 301, 203], [50, 301, 1024], [100, 301, 1024]];

/// Compares each kernel for each type with f64; the tolerance is that of the type's rounding.
pub(super) fn kernels(ops: &Ops) -> Result<Line> {
    let mut names = Vec::new();
    for shape in SHAPES {
        names.extend(kernels_for(ops, shape)?);
    }
    names.sort();
    names.dedup();
    Ok(Line {
        what: "kernels agree with f64".into(),
        native: "-".into(),
        mica: names.join(", "),
        goal: "all".into(),
        reached: Some(true),
    })
}

/// Names of the kernels that can compute products of a shape; all agree.
fn kernels_for(ops: &Ops, [m, n, k]: [usize; 3]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (dtype, precision, tolerance) in [
        (DType::F32, Precision::Full, 3e-4),
        (DType::F32, Precision::Tf32, 6e-2),
        (DType::F16, Precision::Full, 4e-2),
        (DType::BF16, Precision::Full, 3e-1),
        (DType::I8, Precision::Full, 0.0),
        (DType::I4, Precision::Full, 0.0),
    ] {
        let spec = Gemm {
            precision,
            ..Gemm::default()
        };
        let wide = match dtype {
            DType::I8 => (-100.0, 100.0),
            DType::I4 => (-8.0, 7.0),
            _ => (-1.0, 1.0),
        };
        let a = ops.cast(&ops.uniform(&[m, k], DType::F32, (1, 1), wide)?, dtype)?;
        let b = ops.cast(&ops.uniform(&[k, n], DType::F32, (1, 2), wide)?, dtype)?;
        let (av, bv) = (ops.values(&a)?, ops.values(&b)?);
        for by_columns in [false, true] {
            let b = match by_columns {
                false => b.clone(),
                true => ops.dense(&b.t()?)?.t()?,
            };
            for kernel in ops.gemm_kernels(&a, &b, &spec)? {
                let got = ops.values(&ops.gemm_by(&kernel, &a, &b, &spec)?)?;
                for (at, got) in got.iter().enumerate() {
                    let (i, j) = (at / n, at % n);
                    let exact = |p: usize| f64::from(av[i * k + p]) * f64::from(bv[p * n + j]);
                    let want: f64 = (0..k).map(exact).sum();
                    let wrong = (f64::from(*got) - want).abs();
                    ensure!(
                        wrong <= tolerance,
                        "{kernel} {dtype}: element {at} is {got}, the reference {want}"
                    );
                }
                names.push(kernel);
            }
        }
    }
    Ok(names)
}

/// Rows of queries and keys that leave parts of tiles.
const ROWS: usize = 203;

/// Compares attention with f64 for each size of a head that has a kernel of its own.
pub(super) fn attention(ops: &Ops) -> Result<Line> {
    let mut sizes = Vec::new();
    for (dtype, tolerance) in [
        (DType::F32, 1e-5),
        (DType::F16, 2e-3),
        (DType::BF16, 1.6e-2),
    ] {
        for (size, causal) in [
            (32, false),
            (64, true),
            (64, false),
            (80, true),
            (128, true),
            (128, false),
            (256, false),
        ] {
            let random = |stream| ops.uniform(&[1, 1, ROWS, size], dtype, (3, stream), (-1.0, 1.0));
            let (q, k, v) = (random(1)?, random(2)?, random(3)?);
            let spec = Attention {
                causal,
                ..Attention::default()
            };
            let got = ops.values(&ops.attention(&q, &k, &v, &spec)?.output)?;
            let [q, k, v] = [ops.values(&q)?, ops.values(&k)?, ops.values(&v)?]
                .map(|values| values.into_iter().map(f64::from).collect::<Vec<_>>());
            for (i, row) in got.chunks(size).enumerate() {
                let seen = if causal { i + 1 } else { ROWS };
                let weight = |j: usize| {
                    let dot: f64 = (0..size).map(|d| q[i * size + d] * k[j * size + d]).sum();
                    (dot / (size as f64).sqrt()).exp()
                };
                let weights: Vec<f64> = (0..seen).map(weight).collect();
                let sum: f64 = weights.iter().sum();
                for (d, got) in row.iter().enumerate() {
                    let column = (0..seen).map(|j| weights[j] * v[j * size + d]);
                    let want = column.sum::<f64>() / sum;
                    ensure!(
                        (f64::from(*got) - want).abs() <= tolerance,
                        "attention {dtype}, heads of {size}: element {d} of row {i} is {got}, the reference {want}"
                    );
                }
            }
            sizes.push(size.to_string());
        }
    }
    sizes.dedup();
    sizes.truncate(5);
    Ok(Line {
        what: "attention agrees with f64".into(),
        native: "-".into(),
        mica: format!("heads of {}", sizes.join(", ")),
        goal: "all".into(),
        reached: Some(true),
    })
}

/// Compares convolutions with f64: odd sizes, steps, distances and channels that leave parts of blocks and steps.
pub(super) fn convolutions(ops: &Ops) -> Result<Line> {
    let plain = Conv::default();
    let wide = Conv {
        stride: [1, 2],
        padding: [2, 4],
        dilation: [2, 2],
        ..plain
    };
    let near = Conv {
        padding: [1, 1],
        ..plain
    };
    let cases = [
        ([2, 64, 8, 8], [64, 64, 1, 1], plain),
        ([3, 72, 13, 11], [40, 72, 3, 3], near),
        ([2, 24, 15, 13], [136, 24, 3, 5], wide),
    ];
    for (dtype, tolerance) in [
        (DType::F32, 1e-5),
        (DType::F16, 2e-3),
        (DType::BF16, 1.6e-2),
    ] {
        for (image, weight, spec) in &cases {
            convolution(ops, dtype, tolerance, *image, *weight, spec)?;
        }
    }
    Ok(Line {
        what: "convolutions and gradients of images agree with f64".into(),
        native: "-".into(),
        mica: format!("{} in 3 types", cases.len()),
        goal: "all".into(),
        reached: Some(true),
    })
}

fn convolution(
    ops: &Ops,
    dtype: DType,
    tolerance: f64,
    image: [usize; 4],
    weight: [usize; 4],
    spec: &Conv,
) -> Result<()> {
    let ([_, c, h, w], [outputs, _, kh, kw]) = (image, weight);
    let x = ops.uniform(&image, dtype, (5, 1), (-1.0, 1.0))?;
    let weights = ops.uniform(&weight, dtype, (5, 2), (-1.0, 1.0))?;
    let y = ops.conv(&x, &weights, spec)?;
    let shape = y.shape().to_vec();
    let dy = ops.uniform(&shape, dtype, (5, 3), (-1.0, 1.0))?;
    let dx = ops.conv_backward_data(&image, &weights, &dy, spec)?;
    let (dy, dx) = (ops.values(&dy)?, ops.values(&dx)?);
    let mut dx_wanted = vec![0.0; dx.len()];
    let (got, x, weights) = (ops.values(&y)?, ops.values(&x)?, ops.values(&weights)?);
    let (oh, ow) = (shape[2], shape[3]);
    for (at, got) in got.iter().enumerate() {
        let (px, py) = (at % ow, at / ow % oh);
        let (k, n) = (at / ow / oh % outputs, at / ow / oh / outputs);
        let mut want = 0.0;
        for element in 0..c * kh * kw {
            let (kx, ky, channel) = (element % kw, element / kw % kh, element / kw / kh);
            let row = (py * spec.stride[0] + ky * spec.dilation[0]).wrapping_sub(spec.padding[0]);
            let col = (px * spec.stride[1] + kx * spec.dilation[1]).wrapping_sub(spec.padding[1]);
            if row < h && col < w {
                let pixel = ((n * c + channel) * h + row) * w + col;
                let weight = f64::from(weights[k * c * kh * kw + element]);
                want += f64::from(x[pixel]) * weight;
                dx_wanted[pixel] += f64::from(dy[at]) * weight;
            }
        }
        // A long sum is rounded relative to its size.
        ensure!(
            (f64::from(*got) - want).abs() <= tolerance * want.abs().max(1.0),
            "convolution {dtype} of {image:?} with {weight:?}: element {at} is {got}, the reference {want}"
        );
    }
    for (at, (got, want)) in dx.iter().zip(&dx_wanted).enumerate() {
        ensure!(
            (f64::from(*got) - want).abs() <= tolerance * want.abs().max(1.0),
            "gradient of a convolution {dtype} of {image:?} with {weight:?}: element {at} is {got}, the reference {want}"
        );
    }
    Ok(())
}
