//! `mica bench check`: what looking for mistakes and recording coverage cost, against the same kernels without.
//!
//! Each round runs every kernel once on every device, so that whatever else the machine does hits all of them; medians are
//! compared. The kernels are those of `mica bench software`, with less data: a check takes up to a hundred times as long.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use mica_backend_software::{Config, OutputKind, SoftwareGpu};
use mica_check::{CheckSettings, Record, Severity, Tools};
use mica_coverage::CoverageLog;
use mica_gpu::{
    ContextId, Copy3d, DevicePtr, Gpu, HostSpan, Launch, ModuleId, ModuleOptions, Place, StreamId,
};
use mica_ptx_jit::bounds_cost::KERNELS;

use crate::args::BenchArgs;
use crate::report::{Line, Report};
use crate::software::{median, milliseconds};

/// Rounds of every kernel, after one that warms up.
const ROUNDS: usize = 5;

const N: u32 = 1 << 20;
const BODIES: u32 = 2048;
const ORDER: u32 = 256;
const SIDE: u32 = 1024;
const IMAGE: u32 = 256;
const LIMIT: u32 = 500;
const SOFTENING: f32 = 0.01;

/// A kernel and how it is launched; its parameters are some of the buffers, then words.
struct Work {
    name: &'static str,
    what: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    buffers: &'static [usize],
    words: &'static [u32],
}

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const BYTES: usize = 3;

const WORK: [Work; 7] = [
    Work {
        name: "vadd",
        what: "1 Mi floats",
        grid: [N / 256, 1, 1],
        block: [256, 1, 1],
        buffers: &[A, B, C],
        words: &[N],
    },
    Work {
        name: "nbody",
        what: "2,048 bodies",
        grid: [BODIES / 256, 1, 1],
        block: [256, 1, 1],
        buffers: &[A, C],
        words: &[BODIES, SOFTENING.to_bits()],
    },
    Work {
        name: "matmul",
        what: "256², 32² tiles",
        grid: [ORDER / 32, ORDER / 32, 1],
        block: [32, 32, 1],
        buffers: &[A, B, C],
        words: &[ORDER],
    },
    Work {
        name: "mandelbrot",
        what: "256², 500 steps",
        grid: [IMAGE / 32, IMAGE / 8, 1],
        block: [32, 8, 1],
        buffers: &[C],
        words: &[IMAGE, IMAGE, LIMIT],
    },
    Work {
        name: "reduction",
        what: "1 Mi floats",
        grid: [64, 1, 1],
        block: [256, 1, 1],
        buffers: &[A, C],
        words: &[N],
    },
    Work {
        name: "histogram",
        what: "1 Mi bytes",
        grid: [64, 1, 1],
        block: [256, 1, 1],
        buffers: &[BYTES, C],
        words: &[N],
    },
    Work {
        name: "stencil",
        what: "1024², five points",
        grid: [SIDE / 32, SIDE / 8, 1],
        block: [32, 8, 1],
        buffers: &[A, C],
        words: &[SIDE],
    },
];

/// A device with the data on it.
struct Side {
    gpu: SoftwareGpu,
    context: ContextId,
    stream: StreamId,
    module: ModuleId,
    buffers: [DevicePtr; 4],
    coverage: Option<Arc<CoverageLog>>,
    /// What a check has told.
    findings: Arc<AtomicU64>,
    first: Arc<Mutex<String>>,
}

impl Side {
    fn new(tools: Option<&str>, covered: bool) -> Result<Self> {
        let findings = Arc::new(AtomicU64::new(0));
        let first = Arc::new(Mutex::new(String::new()));
        let (count, kept) = (Arc::clone(&findings), Arc::clone(&first));
        let sink = move |kind: OutputKind, text: &[u8]| {
            let found = match serde_json::from_slice(text) {
                Ok(Record::Finding(finding)) => Some(finding),
                _ => None,
            };
            if kind == OutputKind::Check
                && let Some(finding) = found
                && (finding.severity != Severity::Note || finding.kind == "interpreted")
                && count.fetch_add(1, Ordering::Relaxed) == 0
                && let Ok(mut kept) = kept.lock()
            {
                *kept = format!("{}: {}", finding.kernel, finding.message);
            }
        };
        let check = tools.map(str::parse::<Tools>).transpose()?;
        let coverage = covered.then(Arc::<CoverageLog>::default);
        let gpu = SoftwareGpu::new(Config {
            memory_bytes: Some(256 << 20),
            output: Some(Arc::new(sink)),
            check: check.map(|tools| CheckSettings {
                tools,
                schedule: None,
            }),
            coverage: coverage.clone(),
            ..Config::default()
        })?;
        let context = gpu.context_create()?;
        let stream = gpu.default_stream(context)?;
        let module = gpu.module_load(context, KERNELS.as_bytes(), &ModuleOptions::default())?;
        let value = |i: u32, factor: u32, modulus: u32| (i * factor % modulus) as f32 / 50.0;
        let a: Vec<u32> = (0..N).map(|i| value(i, 7, 101).to_bits()).collect();
        let b: Vec<u32> = (0..N)
            .map(|i| (value(i, 13, 103) - 1.0).to_bits())
            .collect();
        let bytes: Vec<u32> = (0..N).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let c = vec![0; N as usize];
        let mut side = Self {
            gpu,
            context,
            stream,
            module,
            buffers: [DevicePtr(0); 4],
            coverage,
            findings,
            first,
        };
        for (at, words) in [a, b, c, bytes].into_iter().enumerate() {
            side.buffers[at] = side.upload(words)?;
        }
        Ok(side)
    }

    fn upload(&self, mut words: Vec<u32>) -> Result<DevicePtr> {
        let bytes = 4 * words.len() as u64;
        let at = self.gpu.memory_alloc(self.context, bytes)?;
        // SAFETY: the words outlive the synchronization below.
        let host = Place::Host(unsafe { HostSpan::new(words.as_mut_ptr().cast(), bytes) });
        let copy = Copy3d::linear(Place::Device(at), host, bytes);
        self.gpu.copy(self.stream, &copy)?;
        self.gpu.stream_synchronize(self.stream)?;
        Ok(at)
    }

    /// Nanoseconds from the launch to the end of the wait for it.
    fn run(&self, work: &Work) -> Result<f64> {
        let mut params = Vec::new();
        for buffer in work.buffers {
            params.extend(self.buffers[*buffer].0.to_le_bytes());
        }
        for word in work.words {
            params.extend(word.to_le_bytes());
        }
        let info = self.gpu.module_info(self.module)?;
        let kernel = info.kernels.iter().position(|k| k.name == work.name);
        let launch = Launch {
            module: self.module,
            kernel: kernel.context("the kernel is missing")? as u32,
            grid: work.grid,
            block: work.block,
            dynamic_shared: 0,
            cooperative: false,
            params: &params,
        };
        let began = Instant::now();
        self.gpu.launch(self.stream, &launch)?;
        self.gpu.stream_synchronize(self.stream)?;
        if let Some(log) = &self.coverage {
            log.take(1 << 20);
        }
        Ok(began.elapsed().as_nanos() as f64)
    }

    /// The kernels are right: what is found in them would be a mistake of the check.
    fn ensure_clean(&self) -> Result<()> {
        let found = self.findings.load(Ordering::Relaxed);
        let first = self.first.lock().map(|text| text.clone());
        ensure!(
            found == 0,
            "the check reports {found} mistakes in kernels that are right, first: {}",
            first.unwrap_or_default()
        );
        Ok(())
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<bool> {
    let only = args.only.clone().unwrap_or_default();
    let mut report = Report::new(args.json);
    let usual = Side::new(None, false)?;
    let sides = [
        ("memcheck", Side::new(Some("memcheck"), false)?, Some(3.0)),
        (
            "racecheck",
            Side::new(Some("racecheck"), false)?,
            Some(20.0),
        ),
        ("cov", Side::new(None, true)?, None),
    ];
    for work in WORK.iter().filter(|work| work.name.contains(&only)) {
        let mut own = Vec::new();
        let mut times: [Vec<f64>; 3] = Default::default();
        for round in 0..=ROUNDS {
            let plain = usual.run(work)?;
            if round > 0 {
                own.push(plain);
            }
            for ((_, side, _), times) in sides.iter().zip(&mut times) {
                let took = side.run(work)?;
                if round > 0 {
                    times.push(took);
                }
            }
        }
        let plain = median(own);
        for ((tool, side, most), times) in sides.iter().zip(times) {
            side.ensure_clean()?;
            let took = median(times);
            let ratio = took / plain;
            report.add(Line {
                what: format!("{tool}, {} ({})", work.name, work.what),
                native: milliseconds(plain),
                mica: format!("{} (×{ratio:.1})", milliseconds(took)),
                goal: most.map_or_else(|| "-".into(), |most| format!("≤ ×{most}")),
                reached: most.map(|most| ratio <= most),
            });
        }
    }
    report.finish()
}
