//! One job shared between CPU and GPU: each takes the part that suits its speed.

use std::time::Instant;

use mica::{Device, Error, Grid, Vgpu};

fn cpu(x: &[f32], y: &[f32]) -> Vec<f32> {
    x.iter().zip(y).map(|(x, y)| x + y).collect()
}

fn main() -> Result<(), Error> {
    let vgpu = Vgpu::builder()
        .memory(256 << 20)
        .build(&Device::software()?)?;
    let kernel = vgpu
        .load_ptx(include_str!("../tests/kernels.ptx"))?
        .kernel("vadd")?;
    let stream = vgpu.stream()?;
    let count = 4 << 20;
    let x: Vec<f32> = (0..count).map(|i| i as f32).collect();
    let y = vec![1.0; count];
    // Begin with halves; then split by what each managed.
    let mut on_gpu = count / 2;
    for round in 0..4 {
        let (x_gpu, y_gpu) = (vgpu.upload(&x[..on_gpu])?, vgpu.upload(&y[..on_gpu])?);
        let mut z_gpu = vgpu.alloc::<f32>(on_gpu)?;
        let (start, end) = (vgpu.event()?, vgpu.event()?);
        start.record(&stream)?;
        let grid = Grid::covering(on_gpu, 256);
        stream.launch(&kernel, grid, (&x_gpu, &y_gpu, &mut z_gpu, on_gpu as u32))?;
        end.record(&stream)?;
        let pending = z_gpu.download(&stream)?;
        let began = Instant::now();
        let rest = cpu(&x[on_gpu..], &y[on_gpu..]);
        let cpu_seconds = began.elapsed().as_secs_f64().max(1e-6);
        let mut z = pending.wait()?;
        let gpu_seconds = f64::from(end.elapsed_since_ms(&start)?).max(1e-3) / 1000.0;
        z.extend(rest);
        assert!(z.iter().enumerate().all(|(i, z)| *z == i as f32 + 1.0));
        let gpu_rate = on_gpu as f64 / gpu_seconds;
        let cpu_rate = (count - on_gpu) as f64 / cpu_seconds;
        println!(
            "round {round}: GPU {on_gpu} in {:.2} ms, CPU {} in {:.2} ms",
            gpu_seconds * 1e3,
            count - on_gpu,
            cpu_seconds * 1e3
        );
        let part = gpu_rate / (gpu_rate + cpu_rate);
        on_gpu = ((count as f64 * part) as usize).clamp(1024, count - 1024);
    }
    Ok(())
}
