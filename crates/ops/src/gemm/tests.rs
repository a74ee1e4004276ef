//! Every kernel for products on the software GPU, which runs those with tensor cores too.

use super::check::check;
use super::launch::Variant;
use crate::{Activation, DType, Gemm, Ops};

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count)
        .map(|at| ((at * 37 + seed * 11) % 31) as f32 - 15.0)
        .collect()
}

/// Small integers, so that every order of additions gives the same result in every type that holds them.
fn check_kernels(variants: &[Variant], types: &[DType]) {
    let device = mica::Device::software().unwrap();
    let builder = mica::Vgpu::builder().memory(64 << 20);
    let ops = Ops::new(&builder.build(&device).unwrap()).unwrap();
    for dtype in types.iter().copied() {
        for ([m, n, k], is_turned) in [([5, 9, 40], false), ([33, 70, 19], true)] {
            let a = ops.tensor(&[m, k], dtype, &values(m * k, 1)).unwrap();
            let b = match is_turned {
                false => ops.tensor(&[k, n], dtype, &values(k * n, 2)).unwrap(),
                true => {
                    let b = ops.tensor(&[n, k], dtype, &values(k * n, 2)).unwrap();
                    b.t().unwrap()
                }
            };
            let (av, bv) = (ops.values(&a).unwrap(), ops.values(&b).unwrap());
            let at =
                |i: usize, j: usize| (0..k).map(|p| av[i * k + p] * bv[p * n + j]).sum::<f32>();
            let want: Vec<f32> = (0..m * n).map(|x| at(x / n, x % n).max(0.0)).collect();
            let spec = Gemm {
                out: Some(DType::F32),
                activation: Activation::Relu,
                ..Gemm::default()
            };
            let product = check(&a, &b, &spec).unwrap();
            for variant in variants {
                let d = ops.zeros(&[m, n], DType::F32).unwrap();
                ops.launch_product(&product, &spec, &d, *variant).unwrap();
                let got = ops.values(&d).unwrap();
                assert_eq!(got, want, "{variant:?} {dtype} {m}x{n}x{k}");
            }
        }
    }
}

#[test]
fn kernels_without_tensor_cores_compute_the_same_product() {
    let types = [DType::F32, DType::F16, DType::BF16, DType::I8];
    let variants = [Variant::Rows(8), Variant::Rows(12), Variant::Tile];
    check_kernels(&variants, &types);
    check_kernels(&variants, &[DType::I4]);
    check_kernels(&[Variant::Panels], &types[..3]);
}

#[test]
fn a_kernel_with_tensor_cores_computes_the_same_product() {
    check_kernels(&[Variant::Mma(16, 128)], &[DType::BF16, DType::I8]);
    check_kernels(&[Variant::Mma4(16, 128)], &[DType::I4]);
}

#[test]
#[ignore = "takes minutes; run after a change to crates/ops/kernels: cargo test -p mica-ops --lib -- --ignored all_kernels"]
fn all_kernels_with_tensor_cores_compute_the_same_product() {
    let types = [DType::F32, DType::F16, DType::BF16, DType::I8];
    // Kernels for Hopper run on cards alone; `mica bench ops` compares them with f64 there.
    let runs_anywhere = |variant: &Variant| matches!(variant, Variant::Mma(..));
    let variants: Vec<Variant> = Variant::ALL.into_iter().filter(runs_anywhere).collect();
    check_kernels(&variants, &types);
    check_kernels(&Variant::INT4, &[DType::I4]);
}

#[test]
fn without_tensor_cores_none_of_their_code_is_loaded() {
    let device = mica::Device::software().unwrap();
    let builder = mica::Vgpu::builder().memory(64 << 20).tensor_cores(false);
    let ops = Ops::new(&builder.build(&device).unwrap()).unwrap();
    assert!(!ops.kernels.allows("gemm_mma.bf16").unwrap());
    assert!(!ops.kernels.allows("gemm_mma.i4").unwrap());
    assert!(ops.kernels.allows("gemm.bf16").unwrap());
    let full = mica::NumberFormats {
        tf32: false,
        half: false,
        ..mica::NumberFormats::default()
    };
    let builder = mica::Vgpu::builder().memory(64 << 20).precision(full);
    let ops = Ops::new(&builder.build(&device).unwrap()).unwrap();
    assert!(
        !ops.kernels.allows("gemm_mma.f32").unwrap(),
        "TF32 is forbidden"
    );
    assert!(
        !ops.kernels.allows("gemm.f16").unwrap(),
        "16-bit floats are forbidden"
    );
    assert!(ops.kernels.allows("gemm.f32").unwrap());
}

#[test]
fn the_question_for_tensor_cores_is_answered_by_the_policy() {
    let device = mica::Device::software().unwrap();
    for allowed in [true, false] {
        let builder = mica::Vgpu::builder().memory(64 << 20).tensor_cores(allowed);
        let ops = Ops::new(&builder.build(&device).unwrap()).unwrap();
        assert_eq!(ops.kernels.allows_tensor_cores().unwrap(), allowed);
    }
}
