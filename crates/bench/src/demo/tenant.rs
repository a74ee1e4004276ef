//! One tenant of the demo: a process of its own in its virtual GPU.
//!
//! It computes gravity among a few thousand bodies, again and again, and does what the demo asks for,
//! a line of JSON each way. It knows nothing of the other tenants.

use std::io::{BufRead, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use mica::{DeviceBuffer, Event, Grid, Kernel, Stream, Vgpu};
use mica_ptx_jit::bounds_cost::KERNELS;
use serde::{Deserialize, Serialize};

use super::holdings::{self, Holdings};
use crate::priority::Urgent;

/// A kernel that writes where nothing is.
const MISTAKE: &str = include_str!("../../kernels/demo.ptx");
const BODIES: usize = 2048;
const THREADS: u32 = 256;
const SOFTENING: f32 = 0.01;
/// Steps in the queue: the device never waits for the next one.
const DEPTH: usize = 4;
/// Memory of the software GPU comes in pages of this size.
const PAGE_BYTES: u64 = 4096;
/// Nothing is there, whatever the device.
const NOWHERE: u64 = 0xdead_beef_0000;

/// What a tenant can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    /// How far it is.
    Sample,
    /// Work without end, after so many bytes have been filled with data.
    Work {
        /// Bytes of data.
        data_bytes: u64,
    },
    /// Take all memory that is left, then one byte more.
    Fill,
    /// Allocate so many bytes and free them.
    Allocate {
        /// How many.
        bytes: u64,
    },
    /// Write through a wild pointer.
    Wild,
    /// Begin anew after a fault.
    Recover {
        /// Bytes of data.
        data_bytes: u64,
    },
    /// Compare what the device computes with what this processor computes.
    Check,
    /// Launch a few short kernels and say how long each took.
    Time,
    /// Take so much memory, and know every word of it.
    Hold {
        /// Bytes.
        bytes: u64,
    },
    /// Work on that memory, at least one round, and say how long each round took.
    Rounds {
        /// For so long.
        seconds: f64,
    },
    /// Compare every word of that memory.
    Compare,
    /// Allocate and free, again and again, and say how long a pair took.
    AllocateOften {
        /// Bytes each time.
        bytes: u64,
        /// How often.
        pairs: u32,
    },
}

/// What a tenant answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    /// What went wrong, if the question could not be answered at all.
    pub(crate) failed: Option<String>,
    /// Name of the device.
    pub(crate) device: String,
    /// Steps finished.
    pub(crate) steps: u64,
    /// GPU time of its virtual GPU.
    pub(crate) gpu_time_ns: u64,
    /// Memory in use.
    pub(crate) used_bytes: u64,
    /// Memory limit.
    pub(crate) limit_bytes: u64,
    /// Bytes that an allocation got.
    pub(crate) granted_bytes: u64,
    /// CUDA code of what was refused or broke; 0 for nothing.
    pub(crate) code: u32,
    /// The refusal in words.
    pub(crate) refusal: String,
    /// Largest relative difference from this processor's results.
    pub(crate) difference: f64,
    /// How long kernels, rounds or allocations took.
    pub(crate) times_ns: Vec<f64>,
    /// Words that are not what they should be.
    pub(crate) wrong_words: u64,
}

/// `mica demo-tenant`: answers questions until nobody asks any more.
pub(crate) fn serve() -> Result<()> {
    let vgpu = Vgpu::connect()?;
    let mut tenant = Tenant {
        vgpu,
        steps: Arc::default(),
        work: None,
        urgent: None,
        holdings: None,
    };
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let ask = serde_json::from_str(&line?).context("a question cannot be understood")?;
        let mut answer = tenant.answer(ask).unwrap_or_else(|error| Answer {
            failed: Some(format!("{error:#}")),
            ..Answer::default()
        });
        tenant.sample(&mut answer);
        serde_json::to_writer(&mut out, &answer)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

struct Tenant {
    vgpu: Vgpu,
    steps: Arc<AtomicU64>,
    work: Option<Work>,
    urgent: Option<Urgent>,
    holdings: Option<Holdings>,
}

/// The thread that keeps the device busy, and the data that fills the memory.
struct Work {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    _data: DeviceBuffer<u8>,
    fault: Arc<Mutex<Option<mica::Error>>>,
}

impl Tenant {
    fn sample(&self, answer: &mut Answer) {
        answer.steps = self.steps.load(Relaxed);
        if let Ok(statistics) = self.vgpu.statistics() {
            answer.gpu_time_ns = statistics.gpu_time_ns;
        }
        if let Ok(memory) = self.vgpu.memory() {
            answer.used_bytes = memory.used_bytes;
            answer.limit_bytes = memory.limit_bytes;
        }
    }

    fn answer(&mut self, ask: Ask) -> Result<Answer> {
        let mut answer = Answer::default();
        match ask {
            Ask::Sample => {
                if let Some(error) = self.work.as_ref().and_then(Work::broken) {
                    bail!("its work broke: {error}");
                }
            }
            Ask::Work { data_bytes } => {
                answer.difference = Gravity::new(&self.vgpu)?.check()?;
                answer.device = self.vgpu.info().name;
                self.start(data_bytes)?;
            }
            Ask::Check => answer.difference = Gravity::new(&self.vgpu)?.check()?,
            Ask::Time => {
                let urgent = match self.urgent.take() {
                    Some(urgent) => urgent,
                    None => Urgent::new(&self.vgpu)?,
                };
                answer.times_ns = self.urgent.insert(urgent).times()?;
            }
            Ask::Hold { bytes } => self.holdings = Some(Holdings::new(&self.vgpu, bytes)?),
            Ask::Rounds { seconds } => {
                answer.times_ns = self.held()?.work(Duration::from_secs_f64(seconds))?;
            }
            Ask::Compare => answer.wrong_words = self.held()?.wrong_words()?,
            Ask::AllocateOften { bytes, pairs } => {
                answer.times_ns = holdings::time_allocations(&self.vgpu, bytes, pairs)?;
            }
            Ask::Fill => self.fill(&mut answer)?,
            Ask::Allocate { bytes } => match self.vgpu.alloc::<u8>(bytes as usize) {
                Ok(_) => answer.granted_bytes = bytes,
                Err(error) => refused(&mut answer, &error)?,
            },
            Ask::Wild => self.wild(&mut answer)?,
            Ask::Recover { data_bytes } => {
                // What lived in the broken context goes first: afterwards its addresses may be others'.
                self.stop();
                self.vgpu.reset()?;
                answer.difference = Gravity::new(&self.vgpu)?.check()?;
                self.start(data_bytes)?;
            }
        }
        Ok(answer)
    }

    fn held(&mut self) -> Result<&mut Holdings> {
        self.holdings.as_mut().context("it holds no memory")
    }

    fn start(&mut self, data_bytes: u64) -> Result<()> {
        let data = self.vgpu.alloc::<u8>(data_bytes as usize)?;
        let mut gravity = Gravity::new(&self.vgpu)?;
        let stop = Arc::new(AtomicBool::new(false));
        let fault: Arc<Mutex<Option<mica::Error>>> = Arc::default();
        let (steps, ended, broken) = (
            Arc::clone(&self.steps),
            Arc::clone(&stop),
            Arc::clone(&fault),
        );
        let run = move || {
            if let Err(error) = gravity.run(&steps, &ended) {
                broken
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(error);
            }
        };
        let thread = std::thread::Builder::new()
            .name("gravity".into())
            .spawn(run)?;
        self.work = Some(Work {
            stop,
            thread,
            _data: data,
            fault,
        });
        Ok(())
    }

    fn stop(&mut self) {
        if let Some(work) = self.work.take() {
            work.stop.store(true, Relaxed);
            let _ = work.thread.join();
        }
    }

    fn fill(&self, answer: &mut Answer) -> Result<()> {
        let memory = self.vgpu.memory()?;
        // Memory is given, and counted, in whole pages.
        let rest = (memory.limit_bytes - memory.used_bytes) / PAGE_BYTES * PAGE_BYTES;
        let _all = self
            .vgpu
            .alloc::<u8>(rest as usize)
            .with_context(|| format!("{rest} bytes are left and were refused"))?;
        answer.granted_bytes = rest;
        match self.vgpu.alloc::<u8>(1) {
            Ok(_) => Ok(()),
            Err(error) => refused(answer, &error),
        }
    }

    fn wild(&self, answer: &mut Answer) -> Result<()> {
        let kernel = self.vgpu.load_ptx(MISTAKE)?.kernel("wild")?;
        let stream = self.vgpu.default_stream();
        stream.launch(&kernel, Grid::new(1, 32), (NOWHERE,))?;
        match stream.synchronize() {
            Ok(()) => bail!("a write to {NOWHERE:#x} was not noticed"),
            Err(error) => refused(answer, &error)?,
        }
        // The context stays broken, as on any GPU.
        ensure!(
            self.vgpu.alloc::<u8>(1).is_err(),
            "the broken context still serves"
        );
        Ok(())
    }
}

impl Work {
    fn broken(&self) -> Option<String> {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.as_ref().map(ToString::to_string)
    }
}

/// Notes a refusal by its CUDA code; what has none is no refusal.
fn refused(answer: &mut Answer, error: &mica::Error) -> Result<()> {
    let Some(code) = error.code() else {
        bail!("{error}");
    };
    answer.code = code as u32;
    answer.refusal = error.to_string();
    Ok(())
}

/// Bodies on the device and the kernel that moves them.
struct Gravity {
    vgpu: Vgpu,
    stream: Stream,
    kernel: Kernel,
    bodies: Vec<[f32; 4]>,
    on_device: DeviceBuffer<[f32; 4]>,
    acceleration: DeviceBuffer<[f32; 4]>,
}

impl Gravity {
    fn new(vgpu: &Vgpu) -> Result<Self> {
        let bodies: Vec<[f32; 4]> = (0..BODIES as u32).map(body).collect();
        let gravity = Self {
            // Of its own order: allocations are cleared on the default stream and need not wait.
            stream: vgpu.independent_stream(0)?,
            kernel: vgpu.load_ptx(KERNELS)?.kernel("nbody")?,
            on_device: vgpu.upload(&bodies)?,
            acceleration: vgpu.alloc(BODIES)?,
            vgpu: vgpu.clone(),
            bodies,
        };
        vgpu.default_stream().synchronize()?;
        Ok(gravity)
    }

    fn step(&mut self) -> Result<(), mica::Error> {
        let grid = Grid::covering(BODIES, THREADS);
        let params = (
            &self.on_device,
            &mut self.acceleration,
            BODIES as u32,
            SOFTENING,
        );
        self.stream.launch(&self.kernel, grid, params)
    }

    /// Largest relative difference between the device's accelerations and this processor's.
    fn check(&mut self) -> Result<f64> {
        self.stream.synchronize()?;
        self.step()?;
        let values = self.acceleration.download(&self.stream)?.wait()?;
        let mut worst = 0.0_f64;
        for index in (0..BODIES).step_by(BODIES / 16) {
            let expected = pull_on(&self.bodies, index);
            let length = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
            for (got, want) in values[index].iter().zip(expected) {
                worst = worst.max((f64::from(*got) - want).abs() / length);
            }
        }
        ensure!(
            worst < 1e-3,
            "results differ from this processor's by {worst:e}"
        );
        Ok(worst)
    }

    fn run(&mut self, steps: &AtomicU64, stop: &AtomicBool) -> Result<(), mica::Error> {
        let events: Vec<Event> = (0..DEPTH)
            .map(|_| self.vgpu.event())
            .collect::<Result<_, _>>()?;
        let mut launched = 0;
        while !stop.load(Relaxed) {
            if launched >= DEPTH {
                events[launched % DEPTH].synchronize()?;
                steps.fetch_add(1, Relaxed);
            }
            self.step()?;
            events[launched % DEPTH].record(&self.stream)?;
            launched += 1;
        }
        self.stream.synchronize()
    }
}

/// A body somewhere in a cube, with some mass; the same every time.
fn body(number: u32) -> [f32; 4] {
    let part = |salt: u32| {
        let mixed = (number ^ salt)
            .wrapping_mul(0x9e37_79b1)
            .rotate_left(13)
            .wrapping_mul(0x85eb_ca6b);
        (mixed >> 8) as f32 / (1 << 24) as f32
    };
    [part(1) - 0.5, part(77) - 0.5, part(1234) - 0.5, part(999)]
}

fn pull_on(bodies: &[[f32; 4]], index: usize) -> [f64; 3] {
    let me = bodies[index].map(f64::from);
    let mut sum = [0.0; 3];
    for other in bodies {
        let other = other.map(f64::from);
        let d = [other[0] - me[0], other[1] - me[1], other[2] - me[2]];
        let r2 = d.iter().map(|x| x * x).sum::<f64>() + f64::from(SOFTENING);
        let pull = other[3] / (r2 * r2.sqrt());
        for (sum, d) in sum.iter_mut().zip(d) {
            *sum += d * pull;
        }
    }
    sum
}
