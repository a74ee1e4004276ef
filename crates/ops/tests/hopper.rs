//! The kernels for Hopper (`wgmma`, tensor maps, clusters of two blocks) on the software GPU, against references in f64.

mod common;

use common::{Numbers, assert_close, epsilon, product, transposed};
use mica::{Capability, Device, SoftwareOptions, Vgpu};
use mica_ops::{Attention, Conv, DType, Gemm, Ops, Tensor};

fn hopper() -> Ops {
    let options = SoftwareOptions {
        memory_bytes: Some(1 << 30),
        capability: Capability::Hopper,
        ..SoftwareOptions::default()
    };
    let device = Device::software_with(options).unwrap();
    assert_eq!(device.info().compute_capability, (9, 0));
    let vgpu = Vgpu::builder().memory(512 << 20).build(&device).unwrap();
    Ops::by_kernels_of_cards(&vgpu).unwrap()
}

/// Compares every kernel for Hopper that can compute a product.
fn compare(ops: &Ops, dtype: DType, [m, n, k]: [usize; 3], is_turned: bool) -> usize {
    let mut numbers = Numbers((m * n + k) as u64);
    let (a, av) = numbers.tensor(ops, &[m, k], dtype);
    let (b, bv) = match is_turned {
        false => {
            let (b, bv) = numbers.tensor(ops, &[n, k], dtype);
            (b.t().unwrap(), transposed(&bv, n, k))
        }
        true => numbers.tensor(ops, &[k, n], dtype),
    };
    let want = product(&av, &bv, m, n, k);
    let spec = Gemm::default();
    let all = ops.gemm_kernels(&a, &b, &spec).unwrap();
    let kernels = all.iter().filter(|name| name.starts_with("wgmma"));
    let mut count = 0;
    for name in kernels {
        let got = ops.gemm_by(name, &a, &b, &spec).unwrap();
        let what = format!("{name} {dtype} {m}x{n}x{k} turned {is_turned}");
        let relative = epsilon(got.dtype());
        let absolute = if dtype.is_float() {
            1.2e-7 * k as f64
        } else {
            0.0
        };
        assert_close(&what, &ops.values(&got).unwrap(), &want, relative, absolute);
        count += 1;
    }
    count
}

#[test]
fn products_agree_with_f64() {
    let ops = hopper();
    let mut count = 0;
    for dtype in [DType::F16, DType::BF16, DType::I8] {
        count += compare(&ops, dtype, [200, 144, 192], false);
        count += compare(&ops, dtype, [64, 272, 256], false);
    }
    for dtype in [DType::F16, DType::BF16] {
        count += compare(&ops, dtype, [130, 264, 72], true);
        count += compare(&ops, dtype, [100, 40, 128], true);
    }
    assert!(count >= 20, "{count} kernels were compared");
}

/// One head in f64: rows of queries, keys, values and the gradient of the output.
struct Head<'a> {
    q: &'a [f64],
    k: &'a [f64],
    v: &'a [f64],
    dout: &'a [f64],
    size: usize,
    causal: bool,
}

impl Head<'_> {
    fn weights(&self) -> Vec<f64> {
        let (queries, keys) = (self.q.len() / self.size, self.k.len() / self.size);
        let row = |x: &[f64], at: usize| x[at * self.size..][..self.size].to_vec();
        let mut all = Vec::new();
        for i in 0..queries {
            let sees = |j: &usize| !self.causal || j + queries <= i + keys;
            let score = |j: usize| {
                let dot: f64 = (row(self.q, i).iter().zip(row(self.k, j)))
                    .map(|(a, b)| a * b)
                    .sum();
                (dot / (self.size as f64).sqrt()).exp()
            };
            let scores: Vec<f64> = (0..keys)
                .map(|j| if sees(&j) { score(j) } else { 0.0 })
                .collect();
            let sum: f64 = scores.iter().sum();
            all.extend(scores.iter().map(|x| x / sum));
        }
        all
    }

    /// The output, and the gradients for queries, keys and values.
    fn run(&self) -> [Vec<f64>; 4] {
        let (queries, keys, size) = (
            self.q.len() / self.size,
            self.k.len() / self.size,
            self.size,
        );
        let p = self.weights();
        let out = product(&p, self.v, queries, size, keys);
        let dv = product(
            &transposed(&p, queries, keys),
            self.dout,
            keys,
            size,
            queries,
        );
        let dp = product(
            self.dout,
            &transposed(self.v, keys, size),
            queries,
            keys,
            size,
        );
        let scale = 1.0 / (size as f64).sqrt();
        let mut ds = vec![0.0; p.len()];
        for i in 0..queries {
            let at = i * keys..(i + 1) * keys;
            let dot: f64 = p[at.clone()]
                .iter()
                .zip(&dp[at.clone()])
                .map(|(a, b)| a * b)
                .sum();
            for j in at {
                ds[j] = p[j] * (dp[j] - dot) * scale;
            }
        }
        let dq = product(&ds, self.k, queries, size, keys);
        let dk = product(&transposed(&ds, queries, keys), self.q, keys, size, queries);
        [out, dq, dk, dv]
    }
}

#[test]
fn attention_and_gradients_agree_with_f64() {
    let ops = hopper();
    let mut numbers = Numbers(5);
    let (heads, queries, keys) = (2, 150, 200);
    for (dtype, size, causal) in [(DType::F16, 64, false), (DType::BF16, 128, true)] {
        let mut tensor = |rows: usize| numbers.tensor(&ops, &[1, heads, rows, size], dtype);
        let ((q, qv), (k, kv)) = (tensor(queries), tensor(keys));
        let ((v, vv), (dout, dv)) = (tensor(keys), tensor(queries));
        let spec = Attention {
            causal,
            ..Attention::default()
        };
        let got = ops.attention(&q, &k, &v, &spec).unwrap().output;
        let back = ops.attention_backward(&q, &k, &v, &spec, &dout).unwrap();
        let got = [got, back.dq, back.dk, back.dv].map(|tensor| ops.values(&tensor).unwrap());
        for head in 0..heads {
            let of = |all: &[f64], rows: usize| all[head * rows * size..][..rows * size].to_vec();
            let want = Head {
                q: &of(&qv, queries),
                k: &of(&kv, keys),
                v: &of(&vv, keys),
                dout: &of(&dv, queries),
                size,
                causal,
            }
            .run();
            for (what, (got, want)) in ["output", "dq", "dk", "dv"]
                .iter()
                .zip(got.iter().zip(&want))
            {
                let what = format!("{what} of head {head}, {dtype}, causal {causal}");
                let got = &got[head * want.len()..][..want.len()];
                // Weights and gradients of scores are rounded to 16 bits on their way.
                assert_close(&what, got, want, 4.0 * epsilon(dtype), 2.0 * epsilon(dtype));
            }
        }
    }
}

#[test]
fn convolutions_agree_with_f64() {
    let ops = hopper();
    let mut numbers = Numbers(6);
    let ([n, c, h, w], [o, _, kh, kw]) = ([2, 72, 9, 11], [40, 72, 3, 2]);
    let spec = Conv {
        stride: [2, 1],
        padding: [1, 1],
        ..Conv::default()
    };
    for dtype in [DType::F16, DType::BF16] {
        let (x, xv) = numbers.tensor(&ops, &[n, c, h, w], dtype);
        let (weight, wv) = numbers.tensor(&ops, &[o, c, kh, kw], dtype);
        let y = ops.conv(&x, &weight, &spec).unwrap();
        let [_, _, oh, ow] = y.shape()[..] else {
            panic!("four axes");
        };
        let mut want = vec![0.0; n * o * oh * ow];
        for (at, sum) in want.iter_mut().enumerate() {
            let (to_x, to_y, f, image) =
                (at % ow, at / ow % oh, at / ow / oh % o, at / ow / oh / o);
            for k in 0..c * kh * kw {
                let (kx, ky, channel) = (k % kw, k / kw % kh, k / kw / kh);
                let (from_y, from_x) =
                    ((to_y * 2 + ky).wrapping_sub(1), (to_x + kx).wrapping_sub(1));
                if from_y < h && from_x < w {
                    *sum += xv[((image * c + channel) * h + from_y) * w + from_x]
                        * wv[f * c * kh * kw + k];
                }
            }
        }
        let got = ops.values(&y).unwrap();
        assert_close(&format!("{dtype}"), &got, &want, epsilon(dtype), 2e-4);
    }
}

/// The gradients of attention where all scores are near -20: equal rows of opposite signs, slightly disturbed. The last block
/// of 128 keys has 51 that are not there; their scores are 0, and so their weights would be e^20.
#[test]
fn low_scores_have_finite_gradients() {
    let ops = hopper();
    let (queries, keys) = (70, 77);
    for size in [64, 128] {
        let row = (20.0 / (size as f32).sqrt()).sqrt();
        let around = |rows: usize, stream: u64, middle: f32, wide: f32| {
            let range = (middle - wide, middle + wide);
            let tensor = ops.uniform(&[1, 1, rows, size], DType::F16, (9, stream), range);
            let tensor = tensor.unwrap();
            let values = ops.values(&tensor).unwrap().into_iter().map(f64::from);
            (tensor, values.collect::<Vec<f64>>())
        };
        let (q, qv) = around(queries, 1, row, 0.05);
        let (k, kv) = around(keys, 2, -row, 0.05);
        let ((v, vv), (dout, dv)) = (around(keys, 3, 0.0, 1.0), around(queries, 4, 0.0, 1.0));
        let spec = Attention::default();
        let back = ops.attention_backward(&q, &k, &v, &spec, &dout).unwrap();
        let want = Head {
            q: &qv,
            k: &kv,
            v: &vv,
            dout: &dv,
            size,
            causal: false,
        }
        .run();
        for (what, got, want) in [
            ("dq", &back.dq, &want[1]),
            ("dk", &back.dk, &want[2]),
            ("dv", &back.dv, &want[3]),
        ] {
            let (got, rounding) = (ops.values(got).unwrap(), epsilon(DType::F16));
            assert!(got.iter().all(|value| value.is_finite()), "{what} {size}");
            assert_close(what, &got, want, 4.0 * rounding, 4.0 * rounding);
        }
    }
}

#[test]
fn tensors_without_elements_have_gradients_without_elements() {
    let ops = hopper();
    for [batch, heads, kv_heads, queries, keys] in [
        [0, 2, 1, 4, 5],
        [2, 0, 1, 4, 5],
        [2, 2, 1, 0, 5],
        [2, 2, 1, 4, 0],
    ] {
        let q = ops.zeros(&[batch, heads, queries, 64], DType::F16).unwrap();
        let k = ops.zeros(&[batch, kv_heads, keys, 64], DType::F16).unwrap();
        let spec = Attention::default();
        ops.attention_memory(&q, &k, &k, &spec).unwrap();
        let back = ops.attention_backward(&q, &k, &k, &spec, &q).unwrap();
        assert_eq!(back.dq.shape(), q.shape());
        assert_eq!(back.dk.shape(), k.shape());
    }
}

/// The same elements in a tensor that is dense and begins in the middle of 16 bytes, which the copy unit cannot read.
fn unaligned(ops: &Ops, tensor: &Tensor) -> Tensor {
    let flat = [&[0.0], &*ops.values(tensor).unwrap()].concat();
    let flat = ops.tensor(&[flat.len()], tensor.dtype(), &flat).unwrap();
    let view = flat.narrow(0, 1, tensor.len()).unwrap();
    view.reshape(tensor.shape()).unwrap()
}

#[test]
fn tensors_that_begin_anywhere_give_the_same() {
    let ops = hopper();
    let mut numbers = Numbers(8);
    let mut tensor = |shape: &[usize]| numbers.tensor(&ops, shape, DType::F16).0;
    let (q, k, v) = (
        tensor(&[1, 2, 9, 64]),
        tensor(&[1, 2, 9, 64]),
        tensor(&[1, 2, 9, 64]),
    );
    let dy = tensor(&[1, 2, 9, 64]);
    // Windows of one element of images of one pixel: what is exchanged is dense all the same.
    let (x, w) = (tensor(&[3, 16, 1, 1]), tensor(&[8, 16, 1, 1]));
    let run = |[q, k, v, dy, x, w]: [&Tensor; 6]| {
        let spec = Attention::default();
        let attended = ops.attention(q, k, v, &spec).unwrap();
        let back = ops.attention_backward(q, k, v, &spec, dy).unwrap();
        let y = ops.conv(x, w, &Conv::default()).unwrap();
        let all = [attended.output, back.dq, back.dk, back.dv, y];
        all.map(|tensor| ops.values(&tensor).unwrap())
    };
    let all = [&q, &k, &v, &dy, &x, &w];
    let want = run(all);
    let moved = all.map(|tensor| unaligned(&ops, tensor));
    assert_eq!(run(moved.each_ref()), want);
}
