//! A virtual GPU, two matrices, their product.
//!
//! `cargo run --release -p mica-ops --example matmul`, or on a card:
//! `mica run --mode isolated -- target/release/examples/matmul`.

use mica_ops::{Activation, DType, Gemm, Ops};

fn main() -> Result<(), mica_ops::Error> {
    let vgpu = match mica::Vgpu::connect() {
        Err(mica::Error::NotConnected) => {
            let device = mica::Device::software()?;
            mica::Vgpu::builder().memory(256 << 20).build(&device)?
        }
        other => other?,
    };
    let ops = Ops::new(&vgpu)?;
    let (m, n, k) = (512, 384, 256);
    let a = ops.uniform(&[m, k], DType::BF16, (1, 1), (-1.0, 1.0))?;
    let b = ops.uniform(&[k, n], DType::BF16, (1, 2), (-1.0, 1.0))?;
    let bias = ops.zeros(&[n], DType::F32)?;
    let spec = Gemm {
        bias: Some(&bias),
        activation: Activation::Relu,
        out: Some(DType::F32),
        ..Gemm::default()
    };
    let kernel = &ops.gemm_kernels(&a, &b, &spec)?[0];
    let d = ops.gemm(&a, &b, &spec)?;
    let (av, bv) = (ops.values(&a)?, ops.values(&b)?);
    let want: f32 = (0..k).map(|p| av[p] * bv[p * n]).sum::<f32>().max(0.0);
    let got = ops.values(&d)?[0];
    println!("{}: {m}x{k} by {k}x{n} with {kernel}", vgpu.info().name);
    println!("d[0, 0] = {got:.5}, on the host {want:.5}");
    assert!((got - want).abs() < 1e-3);
    let order = if vgpu.info().is_software() { 512 } else { 8192 };
    let square = ops.uniform(&[order, order], DType::F32, (1, 3), (-1.0, 1.0))?;
    ops.gemm(&square, &square, &Gemm::default())?;
    ops.synchronize()?;
    let began = std::time::Instant::now();
    ops.gemm(&square, &square, &Gemm::default())?;
    ops.synchronize()?;
    let rate = 2.0 * (order as f64).powi(3) / began.elapsed().as_secs_f64() / 1e9;
    println!("{order}³ in f32: {rate:.1} GFLOP/s");
    let memory = vgpu.memory()?;
    println!(
        "{} KiB of {} MiB in use",
        memory.used_bytes >> 10,
        memory.limit_bytes >> 20
    );
    Ok(())
}
