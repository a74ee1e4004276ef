//! Keeps its virtual GPU busy for some seconds and says how much GPU time that took.
//!
//! `mica run -s 70 -- saturate 5 & mica run -s 30 -- saturate 5`

use std::time::{Duration, Instant};

use mica::{Device, Error, Grid, Vgpu};

fn main() -> Result<(), Error> {
    let seconds = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(3.0);
    let vgpu = match Vgpu::connect() {
        Err(Error::NotConnected) => Vgpu::builder()
            .memory(16 << 20)
            .build(&Device::software()?)?,
        other => other?,
    };
    let kernel = vgpu
        .load_ptx(include_str!("../tests/kernels.ptx"))?
        .kernel("work")?;
    let mut out = vgpu.alloc::<u32>(256)?;
    let stream = vgpu.default_stream();
    stream.launch(&kernel, Grid::new(1, 32), (&mut out, 1_u32))?;
    stream.synchronize()?;
    let before = vgpu.statistics()?.gpu_time_ns;
    let began = Instant::now();
    // One batch is always queued behind the one that runs, so that the GPU never waits for us.
    let mut running = None;
    while began.elapsed() < Duration::from_secs_f64(seconds) {
        stream.launch(&kernel, Grid::new(64, 64), (&mut out, 10_000_u32))?;
        let event = vgpu.event()?;
        event.record(&stream)?;
        if let Some(previous) = running.replace(event) {
            previous.synchronize()?;
        }
    }
    let statistics = vgpu.statistics()?;
    println!(
        "{:.1} ms of GPU time, {} launches, in {:.1} ms",
        (statistics.gpu_time_ns - before) as f64 / 1e6,
        statistics.launches,
        began.elapsed().as_secs_f64() * 1e3
    );
    Ok(())
}
