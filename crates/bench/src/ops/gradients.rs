//! Whether the gradients of attention are what they should be.

use anyhow::{Result, ensure};
use mica_ops::{Attention, DType, Ops, Tensor};

use crate::report::Line;

/// Queries and keys, which leave parts of tiles.
const QUERIES: usize = 150;
const KEYS: usize = 203;

/// One head in f64: gradients of queries, keys and values.
struct Reference {
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
}

impl Reference {
    fn of([q, k, v, dy]: [&[f64]; 4], size: usize, causal: bool) -> Self {
        let mut own = Self {
            dq: vec![0.0; q.len()],
            dk: vec![0.0; k.len()],
            dv: vec![0.0; v.len()],
        };
        let scale = 1.0 / (size as f64).sqrt();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        for (i, (q, dy)) in q.chunks(size).zip(dy.chunks(size)).enumerate() {
            // The last query is beside the last key.
            let seen = if causal { i + 1 + KEYS - QUERIES } else { KEYS };
            let rows = |of: &'_ [f64], j: usize| of[j * size..][..size].to_vec();
            let mut weights: Vec<f64> = (0..seen)
                .map(|j| (dot(q, &rows(k, j)) * scale).exp())
                .collect();
            let sum: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
            let dweights: Vec<f64> = (0..seen).map(|j| dot(dy, &rows(v, j))).collect();
            let delta = dot(&weights, &dweights);
            for j in 0..seen {
                let dscore = weights[j] * (dweights[j] - delta) * scale;
                for d in 0..size {
                    own.dq[i * size + d] += dscore * k[j * size + d];
                    own.dk[j * size + d] += dscore * q[d];
                    own.dv[j * size + d] += weights[j] * dy[d];
                }
            }
        }
        own
    }
}

/// Compares the gradients with f64 for each size of a head that has a kernel of its own.
pub(super) fn check(ops: &Ops) -> Result<Line> {
    // On the software GPU and for 32-bit floats they are made of products, which have their own check.
    let types = [(DType::F16, 4e-3), (DType::BF16, 3e-2)];
    let cases = [
        (64, true),
        (64, false),
        (80, true),
        (128, true),
        (128, false),
    ];
    for (dtype, tolerance) in types {
        for (size, causal) in cases {
            one(ops, dtype, tolerance, (size, causal), (0.0, 0.0))?;
        }
        for size in [64, 128] {
            // Scores near -20: keys beyond the last one, whose score is 0, must have no weight.
            let far = (20.0 / (size as f32).sqrt()).sqrt();
            one(ops, dtype, tolerance, (size, false), (far, -far))?;
        }
    }
    Ok(Line {
        what: "gradients of attention agree with f64".into(),
        native: "-".into(),
        mica: "heads of 64, 80, 128".into(),
        goal: "all".into(),
        reached: Some(true),
    })
}

/// One size of a head and whether it is causal, with queries and keys around these values.
fn one(
    ops: &Ops,
    dtype: DType,
    tolerance: f64,
    (size, causal): (usize, bool),
    (queries, keys): (f32, f32),
) -> Result<()> {
    let random = |rows, stream, middle: f32| {
        // Far from 0 less wide, so that scores stay near each other.
        let wide = if middle == 0.0 { 1.0 } else { 0.05 };
        let range = (middle - wide, middle + wide);
        ops.uniform(&[1, 1, rows, size], dtype, (3, stream), range)
    };
    let (q, k) = (random(QUERIES, 1, queries)?, random(KEYS, 2, keys)?);
    let (v, dy) = (random(KEYS, 3, 0.0)?, random(QUERIES, 4, 0.0)?);
    let spec = Attention {
        causal,
        ..Attention::default()
    };
    let got = ops.attention_backward(&q, &k, &v, &spec, &dy)?;
    let values = |tensor: &Tensor| -> Result<Vec<f64>> {
        Ok(ops.values(tensor)?.into_iter().map(f64::from).collect())
    };
    let [q, k, v, dy] = [values(&q)?, values(&k)?, values(&v)?, values(&dy)?];
    let want = Reference::of([&q, &k, &v, &dy], size, causal);
    let pairs = [
        ("queries", &got.dq, &want.dq),
        ("keys", &got.dk, &want.dk),
        ("values", &got.dv, &want.dv),
    ];
    for (what, got, want) in pairs {
        for (at, (got, want)) in values(got)?.iter().zip(want).enumerate() {
            // A sum of many weights is rounded relative to its size.
            let allowed = tolerance * want.abs().max(1.0);
            ensure!(
                (got - want).abs() <= allowed,
                "attention {dtype}, heads of {size}: element {at} of the gradient of the {what} is {got}, the reference {want}"
            );
        }
    }
    Ok(())
}
