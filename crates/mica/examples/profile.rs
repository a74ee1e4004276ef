//! Which kernels and copies took the time.
//!
//! `cargo run --release --example profile`

use mica::{Device, Error, Grid, Vgpu};

fn main() -> Result<(), Error> {
    let vgpu = Vgpu::builder()
        .memory(64 << 20)
        .build(&Device::software()?)?;
    let module = vgpu.load_ptx(include_str!("../tests/kernels.ptx"))?;
    let (vadd, work) = (module.kernel("vadd")?, module.kernel("work")?);
    let stream = vgpu.default_stream();
    let ((), profile) = vgpu.profile(|| {
        let x = vgpu.upload(&vec![1.0_f32; 1 << 20])?;
        let mut sum = vgpu.alloc::<f32>(1 << 20)?;
        let mut out = vgpu.alloc::<u32>(256)?;
        for _ in 0..10 {
            let grid = Grid::covering(sum.len(), 256);
            stream.launch(&vadd, grid, (&x, &x, &mut sum, 1_u32 << 20))?;
            stream.launch(&work, Grid::new(256, 64), (&mut out, 2_000_u32))?;
        }
        stream.synchronize()
    })?;
    print!("{profile}");
    let kernels = profile
        .lines
        .iter()
        .filter(|line| line.activity == mica::Activity::Kernel);
    assert_eq!(kernels.map(|line| line.calls).sum::<u64>(), 20);
    Ok(())
}
