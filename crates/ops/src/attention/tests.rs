//! Both ways against a reference in f64.

use super::flash::Flash;
use super::{Attended, Attention, Pages, Starts, check};
use crate::{DType, Ops, Tensor};

fn ops() -> Ops {
    let device = mica::Device::software().unwrap();
    let vgpu = mica::Vgpu::builder()
        .memory(128 << 20)
        .build(&device)
        .unwrap();
    Ops::new(&vgpu).unwrap()
}

struct Case {
    shape: [usize; 5],
    size: usize,
    causal: bool,
    window: Option<usize>,
}

/// Batch, heads, heads of keys, queries, keys; head size; mask.
const CASES: [Case; 6] = [
    Case {
        shape: [1, 1, 1, 1, 1],
        size: 32,
        causal: false,
        window: None,
    },
    Case {
        shape: [2, 4, 2, 37, 70],
        size: 64,
        causal: true,
        window: None,
    },
    Case {
        shape: [1, 2, 1, 70, 70],
        size: 40,
        causal: true,
        window: Some(9),
    },
    Case {
        shape: [1, 2, 2, 40, 33],
        size: 128,
        causal: false,
        window: None,
    },
    Case {
        shape: [1, 1, 1, 50, 20],
        size: 256,
        causal: true,
        window: None,
    },
    // More keys than a tile has, some of which no query of a block sees.
    Case {
        shape: [1, 2, 1, 70, 300],
        size: 16,
        causal: true,
        window: Some(200),
    },
];

fn values(ops: &Ops, shape: &[usize], dtype: DType, stream: u64) -> (Tensor, Vec<f64>) {
    let tensor = ops.uniform(shape, dtype, (5, stream), (-1.0, 1.0)).unwrap();
    let values = ops.values(&tensor).unwrap();
    (tensor, values.into_iter().map(f64::from).collect())
}

/// One head: rows of q, k, v; which keys query i sees.
fn reference(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    size: usize,
    sees: impl Fn(usize, usize) -> bool,
) -> Vec<f64> {
    let (keys, mut out) = (k.len() / size, Vec::new());
    for (i, q) in q.chunks(size).enumerate() {
        let score = |j: usize| -> f64 {
            let dot: f64 = q.iter().zip(&k[j * size..]).map(|(a, b)| a * b).sum();
            (dot / (size as f64).sqrt()).exp()
        };
        let weights: Vec<f64> = (0..keys)
            .map(|j| if sees(i, j) { score(j) } else { 0.0 })
            .collect();
        let sum = weights.iter().sum::<f64>().max(1e-300);
        let column = |d: usize| (0..keys).map(|j| weights[j] * v[j * size + d]).sum::<f64>() / sum;
        out.extend((0..size).map(column));
    }
    out
}

fn compare(what: &str, got: &[f32], want: &[f64], dtype: DType) {
    let tolerance = match dtype {
        DType::F32 => 3e-6,
        DType::F16 => 2e-3,
        _ => 1.6e-2,
    };
    assert_eq!(got.len(), want.len());
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            (f64::from(*got) - want).abs() <= tolerance,
            "{what} {at}: {got} is not {want}"
        );
    }
}

fn run(ops: &Ops, case: &Case, dtype: DType, way: Option<Flash>) {
    let [batch, heads, kv_heads, queries, keys] = case.shape;
    let size = case.size;
    // Rows of all heads beside each other, as models have them: views with strides.
    let (q, qv) = values(ops, &[batch, queries, heads, size], dtype, 1);
    let (k, kv) = values(ops, &[batch, keys, kv_heads, size], dtype, 2);
    let (v, vv) = values(ops, &[batch, keys, kv_heads, size], dtype, 3);
    let [q, k, v] = [q, k, v].map(|tensor| tensor.swap(1, 2).unwrap());
    let spec = Attention {
        causal: case.causal,
        window: case.window,
        ..Attention::default()
    };
    let sizes = check(&q, &k, &v, &spec).unwrap();
    let attended = Attended {
        output: ops.zeros(&[batch, heads, queries, size], dtype).unwrap(),
        log_sums: None,
    };
    match way {
        Some(kernel) => ops
            .flash(kernel, &sizes, [&q, &k, &v], &spec, &attended)
            .unwrap(),
        None => ops.plain(&sizes, [&q, &k, &v], &spec, &attended).unwrap(),
    }
    let got = ops.values(&attended.output).unwrap();
    for b in 0..batch {
        for head in 0..heads {
            let pick = |all: &[f64], rows: usize, heads: usize, head: usize| -> Vec<f64> {
                let first = |row: usize| ((b * rows + row) * heads + head) * size;
                (0..rows)
                    .flat_map(|row| all[first(row)..][..size].to_vec())
                    .collect()
            };
            let shared = head / (heads / kv_heads);
            let q = pick(&qv, queries, heads, head);
            let (k, v) = (
                pick(&kv, keys, kv_heads, shared),
                pick(&vv, keys, kv_heads, shared),
            );
            let sees = |i: usize, j: usize| {
                let own = (i + keys) as i64 - queries as i64;
                let near = case
                    .window
                    .is_none_or(|window| j as i64 > own - window as i64);
                !case.causal || (j as i64 <= own && near)
            };
            let want = reference(&q, &k, &v, size, sees);
            let at = (b * heads + head) * queries * size;
            let what = format!("{way:?} {dtype} {:?} {size}", case.shape);
            compare(&what, &got[at..][..queries * size], &want, dtype);
        }
    }
}

#[test]
fn the_kernels_of_the_software_gpu_agree_with_f64() {
    let ops = ops();
    for case in &CASES {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for kernel in [Flash::Panels, Flash::Rows] {
                run(&ops, case, dtype, Some(kernel));
            }
        }
    }
}

#[test]
fn the_plain_way_agrees_with_f64() {
    let ops = ops();
    for case in &CASES {
        run(&ops, case, DType::F32, None);
    }
}

#[test]
fn a_kernel_with_tensor_cores_agrees_with_f64() {
    let ops = ops();
    run(
        &ops,
        &Case {
            size: 32,
            ..CASES[0]
        },
        DType::BF16,
        Some(Flash::Mma(32)),
    );
    run(
        &ops,
        &Case {
            size: 24,
            ..CASES[2]
        },
        DType::BF16,
        Some(Flash::Mma(32)),
    );
}

#[test]
#[ignore = "takes minutes; run after a change to crates/ops/kernels: cargo test -p mica-ops --lib -- --ignored all_kernels"]
fn all_kernels_with_tensor_cores_agree_with_f64() {
    let ops = ops();
    for (size, case) in [
        (64, &CASES[1]),
        (64, &CASES[2]),
        (128, &CASES[3]),
        (256, &CASES[4]),
    ] {
        for dtype in [DType::BF16, DType::F16] {
            run(&ops, case, dtype, Some(Flash::Mma(size)));
        }
    }
}

#[test]
fn sequences_of_different_lengths_see_only_themselves() {
    let ops = ops();
    let (size, starts) = (16, [0, 5, 5, 40]);
    let (q, qv) = values(&ops, &[1, 1, 40, size], DType::F32, 1);
    let (k, kv) = values(&ops, &[1, 1, 40, size], DType::F32, 2);
    let spec = Attention {
        causal: true,
        starts: Some(Starts {
            queries: &starts,
            keys: &starts,
        }),
        ..Attention::default()
    };
    let got = ops
        .values(&ops.attention(&q, &k, &k, &spec).unwrap().output)
        .unwrap();
    for pair in starts.windows(2) {
        let rows = pair[0] * size..pair[1] * size;
        let (q, k) = (&qv[rows.clone()], &kv[rows.clone()]);
        compare(
            "lengths",
            &got[rows],
            &reference(q, k, k, size, |i, j| j <= i),
            DType::F32,
        );
    }
}

/// Heads of 32 take a flash kernel, heads of 33 the plain way.
#[test]
fn the_estimate_is_what_is_allocated() {
    let ops = ops();
    for (heads, rows, size) in [
        ([2, 2], [64, 64], 32),
        ([2, 2], [64, 64], 33),
        ([4, 2], [37, 70], 33),
        ([8, 1], [128, 100], 32),
        ([8, 1], [300, 515], 5),
    ] {
        for dtype in [DType::F32, DType::F16] {
            let (q, _) = values(&ops, &[2, heads[0], rows[0], size], dtype, 1);
            let (k, _) = values(&ops, &[2, rows[1], heads[1], size], dtype, 2);
            let k = k.swap(1, 2).unwrap();
            let spec = Attention::default();
            let what = format!("{heads:?} {rows:?} {size} {dtype}");
            let memory = ops.attention_memory(&q, &k, &k, &spec).unwrap();
            // The first call loads the kernels, which count too.
            drop(ops.attention(&q, &k, &k, &spec).unwrap());
            ops.synchronize().unwrap();
            ops.trim();
            let used = || ops.vgpu().memory().unwrap().used_bytes;
            let before = used();
            let attended = ops.attention(&q, &k, &k, &spec).unwrap();
            ops.synchronize().unwrap();
            // What the kernels took is kept in the pool until it is given back.
            let flash = attended.log_sums.is_some();
            let way = if flash { memory.flash } else { memory.plain };
            assert_eq!(flash, size == 32);
            assert_eq!(used() - before, memory.result + way, "{what}");
            ops.trim();
            assert_eq!(used() - before, memory.result, "{what}");
            drop(attended);
            ops.trim();
        }
    }
}

#[test]
fn what_is_counted_cannot_be_read() {
    let ops = ops();
    let said = ops.memory_of(|ops| ops.values(&ops.zeros(&[3], DType::F32)?));
    assert!(said.unwrap_err().to_string().contains("counted"));
    assert_eq!(
        ops.memory_of(|ops| ops.zeros(&[3], DType::F32)).unwrap(),
        512
    );
}

#[test]
fn logarithms_of_sums_are_there_exactly_where_they_are_computed() {
    let ops = ops();
    let (q, qv) = values(&ops, &[1, 1, 3, 8], DType::F32, 1);
    let attended = ops.attention(&q, &q, &q, &Attention::default()).unwrap();
    let got = ops.values(&attended.log_sums.unwrap()).unwrap();
    let row = |at: usize| &qv[at * 8..][..8];
    let want: Vec<f64> = (0..3)
        .map(|i| {
            let dot = |j: usize| row(i).iter().zip(row(j)).map(|(a, b)| a * b).sum::<f64>();
            (0..3)
                .map(|j| (dot(j) / 8_f64.sqrt()).exp())
                .sum::<f64>()
                .ln()
        })
        .collect();
    compare("log sums", &got, &want, DType::F32);
    let (odd, _) = values(&ops, &[1, 1, 3, 5], DType::F32, 1);
    let attended = ops.attention(&odd, &odd, &odd, &Attention::default());
    assert!(attended.unwrap().log_sums.is_none());
}

#[test]
fn a_window_without_an_end_is_no_window() {
    let ops = ops();
    // A size of 5 takes the plain way, one of 8 a flash kernel.
    for size in [5, 8] {
        let (q, _) = values(&ops, &[1, 1, 4, size], DType::F32, 1);
        let spec = |window| Attention {
            causal: true,
            window,
            ..Attention::default()
        };
        let run = |window| {
            let attended = ops.attention(&q, &q, &q, &spec(window)).unwrap();
            ops.values(&attended.output).unwrap()
        };
        let want = run(None);
        for window in [4, u32::MAX as usize, usize::MAX] {
            assert_eq!(run(Some(window)), want, "{size} {window}");
        }
        assert!(ops.attention(&q, &q, &q, &spec(Some(0))).is_err());
    }
}

#[test]
fn without_keys_the_output_and_its_gradients_are_zero() {
    let ops = ops();
    for size in [5, 8] {
        let (q, _) = values(&ops, &[1, 1, 4, size], DType::F32, 1);
        let none = ops.zeros(&[1, 1, 0, size], DType::F32).unwrap();
        let spec = Attention::default();
        let attended = ops.attention(&q, &none, &none, &spec).unwrap();
        assert_eq!(ops.values(&attended.output).unwrap(), vec![0.0; 4 * size]);
        let back = ops.attention_backward(&q, &none, &none, &spec, &q).unwrap();
        assert_eq!(ops.values(&back.dq).unwrap(), vec![0.0; 4 * size]);
    }
}

#[test]
fn tensors_without_elements_have_attention_and_gradients_without_elements() {
    let ops = ops();
    // Batch, heads, heads of keys, queries, keys.
    for [batch, heads, kv_heads, queries, keys] in [
        [0, 2, 1, 4, 5],
        [2, 0, 1, 4, 5],
        [2, 2, 1, 0, 5],
        [2, 2, 1, 4, 0],
        [0, 2, 2, 0, 0],
    ] {
        // The plain way, flash kernels, and a size that Hopper has kernels for.
        for (size, dtype) in [
            (5, DType::F32),
            (8, DType::F32),
            (64, DType::F16),
            (0, DType::F32),
        ] {
            let (q, _) = values(&ops, &[batch, heads, queries, size], dtype, 1);
            let (k, _) = values(&ops, &[batch, kv_heads, keys, size], dtype, 2);
            let spec = Attention::default();
            let what = format!("{batch} {heads} {kv_heads} {queries} {keys} {size}");
            let attended = ops.attention(&q, &k, &k, &spec);
            let attended = attended.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(attended.output.shape(), q.shape(), "{what}");
            let memory = ops.attention_memory(&q, &k, &k, &spec);
            memory.unwrap_or_else(|error| panic!("{what}: {error}"));
            for got in [
                ops.attention_backward(&q, &k, &k, &spec, &q),
                ops.attention_backward_of(&q, &k, &k, &spec, &attended, &q),
            ] {
                let got = got.unwrap_or_else(|error| panic!("{what}: {error}"));
                for (gradient, of) in [(got.dq, &q), (got.dk, &k), (got.dv, &k)] {
                    assert_eq!(gradient.shape(), of.shape(), "{what}");
                    let all = ops.values(&gradient).unwrap();
                    assert!(all.iter().all(|value| *value == 0.0), "{what}");
                }
            }
        }
    }
}

#[test]
fn kernels_for_hopper_are_for_tensors_with_elements() {
    let ops = ops();
    let fits = |shape: [usize; 4], keys: usize| {
        let q = ops.zeros(&shape, DType::F16).unwrap();
        let k = ops
            .zeros(&[shape[0], 1, keys, shape[3]], DType::F16)
            .unwrap();
        check(&q, &k, &k, &Attention::default())
            .unwrap()
            .fits_wgmma()
    };
    assert!(fits([1, 1, 1, 64], 1));
    for (shape, keys) in [
        ([0, 1, 1, 64], 1),
        ([1, 0, 1, 64], 1),
        ([1, 1, 0, 64], 1),
        ([1, 1, 1, 64], 0),
    ] {
        assert!(!fits(shape, keys), "{shape:?} {keys}");
    }
}

/// A tensor that is dense and begins in the middle of 16 bytes.
fn unaligned(ops: &Ops, tensor: &Tensor) -> Tensor {
    let flat = [&[0.0], &*ops.values(tensor).unwrap()].concat();
    let flat = ops.tensor(&[flat.len()], tensor.dtype(), &flat).unwrap();
    let view = flat.narrow(0, 1, tensor.len()).unwrap();
    let view = view.reshape(tensor.shape()).unwrap();
    assert!(view.is_dense() && !view.address().is_multiple_of(16));
    view
}

#[test]
fn tensors_that_begin_anywhere_have_the_same_attention_and_gradients() {
    let ops = ops();
    for (size, dtype) in [(5, DType::F32), (8, DType::F32), (64, DType::F16)] {
        let spec = Attention::default();
        let [q, k, v, dy] = [1, 2, 3, 4].map(|n| values(&ops, &[1, 2, 9, size], dtype, n).0);
        let run = |[q, k, v, dy]: [&Tensor; 4]| {
            let attended = ops.attention(q, k, v, &spec).unwrap();
            let back = ops.attention_backward(q, k, v, &spec, dy).unwrap();
            let all = [attended.output, back.dq, back.dk, back.dv];
            all.map(|tensor| ops.values(&tensor).unwrap())
        };
        let want = run([&q, &k, &v, &dy]);
        let [q, k, v, dy] = [&q, &k, &v, &dy].map(|tensor| unaligned(&ops, tensor));
        assert_eq!(run([&q, &k, &v, &dy]), want, "{size} {dtype}");
    }
}

#[test]
fn what_does_not_fit_is_named_with_both_sides() {
    let ops = ops();
    let (q, _) = values(&ops, &[1, 3, 4, 8], DType::F32, 1);
    let (k, _) = values(&ops, &[1, 2, 4, 8], DType::F32, 1);
    let said = ops
        .attention(&q, &k, &k, &Attention::default())
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("[1, 3, 4, 8]") && said.contains("[1, 2, 4, 8]"),
        "{said}"
    );
    let window = Attention {
        window: Some(2),
        ..Attention::default()
    };
    assert!(ops.attention(&q, &q, &q, &window).is_err());
}

#[test]
fn gradients_agree_with_finite_differences() {
    let ops = ops();
    let (queries, keys, size) = (5, 7, 8);
    let (q, qv) = values(&ops, &[1, 2, queries, size], DType::F32, 1);
    let (k, kv) = values(&ops, &[1, 1, keys, size], DType::F32, 2);
    let (v, vv) = values(&ops, &[1, 1, keys, size], DType::F32, 3);
    let (dy, dv) = values(&ops, &[1, 2, queries, size], DType::F32, 4);
    let spec = Attention {
        causal: true,
        ..Attention::default()
    };
    let loss = |q: &[f64], k: &[f64], v: &[f64]| -> f64 {
        let sees = |i: usize, j: usize| j + queries <= i + keys;
        let heads = q
            .chunks(queries * size)
            .flat_map(|q| reference(q, k, v, size, sees));
        heads.zip(&dv).map(|(y, d)| y * d).sum()
    };
    let slope = |which: usize, at: usize| {
        let part = |step: f64| {
            let mut all = [qv.clone(), kv.clone(), vv.clone()];
            all[which][at] += step;
            loss(&all[0], &all[1], &all[2])
        };
        (part(1e-5) - part(-1e-5)) / 2e-5
    };
    let got = ops.attention_backward(&q, &k, &v, &spec, &dy).unwrap();
    for (which, gradient) in [&got.dq, &got.dk, &got.dv].into_iter().enumerate() {
        let want: Vec<f64> = (0..gradient.len()).map(|at| slope(which, at)).collect();
        compare(
            "gradient",
            &ops.values(gradient).unwrap(),
            &want,
            DType::F32,
        );
    }
}

/// Three sequences, one without queries and one without keys, against each alone.
#[test]
fn gradients_of_sequences_are_those_of_each_alone() {
    let ops = ops();
    let (size, queries, keys) = (16, [0, 5, 5, 12, 20], [0, 9, 12, 12, 31]);
    for (dtype, causal) in [(DType::F32, true), (DType::F16, false)] {
        let (q, _) = values(&ops, &[1, 4, 20, size], dtype, 1);
        let (k, _) = values(&ops, &[1, 2, 31, size], dtype, 2);
        let (v, _) = values(&ops, &[1, 2, 31, size], dtype, 3);
        let (dy, _) = values(&ops, &[1, 4, 20, size], dtype, 4);
        let alone = Attention {
            causal,
            ..Attention::default()
        };
        let starts = Starts {
            queries: &queries,
            keys: &keys,
        };
        let spec = Attention {
            starts: Some(starts),
            ..alone.clone()
        };
        let got = ops.attention_backward(&q, &k, &v, &spec, &dy).unwrap();
        let attended = ops.attention(&q, &k, &v, &spec).unwrap();
        let of = ops.attention_backward_of(&q, &k, &v, &spec, &attended, &dy);
        let of = of.unwrap();
        for (rows, key_rows) in queries.windows(2).zip(keys.windows(2)) {
            let part = |tensor: &Tensor, rows: &[usize]| {
                tensor.narrow(2, rows[0], rows[1] - rows[0]).unwrap()
            };
            let (k, v) = (part(&k, key_rows), part(&v, key_rows));
            let want = ops.attention_backward(&part(&q, rows), &k, &v, &alone, &part(&dy, rows));
            let want = want.unwrap();
            for all in [&got, &of] {
                let pairs = [
                    (&all.dq, &want.dq, rows),
                    (&all.dk, &want.dk, key_rows),
                    (&all.dv, &want.dv, key_rows),
                ];
                for (all, want, rows) in pairs {
                    let got = ops.values(&part(all, rows)).unwrap();
                    assert_eq!(got, ops.values(want).unwrap(), "{dtype} rows {rows:?}");
                }
            }
        }
    }
}

/// Two sequences of 70 and 33 rows in pages of 16 rows that are not in order, against the same rows that follow each other.
fn paged(ops: &Ops, dtype: DType, size: usize, spec: &Attention, way: Option<Flash>) {
    let (rows, queries, kv_heads, heads) = (16, 5, 2, 4);
    let (lengths, pages) = ([70_usize, 33], [[7, 2, 9, 0, 4], [3, 8, 5, 1, 6]]);
    let (q, _) = values(ops, &[2, heads, queries, size], dtype, 1);
    let (k, _) = values(ops, &[10, kv_heads, rows, size], dtype, 2);
    let (v, _) = values(ops, &[10, kv_heads, rows, size], dtype, 3);
    let numbers = |shape: &[usize], numbers: Vec<usize>| {
        let bytes: Vec<u8> = (numbers.iter())
            .flat_map(|number| (*number as i32).to_le_bytes())
            .collect();
        ops.from_bytes(shape, DType::I32, &bytes).unwrap()
    };
    let table = numbers(&[2, 5], pages.concat());
    let counts = numbers(&[2], lengths.to_vec());
    let spec_of_pages = Attention {
        pages: Some(Pages {
            table: &table,
            lengths: &counts,
        }),
        ..spec.clone()
    };
    let got = match way {
        None => ops.attention(&q, &k, &v, &spec_of_pages).unwrap().output,
        Some(kernel) => {
            let sizes = check(&q, &k, &v, &spec_of_pages).unwrap();
            let attended = Attended {
                output: ops.zeros(q.shape(), dtype).unwrap(),
                log_sums: None,
            };
            ops.flash(kernel, &sizes, [&q, &k, &v], &spec_of_pages, &attended)
                .unwrap();
            attended.output
        }
    };
    let got = ops.values(&got).unwrap();
    let bytes = dtype.size_bytes();
    for (sequence, length) in lengths.into_iter().enumerate() {
        // Its rows, put after each other.
        let gather = |from: &Tensor| {
            let all = ops.bytes(from).unwrap();
            let mut gathered = Vec::new();
            for head in 0..kv_heads {
                for row in 0..length {
                    let page = pages[sequence][row / rows];
                    let at = ((page * kv_heads + head) * rows + row % rows) * size * bytes;
                    gathered.extend_from_slice(&all[at..][..size * bytes]);
                }
            }
            let shape = [1, kv_heads, length, size];
            ops.from_bytes(&shape, dtype, &gathered).unwrap()
        };
        let (k, v) = (gather(&k), gather(&v));
        let q = q.narrow(0, sequence, 1).unwrap();
        let want = ops.attention(&q, &k, &v, spec).unwrap().output;
        let want: Vec<f64> = (ops.values(&want).unwrap().into_iter())
            .map(f64::from)
            .collect();
        let count = heads * queries * size;
        let what = format!("{way:?} {dtype} {size} sequence {sequence}");
        compare(&what, &got[sequence * count..][..count], &want, dtype);
    }
}

#[test]
fn keys_in_pages_give_what_the_same_keys_in_a_row_give() {
    let ops = ops();
    let causal = Attention {
        causal: true,
        ..Attention::default()
    };
    let near = Attention {
        window: Some(20),
        ..causal.clone()
    };
    for spec in [Attention::default(), causal, near] {
        paged(&ops, DType::F32, 24, &spec, None);
        paged(&ops, DType::F16, 24, &spec, None);
        paged(&ops, DType::BF16, 24, &spec, Some(Flash::Mma(32)));
    }
}

#[test]
fn pages_that_do_not_fit_are_named() {
    let ops = ops();
    let (q, _) = values(&ops, &[2, 1, 1, 8], DType::F32, 1);
    let (k, _) = values(&ops, &[4, 1, 16, 8], DType::F32, 1);
    let table = ops.zeros(&[2, 2], DType::I32).unwrap();
    let (three, floats) = (
        ops.zeros(&[3], DType::I32).unwrap(),
        ops.zeros(&[2], DType::F32).unwrap(),
    );
    let said = |lengths: &Tensor| {
        let spec = Attention {
            pages: Some(Pages {
                table: &table,
                lengths,
            }),
            ..Attention::default()
        };
        ops.attention(&q, &k, &k, &spec).unwrap_err().to_string()
    };
    assert!(said(&three).contains("[3]"), "{}", said(&three));
    assert!(said(&floats).contains("f32"), "{}", said(&floats));
}
