//! Whether every kernel that could be chosen computes the product.

use anyhow::{Result, ensure};
use mica_ops::{DType, Gemm, Ops, Precision};

use crate::report::Line;

/// An odd shape that leaves parts of blocks of every size.
const SHAPE: [usize; 3] = [147, 301, 203];

/// Compares each kernel for each type with f64; the tolerance is that of the type's rounding.
pub(super) fn kernels(ops: &Ops) -> Result<Line> {
    let [m, n, k] = SHAPE;
    let mut names = Vec::new();
    for (dtype, precision, tolerance) in [
        (DType::F32, Precision::Full, 1e-4),
        (DType::F32, Precision::Tf32, 3e-2),
        (DType::F16, Precision::Full, 2e-2),
        (DType::BF16, Precision::Full, 1.5e-1),
        (DType::I8, Precision::Full, 0.0),
    ] {
        let spec = Gemm {
            precision,
            ..Gemm::default()
        };
        let wide = if dtype == DType::I8 {
            (-100.0, 100.0)
        } else {
            (-1.0, 1.0)
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
