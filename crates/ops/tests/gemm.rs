//! Products against a reference in f64. Tolerance: one rounding of the result's type, and the rounding
//! of k additions in 32-bit floats.

mod common;

use common::{Numbers, assert_close, epsilon, ops, product, transposed};
use mica_ops::{Activation, DType, Gemm, Tensor};

const TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::I8];

/// A factor of `rows` × `cols` in one of four layouts: row order, column order, with gaps between rows,
/// with gaps between elements.
fn factor(
    numbers: &mut Numbers,
    ops: &mica_ops::Ops,
    [rows, cols]: [usize; 2],
    dtype: DType,
    layout: usize,
) -> (Tensor, Vec<f64>) {
    match layout {
        0 => numbers.tensor(ops, &[rows, cols], dtype),
        1 => {
            let (tensor, values) = numbers.tensor(ops, &[cols, rows], dtype);
            (tensor.t().unwrap(), transposed(&values, cols, rows))
        }
        2 => {
            let (tensor, values) = numbers.tensor(ops, &[rows, cols + 5], dtype);
            let kept = (0..rows * cols).map(|at| values[at / cols * (cols + 5) + 3 + at % cols]);
            (tensor.narrow(1, 3, cols).unwrap(), kept.collect())
        }
        _ => {
            let (tensor, values) = numbers.tensor(ops, &[rows, cols * 1000], DType::F32);
            let picked = tensor.step(1, 7, cols, 1000).unwrap();
            if dtype != DType::F32 {
                return numbers.tensor(ops, &[rows, cols], dtype);
            }
            let kept =
                (0..rows * cols).map(|at| values[at / cols * cols * 1000 + 7 + at % cols * 1000]);
            (picked, kept.collect())
        }
    }
}

#[test]
fn products_of_odd_shapes_types_and_layouts_agree_with_f64() {
    let ops = ops();
    let mut numbers = Numbers(1);
    let shapes = [
        [1, 1, 1],
        [1, 33, 7],
        [17, 1, 5],
        [5, 31, 64],
        [64, 64, 64],
        [65, 129, 33],
        [9, 100, 1],
    ];
    for dtype in TYPES {
        for [m, n, k] in shapes {
            let layouts = (numbers.below(4), numbers.below(4));
            let (a, a_values) = factor(&mut numbers, &ops, [m, k], dtype, layouts.0);
            let (b, b_values) = factor(&mut numbers, &ops, [k, n], dtype, layouts.1);
            let got = ops.gemm(&a, &b, &Gemm::default()).unwrap();
            let want = product(&a_values, &b_values, m, n, k);
            let what = format!("{dtype} {m}x{n}x{k} layouts {layouts:?}");
            let relative = epsilon(got.dtype());
            let absolute = if dtype.is_float() {
                1.2e-7 * k as f64
            } else {
                0.0
            };
            assert_close(&what, &ops.values(&got).unwrap(), &want, relative, absolute);
        }
    }
}

#[test]
fn epilogues_agree_with_f64() {
    let ops = ops();
    let mut numbers = Numbers(2);
    let (m, n, k) = (19, 45, 30);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for activation in [
            Activation::None,
            Activation::Relu,
            Activation::Gelu,
            Activation::Silu,
        ] {
            let (a, av) = numbers.tensor(&ops, &[m, k], dtype);
            let (b, bv) = numbers.tensor(&ops, &[k, n], dtype);
            let (c, cv) = numbers.tensor(&ops, &[n, m], dtype);
            let (bias, biasv) = numbers.tensor(&ops, &[n], dtype);
            let (residual, rv) = numbers.tensor(&ops, &[m, n], dtype);
            let spec = Gemm {
                alpha: 0.5,
                beta: -2.0,
                c: Some(&c.t().unwrap()),
                bias: Some(&bias),
                activation,
                scale: 3.0,
                residual: Some(&residual),
                ..Gemm::default()
            };
            let got = ops.gemm(&a, &b, &spec).unwrap();
            let cv = transposed(&cv, n, m);
            let want: Vec<f64> = (product(&av, &bv, m, n, k).iter().enumerate())
                .map(|(at, x)| {
                    3.0 * act(0.5 * x - 2.0 * cv[at] + biasv[at % n], activation) + rv[at]
                })
                .collect();
            let what = format!("{dtype} {activation:?}");
            let got = ops.values(&got).unwrap();
            assert_close(&what, &got, &want, epsilon(dtype), 2e-5);
        }
    }
}

fn act(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2.0_f64.sqrt())),
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}

/// The error function by its series; the arguments here are small.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..60 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

#[test]
fn stacks_share_a_factor_or_have_one_each() {
    let ops = ops();
    let mut numbers = Numbers(3);
    let (s, m, n, k) = (3, 6, 10, 8);
    for dtype in TYPES {
        let (a, av) = numbers.tensor(&ops, &[s, m, k], dtype);
        let (b, bv) = numbers.tensor(&ops, &[s, k, n], dtype);
        let (one, onev) = numbers.tensor(&ops, &[n, k], dtype);
        let each = ops.gemm(&a, &b, &Gemm::default()).unwrap();
        let shared = ops.gemm(&a, &one.t().unwrap(), &Gemm::default()).unwrap();
        assert_eq!(each.shape(), [s, m, n]);
        let (mut want_each, mut want_shared) = (Vec::new(), Vec::new());
        for at in 0..s {
            let a = &av[at * m * k..][..m * k];
            want_each.extend(product(a, &bv[at * k * n..][..k * n], m, n, k));
            want_shared.extend(product(a, &transposed(&onev, n, k), m, n, k));
        }
        let close = |what, got: &Tensor, want: &[f64]| {
            let got = ops.values(got).unwrap();
            assert_close(what, &got, want, epsilon(dtype), 1e-5);
        };
        close("each", &each, &want_each);
        close("shared", &shared, &want_shared);
    }
}

#[test]
fn integers_are_exact_past_24_bits() {
    let ops = ops();
    let k = 5000;
    let a = ops.tensor(&[1, k], DType::I8, &vec![127.0; k]).unwrap();
    let b = ops.tensor(&[k, 1], DType::I8, &vec![-127.0; k]).unwrap();
    let d = ops.gemm(&a, &b, &Gemm::default()).unwrap();
    let exact = -(127 * 127 * k as i32);
    assert_eq!(ops.bytes(&d).unwrap(), exact.to_le_bytes());
}

#[test]
fn nothing_to_add_gives_zeros_and_nothing_to_store_is_nothing() {
    let ops = ops();
    let a = ops.zeros(&[3, 0], DType::F32).unwrap();
    let b = ops.zeros(&[0, 4], DType::F32).unwrap();
    let d = ops.gemm(&a, &b, &Gemm::default()).unwrap();
    assert_eq!(ops.values(&d).unwrap(), [0.0; 12]);
    let none = ops.zeros(&[0, 3], DType::F32).unwrap();
    let some = ops.zeros(&[3, 4], DType::F32).unwrap();
    let d = ops.gemm(&none, &some, &Gemm::default()).unwrap();
    assert_eq!((d.shape(), ops.values(&d).unwrap().len()), (&[0, 4][..], 0));
}

#[test]
fn more_columns_than_one_grid_has_are_computed() {
    let ops = ops();
    // One launch computes 65535 panels of 32 columns.
    let n = 65535 * 32 + 40;
    let numbers: Vec<f32> = (0..n).map(|at| (at % 101) as f32).collect();
    let a = ops.tensor(&[2, 1], DType::F32, &[1.0, 2.0]).unwrap();
    let b = ops.tensor(&[1, n], DType::F32, &numbers).unwrap();
    let got = ops.values(&ops.gemm(&a, &b, &Gemm::default()).unwrap());
    let got = got.unwrap();
    assert_eq!(got[..n], numbers);
    let twice = numbers.iter().map(|x| 2.0 * x);
    assert!(got[n..].iter().copied().eq(twice));
}

#[test]
fn a_nan_reaches_its_row_and_column_only() {
    let ops = ops();
    let mut values = vec![1.0; 9];
    values[4] = f32::NAN;
    let a = ops.tensor(&[3, 3], DType::F32, &values).unwrap();
    let b = ops.tensor(&[3, 3], DType::F32, &[1.0; 9]).unwrap();
    let relu = Gemm {
        activation: Activation::Relu,
        ..Gemm::default()
    };
    let got = ops.values(&ops.gemm(&a, &b, &relu).unwrap()).unwrap();
    let nans: Vec<bool> = got.iter().map(|x| x.is_nan()).collect();
    assert_eq!(
        nans,
        [false, false, false, true, true, true, false, false, false]
    );
    // A beta of 0 leaves c out, whatever is in it.
    let c = ops.tensor(&[3, 3], DType::F32, &[f32::NAN; 9]).unwrap();
    let spec = Gemm {
        c: Some(&c),
        ..Gemm::default()
    };
    let got = ops.values(&ops.gemm(&b, &b, &spec).unwrap()).unwrap();
    assert_eq!(got, [3.0; 9]);
}

#[test]
fn what_does_not_fit_is_named_with_both_sides() {
    let ops = ops();
    let a = ops.zeros(&[2, 3], DType::F32).unwrap();
    let h = ops.zeros(&[3, 2], DType::F16).unwrap();
    let said = |result: mica_ops::Result<Tensor>| result.unwrap_err().to_string();
    let shapes = said(ops.gemm(&a, &a, &Gemm::default()));
    assert!(
        shapes.contains("a [2, 3] does not fit b [2, 3]: the columns of a"),
        "{shapes}"
    );
    let types = said(ops.gemm(&a, &h, &Gemm::default()));
    assert!(types.contains("f32 does not go with f16"), "{types}");
    let bias = ops.zeros(&[4], DType::F32).unwrap();
    let spec = Gemm {
        bias: Some(&bias),
        ..Gemm::default()
    };
    let bias = said(ops.gemm(&a, &a.t().unwrap(), &spec));
    assert!(
        bias.contains("the bias [4] does not fit the result [2, 2]"),
        "{bias}"
    );
    let spec = Gemm {
        beta: 1.0,
        ..Gemm::default()
    };
    assert!(said(ops.gemm(&a, &a.t().unwrap(), &spec)).contains("beta is 1"));
    let d = ops.zeros(&[5, 5], DType::F32).unwrap();
    let into = ops
        .gemm_into(&a, &a.t().unwrap(), &Gemm::default(), &d)
        .unwrap_err();
    assert!(
        into.to_string()
            .contains("[5, 5] does not fit the result [2, 2]"),
        "{into}"
    );
    // The type of the destination is checked too, also where the result's type is asked for.
    let spec = Gemm {
        out: Some(DType::F32),
        ..Gemm::default()
    };
    let d = ops.zeros(&[2, 2], DType::I8).unwrap();
    let into = ops.gemm_into(&a, &a.t().unwrap(), &spec, &d).unwrap_err();
    assert!(
        into.to_string().contains("i8 does not go with f32"),
        "{into}"
    );
}
