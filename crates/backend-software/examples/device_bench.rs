//! Measures what the device itself costs: launches, pauses, faults, threads, memory at rest.
//!
//! `cargo run --release -p mica-backend-software --example device_bench`

use std::time::{Duration, Instant};

use mica_backend_software::{Config, SoftwareGpu};
use mica_gpu::conformance::{Fixture, Ptx};
use mica_gpu::{
    ContextId, Copy3d, DevicePtr, Gpu, HostSpan, Launch, ModuleId, ModuleOptions, Place, StreamId,
};

type Outcome<T = ()> = Result<T, mica_gpu::GpuError>;

struct Rig {
    gpu: SoftwareGpu,
    context: ContextId,
    stream: StreamId,
    module: ModuleId,
    names: Vec<String>,
}

impl Rig {
    fn new(workers: Option<usize>) -> Outcome<Self> {
        let config = Config {
            workers,
            ..Config::default()
        };
        let gpu = SoftwareGpu::new(config)?;
        let context = gpu.context_create()?;
        let stream = gpu.default_stream(context)?;
        let module = gpu.module_load(context, &Ptx.kernels(), &ModuleOptions::default())?;
        let names = gpu.module_info(module)?.kernels;
        let names = names.into_iter().map(|k| k.name).collect();
        Ok(Self {
            gpu,
            context,
            stream,
            module,
            names,
        })
    }

    fn launch(&self, name: &str, blocks: u32, threads: u32, params: &[u8]) -> Outcome {
        let kernel = self.names.iter().position(|n| n == name).unwrap_or(0) as u32;
        let launch = Launch {
            module: self.module,
            kernel,
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            dynamic_shared: 0,
            cooperative: false,
            params,
        };
        self.gpu.launch(self.stream, &launch)
    }

    fn sync(&self) -> Outcome {
        self.gpu.stream_synchronize(self.stream)
    }
}

/// Median of several runs.
fn median(runs: usize, mut run: impl FnMut() -> Outcome<Duration>) -> Outcome<Duration> {
    let mut times = (0..runs).map(|_| run()).collect::<Outcome<Vec<_>>>()?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|l| l.starts_with("VmRSS"))
        .unwrap_or("");
    let number = line.split_ascii_whitespace().nth(1).unwrap_or("0");
    number.parse().unwrap_or(0)
}

fn main() -> Outcome {
    let before = resident_kib();
    let rig = Rig::new(None)?;
    println!(
        "idle device            {:8} KiB more resident",
        resident_kib() - before
    );

    rig.launch("empty", 1, 1, &[])?;
    rig.sync()?;
    println!(
        "after the first launch {:8} KiB more resident",
        resident_kib() - before
    );
    let one = median(2001, || {
        let start = Instant::now();
        rig.launch("empty", 1, 32, &[])?;
        rig.sync()?;
        Ok(start.elapsed())
    })?;
    println!("empty launch + sync    {one:>10.2?}");
    let thousand = median(21, || {
        let start = Instant::now();
        for _ in 0..1000 {
            rig.launch("empty", 1, 32, &[])?;
        }
        rig.sync()?;
        Ok(start.elapsed() / 1000)
    })?;
    println!("launch, 1000 in a row  {thousand:>10.2?}");

    let blocks = median(7, || {
        let start = rig.gpu.busy_time_ns();
        rig.launch("empty", 100_000, 32, &[])?;
        rig.sync()?;
        Ok(Duration::from_nanos(
            (rig.gpu.busy_time_ns() - start) / 100_000,
        ))
    })?;
    println!("empty block            {blocks:>10.2?}");

    let at = rig.gpu.memory_alloc(rig.context, 1 << 20)?;
    let mut word = 0_u32;
    // SAFETY: the word lives until after each synchronization.
    let span = unsafe { HostSpan::new((&raw mut word).cast(), 4) };
    let copy = Copy3d::linear(Place::Host(span), Place::Device(at), 4);
    let small = median(2001, || {
        let start = Instant::now();
        rig.gpu.copy(rig.stream, &copy)?;
        rig.sync()?;
        Ok(start.elapsed())
    })?;
    println!("4-byte copy + sync     {small:>10.2?}");

    pauses(&rig, at)?;
    faults()?;
    for (name, scale) in [("fill_index", 1_u32), ("block_sum", 1)] {
        let times = [1, 2].map(|workers| scaling(workers, name, scale));
        let [one, two] = times;
        let (one, two) = (one?, two?);
        let ratio = one.as_secs_f64() / two.as_secs_f64();
        println!("{name:12} 1 thread {one:>9.2?}  2 threads {two:>9.2?}  {ratio:.2}×");
    }
    Ok(())
}

fn pauses(rig: &Rig, at: DevicePtr) -> Outcome {
    let words = [at.0, at.0 + 64].map(u64::to_le_bytes).concat();
    rig.launch("spin", 4, 32, &words)?;
    std::thread::sleep(Duration::from_millis(5));
    let pause = median(51, || {
        let start = Instant::now();
        rig.gpu.context_suspend(rig.context)?;
        let time = start.elapsed();
        rig.gpu.context_resume(rig.context)?;
        std::thread::sleep(Duration::from_millis(1));
        Ok(time)
    })?;
    println!("suspend running kernel {pause:>10.2?}");
    let start = Instant::now();
    rig.gpu.cancel(rig.context, None)?;
    rig.sync()?;
    println!("cancel it              {:>10.2?}", start.elapsed());
    Ok(())
}

fn faults() -> Outcome {
    let rig = Rig::new(None)?;
    let wild = [0x10_u64.to_le_bytes().as_slice(), &[0; 8]].concat();
    let start = Instant::now();
    rig.launch("store_at", 1, 1, &wild)?;
    let told = rig.sync();
    println!(
        "a wild write           {:>10.2?}  {}",
        start.elapsed(),
        told.is_err()
    );
    Ok(())
}

/// Time of a kernel that keeps cores busy, on so many workers.
fn scaling(workers: usize, name: &str, scale: u32) -> Outcome<Duration> {
    let rig = Rig::new(Some(workers))?;
    let words = 8_u32 << 20;
    let at = rig.gpu.memory_alloc(rig.context, u64::from(words) * 4)?;
    let mut params = at.0.to_le_bytes().to_vec();
    let blocks = match name {
        "fill_index" => {
            params.extend_from_slice(&words.to_le_bytes());
            params.extend_from_slice(&1_u32.to_le_bytes());
            words / 256
        }
        _ => 20_000 * scale,
    };
    rig.launch(name, blocks, 256, &params)?;
    rig.sync()?;
    median(7, || {
        let start = Instant::now();
        rig.launch(name, blocks, 256, &params)?;
        rig.sync()?;
        Ok(start.elapsed())
    })
}
