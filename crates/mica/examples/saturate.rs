//! Keeps its virtual GPU busy for some seconds and says how much it got done.
//!
//! `mica run -s 70 -- saturate 5 & mica run -s 30 -- saturate 5`
//!
//! `saturate [SECONDS] [QUEUED] [BLOCKS] [PAUSE_MS]`: so many kernels are queued behind the one that
//! runs (1; with 0 it waits for each and tells how long they took), each has so many blocks (64), and
//! there is a pause after each (0).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use mica::{Device, Error, Grid, Vgpu};

fn argument(number: usize, usual: f64) -> f64 {
    let text = std::env::args().nth(number);
    text.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn main() -> Result<(), Error> {
    let seconds = argument(1, 3.0);
    let (queued, blocks) = (argument(2, 1.0) as usize, argument(3, 64.0) as u32);
    let pause = Duration::from_secs_f64(argument(4, 0.0) / 1e3);
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
    // What is queued behind the kernel that runs keeps the GPU from waiting for us.
    let mut running = VecDeque::new();
    let mut times_ms = Vec::new();
    while began.elapsed() < Duration::from_secs_f64(seconds) {
        let launched = Instant::now();
        stream.launch(&kernel, Grid::new(blocks, 64), (&mut out, 10_000_u32))?;
        if queued == 0 {
            stream.synchronize()?;
            times_ms.push(launched.elapsed().as_secs_f64() * 1e3);
            std::thread::sleep(pause);
            continue;
        }
        let event = vgpu.event()?;
        event.record(&stream)?;
        running.push_back(event);
        if running.len() > queued
            && let Some(first) = running.pop_front()
        {
            first.synchronize()?;
        }
    }
    let statistics = vgpu.statistics()?;
    println!(
        "{:.1} ms of GPU time, {} launches, in {:.1} ms",
        (statistics.gpu_time_ns - before) as f64 / 1e6,
        statistics.launches,
        began.elapsed().as_secs_f64() * 1e3
    );
    times_ms.sort_by(f64::total_cmp);
    if let Some(longest) = times_ms.last() {
        let at = |part: f64| times_ms[(times_ms.len() as f64 * part) as usize];
        let (half, most) = (at(0.5), at(0.99));
        println!(
            "a kernel took {half:.3} ms, 99 % at most {most:.3} ms, all at most {longest:.3} ms"
        );
    }
    Ok(())
}
