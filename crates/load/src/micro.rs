//! What calls cost at the caller.
//!
//! Two processes that do the same differ by more than Mica costs. So a load in a virtual GPU also calls the driver
//! behind Mica, in turns with calls through it: one process, one context, one core, and nothing else differs.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::driver::{Driver, DriverError};
use crate::pattern::LoadReport;

/// Costs past Mica, and how much more they are through it: medians of rounds in turns.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct InTurns {
    /// An empty launch past Mica, in nanoseconds.
    pub launch_ns: f64,
    /// What one through it costs more.
    pub launch_more_ns: f64,
    /// Allocation and free of 1 MiB past Mica, in microseconds.
    pub alloc_free_us: f64,
    /// What they cost more through it.
    pub alloc_free_more_us: f64,
}

/// Fewer launches than the queue holds, so that none waits for the GPU.
const LAUNCHES: u32 = 256;

pub(crate) fn run(driver: &Driver) -> Result<LoadReport, DriverError> {
    stay_on_one_core();
    let nothing = || Ok(());
    let in_turns = match driver.behind() {
        Some(behind) => Some(compare(&behind, driver)?),
        None => None,
    };
    Ok(LoadReport {
        launch_sync_us: median_ns(
            2001,
            1,
            || driver.submit(0).and_then(|()| driver.synchronize()),
            nothing,
        )? / 1e3,
        in_turns,
        ..LoadReport::default()
    })
}

fn compare(past: &Driver, through: &Driver) -> Result<InTurns, DriverError> {
    let sides = [past, through];
    let launch = in_turns(sides, 300, LAUNCHES, |driver| driver.submit(0))?;
    let alloc = in_turns(sides, 300, 50, |driver| driver.alloc_and_free(1 << 20))?;
    Ok(InTurns {
        launch_ns: launch[0],
        launch_more_ns: launch[1],
        alloc_free_us: alloc[0] / 1e3,
        alloc_free_more_us: alloc[1] / 1e3,
    })
}

/// Medians of what a call costs on the first side, and of what it costs more on the second, in nanoseconds.
fn in_turns(
    sides: [&Driver; 2],
    rounds: usize,
    count: u32,
    call: impl Fn(&Driver) -> Result<(), DriverError>,
) -> Result<[f64; 2], DriverError> {
    let (mut first, mut more) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut ns = [0.0; 2];
        // Whoever goes first finds the machine as the last round left it.
        for place in 0..2 {
            let which = (round + place) % 2;
            let once = || call(sides[which]);
            ns[which] = median_ns(1, count, once, || sides[which].synchronize())?;
        }
        first.push(ns[0]);
        more.push(ns[1] - ns[0]);
    }
    Ok([median(first), median(more)])
}

pub(crate) fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// The median of `repeats` timings of `count` calls each, in nanoseconds a call.
fn median_ns(
    repeats: usize,
    count: u32,
    mut call: impl FnMut() -> Result<(), DriverError>,
    mut after: impl FnMut() -> Result<(), DriverError>,
) -> Result<f64, DriverError> {
    let mut samples = Vec::with_capacity(repeats);
    for _ in 0..repeats {
        let start = Instant::now();
        for _ in 0..count {
            call()?;
        }
        samples.push(start.elapsed().as_nanos() as f64 / f64::from(count));
        after()?;
    }
    Ok(median(samples))
}

/// Keeps this thread on the third core it may use, or the last: what is compared must not differ by the core it ran on.
fn stay_on_one_core() {
    let bytes = size_of::<libc::cpu_set_t>();
    // SAFETY: a set of processors is plain bits, none of them set.
    let (mut allowed, mut chosen): (libc::cpu_set_t, libc::cpu_set_t) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: the set is live and of that size.
    if unsafe { libc::sched_getaffinity(0, bytes, &mut allowed) } != 0 {
        return;
    }
    let limit = libc::CPU_SETSIZE as usize;
    // SAFETY: the numbers are within the set.
    let Some(core) = (0..limit)
        .filter(|core| unsafe { libc::CPU_ISSET(*core, &allowed) })
        .take(3)
        .last()
    else {
        return;
    };
    // SAFETY: as above.
    unsafe {
        libc::CPU_SET(core, &mut chosen);
        // Refused, the figures are noisier and still true.
        libc::sched_setaffinity(0, bytes, &chosen);
    }
}
