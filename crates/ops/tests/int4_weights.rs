//! Products with weights of 4 bits against a reference in f64 that has the same integers and scales.

mod common;

use common::{Numbers, assert_close, epsilon, ops, product, transposed, vgpu};
use mica_ops::{Activation, DType, Gemm, Int4Weights, Ops, Tensor};

/// Weights, and their values in f64.
fn weights(
    ops: &Ops,
    numbers: &mut Numbers,
    [outputs, inputs]: [usize; 2],
    group: usize,
) -> (Int4Weights, Vec<f64>) {
    let (floats, _) = numbers.tensor(ops, &[outputs, inputs], DType::F32);
    let made = ops.quantize_int4(&floats, group).unwrap();
    let (values, scales) = (
        ops.values(made.values()).unwrap(),
        ops.values(made.scales()).unwrap(),
    );
    let value = |at: usize| f64::from(values[at]) * f64::from(scales[at / group]);
    (made, (0..values.len()).map(value).collect())
}

#[test]
fn rounded_weights_are_within_half_a_step_and_the_largest_of_a_group_is_kept() {
    let ops = ops();
    let mut numbers = Numbers(51);
    for (dtype, group) in [(DType::F32, 8), (DType::F16, 32), (DType::BF16, 96)] {
        let (floats, values) = numbers.tensor(&ops, &[5, 192], dtype);
        // Any strides.
        let turned = ops.dense(&floats.t().unwrap()).unwrap().t().unwrap();
        let made = ops.quantize_int4(&turned, group).unwrap();
        assert_eq!(
            (made.values().dtype(), made.scales().shape()),
            (DType::I4, &[5, 192 / group][..])
        );
        let back = ops
            .values(&ops.dequantize_int4(&made, DType::F32).unwrap())
            .unwrap();
        for (group_at, (group, back)) in values.chunks(group).zip(back.chunks(group)).enumerate() {
            let largest = group
                .iter()
                .fold(0.0_f64, |most, value| most.max(value.abs()));
            let step = largest / 7.0;
            for (value, back) in group.iter().zip(back) {
                let off = (value - f64::from(*back)).abs();
                assert!(
                    off <= step * 0.500001,
                    "{dtype} group {group_at}: {value} became {back}"
                );
                let is_largest = value.abs() == largest;
                assert!(
                    !is_largest || off <= 1e-6 * largest,
                    "{dtype}: {value} became {back}"
                );
            }
        }
    }
    let special = [0.0_f32; 8]
        .into_iter()
        .chain([f32::NAN; 8])
        .collect::<Vec<_>>();
    let special = ops.tensor(&[1, 16], DType::F32, &special).unwrap();
    let made = ops.quantize_int4(&special, 8).unwrap();
    let back = ops
        .values(&ops.dequantize_int4(&made, DType::F32).unwrap())
        .unwrap();
    assert!(
        back[..8].iter().all(|value| *value == 0.0) && back[8..].iter().all(|value| value.is_nan())
    );
}

#[test]
fn products_of_few_and_many_rows_agree_with_f64() {
    let cards = Ops::by_kernels_of_cards(&vgpu()).unwrap();
    for (ops, is_card) in [(ops(), false), (cards, true)] {
        let mut numbers = Numbers(52);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for ([m, n, k], group) in [
                ([1, 1, 8], 8),
                ([1, 37, 512], 128),
                ([3, 18, 96], 32),
                ([6, 9, 1040], 16),
                ([21, 34, 64], 64),
            ] {
                // Products of floats have tests of their own.
                if is_card && m > 16 {
                    continue;
                }
                let (w, wv) = weights(&ops, &mut numbers, [n, k], group);
                let (x, xv) = numbers.tensor(&ops, &[m, k], dtype);
                // Where weights are made floats they are rounded to the type.
                let rounds = if is_card { 0.0 } else { epsilon(dtype) };
                let want = product(&xv, &transposed(&wv, n, k), m, n, k);
                let what = format!("{dtype} {m}x{n}x{k} in groups of {group}");
                let absolute = (1.2e-7 + rounds) * k as f64;
                let got = ops.gemm_int4(&x, &w, &Gemm::default()).unwrap();
                assert_eq!((got.shape(), got.dtype()), (&[m, n][..], dtype));
                assert_close(
                    &what,
                    &ops.values(&got).unwrap(),
                    &want,
                    epsilon(dtype),
                    absolute,
                );
                // The same by columns, and as a stack.
                let columns = ops.dense(&x.t().unwrap()).unwrap().t().unwrap();
                let again = ops.gemm_int4(&columns, &w, &Gemm::default()).unwrap();
                assert_eq!(ops.values(&again).unwrap(), ops.values(&got).unwrap());
                if is_card {
                    continue;
                }
                let stack = x.reshape(&[m, 1, k]).unwrap();
                let got = ops.gemm_int4(&stack, &w, &Gemm::default()).unwrap();
                assert_eq!(got.shape(), [m, 1, n]);
                let absolute = (1.2e-7 + epsilon(dtype)) * k as f64;
                assert_close(
                    &what,
                    &ops.values(&got).unwrap(),
                    &want,
                    epsilon(dtype),
                    absolute,
                );
            }
        }
    }
}

#[test]
fn epilogues_are_those_of_other_products() {
    let cards = Ops::by_kernels_of_cards(&vgpu()).unwrap();
    let mut numbers = Numbers(53);
    let [n, k] = [19, 64];
    for (ops, m) in [(&cards, 1), (&cards, 5), (&ops(), 5), (&ops(), 20)] {
        let (w, wv) = weights(ops, &mut numbers, [n, k], 32);
        let (x, xv) = numbers.tensor(ops, &[m, k], DType::F32);
        let (c, cv) = numbers.tensor(ops, &[m, n], DType::F32);
        let (bias, biasv) = numbers.tensor(ops, &[n], DType::F32);
        let spec = Gemm {
            alpha: 0.5,
            beta: -2.0,
            c: Some(&c),
            bias: Some(&bias),
            activation: Activation::Relu,
            scale: 3.0,
            residual: Some(&c),
            ..Gemm::default()
        };
        let got = ops.values(&ops.gemm_int4(&x, &w, &spec).unwrap()).unwrap();
        let sums = product(&xv, &transposed(&wv, n, k), m, n, k);
        let want: Vec<f64> = (0..m * n)
            .map(|at| 3.0 * (0.5 * sums[at] - 2.0 * cv[at] + biasv[at % n]).max(0.0) + cv[at])
            .collect();
        assert_close(&format!("{m} rows"), &got, &want, 2e-6, 2e-5);
    }
}

#[test]
fn weights_that_were_rounded_elsewhere_are_taken_and_checked() {
    let ops = ops();
    let mut numbers = Numbers(54);
    let values: Vec<f32> = (0..6 * 64)
        .map(|_| numbers.below(16) as f32 - 8.0)
        .collect();
    let i4 = ops.tensor(&[6, 64], DType::I4, &values).unwrap();
    let (scales, sv) = numbers.tensor(&ops, &[6, 2], DType::F16);
    let made = ops.int4_weights(&i4, &scales).unwrap();
    assert_eq!(made.group(), 32);
    let want: Vec<f64> = (0..6 * 64)
        .map(|at| f64::from(values[at]) * sv[at / 32])
        .collect();
    let got = ops.dequantize_int4(&made, DType::F32).unwrap();
    assert_close("values", &ops.values(&got).unwrap(), &want, 0.0, 0.0);
    // A view that begins in the middle of a word.
    let made = ops
        .int4_weights(
            &i4.narrow(0, 1, 5).unwrap().narrow(1, 6, 48).unwrap(),
            &scales.narrow(0, 1, 5).unwrap(),
        )
        .unwrap();
    let got = ops
        .values(&ops.dequantize_int4(&made, DType::F32).unwrap())
        .unwrap();
    let want: Vec<f64> = (0..5 * 48)
        .map(|at| {
            let (row, col) = (1 + at / 48, at % 48);
            f64::from(values[row * 64 + 6 + col]) * sv[row * 2 + col / 24]
        })
        .collect();
    assert_close("a view", &got, &want, 0.0, 0.0);

    let said = |result: mica_ops::Result<Tensor>| result.unwrap_err().to_string();
    let weights = |values: &Tensor, scales: &Tensor| {
        ops.int4_weights(values, scales).unwrap_err().to_string()
    };
    let x = ops.zeros(&[2, 24], DType::F32).unwrap();
    let shapes = said(ops.gemm_int4(&x, &made, &Gemm::default()));
    assert!(
        shapes.contains("a [2, 24] does not fit b [48, 5]"),
        "{shapes}"
    );
    let shapes = weights(&i4, &ops.zeros(&[6, 5], DType::F32).unwrap());
    assert!(
        shapes.contains("the values [6, 64] does not fit the scales [6, 5]"),
        "{shapes}"
    );
    let types = weights(&scales, &scales);
    assert!(
        types.contains("f16 does not go with f16: values are i4"),
        "{types}"
    );
    let groups = ops.quantize_int4(&x, 7).unwrap_err().to_string();
    assert!(groups.contains("[2, 24] in groups of 7"), "{groups}");
    let types = said(ops.gemm_int4(
        &ops.zeros(&[2, 48], DType::I8).unwrap(),
        &made,
        &Gemm::default(),
    ));
    assert!(types.contains("i8"), "{types}");
}
