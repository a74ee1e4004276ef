//! A virtual GPU, a kernel, and the result.
//!
//! `cargo run -p mica --example basic`, or through the daemon: `mica run --mode isolated -- basic`.

use mica::{Device, Error, Grid, Vgpu};

fn main() -> Result<(), Error> {
    // In a virtual GPU of the daemon if this program was started in one, else in this process.
    let vgpu = match Vgpu::connect() {
        Err(Error::NotConnected) => Vgpu::builder()
            .memory(64 << 20)
            .share(30.0)
            .build(&Device::software()?)?,
        other => other?,
    };
    let info = vgpu.info();
    let memory = vgpu.memory()?;
    println!(
        "{}: {} MiB, {} multiprocessors",
        info.name,
        memory.limit_bytes >> 20,
        info.multiprocessors
    );

    let kernel = vgpu
        .load_ptx(include_str!("../tests/kernels.ptx"))?
        .kernel("vadd")?;
    let x: Vec<f32> = (0..1_000_000).map(|i| i as f32).collect();
    let y = vec![0.5_f32; x.len()];
    let (x_gpu, y_gpu) = (vgpu.upload(&x)?, vgpu.upload(&y)?);
    let mut z_gpu = vgpu.alloc::<f32>(x.len())?;
    vgpu.default_stream().launch(
        &kernel,
        Grid::covering(x.len(), 256),
        (&x_gpu, &y_gpu, &mut z_gpu, x.len() as u32),
    )?;
    let z = z_gpu.to_vec()?;
    let right = z.iter().zip(&x).all(|(z, x)| *z == x + 0.5);
    println!(
        "z[1000] = {}; all {} sums are {}",
        z[1000],
        z.len(),
        if right { "right" } else { "WRONG" }
    );
    assert!(right);
    println!("{:?}", vgpu.statistics()?);
    Ok(())
}
