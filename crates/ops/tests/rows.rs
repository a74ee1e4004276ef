//! Softmax, norms, cross entropy, reductions, embeddings and random numbers against a reference in f64.

mod common;

use common::{Numbers, assert_close, epsilon, ops};
use mica_ops::{DType, Norm, Reduction};

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn softmax(row: &[f64], scale: f64) -> Vec<f64> {
    let most = row.iter().fold(f64::NEG_INFINITY, |m, x| m.max(x * scale));
    let exps: Vec<f64> = row.iter().map(|x| (x * scale - most).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|e| e / sum).collect()
}

#[test]
fn softmax_and_its_gradient_agree_with_f64() {
    let ops = ops();
    let mut numbers = Numbers(11);
    for dtype in FLOATS {
        for [rows, cols] in [[1, 1], [3, 33], [5, 100], [2, 1000]] {
            let (x, xv) = numbers.tensor(&ops, &[rows, cols], dtype);
            let (dy, dv) = numbers.tensor(&ops, &[rows, cols], dtype);
            let y = ops.softmax(&x, 3.0).unwrap();
            let want: Vec<f64> = xv.chunks(cols).flat_map(|row| softmax(row, 3.0)).collect();
            let what = format!("softmax {dtype} {rows}x{cols}");
            assert_close(
                &what,
                &ops.values(&y).unwrap(),
                &want,
                epsilon(dtype) + 2e-6,
                1e-7,
            );
            let dx = ops.softmax_backward(&y, &dy, 3.0).unwrap();
            let yv: Vec<f64> = ops
                .values(&y)
                .unwrap()
                .iter()
                .map(|y| f64::from(*y))
                .collect();
            let want: Vec<f64> = (yv.chunks(cols).zip(dv.chunks(cols)))
                .flat_map(|(y, d)| {
                    let dot: f64 = y.iter().zip(d).map(|(y, d)| y * d).sum();
                    let row = y.iter().zip(d).map(move |(y, d)| 3.0 * y * (d - dot));
                    row.collect::<Vec<_>>()
                })
                .collect();
            assert_close(
                &what,
                &ops.values(&dx).unwrap(),
                &want,
                epsilon(dtype),
                2e-6,
            );
        }
    }
}

#[test]
fn softmax_of_huge_infinite_and_missing_numbers() {
    let ops = ops();
    let x = [1e30, 1e30, f32::NEG_INFINITY, 0.0, f32::NAN, 0.0];
    let x = ops.tensor(&[3, 2], DType::F32, &x).unwrap();
    let y = ops.values(&ops.softmax(&x, 1.0).unwrap()).unwrap();
    assert_eq!(y[..4], [0.5, 0.5, 0.0, 1.0]);
    assert!(y[4].is_nan() && y[5].is_nan());
}

fn normed(row: &[f64], kind: Norm) -> (f64, f64) {
    let n = row.len() as f64;
    let mean = if kind == Norm::Rms {
        0.0
    } else {
        row.iter().sum::<f64>() / n
    };
    let square = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    (mean, 1.0 / (square + 1e-5).sqrt())
}

#[test]
fn norms_agree_with_f64_and_their_gradients_with_finite_differences() {
    let ops = ops();
    let mut numbers = Numbers(12);
    for (kind, dtype) in [Norm::Layer, Norm::Rms]
        .into_iter()
        .flat_map(|k| FLOATS.map(|d| (k, d)))
    {
        let (rows, cols) = (4, 37);
        let (x, xv) = numbers.tensor(&ops, &[rows, cols], dtype);
        let (w, wv) = numbers.tensor(&ops, &[cols], dtype);
        let (b, bv) = numbers.tensor(&ops, &[cols], dtype);
        let (dy, dv) = numbers.tensor(&ops, &[rows, cols], dtype);
        let (y, stats) = ops.norm(&x, kind, Some(&w), Some(&b), 1e-5).unwrap();
        let forward = |xv: &[f64], wv: &[f64]| -> Vec<f64> {
            let rows = xv.chunks(cols).flat_map(|row| {
                let (mean, inverse) = normed(row, kind);
                let each = row.iter().enumerate();
                each.map(|(i, x)| (x - mean) * inverse * wv[i] + bv[i])
                    .collect::<Vec<_>>()
            });
            rows.collect()
        };
        let what = format!("{kind:?} {dtype}");
        assert_close(
            &what,
            &ops.values(&y).unwrap(),
            &forward(&xv, &wv),
            epsilon(dtype),
            4e-6,
        );
        let gradients = ops.norm_backward(&x, kind, Some(&w), &dy, &stats).unwrap();
        let loss = |xv: &[f64], wv: &[f64]| -> f64 {
            forward(xv, wv).iter().zip(&dv).map(|(y, d)| y * d).sum()
        };
        let slope = |at: usize, of_x: bool| {
            let part = |step: f64| {
                let (mut x, mut w) = (xv.clone(), wv.clone());
                if of_x {
                    x[at] += step
                } else {
                    w[at] += step
                }
                loss(&x, &w)
            };
            (part(1e-5) - part(-1e-5)) / 2e-5
        };
        let dx: Vec<f64> = (0..rows * cols).map(|at| slope(at, true)).collect();
        let dw: Vec<f64> = (0..cols).map(|at| slope(at, false)).collect();
        assert_close(
            &what,
            &ops.values(&gradients.dx).unwrap(),
            &dx,
            epsilon(dtype),
            1e-5,
        );
        assert_close(
            &what,
            &ops.values(&gradients.dweight).unwrap(),
            &dw,
            1e-5,
            1e-5,
        );
        let db: Vec<f64> = (0..cols)
            .map(|c| (0..rows).map(|r| dv[r * cols + c]).sum())
            .collect();
        assert_close(
            &what,
            &ops.values(&gradients.dbias).unwrap(),
            &db,
            1e-5,
            1e-5,
        );
    }
}

#[test]
fn the_statistics_of_another_shape_are_refused() {
    let ops = ops();
    let x = ops.zeros(&[8, 4], DType::F32).unwrap();
    let few = ops.zeros(&[2, 4], DType::F32).unwrap();
    let (_, stats) = ops.norm(&few, Norm::Layer, None, None, 1e-5).unwrap();
    let said = ops.norm_backward(&x, Norm::Layer, None, &x, &stats);
    let said = said.unwrap_err().to_string();
    assert!(said.contains("[2, 2] does not fit x [8, 4]"), "{said}");
    let ids = ops.zeros(&[8, 4], DType::I32).unwrap();
    assert!(
        ops.norm_backward(&ids, Norm::Layer, None, &ids, &stats)
            .is_err()
    );
}

#[test]
fn cross_entropy_and_its_gradient_agree_with_f64() {
    let ops = ops();
    let mut numbers = Numbers(13);
    let (x, xv) = numbers.tensor(&ops, &[4, 50], DType::F32);
    let targets = [3.0, 49.0, -1.0, 50.0];
    let t = ops.tensor(&[4], DType::I32, &targets).unwrap();
    let (loss, gradient) = ops.cross_entropy(&x, &t, 0.25).unwrap();
    let (loss, gradient) = (ops.values(&loss).unwrap(), ops.values(&gradient).unwrap());
    for row in 0..2 {
        let p = softmax(&xv[row * 50..][..50], 1.0);
        let at = targets[row] as usize;
        assert_close("loss", &loss[row..=row], &[-p[at].ln()], 1e-6, 1e-6);
        let want: Vec<f64> = (0..50)
            .map(|i| 0.25 * (p[i] - f64::from(u8::from(i == at))))
            .collect();
        assert_close("gradient", &gradient[row * 50..][..50], &want, 1e-5, 1e-7);
    }
    assert_eq!((loss[2], &gradient[100..]), (0.0, &[0.0; 100][..]));
    assert!(loss[3].is_nan(), "a target that is no column");
}

#[test]
fn reductions_of_every_axis_agree_with_f64() {
    let ops = ops();
    let mut numbers = Numbers(14);
    let shape = [3, 41, 5];
    let (x, xv) = numbers.tensor(&ops, &shape, DType::F16);
    for axis in 0..3 {
        let inner: usize = shape[axis + 1..].iter().product();
        let size = shape[axis];
        for what in [
            Reduction::Sum,
            Reduction::Mean,
            Reduction::Max,
            Reduction::Min,
        ] {
            let got = ops.reduce(&x, axis, what).unwrap();
            let want: Vec<f64> = (0..xv.len() / size)
                .map(|at| {
                    let first = at / inner * inner * size + at % inner;
                    let line = (0..size).map(|i| xv[first + i * inner]);
                    match what {
                        Reduction::Sum => line.sum(),
                        Reduction::Mean => line.sum::<f64>() / size as f64,
                        Reduction::Max => line.fold(f64::NEG_INFINITY, f64::max),
                        Reduction::Min => line.fold(f64::INFINITY, f64::min),
                    }
                })
                .collect();
            assert_close(
                &format!("{what:?} {axis}"),
                &ops.values(&got).unwrap(),
                &want,
                1e-6,
                1e-6,
            );
        }
    }
    let many = vec![0.5; 100_003];
    let x = ops.tensor(&[many.len()], DType::F32, &many).unwrap();
    let sum = ops
        .values(&ops.reduce_all(&x, Reduction::Sum).unwrap())
        .unwrap();
    let mean = ops
        .values(&ops.reduce_all(&x, Reduction::Mean).unwrap())
        .unwrap();
    assert_close("all", &[sum[0], mean[0]], &[50_001.5, 0.5], 1e-6, 0.0);
}

#[test]
fn embeddings_gather_rows_and_scatter_gradients() {
    let ops = ops();
    let table = ops
        .tensor(&[3, 2], DType::BF16, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        .unwrap();
    let numbers = ops
        .tensor(&[2, 2], DType::I32, &[2.0, 0.0, 2.0, 7.0])
        .unwrap();
    let y = ops.embedding(&table, &numbers).unwrap();
    assert_eq!(y.shape(), [2, 2, 2]);
    let values = ops.values(&y).unwrap();
    assert_eq!(values[..6], [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
    assert!(values[6].is_nan(), "7 is no row");
    let dy = ops.tensor(&[2, 2, 2], DType::BF16, &[1.0; 8]).unwrap();
    let gradient = ops.embedding_backward(&dy, &numbers, 3).unwrap();
    assert_eq!(
        ops.values(&gradient).unwrap(),
        [1.0, 1.0, 0.0, 0.0, 2.0, 2.0]
    );
}

/// The known answer of the paper's own test vectors for a counter and a key of zeros.
#[test]
fn philox_gives_its_published_numbers() {
    let ops = ops();
    let x = ops.uniform(&[4], DType::F32, (0, 0), (0.0, 1.0)).unwrap();
    let words = [0x6627_e8d5_u32, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
    let want = words.map(|word| (word >> 8) as f32 / 16_777_216.0);
    assert_eq!(ops.values(&x).unwrap(), want);
}

#[test]
fn random_numbers_have_the_moments_of_their_distribution() {
    let ops = ops();
    let count = 20_001;
    for stream in 0..2 {
        let x = ops
            .normal(&[count], DType::F32, (42, stream), (1.0, 2.0))
            .unwrap();
        let values = ops.values(&x).unwrap();
        let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / count as f64;
        let square = values
            .iter()
            .map(|x| (f64::from(*x) - mean).powi(2))
            .sum::<f64>();
        let deviation = (square / count as f64).sqrt();
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
        assert!((deviation - 2.0).abs() < 0.05, "{deviation}");
    }
    let a = ops
        .uniform(&[100], DType::F32, (1, 0), (-1.0, 1.0))
        .unwrap();
    let b = ops
        .uniform(&[100], DType::F32, (1, 1), (-1.0, 1.0))
        .unwrap();
    let (a, b) = (ops.values(&a).unwrap(), ops.values(&b).unwrap());
    assert!(a != b && a.iter().chain(&b).all(|x| (-1.0..1.0).contains(x)));
}
