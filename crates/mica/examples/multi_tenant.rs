//! Three tenants with 50, 30 and 20 percent of one device, each saturating it on a thread of its own.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use mica::{Device, Error, Grid, Vgpu};

const SHARES: [f64; 3] = [50.0, 30.0, 20.0];

fn main() -> Result<(), Error> {
    let seconds = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(3.0);
    let device = Device::software()?;
    println!("{}", device.info().name);
    let start = Barrier::new(SHARES.len());
    let used: Vec<u64> = std::thread::scope(|scope| {
        let tenants: Vec<_> = SHARES
            .into_iter()
            .map(|share| {
                let (device, start) = (&device, &start);
                scope.spawn(move || tenant(device, share, start, Duration::from_secs_f64(seconds)))
            })
            .collect();
        tenants
            .into_iter()
            .map(|tenant| tenant.join().unwrap_or(Ok(0)))
            .collect::<Result<_, Error>>()
    })?;
    let total: u64 = used.iter().sum();
    for (share, used) in SHARES.iter().zip(&used) {
        let got = *used as f64 * 100.0 / total.max(1) as f64;
        println!("asked {share:4.1} %   got {got:5.2} %");
    }
    Ok(())
}

/// Keeps the device busy; GPU time used.
fn tenant(device: &Device, share: f64, start: &Barrier, time: Duration) -> Result<u64, Error> {
    let vgpu = Vgpu::builder()
        .name(format!("tenant-{share}"))
        .memory(16 << 20)
        .share(share)
        .build(device)?;
    let kernel = vgpu
        .load_ptx(include_str!("../tests/kernels.ptx"))?
        .kernel("work")?;
    let mut out = vgpu.alloc::<u32>(256)?;
    let stream = vgpu.default_stream();
    // Compiled before the clock starts.
    stream.launch(&kernel, Grid::new(1, 32), (&mut out, 1_u32))?;
    stream.synchronize()?;
    let before = vgpu.statistics()?.gpu_time_ns;
    start.wait();
    let end = Instant::now() + time;
    while Instant::now() < end {
        // Two deep, so that there is always work.
        for _ in 0..2 {
            stream.launch(&kernel, Grid::new(256, 256), (&mut out, 20_000_u32))?;
        }
        let event = vgpu.event()?;
        event.record(&stream)?;
        while !event.is_reached()? && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // What still runs at the end was not asked for by everybody.
    let used = vgpu.statistics()?.gpu_time_ns - before;
    vgpu.cancel()?;
    Ok(used)
}
