//! Fused elementwise kernels against a reference in f64.

mod common;

use common::{Numbers, assert_close, epsilon, ops};
use mica_ops::{Activation, DType, Expr};

type Function = (&'static str, fn(Expr) -> Expr, fn(f64) -> f64);

const FUNCTIONS: [Function; 7] = [
    ("relu", Expr::relu, |x| x.max(0.0)),
    ("sigmoid", Expr::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
    ("tanh", Expr::tanh, f64::tanh),
    ("silu", Expr::silu, |x| x / (1.0 + (-x).exp())),
    ("gelu", Expr::gelu, |x| x * normal_below(x)),
    ("exp", Expr::exp, f64::exp),
    ("abs", Expr::abs, f64::abs),
];

/// Φ(x) by the trapezoidal rule.
fn normal_below(x: f64) -> f64 {
    let steps = 4000;
    let width = (x + 9.0) / f64::from(steps);
    let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let inner: f64 = (1..steps)
        .map(|i| density(-9.0 + width * f64::from(i)))
        .sum();
    width * (inner + 0.5 * density(x) + 0.5 * density(-9.0))
}

#[test]
fn functions_agree_with_f64() {
    let ops = ops();
    let values: Vec<f32> = (-80..=80).map(|i| i as f32 / 10.0).collect();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = ops.tensor(&[values.len()], dtype, &values).unwrap();
        let rounded = ops.values(&x).unwrap();
        for (name, expr, reference) in FUNCTIONS {
            let got = ops.map(&expr(Expr::input(0)), &[&x], &[], dtype).unwrap();
            let want: Vec<f64> = rounded.iter().map(|x| reference(f64::from(*x))).collect();
            let got = ops.values(&got).unwrap();
            assert_close(
                &format!("{name} {dtype}"),
                &got,
                &want,
                epsilon(dtype) + 1e-5,
                4e-6,
            );
        }
    }
}

#[test]
fn derivatives_agree_with_finite_differences() {
    let ops = ops();
    // No points near 0, where ReLU has no derivative.
    let values: Vec<f32> = (-30..=30).map(|i| i as f32 / 8.0 + 0.03).collect();
    let x = ops.tensor(&[values.len()], DType::F32, &values).unwrap();
    let dy = ops
        .tensor(&[values.len()], DType::F32, &vec![2.0; values.len()])
        .unwrap();
    for activation in [Activation::Relu, Activation::Gelu, Activation::Silu] {
        let got = ops.activate_backward(&x, &dy, activation).unwrap();
        let f = |x: f64| match activation {
            Activation::Relu => x.max(0.0),
            Activation::Gelu => x * normal_below(x),
            _ => x / (1.0 + (-x).exp()),
        };
        let want: Vec<f64> = (values.iter())
            .map(|x| (f(f64::from(*x) + 1e-4) - f(f64::from(*x) - 1e-4)) / 1e-4)
            .collect();
        assert_close(
            &format!("{activation:?}"),
            &ops.values(&got).unwrap(),
            &want,
            1e-4,
            2e-5,
        );
    }
}

#[test]
fn views_with_any_strides_and_repeated_axes_agree() {
    let ops = ops();
    let mut numbers = Numbers(7);
    let (a, av) = numbers.tensor(&ops, &[3, 5, 7], DType::F32);
    let (b, bv) = numbers.tensor(&ops, &[7, 5], DType::F16);
    let (c, cv) = numbers.tensor(&ops, &[3, 1, 1], DType::BF16);
    let sum = Expr::input(0) * Expr::input(1) + Expr::input(2) * Expr::scalar(0);
    let got = ops
        .map(&sum, &[&a, &b.t().unwrap(), &c], &[3.0], DType::F32)
        .unwrap();
    let want: Vec<f64> = (0..105)
        .map(|at| {
            let (i, j, k) = (at / 35, at / 7 % 5, at % 7);
            av[at] * bv[k * 5 + j] + 3.0 * cv[i]
        })
        .collect();
    assert_close("strided", &ops.values(&got).unwrap(), &want, 1e-6, 1e-6);
    let (d, dv) = numbers.tensor(&ops, &[2, 3, 4, 5, 6], DType::I8);
    let view = d.swap(0, 3).unwrap().swap(1, 4).unwrap();
    let back = ops.map(&Expr::input(0), &[&view], &[], DType::F32).unwrap();
    let dense = ops.values(&ops.dense(&view).unwrap()).unwrap();
    assert_eq!(ops.values(&back).unwrap(), dense);
    assert_eq!(dense.iter().sum::<f32>() as f64, dv.iter().sum::<f64>());
}

#[test]
fn nan_infinity_and_saturation() {
    let ops = ops();
    let odd = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.0,
        1e30,
        -300.0,
        2.5,
        3.5,
    ];
    let x = ops.tensor(&[8], DType::F32, &odd).unwrap();
    let map = |expr: Expr, dtype| {
        ops.values(&ops.map(&expr, &[&x], &[], dtype).unwrap())
            .unwrap()
    };
    let relu = map(Expr::input(0).relu(), DType::F32);
    assert!(relu[0].is_nan());
    assert_eq!(relu[1..], [f32::INFINITY, 0.0, 0.0, 1e30, 0.0, 2.5, 3.5]);
    let min = map(Expr::from(1.0).min(Expr::input(0)), DType::F32);
    assert!(min[0].is_nan() && min[1] == 1.0);
    assert_eq!(
        map(Expr::input(0), DType::I8)[1..],
        [127.0, -128.0, 0.0, 127.0, -128.0, 2.0, 4.0]
    );
    for dtype in [DType::F16, DType::BF16] {
        let got = map(Expr::input(0), dtype);
        assert!(got[0].is_nan() && got[1] == f32::INFINITY, "{got:?}");
    }
}

#[test]
fn casts_round_as_the_host_does() {
    let ops = ops();
    let mut numbers = Numbers(9);
    let values: Vec<f32> = (0..5000)
        .map(|_| f32::from_bits(numbers.next() as u32))
        .filter(|x| !x.is_nan())
        .collect();
    let x = ops.tensor(&[values.len()], DType::F32, &values).unwrap();
    for dtype in [DType::F16, DType::BF16] {
        let device = ops.bytes(&ops.cast(&x, dtype).unwrap()).unwrap();
        let host = ops
            .bytes(&ops.tensor(&[values.len()], dtype, &values).unwrap())
            .unwrap();
        assert_eq!(device, host, "{dtype}");
    }
}

#[test]
fn wrong_inputs_are_named() {
    let ops = ops();
    let a = ops.zeros(&[2, 3], DType::F32).unwrap();
    let b = ops.zeros(&[4], DType::F32).unwrap();
    let shapes = ops.add(&a, &b).unwrap_err().to_string();
    assert!(
        shapes.contains("[2, 3]") && shapes.contains("[4]"),
        "{shapes}"
    );
    let missing = ops
        .map(&Expr::input(1), &[&a], &[], DType::F32)
        .unwrap_err()
        .to_string();
    assert!(missing.contains("names 2 inputs"), "{missing}");
}

#[test]
fn shapes_that_cannot_be_counted_are_refused() {
    let ops = ops();
    let one = ops.tensor(&[1], DType::F32, &[1.0]).unwrap();
    let large = 1 << 40;
    assert!(ops.zeros(&[0, large, large], DType::F32).is_err());
    assert!(one.broadcast(&[large, large]).is_err());
    let view = one.step(0, 0, 1, usize::MAX).unwrap();
    assert_eq!(ops.values(&view).unwrap(), [1.0]);
    let none = ops.zeros(&[0, 5], DType::F32).unwrap();
    assert_eq!((none.len(), none.shape()), (0, &[0, 5][..]));
}

#[test]
fn gradients_of_another_shape_are_refused() {
    let ops = ops();
    let x = ops.zeros(&[2, 3], DType::F32).unwrap();
    let row = ops.zeros(&[3], DType::F32).unwrap();
    let said = ops.activate_backward(&x, &row, Activation::Relu);
    let said = said.unwrap_err().to_string();
    assert!(said.contains("x [2, 3] does not fit dy [3]"), "{said}");
    let parameter = ops.parameter(&[2, 3], DType::F32, (1, 1), (0.0, 1.0));
    let (parameter, settings) = (parameter.unwrap(), mica_ops::AdamW::default());
    let said = ops.adamw(&parameter, &row, &settings, 1, 1.0);
    assert!(said.unwrap_err().to_string().contains("[3] does not fit"));
    let said = ops.adamw(&parameter, &x, &settings, 0, 1.0);
    assert!(said.unwrap_err().to_string().contains("step 0"));
}
