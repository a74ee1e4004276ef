//! `mica bench memory`: memory that leaves the GPU and returns, against bare copies and memory that stays, from one run.
//!
//! `moves` measures the mechanism on a device in this process; `traces` asks a device for what was recorded of PyTorch's allocator; `tenants` measures whole programs under a daemon.

mod device;
mod moves;
mod tenants;
mod traces;

use anyhow::{Result, bail};
use mica_backend_cuda::CudaDriver;

use crate::args::{BenchArgs, BenchGpuArg};
use crate::report::{Line, Numbers, Report};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// How much is moved, and what is promised.
#[derive(Clone, Copy, Debug)]
struct Scale {
    gpu: BenchGpuArg,
    /// Memory of a tenant, which moves as a whole.
    data_bytes: u64,
    /// Memory that kernels are timed on.
    kernel_bytes: u64,
    /// What else of the GPU a tenant needs: context, code.
    overhead_bytes: u64,
    /// Seconds of two tenants in turns.
    seconds: f64,
    /// Repetitions of each move.
    rounds: usize,
}

impl Scale {
    fn of(gpu: BenchGpuArg, seconds: Option<f64>) -> Self {
        match gpu {
            BenchGpuArg::Nvidia => Self {
                gpu,
                data_bytes: 8 * GIB,
                kernel_bytes: GIB,
                overhead_bytes: 1536 * MIB,
                seconds: seconds.unwrap_or(60.0),
                rounds: 5,
            },
            BenchGpuArg::Software => Self {
                gpu,
                data_bytes: 256 * MIB,
                kernel_bytes: 64 * MIB,
                overhead_bytes: 16 * MIB,
                seconds: seconds.unwrap_or(30.0),
                rounds: 5,
            },
        }
    }

    /// Most that is promised on a card; nothing is promised for a software GPU.
    fn most(&self, most: f64) -> Option<f64> {
        (self.gpu == BenchGpuArg::Nvidia).then_some(most)
    }

    fn size(&self) -> String {
        mica_command::size::show_bytes(self.data_bytes)
    }
}

/// A measurement in one unit, with and without Mica.
struct Measured {
    what: String,
    unit: &'static str,
    native: f64,
    native_words: &'static str,
    mica: f64,
    /// Most that is promised.
    most: Option<f64>,
}

impl Measured {
    fn add_to(self, report: &mut Report) {
        let Self {
            unit, native, mica, ..
        } = self;
        let ratio = mica / native;
        let line = Line {
            what: self.what,
            native: format!("{native:.2} {unit} {}", self.native_words),
            mica: format!("{mica:.2} {unit} (×{ratio:.3})"),
            goal: self
                .most
                .map_or("-".into(), |most| format!("≤ {most} {unit}")),
            reached: self.most.map(|most| mica <= most),
        };
        let numbers = Numbers {
            unit,
            native: Some(native),
            isolated: mica,
            direct: None,
            ratio: Some(ratio),
        };
        report.add_with(line, numbers);
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    let gpu = match args.gpu {
        Some(BenchGpuArg::Nvidia) if !has_card() => {
            bail!("no NVIDIA GPU can be used here: use --gpu software")
        }
        Some(gpu) => gpu,
        None if has_card() => BenchGpuArg::Nvidia,
        None => BenchGpuArg::Software,
    };
    let scale = Scale::of(gpu, args.seconds);
    let mut report = Report::new(args.json);
    let only = args.only.clone().unwrap_or_default();
    let wanted = |name: &str| name.contains(&only);
    for (name, part) in moves::PARTS {
        if wanted(name) {
            part(&scale, &mut report)?;
        }
    }
    if wanted("traces") {
        traces::traces(&scale, &mut report)?;
    }
    if wanted("tenants") {
        tenants::run(&scale, &mut report)?;
    }
    report.finish()
}

fn has_card() -> bool {
    CudaDriver::load().is_ok_and(|driver| driver.device_count() > 0)
}
