//! How long an urgent tenant's short kernels take beside one that wants the whole GPU.
//!
//! Alone and beside by turns, a few kernels each, so that whatever else the machine does meets both.

use std::time::{Duration, Instant};

use anyhow::Result;
use mica::{DeviceBuffer, Grid, Kernel, Stream, Vgpu};
use mica_control::api::{Mode, Priority, VgpuSpec};
use mica_ptx_jit::bounds_cost::KERNELS;

use super::report::Line;
use crate::demo::private_daemon::{PrivateDaemon, TenantProcess};
use crate::demo::tenant::Ask;
use mica_command::refusal::explain;

const KERNEL_NS: f64 = 1e6;
const THREADS: u32 = 64;
const MOST_BODIES: usize = 1 << 14;
/// Turns, and kernels on each side of a turn.
const TURNS: usize = 30;
const KERNELS_A_TURN: usize = 30;
/// Between two kernels: an urgent tenant that never pauses is held to its share.
const PAUSE: Duration = Duration::from_millis(3);
/// Until the other runs, or holds still.
const SETTLE: Duration = Duration::from_millis(60);

/// Measures it on a software GPU of its own.
pub(crate) fn run() -> Result<Line> {
    let daemon = PrivateDaemon::set_up(1 << 30)?;
    let times = measure(&daemon)?;
    let [alone, beside] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        [0.5, 0.99].map(|rank| times[(times.len() as f64 * rank) as usize] / 1e6)
    });
    let ratio = beside[1] / alone[1];
    Ok(Line {
        what: "1 ms kernel at high priority beside a hog, p99".into(),
        native: format!("{:.2} ms alone (median {:.2})", alone[1], alone[0]),
        mica: format!(
            "{:.2} ms, ×{ratio:.2} (median {:.2}, ×{:.2})",
            beside[1],
            beside[0],
            beside[0] / alone[0]
        ),
        goal: "≤ ×1.3".into(),
        reached: Some(ratio <= 1.3),
    })
}

/// Nanoseconds of the urgent tenant's kernels, alone and beside the other.
fn measure(daemon: &PrivateDaemon) -> Result<[Vec<f64>; 2]> {
    let hog = daemon.vgpu("hog", 256 << 20, 50)?;
    let spec = VgpuSpec {
        name: Some("urgent".into()),
        memory_limit_bytes: Some(256 << 20),
        share_percent: Some(50.into()),
        priority: Priority::High,
        gpu: Some(daemon.gpu.index),
        mode: Some(Mode::Isolated),
        ..VgpuSpec::default()
    };
    let created = daemon.client.create(&spec).map_err(explain)?;
    let mut urgent = TenantProcess::start(&created)?;
    let mut times = || -> Result<Vec<f64>> {
        urgent.ask(Ask::Time)?;
        Ok(urgent.answer()?.times_ns)
    };
    // Before there is a hog: how many bodies take a millisecond is found out first.
    times()?;
    let mut process = TenantProcess::start(&hog)?;
    process.ask(Ask::Work { data_bytes: 4096 })?;
    process.answer()?;
    let [mut alone, mut beside] = [const { Vec::new() }; 2];
    for turn in 0..=TURNS {
        daemon.client.suspend("hog").map_err(explain)?;
        std::thread::sleep(SETTLE);
        let first = times()?;
        daemon.client.resume("hog").map_err(explain)?;
        std::thread::sleep(SETTLE);
        let second = times()?;
        if turn > 0 {
            alone.extend(first);
            beside.extend(second);
        }
    }
    Ok([alone, beside])
}

/// The urgent tenant's kernels, in its process.
pub(crate) struct Urgent {
    stream: Stream,
    kernel: Kernel,
    bodies: DeviceBuffer<[f32; 4]>,
    out: DeviceBuffer<[f32; 4]>,
    count: usize,
}

impl Urgent {
    pub(crate) fn new(vgpu: &Vgpu) -> Result<Self> {
        let mut urgent = Self {
            stream: vgpu.independent_stream(0)?,
            kernel: vgpu.load_ptx(KERNELS)?.kernel("nbody")?,
            bodies: vgpu.alloc(MOST_BODIES)?,
            out: vgpu.alloc(MOST_BODIES)?,
            count: 1024,
        };
        vgpu.default_stream().synchronize()?;
        // As many bodies as take a millisecond: time grows with their square.
        for _ in 0..4 {
            let mut times = urgent.times()?;
            times.sort_by(f64::total_cmp);
            let count = urgent.count as f64 * (KERNEL_NS / times[times.len() / 2]).sqrt();
            urgent.count = (count as usize).clamp(THREADS as usize, MOST_BODIES);
        }
        Ok(urgent)
    }

    /// Nanoseconds of a few kernels, each launched and waited for.
    pub(crate) fn times(&mut self) -> Result<Vec<f64>> {
        let grid = Grid::covering(self.count, THREADS);
        (0..KERNELS_A_TURN)
            .map(|_| {
                std::thread::sleep(PAUSE);
                let began = Instant::now();
                let params = (&self.bodies, &mut self.out, self.count as u32, 0.01_f32);
                self.stream.launch(&self.kernel, grid, params)?;
                self.stream.synchronize()?;
                Ok(began.elapsed().as_nanos() as f64)
            })
            .collect()
    }
}
