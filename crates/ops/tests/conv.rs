//! Convolutions and their gradients against loops in f64.

mod common;

use common::{Numbers, assert_close, epsilon, ops};
use mica_ops::{Conv, DType, Ops, Tensor};

struct Case {
    image: [usize; 4],
    weight: [usize; 4],
    spec: Conv,
}

fn cases() -> Vec<Case> {
    let plain = Conv::default();
    vec![
        Case {
            image: [1, 1, 1, 1],
            weight: [1, 1, 1, 1],
            spec: plain,
        },
        Case {
            image: [2, 3, 7, 6],
            weight: [4, 3, 3, 3],
            spec: Conv {
                padding: [1, 1],
                ..plain
            },
        },
        // Windows of many outputs are larger than their sums: rounded to 16 bits, they would miss by more than one rounding.
        Case {
            image: [1, 4, 8, 9],
            weight: [136, 4, 3, 5],
            spec: Conv {
                padding: [1, 2],
                ..plain
            },
        },
        Case {
            image: [2, 4, 9, 11],
            weight: [6, 2, 3, 2],
            spec: Conv {
                stride: [2, 3],
                padding: [2, 0],
                dilation: [2, 1],
                groups: 2,
            },
        },
    ]
}

/// Calls `each(output element, image element, weight element)` for every product of the convolution.
fn every_product(case: &Case, mut each: impl FnMut(usize, usize, usize)) -> [usize; 4] {
    let ([n, c, h, w], [o, cg, kh, kw], s) = (case.image, case.weight, case.spec);
    let out = |size: usize, k: usize, axis: usize| {
        (size + 2 * s.padding[axis] - s.dilation[axis] * (k - 1) - 1) / s.stride[axis] + 1
    };
    let (oh, ow) = (out(h, kh, 0), out(w, kw, 1));
    for at in 0..n * o * oh * ow {
        let (x, y, f, image) = (at % ow, at / ow % oh, at / ow / oh % o, at / ow / oh / o);
        let group = f / (o / s.groups);
        for k in 0..cg * kh * kw {
            let (kx, ky, channel) = (k % kw, k / kw % kh, k / kw / kh);
            let in_y = (y * s.stride[0] + ky * s.dilation[0]).wrapping_sub(s.padding[0]);
            let in_x = (x * s.stride[1] + kx * s.dilation[1]).wrapping_sub(s.padding[1]);
            if in_y < h && in_x < w {
                let from = ((image * c + group * cg + channel) * h + in_y) * w + in_x;
                each(at, from, f * cg * kh * kw + k);
            }
        }
    }
    [n, o, oh, ow]
}

#[test]
fn convolutions_and_gradients_agree_with_f64() {
    let ops = ops();
    let mut numbers = Numbers(21);
    for (number, case) in cases().iter().enumerate() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let (x, xv) = numbers.tensor(&ops, &case.image, dtype);
            let (w, wv) = numbers.tensor(&ops, &case.weight, dtype);
            let mut want = vec![0.0; 1 << 14];
            let shape = every_product(case, |to, from, weight| want[to] += xv[from] * wv[weight]);
            let count = shape.iter().product::<usize>();
            let what = format!("case {number} {dtype}");
            let y = ops.conv(&x, &w, &case.spec).unwrap();
            assert_eq!(y.shape(), shape);
            assert_close(
                &what,
                &ops.values(&y).unwrap(),
                &want[..count],
                epsilon(dtype),
                1e-5,
            );
            // The same images in memory order NHWC.
            let nhwc = ops
                .dense(&x.swap(1, 2).unwrap().swap(2, 3).unwrap())
                .unwrap();
            let view = nhwc.swap(2, 3).unwrap().swap(1, 2).unwrap();
            let again = ops.conv(&view, &w, &case.spec).unwrap();
            assert_eq!(ops.values(&again).unwrap(), ops.values(&y).unwrap());

            let (dy, dv) = numbers.tensor(&ops, &shape, dtype);
            let (mut dx, mut dw) = (vec![0.0; xv.len()], vec![0.0; wv.len()]);
            every_product(case, |to, from, weight| {
                dx[from] += dv[to] * wv[weight];
                dw[weight] += dv[to] * xv[from];
            });
            let got = ops
                .conv_backward_data(&case.image, &w, &dy, &case.spec)
                .unwrap();
            assert_close(&what, &ops.values(&got).unwrap(), &dx, epsilon(dtype), 1e-5);
            let got = ops
                .conv_backward_weights(&x, &case.weight, &dy, &case.spec)
                .unwrap();
            assert_close(&what, &ops.values(&got).unwrap(), &dw, 1e-5, 1e-4);
        }
    }
}

#[test]
fn what_does_not_fit_is_named_with_both_sides() {
    let ops = ops();
    let x = ops.zeros(&[1, 3, 4, 4], DType::F32).unwrap();
    let w = ops.zeros(&[2, 2, 3, 3], DType::F32).unwrap();
    let said = ops.conv(&x, &w, &Conv::default()).unwrap_err().to_string();
    assert!(
        said.contains("[1, 3, 4, 4]") && said.contains("[2, 2, 3, 3]"),
        "{said}"
    );
    let large = ops.zeros(&[2, 3, 5, 5], DType::F32).unwrap();
    let said = ops
        .conv(&x, &large, &Conv::default())
        .unwrap_err()
        .to_string();
    assert!(said.contains("fit into the padded image"), "{said}");
    let w = ops.zeros(&[2, 3, 3, 3], DType::F32).unwrap();
    let huge = [
        Conv {
            padding: [1 << 63, 0],
            ..Conv::default()
        },
        Conv {
            dilation: [1, 1 << 63],
            ..Conv::default()
        },
    ];
    for spec in huge {
        let said = ops.conv(&x, &w, &spec).unwrap_err().to_string();
        assert!(said.contains("fit into the padded image"), "{said}");
    }
}

#[test]
fn a_stride_past_the_image_leaves_one_window() {
    let ops = ops();
    let x = ops.tensor(&[1, 1, 2, 2], DType::F32, &[1.0, 2.0, 3.0, 4.0]);
    let (x, w) = (x.unwrap(), ops.tensor(&[1, 1, 1, 1], DType::F32, &[3.0]));
    let (w, stride) = (w.unwrap(), [1 << 32, 7]);
    let spec = Conv {
        stride,
        ..Conv::default()
    };
    let y = ops.conv(&x, &w, &spec).unwrap();
    assert_eq!(
        (y.shape(), ops.values(&y).unwrap()),
        (&[1; 4][..], vec![3.0])
    );
    let dx = ops
        .conv_backward_data(&[1, 1, 2, 2], &w, &y, &spec)
        .unwrap();
    assert_eq!(ops.values(&dx).unwrap(), [9.0, 0.0, 0.0, 0.0]);
}

/// The same elements in a tensor that is dense and begins in the middle of 16 bytes.
fn unaligned(ops: &Ops, tensor: &Tensor) -> Tensor {
    let flat = [&[0.0], &*ops.values(tensor).unwrap()].concat();
    let flat = ops.tensor(&[flat.len()], tensor.dtype(), &flat).unwrap();
    let view = flat.narrow(0, 1, tensor.len()).unwrap();
    view.reshape(tensor.shape()).unwrap()
}

/// A convolution of small sizes, often 1, sometimes 0 images; steps, distances and zeros around may be larger than the image.
fn random_case(numbers: &mut Numbers) -> Case {
    let groups = 1 + numbers.below(3);
    let (per_group, outputs) = (1 + numbers.below(9), (1 + numbers.below(9)) * groups);
    let mut spec = Conv {
        groups,
        ..Conv::default()
    };
    let (mut image, mut kernel) = ([0; 2], [0; 2]);
    for axis in 0..2 {
        kernel[axis] = 1 + numbers.below(4);
        spec.stride[axis] = 1 + numbers.below(5);
        spec.dilation[axis] = 1 + numbers.below(4);
        spec.padding[axis] = numbers.below(6);
        let reach = spec.dilation[axis] * (kernel[axis] - 1) + 1;
        let least = reach.saturating_sub(2 * spec.padding[axis]).max(1);
        image[axis] = least + numbers.below(6);
    }
    let images = [0, 1, 1, 2, 3][numbers.below(5)];
    Case {
        image: [images, per_group * groups, image[0], image[1]],
        weight: [outputs, per_group, kernel[0], kernel[1]],
        spec,
    }
}

#[test]
fn random_convolutions_of_tensors_that_begin_anywhere_agree_with_f64() {
    let ops = ops();
    let mut numbers = Numbers(77);
    for number in 0..40 {
        let case = random_case(&mut numbers);
        let what = format!(
            "case {number}: {:?} {:?} {:?}",
            case.image, case.weight, case.spec
        );
        let (x, xv) = numbers.tensor(&ops, &case.image, DType::F32);
        let (w, wv) = numbers.tensor(&ops, &case.weight, DType::F32);
        let (x, w) = (unaligned(&ops, &x), unaligned(&ops, &w));
        let shape = every_product(&case, |_, _, _| ());
        let (dy, dv) = numbers.tensor(&ops, &shape, DType::F32);
        let dy = unaligned(&ops, &dy);
        let mut want = vec![0.0; dv.len()];
        let (mut dx, mut dw) = (vec![0.0; xv.len()], vec![0.0; wv.len()]);
        every_product(&case, |to, from, weight| {
            want[to] += xv[from] * wv[weight];
            dx[from] += dv[to] * wv[weight];
            dw[weight] += dv[to] * xv[from];
        });
        let spec = &case.spec;
        let got = ops.conv(&x, &w, spec).unwrap();
        assert_eq!(got.shape(), shape, "{what}");
        let compare = |got: &Tensor, want: &[f64]| {
            assert_close(
                &what,
                &ops.values(got).unwrap(),
                want,
                epsilon(DType::F32),
                1e-4,
            );
        };
        compare(&got, &want);
        compare(
            &ops.conv_backward_data(&case.image, &w, &dy, spec).unwrap(),
            &dx,
        );
        compare(
            &ops.conv_backward_weights(&x, &case.weight, &dy, spec)
                .unwrap(),
            &dw,
        );
    }
}

#[test]
fn convolutions_without_images_channels_or_outputs_are_empty_or_zero() {
    let ops = ops();
    let spec = Conv {
        padding: [1, 1],
        ..Conv::default()
    };
    for (image, weight) in [
        ([0, 3, 4, 5], [2, 3, 3, 3]),
        ([2, 0, 4, 5], [2, 0, 3, 3]),
        ([2, 3, 4, 5], [0, 3, 3, 3]),
        ([2, 3, 0, 5], [2, 3, 2, 3]),
    ] {
        let x = ops.zeros(&image, DType::F32).unwrap();
        let w = ops.zeros(&weight, DType::F32).unwrap();
        let y = ops.conv(&x, &w, &spec).unwrap();
        let dx = ops.conv_backward_data(&image, &w, &y, &spec).unwrap();
        let dw = ops.conv_backward_weights(&x, &weight, &y, &spec).unwrap();
        assert_eq!((dx.shape(), dw.shape()), (&image[..], &weight[..]));
        for tensor in [y, dx, dw] {
            let all = ops.values(&tensor).unwrap();
            assert!(
                all.iter().all(|value| *value == 0.0),
                "{image:?} {weight:?}"
            );
        }
    }
    // Elements of a window, times groups, that no number counts.
    let x = ops.zeros(&[0, (1 << 31) - 1, 1, 1], DType::F32).unwrap();
    let w = ops
        .zeros(&[0, 1, 1 << 16, (1 << 15) - 1], DType::F32)
        .unwrap();
    let far = Conv {
        padding: [1 << 16, 1 << 15],
        groups: (1 << 31) - 1,
        ..Conv::default()
    };
    let said = ops.conv(&x, &w, &far).unwrap_err().to_string();
    assert!(said.contains("too many elements"), "{said}");
}
