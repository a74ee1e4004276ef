//! What counting costs a program that does nothing but launch.
//!
//! One process, one program, one reader of the counters that is awake in every second window. A window
//! that is watched lies between two that are not and is compared with their mean, so a machine that gets
//! faster or slower favours neither; that many short windows are compared makes an accident in one of
//! them count for little. The same is done with a reader that sleeps, which tells what the comparison
//! itself makes out of nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use mica_gpu::Gpu;
use mica_limits::LocalQuota;
use mica_vgpu::{Vgpu, VgpuSpec};

use super::median;
use super::sides::Direct;
use mica_worker::TICK_TIME;
use mica_worker::WorkerError;

/// Several looks at the counters fit into a window.
const WINDOW: Duration = Duration::from_millis(60);
const BATCH: u64 = 200;

/// What counting costs a program that does nothing but launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TelemetryCost {
    /// Launches a second while nobody looks at the counters.
    pub(crate) unwatched_per_second: f64,
    /// Launches a second while they are read as often as a worker reads them.
    pub(crate) watched_per_second: f64,
    /// Part of the program's speed that is lost: the median over windows.
    pub(crate) lost_percent: f64,
    /// The same where nobody looked in either window, which should be nothing.
    pub(crate) nothing_percent: f64,
    /// How far the true loss may be from the median: half of the middle half of all windows, divided by
    /// the root of their number.
    pub(crate) uncertain_percent: f64,
    /// Processor time of one look at the counters: all that is lost where nobody waits for anybody.
    pub(crate) look_us: f64,
}

/// Measures launches in short windows, with and without somebody who reads the counters.
///
/// # Errors
/// If the device refuses what any program does.
pub(crate) fn telemetry_cost(
    gpu: &Arc<dyn Gpu>,
    windows: usize,
) -> Result<TelemetryCost, WorkerError> {
    let quota = Arc::new(LocalQuota::new(1 << 30));
    let vgpu = Vgpu::new(Arc::clone(gpu), quota, VgpuSpec::new("bench", 1 << 30));
    let direct = Direct::new(&vgpu)?;
    let (awake, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looks = 0_u32;
            let before_ns = processor_ns();
            while !done.load(Acquire) {
                if !awake.load(Acquire) {
                    std::thread::park();
                    continue;
                }
                vgpu.collect();
                std::hint::black_box(vgpu.statistics());
                looks += 1;
                std::thread::sleep(TICK_TIME);
            }
            (processor_ns() - before_ns) as f64 / 1e3 / f64::from(looks.max(1))
        });
        let rate = |watched: bool| {
            awake.store(watched, Release);
            reader.thread().unpark();
            let (began, mut launches) = (Instant::now(), 0);
            while began.elapsed() < WINDOW {
                (0..BATCH).try_for_each(|_| direct.launch())?;
                direct.sync()?;
                launches += BATCH;
            }
            awake.store(false, Release);
            Ok(launches as f64 / began.elapsed().as_secs_f64())
        };
        let measured = measure(rate, windows.max(1));
        done.store(true, Release);
        reader.thread().unpark();
        let look_us = reader.join().unwrap_or(f64::NAN);
        measured.map(|cost| TelemetryCost { look_us, ..cost })
    })
}

/// Processor time of the calling thread.
fn processor_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn measure(
    rate: impl Fn(bool) -> Result<f64, WorkerError>,
    windows: usize,
) -> Result<TelemetryCost, WorkerError> {
    let [mut plain, mut seen, mut lost, mut nothing] = [const { Vec::new() }; 4];
    let mut before = rate(false)?;
    for window in 0..2 * windows {
        let watched = window % 2 == 0;
        let middle = rate(watched)?;
        let after = rate(false)?;
        let percent = 100.0 * (1.0 - middle / ((before + after) / 2.0));
        match watched {
            true => {
                seen.push(middle);
                lost.push(percent);
            }
            false => nothing.push(percent),
        }
        plain.push(after);
        before = after;
    }
    let spread = median(&mut lost, 0.75) - median(&mut lost, 0.25);
    Ok(TelemetryCost {
        unwatched_per_second: median(&mut plain, 0.5),
        watched_per_second: median(&mut seen, 0.5),
        lost_percent: median(&mut lost, 0.5),
        nothing_percent: median(&mut nothing, 0.5),
        uncertain_percent: spread / 2.0 / (lost.len() as f64).sqrt(),
        look_us: 0.0,
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_machine_that_slows_down_costs_nothing_and_a_reader_what_it_takes() {
        let speed = Cell::new(1000.0);
        let rate = |watched: bool| {
            speed.set(speed.get() * 0.99);
            Ok(speed.get() * if watched { 0.97 } else { 1.0 })
        };
        let cost = measure(rate, 50).unwrap();
        assert!((cost.lost_percent - 3.0).abs() < 0.1, "{cost:?}");
        assert!(cost.nothing_percent.abs() < 0.1, "{cost:?}");
        assert!(cost.uncertain_percent < 0.1, "{cost:?}");
    }
}
