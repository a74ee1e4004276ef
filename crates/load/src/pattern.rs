//! How a load submits, and what it counts.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::calls::CallCosts;
use crate::driver::{Driver, DriverError};
use crate::micro::InTurns;

/// A way to submit kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Always `depth` kernels in flight.
    Saturate,
    /// `depth` kernels, then wait for all of them.
    Burst,
    /// Graphs of ten kernels, `depth` in flight.
    Graph,
    /// As `Saturate`, with kernels from a quarter to four times the length.
    Mixed,
    /// One kernel every two milliseconds, timed from submission to completion.
    Latency,
    /// A model server: a graph of twenty kernels, timed from submission to completion, then a pause of `depth`
    /// microseconds.
    Server,
    /// Launch, alloc and sync costs at the caller.
    Micro,
    /// What each kind of call costs at the caller, over `seconds` in all.
    Calls,
    /// Finds how many iterations make one microsecond.
    Calibrate,
    /// Checks every result and prints its progress; holds `depth` MiB.
    Verify,
}

/// What to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// The pattern.
    pub pattern: Pattern,
    /// Iterations of the kernel's loop.
    pub iterations: u32,
    /// Kernels in flight, or in a burst; microseconds between two requests of a server.
    pub depth: u32,
    /// Wall-clock start of the counted window, in milliseconds since the epoch; 0 for now. Loads
    /// that compete are given the same one.
    pub start_unix_ms: u64,
    /// Seconds in the window.
    pub seconds: f64,
    /// Device memory held meanwhile, in MiB.
    #[serde(default)]
    pub hold_mib: u32,
}

/// A step of a start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartStep {
    /// Which.
    pub step: String,
    /// Milliseconds since the end of the step before.
    pub ms: f64,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadReport {
    /// Kernels that finished within the window, each weighted by its length in `Mixed`.
    pub kernels: f64,
    /// Length of the window in seconds.
    pub seconds: f64,
    /// Kernels a second.
    pub rate: f64,
    /// By how much it was too late for the start of the window, in milliseconds: then nothing of this counts.
    pub late_ms: u64,
    /// Median latency in microseconds, for `Latency` and `Server`.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// The longest.
    #[serde(default)]
    pub longest_us: f64,
    /// Launch and synchronize in microseconds, for `Micro`.
    pub launch_sync_us: f64,
    /// What calls cost past Mica and through it; `None` where nothing stands before the driver.
    pub in_turns: Option<InTurns>,
    /// What each kind of call costs, for `Calls`.
    pub calls: Option<CallCosts>,
    /// From process start to the first kernel's end, in milliseconds.
    pub startup_ms: f64,
    /// What that time was spent on.
    #[serde(default)]
    pub start: Vec<StartStep>,
    /// Iterations per microsecond, for `Calibrate`.
    pub iterations_per_us: f64,
}

/// Runs a load to its end.
pub fn run(load: &Load) -> Result<LoadReport, DriverError> {
    let began = Instant::now();
    let (driver, start) = Driver::open_timed()?;
    let startup_ms = began.elapsed().as_secs_f64() * 1e3;
    if load.hold_mib > 0 {
        // Freed by the end of the process.
        driver.alloc((load.hold_mib as usize) << 20)?;
    }
    let mut report = match load.pattern {
        Pattern::Saturate => in_flight(&driver, load, |_| {
            driver.submit(load.iterations).map(|()| 1.0)
        })?,
        Pattern::Mixed => in_flight(&driver, load, |k| {
            let factor = [0.25, 1.0, 4.0, 0.5, 2.0][k as usize % 5];
            let iterations = (f64::from(load.iterations) * factor) as u32;
            driver.submit(iterations).map(|()| factor)
        })?,
        Pattern::Graph => graphs(&driver, load)?,
        Pattern::Burst => bursts(&driver, load)?,
        Pattern::Latency => {
            let pause = Duration::from_millis(2);
            latency(&driver, load, pause, || driver.submit(load.iterations))?
        }
        Pattern::Server => serve(&driver, load)?,
        Pattern::Micro => crate::micro::run(&driver)?,
        Pattern::Calls => crate::calls::run(&driver, load)?,
        Pattern::Calibrate => calibrate(&driver)?,
        Pattern::Verify => crate::verify::run(&driver, load)?,
    };
    report.startup_ms = startup_ms;
    report.start = start;
    Ok(report)
}

/// The counted window: what finishes inside it counts.
struct Window {
    start: Instant,
    end: Instant,
    late_ms: u64,
}

impl Window {
    fn of(load: &Load) -> Self {
        let now_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_millis());
        let wait_ms = u128::from(load.start_unix_ms).saturating_sub(now_ms);
        let late_ms = match load.start_unix_ms {
            0 => 0,
            start_ms => now_ms.saturating_sub(u128::from(start_ms)) as u64,
        };
        let start = Instant::now() + Duration::from_millis(wait_ms as u64);
        Self {
            start,
            end: start + Duration::from_secs_f64(load.seconds),
            late_ms,
        }
    }

    fn contains(&self, at: Instant) -> bool {
        at >= self.start && at < self.end
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    fn report(&self, kernels: f64) -> LoadReport {
        let seconds = (self.end - self.start).as_secs_f64();
        LoadReport {
            kernels,
            seconds,
            rate: kernels / seconds,
            late_ms: self.late_ms,
            ..LoadReport::default()
        }
    }
}

/// Keeps `depth` submissions in flight; `submit` makes one and says for how many kernels it counts.
fn in_flight(
    driver: &Driver,
    load: &Load,
    mut submit: impl FnMut(u64) -> Result<f64, DriverError>,
) -> Result<LoadReport, DriverError> {
    let depth = load.depth.max(1) as usize;
    let events = (0..depth)
        .map(|_| driver.event())
        .collect::<Result<Vec<_>, _>>()?;
    let mut weights = vec![0.0; depth];
    let window = Window::of(load);
    let mut kernels = 0.0;
    for k in 0_u64.. {
        let slot = k as usize % depth;
        if k >= depth as u64 {
            driver.wait(events[slot])?;
            if window.contains(Instant::now()) {
                kernels += weights[slot];
            }
        }
        if window.is_over() {
            break;
        }
        weights[slot] = submit(k)?;
        driver.record(events[slot])?;
    }
    driver.synchronize()?;
    Ok(window.report(kernels))
}

fn graphs(driver: &Driver, load: &Load) -> Result<LoadReport, DriverError> {
    const KERNELS: u32 = 10;
    let graph = driver.graph(KERNELS, || driver.submit(load.iterations))?;
    in_flight(driver, load, |_| {
        driver.launch_graph(graph).map(|()| f64::from(KERNELS))
    })
}

fn bursts(driver: &Driver, load: &Load) -> Result<LoadReport, DriverError> {
    let window = Window::of(load);
    let mut kernels = 0.0;
    while !window.is_over() {
        for _ in 0..load.depth.max(1) {
            driver.submit(load.iterations)?;
        }
        driver.synchronize()?;
        if window.contains(Instant::now()) {
            kernels += f64::from(load.depth.max(1));
        }
    }
    Ok(window.report(kernels))
}

/// Answers requests one by one, each by a graph.
fn serve(driver: &Driver, load: &Load) -> Result<LoadReport, DriverError> {
    const KERNELS: u32 = 20;
    let graph = driver.graph(KERNELS, || driver.submit(load.iterations))?;
    driver.launch_graph(graph)?;
    driver.synchronize()?;
    let pause = Duration::from_micros(u64::from(load.depth));
    latency(driver, load, pause, || driver.launch_graph(graph))
}

fn latency(
    driver: &Driver,
    load: &Load,
    pause: Duration,
    submit: impl Fn() -> Result<(), DriverError>,
) -> Result<LoadReport, DriverError> {
    let window = Window::of(load);
    let mut samples = Vec::new();
    while !window.is_over() {
        let submitted = Instant::now();
        submit()?;
        driver.synchronize()?;
        if window.contains(submitted) {
            samples.push(submitted.elapsed().as_secs_f64() * 1e6);
        }
        std::thread::sleep(pause);
    }
    samples.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let index = (samples.len() as f64 * part) as usize;
        samples
            .get(index.min(samples.len().saturating_sub(1)))
            .copied()
            .unwrap_or(f64::NAN)
    };
    Ok(LoadReport {
        p50_us: at(0.5),
        p99_us: at(0.99),
        longest_us: at(1.0),
        ..window.report(samples.len() as f64)
    })
}

fn calibrate(driver: &Driver) -> Result<LoadReport, DriverError> {
    let iterations = 20_000;
    for _ in 0..50 {
        driver.submit(iterations)?;
    }
    driver.synchronize()?;
    let start = Instant::now();
    for _ in 0..50 {
        driver.submit(iterations)?;
    }
    driver.synchronize()?;
    let microseconds = start.elapsed().as_secs_f64() * 1e6 / 50.0;
    Ok(LoadReport {
        iterations_per_us: f64::from(iterations) / microseconds,
        ..LoadReport::default()
    })
}
