//! Watches a virtual GPU and warns when its memory, or its share of the device's time, is used by more than 80 %.
//!
//! `cargo run --release --example utilization`. For virtual GPUs of a daemon, `mica top` shows the same, and the
//! configuration's thresholds make events of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mica::{Device, Error, Grid, Vgpu};

const WARN_PERCENT: f64 = 80.0;
const SHARE: f64 = 50.0;
const LOOK: Duration = Duration::from_millis(200);

/// Percent, with a mark if that is much.
fn figure(what: &str, percent: f64) -> String {
    let mark = match percent > WARN_PERCENT {
        true => "  <-- WARNING: above 80 %",
        false => "",
    };
    format!("{what} {percent:5.1} %{mark}")
}

/// Prints a line each 200 ms until it is told to end; how many warnings there were.
fn watch(vgpu: &Vgpu, is_over: &AtomicBool) -> Result<usize, Error> {
    let mut warnings = 0;
    let mut last = (Instant::now(), vgpu.statistics()?.gpu_time_ns);
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
        let now = (Instant::now(), vgpu.statistics()?.gpu_time_ns);
        let busy = (now.1 - last.1) as f64 / (now.0 - last.0).as_nanos() as f64;
        let memory = vgpu.memory()?;
        let memory = memory.used_bytes as f64 * 100.0 / memory.limit_bytes as f64;
        last = now;
        for line in [figure("memory ", memory), figure("compute", busy * 100.0)] {
            warnings += usize::from(line.contains("WARNING"));
            println!("{line}");
        }
    }
    Ok(warnings)
}

fn main() -> Result<(), Error> {
    let vgpu = Vgpu::builder()
        .memory(64 << 20)
        .share(SHARE)
        .build(&Device::software()?)?;
    let kernel = vgpu
        .load_ptx(include_str!("../tests/kernels.ptx"))?
        .kernel("work")?;
    let mut out = vgpu.alloc::<u32>(256)?;
    let is_over = AtomicBool::new(false);
    let warnings = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&vgpu, &is_over));
        let worked = work(&vgpu, || {
            let stream = vgpu.default_stream();
            stream.launch(&kernel, Grid::new(256, 256), (&mut out, 20_000_u32))?;
            stream.synchronize()
        });
        is_over.store(true, Ordering::Relaxed);
        let watched = watcher.join().unwrap_or(Ok(0));
        worked.and(watched)
    })?;
    println!("{warnings} warnings");
    assert!(warnings > 0, "work without a pause uses the device");
    Ok(())
}

/// A second of rest, a second of work, and a second of work with nearly all memory in use.
fn work(vgpu: &Vgpu, mut once: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    println!("-- at rest");
    std::thread::sleep(Duration::from_secs(1));
    println!("-- at work");
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        once()?;
    }
    println!("-- at work, with 60 of 64 MiB");
    let memory = vgpu.alloc::<u8>(60 << 20)?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        once()?;
    }
    drop(memory);
    Ok(())
}
