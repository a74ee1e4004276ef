//! What operations say of themselves: which kernels, how much work, and a time that fits into the time that has passed.

mod common;

use std::time::Instant;

use common::{Numbers, ops, vgpu};
use mica_ops::{Attention, Conv, DType, Expr, Gemm, Norm, OperationTime, Ops};

/// The entry of an operation, of which there is one.
fn only<'a>(times: &'a [OperationTime], operation: &str) -> &'a OperationTime {
    let mut found = times.iter().filter(|time| time.operation == operation);
    let one = found
        .next()
        .unwrap_or_else(|| panic!("no {operation} in {times:?}"));
    assert!(found.next().is_none(), "{operation} twice in {times:?}");
    one
}

#[test]
fn each_operation_is_one_entry_with_its_kernels_work_and_time() {
    let ops = ops();
    let mut numbers = Numbers(41);
    let (a, _) = numbers.tensor(&ops, &[3, 20, 30], DType::F16);
    let (b, _) = numbers.tensor(&ops, &[30, 10], DType::F16);
    let (x, _) = numbers.tensor(&ops, &[2, 4, 9, 9], DType::F32);
    let (w, _) = numbers.tensor(&ops, &[6, 2, 3, 3], DType::F32);
    let (rows, _) = numbers.tensor(&ops, &[50, 64], DType::F32);
    let (q, _) = numbers.tensor(&ops, &[2, 4, 7, 16], DType::F32);
    let (k, _) = numbers.tensor(&ops, &[2, 2, 11, 16], DType::F32);
    let began = Instant::now();
    let (y, times) = ops
        .timings(|ops| {
            let wide = Gemm {
                out: Some(DType::F32),
                ..Gemm::default()
            };
            ops.gemm(&a, &b, &wide)?;
            ops.conv(
                &x,
                &w,
                &Conv {
                    groups: 2,
                    ..Conv::default()
                },
            )?;
            ops.norm(&rows, Norm::Rms, None, None, 1e-5)?;
            let causal = Attention {
                causal: true,
                window: Some(5),
                ..Attention::default()
            };
            ops.attention(&q, &k, &k, &causal)?;
            // The row is repeated, and read once.
            let row = rows.narrow(0, 0, 1)?;
            let expr = (Expr::input(0) * 2.0 + Expr::input(1)).exp();
            ops.map(&expr, &[&rows, &row], &[], DType::F16)
        })
        .unwrap();
    let passed = began.elapsed().as_secs_f64();
    assert_eq!(y.shape(), [50, 64]);
    let names: Vec<&str> = times.iter().map(|time| time.operation).collect();
    assert_eq!(names, ["gemm", "conv", "norm", "attention", "map"]);
    let seconds: f64 = times.iter().map(|time| time.seconds).sum();
    assert!(
        seconds > 0.0 && seconds <= passed,
        "{seconds} of {passed} seconds"
    );
    for time in &times {
        assert_eq!(time.provider, "mica");
        assert!(!time.kernels.is_empty());
        let of_kernels: f64 = time.kernels.iter().map(|kernel| kernel.seconds).sum();
        assert_eq!(time.seconds, of_kernels);
    }
    let product = only(&times, "gemm");
    assert_eq!(product.flops, 2 * 3 * 20 * 30 * 10);
    assert_eq!(product.bytes, 2 * (3 * 20 * 30 + 30 * 10) + 4 * 3 * 20 * 10);
    assert!(
        product
            .kernels
            .iter()
            .any(|kernel| kernel.name == "gemm_panels")
    );
    let conv = only(&times, "conv");
    assert_eq!(conv.flops, 2 * (2 * 7 * 7 * 6) * (2 * 3 * 3));
    assert_eq!(conv.bytes, 4 * (2 * 4 * 81 + 6 * 2 * 9 + 2 * 6 * 49));
    assert!(
        conv.kernels
            .iter()
            .any(|kernel| kernel.name == "windows_of_images")
    );
    assert_eq!(only(&times, "norm").bytes, 4 * (2 * 50 * 64 + 50 * 2));
    // The first query is beside key 4 and sees 5 keys, as each later one does.
    assert_eq!(
        only(&times, "attention").flops,
        (2 * 4) * (7 * 5) * 2 * 2 * 16
    );
    let map = only(&times, "map");
    assert_eq!(map.bytes, 4 * (50 * 64 + 64) + 2 * 50 * 64);
    // A product, a sum, and e to a power, which is a product and a power of 2.
    assert_eq!(map.flops, 4 * 50 * 64);
    assert_eq!(map.kernels.len(), 1);
    let line = product.to_string();
    assert!(
        line.starts_with("gemm ") && line.contains("GFLOP/s, mica: "),
        "{line}"
    );
}

#[test]
fn what_is_not_asked_for_is_not_recorded() {
    let ops = ops();
    let x = ops.tensor(&[2, 3], DType::F32, &[1.0; 6]).unwrap();
    let (kept, times) = ops
        .timings(|recording| {
            ops.softmax(&x, 1.0)?;
            Ok(recording.clone())
        })
        .unwrap();
    assert_eq!(times, []);
    // Later operations of the recording one are the next closure's.
    kept.softmax(&x, 1.0).unwrap();
    let (nothing, times) = kept.timings(|ops| ops.values(&x)).unwrap();
    assert_eq!((nothing, times), (vec![1.0; 6], vec![]));
    let refused = ops.timings(|ops| ops.gemm(&x, &x, &Gemm::default()));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("[2, 3] does not fit")
    );
    // Tensors without elements need no kernel.
    let none = ops.zeros(&[0, 3], DType::F32).unwrap();
    let (_, times) = ops.timings(|ops| ops.softmax(&none, 1.0)).unwrap();
    assert_eq!(times, []);
}

#[test]
fn measurements_of_the_tuner_are_no_part_of_a_product() {
    let ops = Ops::by_kernels_of_cards(&vgpu()).unwrap();
    // A size that no earlier run has measured.
    let n = 16 + 16 * (std::process::id() as usize % 64);
    let a = ops.zeros(&[8, 64], DType::I8).unwrap();
    let b = ops.zeros(&[n, 64], DType::I8).unwrap().t().unwrap();
    let (_, times) = ops
        .timings(|ops| ops.gemm(&a, &b, &Gemm::default()))
        .unwrap();
    let product = only(&times, "gemm");
    assert_eq!(product.kernels.len(), 1, "{product:?}");
    assert_eq!(product.bytes, (8 * 64 + n * 64 + 4 * 8 * n) as u64);
}
