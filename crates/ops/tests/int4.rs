//! 4-bit integers: what is read and written, and products against sums of integers, which are exact.

mod common;

use common::{Numbers, assert_close, ops, vgpu};
use mica_ops::{Activation, DType, Gemm, Ops, Tensor};

/// Numbers from -8 to 7.
fn numbers(numbers: &mut Numbers, count: usize) -> Vec<i32> {
    (0..count).map(|_| numbers.below(16) as i32 - 8).collect()
}

fn tensor(ops: &Ops, shape: &[usize], values: &[i32]) -> Tensor {
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    ops.tensor(shape, DType::I4, &values).unwrap()
}

fn integers(ops: &Ops, tensor: &Tensor) -> Vec<i32> {
    let bytes = ops.bytes(tensor).unwrap();
    let words = bytes.chunks_exact(4);
    words
        .map(|word| i32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

/// A matrix and its values, in one of five layouts: by rows, by columns, with gaps between rows that begin at even or at odd
/// elements, with gaps between elements.
fn factor(
    random: &mut Numbers,
    ops: &Ops,
    [rows, cols]: [usize; 2],
    layout: usize,
) -> (Tensor, Vec<i32>) {
    let (size, row, col, first) = match layout {
        0 => ([rows, cols], cols, 1, 0),
        1 => ([cols, rows], 1, rows, 0),
        2 => ([rows, cols + 6], cols + 6, 1, 4),
        3 => ([rows, cols + 5], cols + 5, 1, 3),
        _ => ([rows, cols * 3], cols * 3, 3, 2),
    };
    let all = numbers(random, size[0] * size[1]);
    let made = tensor(ops, &size, &all);
    let view = match layout {
        0 => made,
        1 => made.t().unwrap(),
        2 | 3 => made.narrow(1, first, cols).unwrap(),
        _ => made.step(1, first, cols, 3).unwrap(),
    };
    let at = |i: usize| all[first + i / cols * row + i % cols * col];
    (view, (0..rows * cols).map(at).collect())
}

fn product(a: &[i32], b: &[i32], [m, n, k]: [usize; 3]) -> Vec<i32> {
    let element = |i: usize, j: usize| (0..k).map(|p| a[i * k + p] * b[p * n + j]).sum();
    (0..m * n).map(|at| element(at / n, at % n)).collect()
}

#[test]
fn two_numbers_share_a_byte_the_first_in_its_lower_half() {
    let ops = ops();
    let made = tensor(&ops, &[5], &[1, -1, -8, 7, 3]);
    assert_eq!(ops.bytes(&made).unwrap(), [0xf1, 0x78, 0x03]);
    assert_eq!(ops.values(&made).unwrap(), [1.0, -1.0, -8.0, 7.0, 3.0]);
    let same = ops.from_bytes(&[5], DType::I4, &[0xf1, 0x78, 0x03]);
    let view = same.unwrap().narrow(0, 1, 3).unwrap();
    assert_eq!(ops.values(&view).unwrap(), [-1.0, -8.0, 7.0]);
    let said = ops.from_bytes(&[5], DType::I4, &[0; 5]).unwrap_err();
    assert!(
        said.to_string()
            .contains("5 bytes for i4 of shape [5], which has 3"),
        "{said}"
    );
    assert_eq!(
        ops.values(&ops.zeros(&[3], DType::I4).unwrap()).unwrap(),
        [0.0; 3]
    );
}

#[test]
fn casts_keep_what_four_bits_hold_and_saturate_beyond() {
    let ops = ops();
    let wide = [-300.0, -8.4, -7.5, -0.5, 0.5, 1.5, 6.5, 7.5, 300.0];
    let want = [-8.0, -8.0, -8.0, 0.0, 0.0, 2.0, 6.0, 7.0, 7.0];
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let from = ops.tensor(&[3, 3], dtype, &wide).unwrap();
        let small = ops.cast(&from, DType::I4).unwrap();
        assert_eq!(ops.values(&small).unwrap(), want, "{dtype}");
        let back = ops.cast(&small.t().unwrap(), dtype).unwrap();
        let turned: Vec<f32> = (0..9).map(|at| want[at % 3 * 3 + at / 3]).collect();
        assert_eq!(ops.values(&back).unwrap(), turned, "{dtype}");
    }
    let said = ops.add(
        &ops.zeros(&[2], DType::I4).unwrap(),
        &ops.zeros(&[2], DType::I4).unwrap(),
    );
    let said = said.unwrap_err().to_string();
    assert!(
        said.contains("elements of i4: cast them to i8 first"),
        "{said}"
    );
}

#[test]
fn copies_of_views_of_any_rank_have_their_elements() {
    let ops = ops();
    let mut random = Numbers(31);
    let all = numbers(&mut random, 2 * 3 * 5 * 7 * 3);
    let made = tensor(&ops, &[2, 3, 5, 7, 3], &all);
    let view = made
        .swap(0, 4)
        .unwrap()
        .swap(1, 3)
        .unwrap()
        .narrow(2, 1, 3)
        .unwrap();
    let mut want = Vec::new();
    for i in 0..3 * 7 * 3 * 3 * 2 {
        let (e, d, c, b, a) = (i % 2, i / 2 % 3, 1 + i / 6 % 3, i / 18 % 7, i / 126);
        want.push(all[(((e * 3 + d) * 5 + c) * 7 + b) * 3 + a] as f32);
    }
    let dense = ops.dense(&view).unwrap();
    assert!(dense.is_dense() && !view.is_dense());
    assert_eq!(ops.values(&dense).unwrap(), want);
}

#[test]
fn products_of_odd_shapes_and_layouts_are_exact() {
    let cards = Ops::by_kernels_of_cards(&vgpu()).unwrap();
    // With instructions for 4-bit integers, and with those for 8-bit ones.
    for (ops, kernel) in [
        (ops(), ""),
        (cards.clone(), "mma4_16x128"),
        (cards, "mma_16x128"),
    ] {
        let mut random = Numbers(32);
        let shapes = [
            [1, 1, 1],
            [1, 33, 7],
            [17, 1, 5],
            [5, 31, 64],
            [61, 70, 133],
            [9, 40, 1],
        ];
        for (number, [m, n, k]) in shapes.into_iter().enumerate() {
            for layouts in [(number % 5, random.below(5)), (random.below(5), number % 5)] {
                let (a, av) = factor(&mut random, &ops, [m, k], layouts.0);
                let (b, bv) = factor(&mut random, &ops, [k, n], layouts.1);
                let got = match kernel {
                    "" => ops.gemm(&a, &b, &Gemm::default()),
                    kernel => ops.gemm_by(kernel, &a, &b, &Gemm::default()),
                };
                let got = got.unwrap();
                assert_eq!((got.shape(), got.dtype()), (&[m, n][..], DType::I32));
                let want = product(&av, &bv, [m, n, k]);
                assert_eq!(
                    integers(&ops, &got),
                    want,
                    "{kernel} {m}x{n}x{k} layouts {layouts:?}"
                );
            }
        }
    }
}

#[test]
fn stacks_of_odd_matrices_share_a_factor_or_have_one_each() {
    let ops = ops();
    let mut random = Numbers(33);
    let (stack, m, n, k) = (3, 5, 3, 7);
    let (av, bv) = (
        numbers(&mut random, stack * m * k),
        numbers(&mut random, stack * n * k),
    );
    let (a, b) = (
        tensor(&ops, &[stack, m, k], &av),
        tensor(&ops, &[stack, k, n], &bv),
    );
    let each = integers(&ops, &ops.gemm(&a, &b, &Gemm::default()).unwrap());
    let one = b.narrow(0, 1, 1).unwrap();
    let shared = integers(&ops, &ops.gemm(&a, &one, &Gemm::default()).unwrap());
    for at in 0..stack {
        let a = &av[at * m * k..][..m * k];
        let want = product(a, &bv[at * k * n..][..k * n], [m, n, k]);
        assert_eq!(each[at * m * n..][..m * n], want);
        let want = product(a, &bv[k * n..][..k * n], [m, n, k]);
        assert_eq!(shared[at * m * n..][..m * n], want);
    }
}

#[test]
fn epilogues_are_those_of_other_integers() {
    let ops = ops();
    let mut random = Numbers(34);
    let [m, n, k] = [7, 19, 30];
    let (av, bv) = (numbers(&mut random, m * k), numbers(&mut random, k * n));
    let (a, b) = (tensor(&ops, &[m, k], &av), tensor(&ops, &[k, n], &bv));
    let sums = product(&av, &bv, [m, n, k]);
    let many: Vec<f32> = (0..m * n).map(|at| at as f32 - 40.0).collect();
    let exact = |dtype| {
        let c = ops.tensor(&[m, n], dtype, &many).unwrap();
        (ops.tensor(&[n], dtype, &many[..n]).unwrap(), c)
    };
    let (bias, c) = exact(DType::I32);
    let spec = Gemm {
        beta: 1.0,
        c: Some(&c),
        bias: Some(&bias),
        activation: Activation::Relu,
        residual: Some(&c),
        ..Gemm::default()
    };
    let got = integers(&ops, &ops.gemm(&a, &b, &spec).unwrap());
    let before = |at: usize| sums[at] + many[at] as i32 + many[at % n] as i32;
    let want: Vec<i32> = (0..m * n)
        .map(|at| before(at).max(0) + many[at] as i32)
        .collect();
    assert_eq!(got, want);

    let (bias, c) = exact(DType::F32);
    let spec = Gemm {
        alpha: 0.01,
        beta: -0.5,
        c: Some(&c),
        bias: Some(&bias),
        activation: Activation::Silu,
        scale: 3.0,
        residual: Some(&c),
        out: Some(DType::F32),
        ..Gemm::default()
    };
    let got = ops.values(&ops.gemm(&a, &b, &spec).unwrap()).unwrap();
    let want: Vec<f64> = (0..m * n)
        .map(|at| {
            let (c, bias) = (f64::from(many[at]), f64::from(many[at % n]));
            let x = 0.01 * f64::from(sums[at]) - 0.5 * c + bias;
            3.0 * x / (1.0 + (-x).exp()) + c
        })
        .collect();
    assert_close("f32", &got, &want, 2e-6, 2e-5);
}

#[test]
fn what_does_not_fit_is_named_with_both_sides() {
    let ops = ops();
    let a = ops.zeros(&[2, 3], DType::I4).unwrap();
    let said = |result: mica_ops::Result<Tensor>| result.unwrap_err().to_string();
    let shapes = said(ops.gemm(&a, &a, &Gemm::default()));
    assert!(
        shapes.contains("a [2, 3] does not fit b [2, 3]"),
        "{shapes}"
    );
    let bytes = ops.zeros(&[3, 2], DType::I8).unwrap();
    let types = said(ops.gemm(&a, &bytes, &Gemm::default()));
    assert!(
        types.contains("i4 does not go with i8: both factors"),
        "{types}"
    );
    let spec = Gemm {
        out: Some(DType::I4),
        ..Gemm::default()
    };
    let types = said(ops.gemm(&a, &a.t().unwrap(), &spec));
    assert!(
        types.contains("i4 does not go with i4: the result is"),
        "{types}"
    );
    let spec = Gemm {
        alpha: 0.5,
        ..Gemm::default()
    };
    assert!(said(ops.gemm(&a, &a.t().unwrap(), &spec)).contains("alpha 1"));
    for refused in [
        ops.softmax(&a, 1.0),
        ops.uniform(&[2], DType::I4, (1, 1), (0.0, 1.0)),
    ] {
        assert!(said(refused).contains("i4"));
    }
}
