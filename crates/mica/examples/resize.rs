//! Memory and share change while work runs.

use mica::{Device, Error, Grid, Vgpu};

fn main() -> Result<(), Error> {
    let device = Device::software()?;
    let vgpu = Vgpu::builder()
        .memory(16 << 20)
        .share(20.0)
        .build(&device)?;
    let kernel = vgpu
        .load_ptx(include_str!("../tests/kernels.ptx"))?
        .kernel("work")?;
    let mut out = vgpu.alloc::<u32>(1024)?;
    vgpu.default_stream()
        .launch(&kernel, Grid::new(1024, 64), (&mut out, 5_000_u32))?;

    println!(
        "32 MiB at 16 MiB: {}",
        vgpu.alloc::<u8>(32 << 20).unwrap_err()
    );
    vgpu.resize(64 << 20)?;
    vgpu.set_share(80.0)?;
    let large = vgpu.alloc::<u8>(32 << 20)?;
    println!(
        "32 MiB at 64 MiB: there, while the kernel {}",
        match vgpu.default_stream().is_idle()? {
            true => "has ended",
            false => "runs on",
        }
    );
    println!("down to 16 MiB: {}", vgpu.resize(16 << 20).unwrap_err());
    drop(large);
    vgpu.resize(16 << 20)?;
    println!(
        "down to 16 MiB once freed: {} MiB",
        vgpu.memory()?.limit_bytes >> 20
    );
    vgpu.synchronize()?;
    println!("the kernel's first result: {}", out.to_vec()?[0]);
    Ok(())
}
